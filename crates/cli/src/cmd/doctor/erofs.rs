//! The kernel and its EROFS. As root, test images are mounted; otherwise the configuration of the kernel counts.

use super::config::KernelConfig;
use super::fact::Fact;
use super::host::Host;
use super::test_image::test_image;
use crate::cmd::mount::kernel::Loop;
use rustix::io::Errno;
use rustix::mount::MountFlags;
use std::path::{Path, PathBuf};
use tuff_format::features::{Feature, KernelVersion};
use tuff_mount::kernel_erofs::{FileReads, KernelErofs};
use tuff_store::TemporaryDir;

/// Algorithms by their ids: name of the fact, setting of the kernel, option of `tuff build` that avoids it.
const ALGORITHMS: [(&str, &str, &str); 4] = [
    ("erofs-lz4", "CONFIG_EROFS_FS_ZIP", "-z none"),
    ("erofs-lzma", "CONFIG_EROFS_FS_ZIP_LZMA", "-z lz4hc"),
    ("erofs-deflate", "CONFIG_EROFS_FS_ZIP_DEFLATE", "-z lz4hc"),
    ("erofs-zstd", "CONFIG_EROFS_FS_ZIP_ZSTD", "-z lz4hc"),
];

/// Result of a test mount.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Attempt {
    /// Only root may mount, and only in the first user namespace.
    NotAllowed,
    /// Mounted from the file.
    FromFile,
    /// Mounted from a loop device, because the kernel does not mount files.
    FromLoop,
    /// The kernel has no EROFS.
    NoErofs,
    /// The kernel refuses the image.
    Refused,
}

pub(super) fn facts(host: &Host) -> Vec<Fact> {
    let config = KernelConfig::read(host);
    let plain = attempt(host, None);
    let mut facts = vec![
        kernel(host),
        filesystem(host, &config, plain),
        files(host, &config, plain),
    ];
    for (id, feature) in (0..).zip(Feature::ALGORITHMS) {
        let tried = match plain {
            Attempt::FromFile | Attempt::FromLoop => attempt(host, Some(id)),
            other => other,
        };
        facts.push(algorithm(host, &config, tried, feature, id));
    }
    facts
}

fn kernel(host: &Host) -> Fact {
    let fact = Fact::about("kernel", "images that the kernel's EROFS can mount");
    let (release, version) = (host.release(), host.kernel());
    let found = format!(
        "Linux {release}, pages of {} bytes",
        rustix::param::page_size()
    );
    let too_new = Feature::FLAGS
        .iter()
        .filter(|f| f.is_required() && !version.supports(**f));
    let too_new: Vec<String> = too_new
        .map(|f| format!("{} ({})", f.name, f.min_kernel))
        .collect();
    let advice = format!("tuff build --kernel {version} leaves them out");
    match &too_new[..] {
        _ if version < KernelVersion::FIRST => fact.missing(
            found,
            format!(
                "Linux {} is the first with EROFS; tuff mount serves images through FUSE",
                KernelVersion::FIRST
            ),
        ),
        [] => fact.ok(format!("{found}: all features")),
        list => fact.limited(
            format!("{found}: all features but {}", list.join(", ")),
            advice,
        ),
    }
}

fn filesystem(host: &Host, config: &KernelConfig, tried: Attempt) -> Fact {
    let fact = Fact::about(
        "erofs",
        "kernel mounts (tuff mount --kernel, mount -t erofs)",
    );
    let advice = "mount without --kernel: tuff mount serves images through FUSE";
    let release = host.release();
    let is_registered = host
        .text("/proc/filesystems")
        .is_some_and(|text| text.lines().any(|line| line.trim() == "erofs"));
    let has_module = ["/lib/modules", "/usr/lib/modules"].iter().any(|dir| {
        let list = host.text(&format!("{dir}/{release}/modules.dep"));
        list.is_some_and(|text| text.contains("/erofs.ko"))
    });
    match tried {
        Attempt::FromFile | Attempt::FromLoop => fact.ok("mounted a test image"),
        Attempt::NoErofs => fact.missing("the kernel has no EROFS", advice),
        Attempt::Refused => fact.limited("the kernel refused a test image", advice),
        Attempt::NotAllowed if is_registered => fact.ok("in the kernel; mounting needs root"),
        Attempt::NotAllowed if has_module => fact.ok("a module; mounting needs root"),
        Attempt::NotAllowed => match config.has("CONFIG_EROFS_FS") {
            Some(true) => fact.ok("configured; mounting needs root"),
            _ => fact.missing("not in this kernel, and no module", advice),
        },
    }
}

