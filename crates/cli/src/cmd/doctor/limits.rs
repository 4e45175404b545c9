//! Limits of the process and of its control group.

use super::fact::Fact;
use super::host::Host;
use crate::units::size;
use rustix::process::{Resource, getrlimit};
use tuff_format::features::KernelVersion;

/// Open files below which volumes in zone files and images with many devices may fail.
const FILES_MIN: u64 = 1024;

/// Memory below which a build with default options may fail. Unit: bytes.
const MEMORY_MIN: u64 = 512 << 20;

/// Locked memory that the rings of a mount take before Linux 5.12. Unit: bytes.
const LOCKED_MIN: u64 = 8 << 20;

/// First kernel that does not count rings as locked memory.
const FIRST_UNCOUNTED: KernelVersion = KernelVersion(5, 12);

pub(super) fn facts(host: &Host) -> Vec<Fact> {
    vec![
        open_files(),
        locked_memory(host),
        memory(host),
        huge_pages(host),
    ]
}

fn open_files() -> Fact {
    let fact = Fact::about("open-files", "volumes in zone files, images of many layers");
    match getrlimit(Resource::Nofile).current {
        None => fact.ok("no limit"),
        Some(n) if n >= FILES_MIN => fact.ok(format!("up to {n}")),
        Some(n) => fact.limited(format!("up to {n}"), format!("ulimit -n {FILES_MIN}")),
    }
}

fn locked_memory(host: &Host) -> Fact {
    let fact = Fact::about("locked-memory", "rings of mounts over io_uring");
    match getrlimit(Resource::Memlock).current {
        None => fact.ok("no limit"),
        Some(n) if host.kernel() >= FIRST_UNCOUNTED => {
            fact.ok(format!("{}, and this kernel does not count rings", size(n)))
        }
        Some(n) if n >= LOCKED_MIN => fact.ok(size(n)),
        Some(n) => fact.limited(size(n), format!("ulimit -l {}", LOCKED_MIN >> 10)),
    }
}

fn memory(host: &Host) -> Fact {
    let fact = Fact::about("memory", "builds and caches of mounts");
    let available = host.text("/proc/meminfo").and_then(|text| {
        let line = text
            .lines()
            .find_map(|line| line.strip_prefix("MemAvailable:"))?;
        let kib: u64 = line.trim().trim_end_matches(" kB").parse().ok()?;
        Some(kib << 10)
    });
    let (limit, found) = match (group_limit(host), available) {
        (Some(limit), Some(free)) if free < limit => (free, format!("{} available", size(free))),
        (Some(limit), _) => (limit, format!("the control group may use {}", size(limit))),
        (None, Some(free)) => (free, format!("{} available", size(free))),
        (None, None) => return fact.ok("no limit of the control group"),
    };
    match limit >= MEMORY_MIN {
        true => fact.ok(found),
        false => fact.limited(
            found,
            "bound it: tuff build --memory SIZE -j N, tuff mount --cache SIZE",
        ),
    }
}

/// Least memory limit of the control group and the groups that contain it.
fn group_limit(host: &Host) -> Option<u64> {
    let groups = host.text("/proc/self/cgroup")?;
    let group = groups.lines().find_map(|line| line.strip_prefix("0::"))?;
    let mut group = group.trim_end_matches('/');
    let mut least = None;
    loop {
        let limit = host.text(&format!("/sys/fs/cgroup{group}/memory.max"));
        let limit = limit.and_then(|text| text.parse::<u64>().ok());
        least = least.into_iter().chain(limit).min();
        match group.rsplit_once('/') {
            Some((parent, _)) => group = parent,
            None => return least,
        }
    }
}

fn huge_pages(host: &Host) -> Fact {
    let fact = Fact::about("huge-pages", "faster builds: tables of the match finders");
    let advice = "echo madvise > /sys/kernel/mm/transparent_hugepage/enabled as root";
    let setting = host.text("/sys/kernel/mm/transparent_hugepage/enabled");
    match setting.as_deref() {
        Some(text) if text.contains("[never]") => fact.limited("disabled", advice),
        Some(text) if text.contains('[') => {
            let used = text.split(['[', ']']).nth(1).unwrap_or_default();
            fact.ok(format!("transparent huge pages: {used}"))
        }
        _ => fact.missing(
            "the kernel has no transparent huge pages",
            "nothing to do: builds work without them",
        ),
    }
}
