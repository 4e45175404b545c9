//! `--kernel`: mounts with the kernel's EROFS, directly from the file (Linux 6.12) or through a loop device.

use super::args::Args;
use super::options::Mounting;
use rustix::mount::MountFlags;
use std::ffi::CString;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use tuff_fuse::mountpoint::FLAG_NAMES;
use tuff_mount::kernel_erofs;
use tuff_open::Container;

/// Reason why images with other owners are not mounted by the kernel.
pub(super) const SHOWS_OWNERS: &str =
    "it shows the owners that the image has, not those of uid= and gid=";

/// Mounts the image of a container. Returns the method, or the reason for the failure.
pub(super) fn mount(
    args: &Args,
    mounting: &Mounting,
    container: &Container,
) -> Result<&'static str, String> {
    if mounting.uid.is_some() || mounting.gid.is_some() {
        return Err(SHOWS_OWNERS.to_owned());
    }
    if container.is_verified() {
        return Err("it verifies devices, not files: veritysetup open makes one".to_owned());
    }
    let (image, offset) = (&*container.reference().name(), container.offset());
    let devices = container.devices().iter();
    let devices: Vec<PathBuf> = devices.map(|device| device.image.name()).collect();
    let mut data: Vec<String> = Vec::new();
    let is_block = std::fs::metadata(image)
        .map_err(|e| format!("{}: {e}", image.display()))?
        .file_type()
        .is_block_device();
    let direct = if offset > 0 && is_block {
        Err("it cannot mount from an offset into a block device".to_owned())
    } else {
        let mut data = Vec::new();
        for device in &devices {
            let device = std::path::absolute(device).unwrap_or_else(|_| device.clone());
            data.push(format!("device={}", device.display()));
        }
        if offset > 0 {
            data.push(format!("fsoffset={}", offset));
        }
        directly(image, &args.dir, mounting.general.flags, &data.join(","))
    };
    let why = match direct {
        Ok(()) if is_block => return Ok("from the block device"),
        Ok(()) => return Ok("straight from the file"),
        Err(why) => match too_large_blocks(container) {
            Some(why) => return Err(why),
            None => why,
        },
    };
    if offset > 0 {
        data.push(format!("offset={}", offset));
    }
    let mut loops = Vec::new();
    for device in &devices {
        let device = Loop::over(device)?;
        data.push(format!("device={}", device.path));
        loops.push(device);
    }
    match through_loop(image, &args.dir, mounting.general.flags, &data) {
        Ok(()) => Ok("through a loop device"),
        Err(also) if also == why => Err(why),
        Err(also) => Err(format!("{why}; through a loop device: {also}")),
    }
}

/// Returns an error if the blocks of the image are larger than the pages of this kernel.
fn too_large_blocks(container: &Container) -> Option<String> {
    let page = rustix::param::page_size() as u64; // fits: a page has some KiB
    let block = container.image().ok()?.superblock().block_bits.size();
    (block > page).then(|| {
        format!("the image has blocks of {block} bytes, and this kernel's pages have {page}")
    })
}

fn directly(image: &Path, dir: &Path, flags: MountFlags, data: &str) -> Result<(), String> {
    let data = CString::new(data).map_err(|e| e.to_string())?;
    let flags = flags | MountFlags::RDONLY;
    rustix::mount::mount(image, dir, "erofs", flags, Some(data.as_c_str()))
        .map_err(kernel_erofs::reason)
}

/// Loop device over a file, detached on drop; a mount keeps it alive while needed.
pub(in crate::cmd) struct Loop {
    path: String,
    ours: bool,
}

impl Loop {
    /// Returns a block device as it is, without attaching or detaching anything.
    pub(in crate::cmd) fn over(file: &Path) -> Result<Self, String> {
        let is_block = std::fs::metadata(file).is_ok_and(|m| m.file_type().is_block_device());
        if is_block {
            let path = file.display().to_string();
            return Ok(Self { path, ours: false });
        }
        let out = losetup(&["--find", "--show", "--read-only"], file)?;
        let path = out.trim().to_owned();
        Ok(Self { path, ours: true })
    }

    /// Path of the block device.
    pub(in crate::cmd) fn path(&self) -> &Path {
        Path::new(&self.path)
    }
}

impl Drop for Loop {
    fn drop(&mut self) {
        if self.ours {
            // A loop device that cannot be detached remains, which is not an error.
            let _ = losetup(&["--detach"], Path::new(&self.path));
        }
    }
}

fn losetup(options: &[&str], file: &Path) -> Result<String, String> {
    let out = Command::new("losetup")
        .args(options)
        .arg(file)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("losetup: {e}"))?;
    if out.status.success() {
        return Ok(String::from_utf8_lossy(&out.stdout).into_owned());
    }
    Err(String::from_utf8_lossy(&out.stderr).trim().to_owned())
}

fn through_loop(
    image: &Path,
    dir: &Path,
    flags: MountFlags,
    data: &[String],
) -> Result<(), String> {
    if !rustix::process::geteuid().is_root() {
        return Err("that needs root".to_owned());
    }
    let mut options = vec!["ro".to_owned(), "loop".to_owned()];
    let named = FLAG_NAMES.iter().filter(|(flag, _)| flags.contains(*flag));
    options.extend(named.map(|(_, name)| (*name).to_owned()));
    options.extend_from_slice(data);
    let out = Command::new("mount")
        .args(["-t", "erofs", "-o", &options.join(",")])
        .arg(image)
        .arg(dir)
        .stdin(Stdio::null())
        .output()
        .map_err(|e| format!("mount: {e}"))?;
    if out.status.success() {
        return Ok(());
    }
    let message = String::from_utf8_lossy(&out.stderr).into_owned();
    Err(message
        .lines()
        .next()
        .unwrap_or("mount failed")
        .trim()
        .to_owned())
}