fn files(host: &Host, config: &KernelConfig, tried: Attempt) -> Fact {
    let fact = Fact::about(
        "erofs-files",
        "kernel mounts of image files without a loop device",
    );
    let needed = Feature::FILE_BACKED_MOUNT;
    let advice = format!(
        "it needs Linux {} with CONFIG_EROFS_FS_BACKED_BY_FILE; until then loop devices are used",
        needed.min_kernel
    );
    let configured = config.has("CONFIG_EROFS_FS_BACKED_BY_FILE");
    match tried {
        Attempt::FromFile => fact.ok("mounted a test file"),
        Attempt::FromLoop => fact.missing("the kernel mounts block devices only", advice),
        Attempt::NoErofs => fact.missing("the kernel has no EROFS", advice),
        Attempt::Refused | Attempt::NotAllowed => match configured {
            _ if !host.kernel().supports(needed) => fact.missing("the kernel is too old", advice),
            Some(true) => fact.ok("configured; mounting needs root"),
            Some(false) => fact.missing("not configured", advice),
            None => fact.limited("unknown", "run tuff doctor as root, which tries it"),
        },
    }
}

fn algorithm(host: &Host, config: &KernelConfig, tried: Attempt, feature: Feature, id: u8) -> Fact {
    let (name, setting, instead) = ALGORITHMS[usize::from(id)];
    let fact = Fact::about(
        name,
        format!("kernel mounts of images with {}", feature.name),
    );
    let advice = format!("build with {instead}, or mount without --kernel");
    let needs = format!("it needs Linux {} with {setting}", feature.min_kernel);
    match tried {
        Attempt::FromFile | Attempt::FromLoop => fact.ok("mounted a test image"),
        Attempt::NoErofs => fact.missing("the kernel has no EROFS", advice),
        Attempt::Refused => fact.missing(format!("the kernel refused it: {needs}"), advice),
        Attempt::NotAllowed => match config.has(setting) {
            _ if !host.kernel().supports(feature) => {
                fact.missing(format!("the kernel is too old: {needs}"), advice)
            }
            Some(true) => fact.ok("configured"),
            Some(false) => fact.missing(format!("not configured: {needs}"), advice),
            None => fact.limited("unknown", "run tuff doctor as root, which tries it"),
        },
    }
}

/// Mounts a test image at no directory.
fn attempt(host: &Host, algorithm: Option<u8>) -> Attempt {
    if !host.is_running || !host.is_root {
        return Attempt::NotAllowed;
    }
    let image = test_image(algorithm);
    let mut last = Attempt::NotAllowed;
    // The kernel mounts no files of a tmpfs, which the first directory may be.
    for dir in [std::env::temp_dir(), PathBuf::from("/var/tmp")] {
        let Ok(dir) = TemporaryDir::create(&dir) else {
            continue;
        };
        let file = dir.path().join("image");
        if std::fs::write(&file, &image).is_err() {
            continue;
        }
        last = mount(&file);
        if last == Attempt::FromLoop {
            continue;
        }
        break;
    }
    last
}

fn mount(image: &Path) -> Attempt {
    let open = |path: &Path| {
        KernelErofs::open(path, &[], FileReads::Cached, MountFlags::empty()).map(drop)
    };
    match open(image) {
        Ok(()) => Attempt::FromFile,
        Err(Errno::NODEV) => Attempt::NoErofs,
        Err(Errno::NOTBLK) => match Loop::over(image) {
            Ok(device) if open(device.path()).is_ok() => Attempt::FromLoop,
            Ok(_) => Attempt::Refused,
            Err(_) => Attempt::NotAllowed,
        },
        Err(Errno::PERM | Errno::ACCESS | Errno::NOSYS) => Attempt::NotAllowed,
        Err(_) => Attempt::Refused,
    }
}
