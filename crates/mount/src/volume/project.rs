//! Project identifiers and flags through ioctl.
//!
//! `FS_IOC_FSGETXATTR` and `FS_IOC_FSSETXATTR` (`lsattr -p`, `chattr -p`) read and change projects. Those programs
//! use `FS_IOC_GETFLAGS` and `FS_IOC_SETFLAGS` before.
//!
//! ```text
//!  data     fsxattr or flags 4 (to set)
//!  reply    result 4 │ flags 4 │ zero 8 │ fsxattr or flags 4 (to get)
//!  fsxattr  flags 4 │ extent size 4 │ extents 4 │ project 4 │ copy-on-write extent size 4 │ zero 8
//! ```
//!
//! The kernel checks permissions: only the owner, and no user of another user namespace.

use super::fields::now;
use rustix::io::Errno;
use tuff_fuse::filesystem::Result;
use tuff_iplfs::{Attr, Nid, SetAttr, Volume, mode};
use zerocopy::{FromBytes, IntoBytes};

/// Command `FS_IOC_FSGETXATTR` of ioctl.
const GET: u32 = 0x801c_581f;
/// Command `FS_IOC_FSSETXATTR` of ioctl.
const SET: u32 = 0x401c_5820;
/// Command `FS_IOC_GETFLAGS` of ioctl.
const GET_FLAGS: u32 = 0x8008_6601;
/// Command `FS_IOC_SETFLAGS` of ioctl.
const SET_FLAGS: u32 = 0x4008_6602;
/// Flag `FS_XFLAG_PROJINHERIT`: new entries inherit the directory's project. All directories have it.
const INHERIT: u32 = 0x200;
/// Flag `FS_PROJINHERIT_FL`: the same for `FS_IOC_GETFLAGS`.
const INHERIT_FLAG: u32 = 0x2000_0000;

/// Answers an ioctl request.
pub(super) fn answer(volume: &mut Volume, node: Nid, command: u32, data: &[u8]) -> Result<Vec<u8>> {
    let attr = volume.attr(node)?;
    let mut reply = vec![0; 16];
    match command {
        GET => reply.extend_from_slice(fsxattr(&attr).as_bytes()),
        GET_FLAGS => reply.extend_from_slice(plain_flags(&attr).as_bytes()),
        SET_FLAGS if prefix::<u32>(data)? == plain_flags(&attr) => {}
        SET_FLAGS => return Err(Errno::OPNOTSUPP),
        SET => {
            let set = SetAttr {
                project: Some(project_to_set(&attr, data)?),
                ..SetAttr::default()
            };
            volume.set_attr(node, &set, now())?;
        }
        _ => return Err(Errno::NOTTY),
    }
    Ok(reply)
}

fn prefix<T: FromBytes>(data: &[u8]) -> Result<T> {
    T::read_from_prefix(data)
        .map(|(value, _)| value)
        .map_err(|_| Errno::INVAL)
}

fn fsxattr(attr: &Attr) -> [u32; 7] {
    [flags(attr), 0, 0, attr.project, 0, 0, 0]
}

fn flags(attr: &Attr) -> u32 {
    if is_dir(attr) { INHERIT } else { 0 }
}

fn plain_flags(attr: &Attr) -> u32 {
    if is_dir(attr) { INHERIT_FLAG } else { 0 }
}

fn is_dir(attr: &Attr) -> bool {
    attr.mode & mode::TYPE == mode::DIR
}

/// Returns the project to set. Other changes are rejected.
fn project_to_set(attr: &Attr, data: &[u8]) -> Result<u32> {
    let [flags_set, extent_size, _extents, project, cow_extent_size]: [u32; 5] = prefix(data)?;
    if flags_set != flags(attr) || extent_size != 0 || cow_extent_size != 0 {
        return Err(Errno::OPNOTSUPP);
    }
    Ok(project)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Arc;
    use tuff_iplfs::backend::MemDevice;
    use tuff_iplfs::{FormatOptions, MountOptions};

    fn ask(volume: &mut Volume, command: u32, data: &[u32]) -> Result<Vec<u8>> {
        answer(volume, Nid::ROOT, command, data.as_bytes())
    }

    #[test]
    fn only_the_project_can_be_changed() {
        let device = Arc::new(MemDevice::new());
        let options = FormatOptions::new([1; 16], [2; 16], 1 << 16);
        Volume::format(device.clone(), &options).unwrap();
        let mut volume = Volume::mount(device, MountOptions::default()).unwrap();
        assert_eq!(
            ask(&mut volume, SET, &[0x200, 0, 0, 7, 0, 0, 0]),
            Ok(vec![0; 16])
        );
        let mut shown = vec![0; 16];
        shown.extend_from_slice([0x200u32, 0, 0, 7, 0, 0, 0].as_bytes());
        assert_eq!(ask(&mut volume, GET, &[]), Ok(shown.clone()));
        // Without inheritance; append-only; with extent sizes.
        for (at, value) in [(0, 0), (0, 0x210), (1, 4096), (4, 4096)] {
            let mut fields = [0x200, 0, 0, 8, 0, 0, 0];
            fields[at] = value;
            assert_eq!(ask(&mut volume, SET, &fields), Err(Errno::OPNOTSUPP));
        }
        assert_eq!(ask(&mut volume, SET, &[0x200, 0, 0]), Err(Errno::INVAL));
        let mut flags = vec![0; 16];
        flags.extend_from_slice(&[0, 0, 0, 0x20]);
        assert_eq!(ask(&mut volume, GET_FLAGS, &[]), Ok(flags));
        assert_eq!(ask(&mut volume, SET_FLAGS, &[0x2000_0000]), Ok(vec![0; 16]));
        assert_eq!(ask(&mut volume, SET_FLAGS, &[0x10]), Err(Errno::OPNOTSUPP));
        // Command FS_IOC_GETVERSION.
        assert_eq!(ask(&mut volume, 0x8008_7601, &[]), Err(Errno::NOTTY));
        assert_eq!(ask(&mut volume, GET, &[]), Ok(shown));
    }
}
