//! Inodes: fourteen forms, seven of them with more fields.

use crate::blocks::BlockReader;
use crate::cursor::{Cursor, Position};
use crate::error::{Error, Result};
use crate::superblock::Superblock;

/// Longest target of a symbolic link, as Linux has it. Unit: bytes.
const TARGET_MAX: u32 = 4095;

/// Index of an inode without attributes, and of a file without a fragment.
const NONE: u32 = u32::MAX;

/// Inode of an image.
#[derive(Clone, Debug)]
pub struct Inode {
    /// Place in the inode table, which identifies the inode.
    pub reference: u64,
    /// Type, with what only that type has.
    pub kind: InodeKind,
    /// Permission, set-id and sticky bits.
    pub mode: u16,
    /// User ID of the owner.
    pub uid: u32,
    /// Group ID of the owner.
    pub gid: u32,
    /// Modification time. Unit: seconds since 1970.
    pub mtime: u32,
    /// Number of names, as the inode states it.
    pub nlink: u32,
    /// Index of its extended attributes.
    pub(crate) xattrs: Option<u32>,
}

/// Type of an inode.
#[derive(Clone, Debug)]
pub enum InodeKind {
    /// Directory with its entries.
    Dir(Listing),
    /// Regular file with its content.
    File(FileLayout),
    /// Symbolic link with its target.
    Symlink(Vec<u8>),
    /// Block device with its number.
    Block(Device),
    /// Character device with its number.
    Char(Device),
    /// Named pipe, also called FIFO.
    Fifo,
    /// Socket in the Unix domain.
    Socket,
}

/// Number of a device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Device {
    /// Major number, of 12 bits.
    pub major: u32,
    /// Minor number, of 20 bits.
    pub minor: u32,
}

/// Place of the entries of a directory.
#[derive(Clone, Copy, Debug)]
pub struct Listing {
    pub(crate) start: Position,
    /// Length of the entries with their headers. Unit: bytes.
    pub(crate) len: u32,
}

/// Places of the content of a file.
#[derive(Clone, Copy, Debug)]
pub struct FileLayout {
    /// Length of the content. Unit: bytes.
    pub size: u64,
    /// First block of data.
    pub(crate) data: u64,
    /// Index of the fragment that holds the end of the file, and the start of the end in it.
    pub(crate) fragment: Option<(u32, u32)>,
    /// List of the stored sizes of its blocks.
    pub(crate) sizes: Position,
}

impl Inode {
    /// Reads the inode with this reference. `ids` are the user and group IDs of the image.
    pub(crate) fn read(
        reader: &BlockReader,
        superblock: &Superblock,
        ids: &[u32],
        reference: u64,
    ) -> Result<Self> {
        let start = Position::of_reference(superblock.inode_table, reference)?;
        let mut cursor = Cursor::new(reader, start);
        let header = cursor.fields::<16>()?;
        let id = |field: usize| {
            let index = header.u16(field);
            let id = ids.get(usize::from(index)).copied();
            id.ok_or_else(|| {
                let what = format_args!("an inode with ID {index} of {}", ids.len()).to_string();
                Error::corrupt(start.block, what)
            })
        };
        let number = header.u16(0);
        let fields = Fields {
            cursor: &mut cursor,
            superblock,
        };
        let (kind, nlink, xattrs) = fields.read(number)?;
        Ok(Self {
            reference,
            kind,
            mode: header.u16(2) & 0o7777,
            uid: id(4)?,
            gid: id(6)?,
            mtime: header.u32(8),
            nlink,
            xattrs: Some(xattrs).filter(|index| *index != NONE),
        })
    }

    /// Returns true for a directory.
    pub fn is_dir(&self) -> bool {
        matches!(self.kind, InodeKind::Dir(_))
    }

    /// Number of the type, as entries of directories have it.
    pub(crate) fn number(&self) -> u16 {
        match self.kind {
            InodeKind::Dir(_) => 1,
            InodeKind::File(_) => 2,
            InodeKind::Symlink(_) => 3,
            InodeKind::Block(_) => 4,
            InodeKind::Char(_) => 5,
            InodeKind::Fifo => 6,
            InodeKind::Socket => 7,
        }
    }
}

