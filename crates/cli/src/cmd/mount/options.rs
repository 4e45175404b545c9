//! `-o`: mount options of fstab, mount(8) and other FUSE filesystems.

use crate::image::OpenArgs;
use crate::units::parse_size;
use rustix::mount::MountFlags;
use std::path::PathBuf;
use tuff_erofs::verity::Root;
use tuff_erofs::{Error, Result};
use tuff_open::parse_root;

/// Result of all `-o` lists.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Mounting {
    pub(super) allow_other: bool,
    pub(super) uid: Option<u32>,
    pub(super) gid: Option<u32>,
    pub(super) offset: Option<u64>,
    pub(super) devices: Vec<PathBuf>,
    pub(super) flags: MountFlags,
    pub(super) source: Option<PathBuf>,
    pub(super) verity: Option<Root>,
    pub(super) verity_tree: Option<PathBuf>,
}

impl Default for Mounting {
    fn default() -> Self {
        Self {
            // The kernel checks permissions, so root's mounts may be open to all users.
            allow_other: rustix::process::geteuid().is_root(),
            uid: None,
            gid: None,
            offset: None,
            devices: Vec::new(),
            flags: MountFlags::NOSUID | MountFlags::NODEV,
            source: None,
            verity: None,
            verity_tree: None,
        }
    }
}

impl Mounting {
    /// Applies one list: names and `name=value` pairs, separated by commas.
    pub(super) fn add(&mut self, list: &str) -> Result<()> {
        for option in list.split(',').filter(|o| !o.is_empty()) {
            let (name, value) = match option.split_once('=') {
                Some((name, value)) => (name, Some(value)),
                None => (option, None),
            };
            self.one(name, value)
                .map_err(|why| Error::usage(format_args!("mount option '{option}': {why}")))?;
        }
        Ok(())
    }

    fn one(&mut self, name: &str, value: Option<&str>) -> std::result::Result<(), String> {
        let number = |what: &str| {
            let text = value.unwrap_or_default();
            text.parse::<u32>()
                .map_err(|_| format!("expected a {what}'s number"))
        };
        let text = || match value {
            Some(v) if !v.is_empty() => Ok(v),
            _ => Err("expected a value".to_owned()),
        };
        match name {
            "uid" => self.uid = Some(number("user")?),
            "gid" => self.gid = Some(number("group")?),
            // Names as in mount(8).
            "verity.roothash" => self.verity = Some(parse_root(text()?)?),
            "verity.hashdevice" => self.verity_tree = Some(text()?.into()),
            "offset" | "fsoffset" => self.offset = Some(parse_size(text()?)?),
            "device" => self.devices.push(text()?.into()),
            "fsname" => self.source = Some(text()?.into()),
            _ if value.is_some() && !name.starts_with("x-") && !KEPT_WITH_VALUE.contains(&name) => {
                return Err("not known".to_owned());
            }
            "allow_other" => self.allow_other = true,
            "nosuid" => self.flags |= MountFlags::NOSUID,
            "suid" => self.flags -= MountFlags::NOSUID,
            "nodev" => self.flags |= MountFlags::NODEV,
            "dev" => self.flags -= MountFlags::NODEV,
            "noexec" => self.flags |= MountFlags::NOEXEC,
            "exec" => self.flags -= MountFlags::NOEXEC,
            _ if name.starts_with("x-")
                || KEPT.contains(&name)
                || KEPT_WITH_VALUE.contains(&name) => {}
            _ => return Err("not known".to_owned()),
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

/// Ignored options: they request what is always so, or concern other programs. "rw" comes with "defaults" of fstab;
/// like other read-only filesystems, the mount is read-only nevertheless.
const KEPT: &[&str] = &[
    "ro",
    "rw",
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
    "async",
    "sync",
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
const KEPT_WITH_VALUE: &[&str] = &["subtype", "comment"];

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
        assert_eq!(m.flags, MountFlags::NODEV | MountFlags::NOEXEC);
        assert!(m.allow_other);
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
