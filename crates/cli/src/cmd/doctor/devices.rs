//! Loop devices, device mapper and other services of the kernel for mounts by root.

use super::config::KernelConfig;
use super::fact::Fact;
use super::host::Host;
use tuff_format::features::KernelVersion;

/// First kernel that moves a mount beneath another one.
const FIRST_BENEATH: KernelVersion = KernelVersion(6, 5);

/// First kernel with fanotify events before a file is read.
const FIRST_PRE_CONTENT: KernelVersion = KernelVersion(6, 14);

pub(super) fn facts(host: &Host) -> Vec<Fact> {
    let config = KernelConfig::read(host);
    vec![
        loops(host),
        verity(host, &config),
        beneath(host),
        fanotify(host, &config),
    ]
}

fn loops(host: &Host) -> Fact {
    let fact = Fact::about(
        "loop",
        "kernel mounts of image files before Linux 6.12, and with an offset or extra devices",
    );
    let has_device = host.exists("/dev/loop-control");
    match (has_device, host.program("losetup")) {
        (true, Some(_)) if host.is_root => fact.ok("/dev/loop-control and losetup exist"),
        (true, Some(_)) => fact.limited("loop devices need root", "run tuff as root, or use FUSE"),
        (true, None) => fact.missing(
            "there is no losetup",
            "install the package util-linux or mount",
        ),
        (false, _) => fact.missing(
            "there is no /dev/loop-control",
            "modprobe loop; in a container, pass --device /dev/loop-control and loop devices",
        ),
    }
}

fn verity(host: &Host, config: &KernelConfig) -> Fact {
    let fact = Fact::about("dm-verity", "verification by the kernel (veritysetup open)");
    let instead = "until then tuff verifies: tuff mount --verity ROOT-HASH";
    let has_target =
        host.exists("/sys/module/dm_verity") || config.has("CONFIG_DM_VERITY").unwrap_or(true);
    if !host.exists("/dev/mapper/control") {
        return fact.missing(
            "there is no device mapper",
            format!("modprobe dm-verity; {instead}"),
        );
    }
    match (has_target, host.program("veritysetup")) {
        (false, _) => fact.missing("the kernel has no CONFIG_DM_VERITY", instead),
        (true, None) => fact.limited(
            "there is no veritysetup",
            format!("install the package cryptsetup-bin; {instead}"),
        ),
        (true, Some(_)) => fact.for_root(host, "device mapper and veritysetup exist", instead),
    }
}

fn beneath(host: &Host) -> Fact {
    let fact = Fact::about(
        "mount-beneath",
        "replacing the mount of a URL by the kernel's when it is complete (tuff mount --kernel)",
    );
    if host.kernel() < FIRST_BENEATH {
        let found = format!("the kernel is older than Linux {FIRST_BENEATH}");
        return fact.missing(
            found,
            "a newer kernel helps; until then such mounts stay with FUSE",
        );
    }
    let advice = "mount as root, or stay with FUSE";
    fact.for_root(host, "Linux 6.5 or newer, and root", advice)
}

fn fanotify(host: &Host, config: &KernelConfig) -> Fact {
    let fact = Fact::about(
        "fanotify",
        "filling image files before the kernel reads them, by other tools; no verb of tuff needs it",
    );
    let compiled = host.exists("/proc/sys/fs/fanotify");
    let events = config
        .has("CONFIG_FANOTIFY_ACCESS_PERMISSIONS")
        .unwrap_or(true);
    let advice = "nothing to do: URLs are served through FUSE";
    match compiled && events {
        _ if host.kernel() < FIRST_PRE_CONTENT => {
            let found = format!("the kernel is older than Linux {FIRST_PRE_CONTENT}");
            fact.missing(found, advice)
        }
        false => fact.missing("not compiled in", advice),
        true => fact.for_root(host, "events before a read", advice),
    }
}