/// Fields of an inode behind its header.
struct Fields<'a, 'b> {
    cursor: &'a mut Cursor<'b>,
    superblock: &'a Superblock,
}

impl Fields<'_, '_> {
    /// Reads those of an inode of this type. Returns its kind, the number of its names and the index of its attributes.
    fn read(self, number: u16) -> Result<(InodeKind, u32, u32)> {
        let Self { cursor, superblock } = self;
        // A listing is 3 bytes shorter than the size of its directory.
        let listing = |block: u32, offset: u16, size: u32| {
            let start = superblock.directory_table.checked_add(block.into());
            InodeKind::Dir(Listing {
                start: Position {
                    // The sum is one of a position within the image and 32 bits.
                    block: start.unwrap_or(u64::MAX),
                    offset: offset.into(),
                },
                len: size.saturating_sub(3),
            })
        };
        Ok(match number {
            1 => {
                let f = cursor.fields::<16>()?;
                let kind = listing(f.u32(0), f.u16(10), f.u16(8).into());
                (kind, f.u32(4), NONE)
            }
            8 => {
                let f = cursor.fields::<24>()?;
                let kind = listing(f.u32(8), f.u16(18), f.u32(4));
                (kind, f.u32(0), f.u32(20))
            }
            2 => {
                let f = cursor.fields::<16>()?;
                let layout = FileLayout {
                    size: f.u32(12).into(),
                    data: f.u32(0).into(),
                    fragment: Some((f.u32(4), f.u32(8))).filter(|(index, _)| *index != NONE),
                    sizes: cursor.position(),
                };
                (InodeKind::File(layout), 1, NONE)
            }
            9 => {
                let f = cursor.fields::<40>()?;
                let layout = FileLayout {
                    size: f.u64(8),
                    data: f.u64(0),
                    fragment: Some((f.u32(28), f.u32(32))).filter(|(index, _)| *index != NONE),
                    sizes: cursor.position(),
                };
                (InodeKind::File(layout), f.u32(24), f.u32(36))
            }
            3 | 10 => {
                let f = cursor.fields::<8>()?;
                let target = target(cursor, f.u32(4))?;
                let xattrs = match number {
                    3 => NONE,
                    _ => cursor.fields::<4>()?.u32(0),
                };
                (InodeKind::Symlink(target), f.u32(0), xattrs)
            }
            4 | 5 => {
                let f = cursor.fields::<8>()?;
                (device(number == 4, f.u32(4)), f.u32(0), NONE)
            }
            11 | 12 => {
                let f = cursor.fields::<12>()?;
                (device(number == 11, f.u32(4)), f.u32(0), f.u32(8))
            }
            6 => (InodeKind::Fifo, cursor.fields::<4>()?.u32(0), NONE),
            7 => (InodeKind::Socket, cursor.fields::<4>()?.u32(0), NONE),
            13 | 14 => {
                let f = cursor.fields::<8>()?;
                let kind = match number {
                    13 => InodeKind::Fifo,
                    _ => InodeKind::Socket,
                };
                (kind, f.u32(0), f.u32(4))
            }
            _ => {
                let what = format_args!("an inode of type {number}, expected 1 to 14");
                return Err(Error::corrupt(cursor.place(), what));
            }
        })
    }
}

fn target(cursor: &mut Cursor<'_>, len: u32) -> Result<Vec<u8>> {
    if !(1..=TARGET_MAX).contains(&len) {
        let what = format_args!("the target of a link has {len} bytes, expected 1 to {TARGET_MAX}");
        return Err(Error::corrupt(cursor.place(), what));
    }
    let target = cursor.bytes(len as usize)?;
    if target.contains(&0) {
        let what = "the target of a link contains a zero byte";
        return Err(Error::corrupt(cursor.place(), what));
    }
    Ok(target)
}

/// Returns a device from its number: 8 bits of the minor number, 12 of the major, 12 of the minor.
fn device(is_block: bool, number: u32) -> InodeKind {
    let device = Device {
        major: number >> 8 & 0xfff,
        minor: number & 0xff | number >> 12 & 0xf_ff00,
    };
    match is_block {
        true => InodeKind::Block(device),
        false => InodeKind::Char(device),
    }
}
