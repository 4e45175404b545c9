//! Directory with one sparse file per zone.
//!
//! ```text
//!  DIR/volume            header: what this is and the size of a zone
//!  DIR/volume.copy       its copy; either is enough to open the volume
//!  DIR/zones/0000000000  … one file per zone that holds anything, named by its number in hexadecimal
//! ```
//!
//! A volume with branches has more files, see `backend/branch.rs`. The device is then one branch: it reads the zone
//! files of all branches, and writes only those of its own regions. Superblocks and packs of a fork are a file of their
//! own, which stands for the fixed blocks of the address space.
//!
//! No common host filesystem has files of 8 EiB (ext4 ends at 16 TiB). Zone files also make releasing a dead zone one
//! `unlink`, where a large file would need a hole punched for every block. The directory acts as the root of an
//! interval map, and the extent tree of each file as its leaf.

mod block_device;
mod branch_device;
mod files;
mod header;
mod open;
mod own_branch;

pub use files::ZoneDir;
