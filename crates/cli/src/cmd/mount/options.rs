//! `-o`: mount options of fstab, mount(8) and other FUSE filesystems.

use crate::image::OpenArgs;
use crate::units::parse_size;
use rustix::mount::MountFlags;
use std::path::PathBuf;
use tuff_erofs::verity::Root;
use tuff_erofs::{Error, Result};
use tuff_open::parse_root;

/// Options of every mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct General {
    pub(crate) allow_other: bool,
    pub(crate) read_only: bool,
    pub(crate) flags: MountFlags,
    pub(crate) source: Option<PathBuf>,
}

impl General {
    pub(crate) fn with_flags(flags: MountFlags) -> Self {
        Self {
            // The kernel checks permissions, so root's mounts may be open to all users.
            allow_other: rustix::process::geteuid().is_root(),
            read_only: false,
            flags,
            source: None,
        }
    }

    /// Applies one option. Unknown ones are errors.
    pub(crate) fn one(&mut self, name: &str, value: Option<&str>) -> OptionResult {
        match name {
            "fsname" => self.source = Some(text(value)?.into()),
            _ if value.is_some() && !name.starts_with("x-") && !KEPT_WITH_VALUE.contains(&name) => {
                return Err("not known".to_owned());
            }
            "allow_other" => self.allow_other = true,
            "ro" => self.read_only = true,
            "rw" => self.read_only = false,
            "nosuid" => self.flags |= MountFlags::NOSUID,
            "suid" => self.flags -= MountFlags::NOSUID,
            "nodev" => self.flags |= MountFlags::NODEV,
            "dev" => self.flags -= MountFlags::NODEV,
            "noexec" => self.flags |= MountFlags::NOEXEC,
            "exec" => self.flags -= MountFlags::NOEXEC,
            "sync" => self.flags |= MountFlags::SYNCHRONOUS,
            "async" => self.flags -= MountFlags::SYNCHRONOUS,
            "dirsync" => self.flags |= MountFlags::DIRSYNC,
            _ if name.starts_with("x-")
                || KEPT.contains(&name)
                || KEPT_WITH_VALUE.contains(&name) => {}
            _ => return Err("not known".to_owned()),
        }
        Ok(())
    }
}

/// Result of one option: a sentence about it.
pub(crate) type OptionResult = std::result::Result<(), String>;

/// Applies one list: names and `name=value` pairs, separated by commas.
pub(crate) fn each_option(
    list: &str,
    mut one: impl FnMut(&str, Option<&str>) -> OptionResult,
) -> Result<()> {
    for option in list.split(',').filter(|o| !o.is_empty()) {
        let (name, value) = match option.split_once('=') {
            Some((name, value)) => (name, Some(value)),
            None => (option, None),
        };
        one(name, value)
            .map_err(|why| Error::usage(format_args!("mount option '{option}': {why}")))?;
    }
    Ok(())
}

fn text(value: Option<&str>) -> std::result::Result<&str, String> {
    value
        .filter(|v| !v.is_empty())
        .ok_or_else(|| "expected a value".to_owned())
}

/// Result of all `-o` lists of an image.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mounting {
    pub(super) general: General,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) offset: Option<u64>,
    pub(super) devices: Vec<PathBuf>,
    pub(super) verity: Option<Root>,
    pub(super) verity_tree: Option<PathBuf>,
}

impl Default for Mounting {
    fn default() -> Self {
        Self {
            general: General::with_flags(MountFlags::NOSUID | MountFlags::NODEV),
            uid: None,
            gid: None,
            offset: None,
            devices: Vec::new(),
            verity: None,
            verity_tree: None,
        }
    }
}

impl Mounting {
    /// Applies one list: names and `name=value` pairs, separated by commas.
    pub(super) fn add(&mut self, list: &str) -> Result<()> {
        each_option(list, |name, value| self.one(name, value))
    }

    fn one(&mut self, name: &str, value: Option<&str>) -> OptionResult {
        let number = |what: &str| {
            let text = value.unwrap_or_default();
            text.parse::<u32>()
                .map_err(|_| format!("expected a {what}'s number"))
        };
        match name {
            "uid" => self.uid = Some(number("user")?),
            "gid" => self.gid = Some(number("group")?),
            // Names as in mount(8).
            "verity.roothash" => self.verity = Some(parse_root(text(value)?)?),
            "verity.hashdevice" => self.verity_tree = Some(text(value)?.into()),
            "offset" | "fsoffset" => self.offset = Some(parse_size(text(value)?)?),
            "device" => self.devices.push(text(value)?.into()),
            _ => self.general.one(name, value)?,
        }
        Ok(())
    }

    /// Applies the options that concern the image.
    pub(super) fn apply(&self, open: &mut OpenArgs) {
        if let Some(offset) = self.offset {
            open.offset = offset;
        }
        let devices = self.devices.iter().cloned();
        open.device.extend(devices.map(Into::into));
        open.verity = self.verity.or(open.verity);
        if let Some(tree) = &self.verity_tree {
            open.verity_tree = Some(tree.clone());
        }
    }
}

/// Ignored options: they request what is always so, or concern other programs. No mount updates access times.
const KEPT: &[&str] = &[
    "defaults",
    "default_permissions",
    "auto",
    "noauto",
    "user",
    "users",
    "nouser",
    "owner",
    "group",
    "nofail",
    "_netdev",
    "atime",
    "noatime",
    "diratime",
    "nodiratime",
    "relatime",
    "norelatime",
    "strictatime",
    "lazytime",
    "silent",
    "loop",
    "acl",
    "user_xattr",
];
/// The last ones are options of the kernel, which mount(8) repeats when it changes a mount.
const KEPT_WITH_VALUE: &[&str] = &[
    "subtype", "comment", "user_id", "group_id", "blksize", "max_read",
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_fstab_says_is_understood() {
        let mut m = Mounting::default();
        m.add("defaults,rw,nofail,x-systemd.automount,x-a=b,suid,noexec")
            .unwrap();
        m.add("uid=7,gid=8,offset=4K,device=/a,device=/b,allow_other")
            .unwrap();
        assert_eq!((m.uid, m.gid, m.offset), (Some(7), Some(8), Some(4096)));
        assert_eq!(m.devices, [PathBuf::from("/a"), PathBuf::from("/b")]);
        assert_eq!(m.general.flags, MountFlags::NODEV | MountFlags::NOEXEC);
        assert!(m.general.allow_other && !m.general.read_only);
    }

    #[test]
    fn what_is_not_known_is_said() {
        for bad in [
            "compress",
            "uid=",
            "uid=x",
            "device",
            "offset=q",
            "dax=always",
            "cache=1",
        ] {
            let e = Mounting::default().add(bad).unwrap_err().to_string();
            assert!(e.contains(bad), "{e}");
        }
    }
}
