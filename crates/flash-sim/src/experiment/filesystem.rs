//! Filesystem interface of the workloads, and its implementation by an IPLFS volume.

use crate::Nanos;
use crate::experiment::disk::Shared;
use crate::experiment::error::Result;
use crate::experiment::error::failed;
use std::sync::Arc;
use tuff_iplfs::{BLOCK_SIZE, Caller, FormatOptions, Geometry, MountOptions, Nid, Volume, mode};

/// Number of a file, in the order of creation.
pub type FileId = u32;

/// A filesystem in virtual time. Offsets and lengths are blocks of 4 KiB.
pub trait Fs {
    /// Creates an empty file.
    fn create(&mut self) -> Result<FileId>;
    /// Writes blocks to the page cache, which may start write-back.
    fn write(&mut self, file: FileId, index: u64, count: u64) -> Result<()>;
    /// Reads blocks from the page cache or the device.
    fn read(&mut self, file: FileId, index: u64, count: u64) -> Result<()>;
    /// Makes the data and metadata of a file durable.
    fn fsync(&mut self, file: FileId) -> Result<()>;
    /// Deletes a file and frees its blocks.
    fn delete(&mut self, file: FileId) -> Result<()>;
    /// Makes all files and metadata durable.
    fn sync(&mut self) -> Result<()>;
    /// Performs periodic work that is due, such as the regular checkpoint.
    fn tick(&mut self) -> Result<()>;
    /// Number of blocks available for files.
    fn capacity(&self) -> u64;
    /// Counters of the filesystem's own cleaning.
    fn cleaned(&self) -> Cleaned;
    /// The disk that stores the filesystem.
    fn disk(&self) -> &Shared;
}

/// Counters of filesystem cleaning.
#[derive(Clone, Copy, Default, PartialEq, Eq, Debug)]
pub struct Cleaned {
    /// Blocks read from victim sections.
    pub read_blocks: u64,
    /// Valid blocks rewritten to other sections.
    pub moved_blocks: u64,
    /// Number of cleaning rounds.
    pub rounds: u64,
    /// Blocks appended to the logs before the first round. `None` if cleaning never ran.
    pub onset_blocks: Option<u64>,
}

/// Sizes and intervals common to all filesystems of a comparison.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Shape {
    /// Blocks of the partition.
    pub partition_blocks: u64,
    /// Number of dirty blocks in memory that starts write-back.
    pub dirty_max: u64,
    /// Time between regular checkpoints.
    pub checkpoint_every: Nanos,
}

/// Number of address bits below the area number.
pub const AREA_BITS: u32 = 48;

/// An IPLFS volume of the `tuff-iplfs` crate.
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
    /// Formats and mounts an empty volume on a disk.
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
            // The node cache holds all nodes of the scaled-down volume. The F2FS model also keeps
            // all nodes in memory.
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

    /// Returns the mounted volume.
    pub fn volume(&self) -> &Volume {
        &self.volume
    }

    /// The mounted volume, for changes that [`Fs`] does not offer.
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
