//! FUSE, which serves mounts without root and on every kernel.

use super::config::KernelConfig;
use super::fact::Fact;
use super::host::Host;
use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::PermissionsExt;
use tuff_format::features::KernelVersion;

/// First kernel with FUSE over io_uring.
const FIRST_URING: KernelVersion = KernelVersion(6, 14);

pub(super) fn facts(host: &Host) -> Vec<Fact> {
    let io_uring = io_uring(host);
    vec![
        device(host),
        helper(host),
        allow_other(host),
        io_uring,
        over_io_uring(host),
    ]
}

fn device(host: &Host) -> Fact {
    let fact = Fact::about("fuse", "tuff mount, tuff volume mount");
    let opened = OpenOptions::new()
        .read(true)
        .write(true)
        .open(host.path("/dev/fuse"));
    match opened {
        Ok(_) => fact.ok("/dev/fuse opens"),
        Err(e) if e.kind() == io::ErrorKind::NotFound => fact.missing(
            "there is no /dev/fuse",
            "modprobe fuse; in a container, pass the device: --device /dev/fuse",
        ),
        Err(e) if e.kind() == io::ErrorKind::PermissionDenied => fact.missing(
            format!("/dev/fuse: {e}"),
            "chmod 666 /dev/fuse, or run as root; in a container, pass the device: --device /dev/fuse",
        ),
        Err(e) => fact.missing(format!("/dev/fuse: {e}"), "modprobe fuse"),
    }
}

fn helper(host: &Host) -> Fact {
    let fact = Fact::about("fusermount3", "mounts through FUSE without root");
    if host.is_root {
        return fact.ok("not needed by root");
    }
    let Some(program) = host.program("fusermount3") else {
        return fact.missing("not in PATH", "install the package fuse3, or mount as root");
    };
    let found = program.display().to_string();
    let mode = program.metadata().map(|m| m.permissions().mode());
    match mode.is_ok_and(|mode| mode & 0o4000 != 0) {
        true => fact.ok(found),
        false => fact.limited(
            format!("{found} is not setuid"),
            format!(
                "chmod u+s {found} as root, or mount inside unshare --user --map-root-user --mount"
            ),
        ),
    }
}

fn allow_other(host: &Host) -> Fact {
    let fact = Fact::about(
        "fuse-allow-other",
        "mounts that other users may read (-o allow_other)",
    );
    if host.is_root {
        return fact.ok("root may");
    }
    let allows = |line: &str| line.trim() == "user_allow_other";
    match host
        .text("/etc/fuse.conf")
        .is_some_and(|t| t.lines().any(allows))
    {
        true => fact.ok("allowed in /etc/fuse.conf"),
        false => fact.limited(
            "only root may",
            "add the line user_allow_other to /etc/fuse.conf",
        ),
    }
}

fn io_uring(host: &Host) -> Fact {
    let fact = Fact::about("io_uring", "serving mounts with fewer system calls");
    let advice = "sysctl kernel.io_uring_disabled=0; until then mounts use /dev/fuse";
    let setting = host.text("/proc/sys/kernel/io_uring_disabled");
    match setting.as_deref() {
        Some("2") => return fact.missing("disabled by kernel.io_uring_disabled=2", advice),
        Some("1") if !host.is_root => {
            return fact.limited("for root only, by kernel.io_uring_disabled=1", advice);
        }
        _ => {}
    }
    if !host.is_running {
        return fact.ok("not disabled");
    }
    match tuff_fuse::transport::probe_io_uring() {
        Ok(()) => fact.ok("created a ring"),
        Err(e) => fact.missing(
            e.to_string(),
            "allow it in the seccomp profile of the container; until then mounts use /dev/fuse",
        ),
    }
}

fn over_io_uring(host: &Host) -> Fact {
    let fact = Fact::about(
        "fuse-io_uring",
        "faster mounts (tuff mount --transport uring)",
    );
    let fallback = "until then mounts use /dev/fuse";
    if host.kernel() < FIRST_URING {
        let found = format!("the kernel is older than Linux {FIRST_URING}");
        return fact.missing(found, format!("a newer kernel helps; {fallback}"));
    }
    let enabled = host.text("/sys/module/fuse/parameters/enable_uring");
    match (
        enabled.as_deref(),
        KernelConfig::read(host).has("CONFIG_FUSE_IO_URING"),
    ) {
        (Some("Y" | "1"), _) => fact.ok("enabled"),
        (Some(_), _) => fact.limited(
            "compiled in, but disabled",
            format!("echo Y > /sys/module/fuse/parameters/enable_uring as root; {fallback}"),
        ),
        (None, Some(true)) => fact.limited(
            "compiled in, and the module fuse is not loaded",
            format!("modprobe fuse enable_uring=1 as root; {fallback}"),
        ),
        (None, _) => fact.missing(
            "not compiled in",
            format!("it needs CONFIG_FUSE_IO_URING; {fallback}"),
        ),
    }
}
