//! What a workload asks of a filesystem, and our volume as one.

use crate::Nanos;
use crate::experiment::disk::Shared;
use crate::experiment::error::Result;
use crate::experiment::error::failed;
use std::sync::Arc;
use tuff_iplfs::{BLOCK_SIZE, Caller, FormatOptions, Geometry, MountOptions, Nid, Volume, mode};

/// A file, by the order in which files were made.
pub type FileId = u32;

/// A filesystem in virtual time. Offsets and lengths are blocks of 4 KiB.
pub trait Fs {
    /// Makes an empty file.
    fn create(&mut self) -> Result<FileId>;
    /// Writes blocks, into memory first.
    fn write(&mut self, file: FileId, index: u64, count: u64) -> Result<()>;
    /// Reads blocks.
    fn read(&mut self, file: FileId, index: u64, count: u64) -> Result<()>;
    /// Makes a file durable.
    fn fsync(&mut self, file: FileId) -> Result<()>;
    /// Deletes a file.
    fn delete(&mut self, file: FileId) -> Result<()>;
    /// Makes everything durable.
    fn sync(&mut self) -> Result<()>;
    /// Does what is due at this time, such as the regular checkpoint.
    fn tick(&mut self) -> Result<()>;
    /// Blocks that files can take together.
    fn capacity(&self) -> u64;
    /// Blocks that the filesystem itself moved to make room, and rounds of doing so.
    fn cleaned(&self) -> Cleaned;
    /// The disk under it.
    fn disk(&self) -> &Shared;
}

/// What a filesystem did to make room.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Cleaned {
    /// Blocks read to be moved.
    pub read_blocks: u64,
    /// Blocks written again.
    pub moved_blocks: u64,
    /// Rounds.
    pub rounds: u64,
    /// Blocks that had been written to the logs when the first round began.
    pub onset_blocks: Option<u64>,
}

/// Sizes and intervals that every filesystem in a comparison shares.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Blocks of the partition.
    pub partition_blocks: u64,
    /// Blocks written in memory that start write-back.
    pub dirty_max: u64,
    /// Time between regular checkpoints.
    pub checkpoint_every: Nanos,
}

/// Bits of the offset in an area.
pub const AREA_BITS: u32 = 48;

/// A volume of `crates/iplfs`.
pub struct Iplfs {
    volume: Volume,
    disk: Shared,
    shape: Shape,
    files: Vec<Nid>,
    next_checkpoint: Nanos,
    buffer: Vec<u8>,
    word: u64,
}

impl Iplfs {
    /// An empty volume on a disk.
    pub fn new(disk: Shared, shape: Shape) -> Result<Self> {
        let device = Arc::new(disk.clone());
        let format = FormatOptions {
            geometry: Geometry {
                area_bits: AREA_BITS as u8,
                section_bits: 18,
                zone_bits: 18,
                pack_blocks: 256,
            },
            reserve_blocks: shape.partition_blocks / 200,
            ..FormatOptions::new([1; 16], [2; 16], shape.partition_blocks)
        };
        Volume::format(device.clone(), &format).map_err(|e| failed("format", &e))?;
        let options = MountOptions {
            dirty_pages_max: shape.dirty_max,
            // All nodes fit the memory of a host that has a fraction of the volume; F2FS keeps them likewise.
            node_cache_max: 1 << 20,
            ..MountOptions::default()
        };
        let volume = Volume::mount(device, options).map_err(|e| failed("mount", &e))?;
        Ok(Self {
            volume,
            disk,
            shape,
            files: Vec::new(),
            next_checkpoint: shape.checkpoint_every,
            buffer: Vec::new(),
            word: 0,
        })
    }

    /// The volume.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// The volume, to change it.
    pub fn volume_mut(&mut self) -> &mut Volume {
        &mut self.volume
    }
}

fn name(file: FileId) -> Vec<u8> {
    format!("f{file}").into_bytes()
}

impl Fs for Iplfs {
    fn create(&mut self) -> Result<FileId> {
        let id = self.files.len() as FileId;
        let made = self
            .volume
            .create(
                Nid::ROOT,
                &name(id),
                mode::FILE | 0o644,
                0,
                &Caller::default(),
            )
            .map_err(|e| failed("create", &e))?;
        self.files.push(made.ino);
        Ok(id)
    }

    fn write(&mut self, file: FileId, index: u64, count: u64) -> Result<()> {
        self.buffer.clear();
        for _ in 0..count {
            self.word += 1;
            for _ in 0..BLOCK_SIZE / 8 {
                self.buffer.extend_from_slice(&self.word.to_le_bytes());
            }
        }
        let (ino, len) = (self.files[file as usize], self.buffer.len());
        let wrote = self
            .volume
            .write(
                ino,
                index * BLOCK_SIZE as u64,
                &self.buffer,
                Caller::default().now,
            )
            .map_err(|e| failed("write", &e))?;
        if wrote < len {
            return Err(failed("write", &"short"));
        }
        Ok(())
    }

    fn read(&mut self, file: FileId, index: u64, count: u64) -> Result<()> {
        let ino = self.files[file as usize];
        let len = count as usize * BLOCK_SIZE;
        self.volume
            .read(ino, index * BLOCK_SIZE as u64, len)
            .map(drop)
            .map_err(|e| failed("read", &e))
    }

    fn fsync(&mut self, file: FileId) -> Result<()> {
        let ino = self.files[file as usize];
        self.volume.fsync(ino).map_err(|e| failed("fsync", &e))
    }

    fn delete(&mut self, file: FileId) -> Result<()> {
        self.volume
            .unlink(Nid::ROOT, &name(file), &Caller::default())
            .map_err(|e| failed("unlink", &e))
    }

    fn sync(&mut self) -> Result<()> {
        self.volume.sync().map_err(|e| failed("sync", &e))
    }

    fn tick(&mut self) -> Result<()> {
        let now = self.disk.lock().now();
        if now >= self.next_checkpoint {
            self.sync()?;
            self.next_checkpoint = self.disk.lock().now() + self.shape.checkpoint_every;
        }
        Ok(())
    }

    fn capacity(&self) -> u64 {
        self.shape.partition_blocks - self.shape.partition_blocks / 200
    }

    fn cleaned(&self) -> Cleaned {
        Cleaned::default()
    }

    fn disk(&self) -> &Shared {
        &self.disk
    }
}
