//! `tuff doctor`: shows which features of the host the other verbs can use.
//!
//! A group of facts is one file. Each group runs in its own thread with a time limit, so that a device or filesystem that does not
//! answer costs its group only. Nothing is changed: the one probe that needs a file removes it before the kernel mounts it.

mod config;
mod devices;
mod erofs;
mod fact;
mod fuse;
mod host;
#[cfg(feature = "remote")]
mod image;
mod limits;
mod remote;
mod test_image;

use crate::image::image_ref;
use crate::out::Out;
use fact::{Fact, State};
use host::Host;
use serde_json::{Value, json};
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::mpsc;
use std::time::Duration;
use tuff_erofs::Result;
use tuff_open::ImageRef;

/// Time that a group of facts may take.
const GROUP_TIMEOUT: Duration = Duration::from_secs(10);

/// Show what this host can do for tuff, and what would help
///
/// Prints one line per fact: ok, limited or missing; what it is for; what was found; and what to do about it. Nothing is changed
/// and no root is needed. Root gets more answers: it mounts test images with the kernel's EROFS, which are visible nowhere.
/// Only checks that logins exist.
///
/// With IMAGE, a URL, prints what the first start of that image would wait for instead: round trips and bytes before the mount, the
/// pace of the server, whether it answers ranges, what verifies the image, and its start list and profile. The image is opened as
/// tuff mount opens it, with an empty cache that is removed afterwards; up to 2 MiB more are read to measure the bandwidth. An image
/// that cannot be opened is an error.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Image behind a URL (https://, http://, s3://, oci://)
    #[arg(value_name = "IMAGE", value_parser = image_ref())]
    image: Option<ImageRef>,
    /// Print only facts that are limited or missing
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

/// Facts about one part of the host.
type Group = fn(&Host) -> Vec<Fact>;

const GROUPS: [(&str, Group); 5] = [
    ("erofs", erofs::facts),
    ("fuse", fuse::facts),
    ("devices", devices::facts),
    ("limits", limits::facts),
    ("remote", remote::facts),
];

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let (facts, object) = match &args.image {
        Some(image) => of_image(image)?,
        None => {
            let facts = examine(&Arc::new(Host::this()));
            let objects: Vec<_> = facts.iter().map(Fact::to_json).collect();
            (facts, json!({ "facts": objects }))
        }
    };
    let mut out = Out::new();
    if args.json {
        out.json(&object)?;
    } else {
        let shown = facts.iter().filter(|f| !args.quiet || f.state != State::Ok);
        for fact in shown {
            out.line(fact)?;
        }
    }
    out.finish()
}

/// Facts about an image behind a URL, and their form of JSON.
#[cfg(feature = "remote")]
fn of_image(reference: &ImageRef) -> Result<(Vec<Fact>, Value)> {
    let examined = image::examine(reference)?;
    let object = examined.to_json();
    Ok((examined.facts, object))
}

#[cfg(not(feature = "remote"))]
fn of_image(reference: &ImageRef) -> Result<(Vec<Fact>, Value)> {
    Err(tuff_erofs::Error::usage(format_args!(
        "{reference}: this tuff reads no URLs: it was built without the cargo feature 'remote'"
    )))
}

/// Facts of all groups, in their order.
fn examine(host: &Arc<Host>) -> Vec<Fact> {
    let mut answers = Vec::new();
    for (name, group) in GROUPS {
        let (send, receive) = mpsc::channel();
        let host = Arc::clone(host);
        // Without a thread the channel is closed, which counts as no answer.
        let _ = std::thread::Builder::new().spawn(move || send.send(group(&host)));
        answers.push((name, receive));
    }
    let facts = answers.into_iter().flat_map(|(name, receive)| {
        receive.recv_timeout(GROUP_TIMEOUT).unwrap_or_else(|_| {
            let found = "the host did not answer in time";
            let advice = "look for a device or filesystem that hangs";
            vec![Fact::about(name, "this part of the examination").limited(found, advice)]
        })
    });
    facts.collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;
    use std::path::PathBuf;

    /// Directory with files as a host has them, removed on drop.
    struct Files(PathBuf);

    impl Files {
        fn new(name: &str, files: &[(&str, &str)]) -> Self {
            let dir = format!("tuff-doctor-test-{name}-{}", std::process::id());
            let dir = std::env::temp_dir().join(dir);
            let _ = fs::remove_dir_all(&dir);
            fs::create_dir_all(&dir).unwrap();
            for (path, text) in files {
                let path = dir.join(path);
                fs::create_dir_all(path.parent().unwrap()).unwrap();
                fs::write(path, text).unwrap();
            }
            Self(dir)
        }

        /// Line of one fact.
        fn line(&self, name: &str) -> String {
            let facts = examine(&Arc::new(Host::at(&self.0, false)));
            let fact = facts.iter().find(|fact| fact.name == name);
            fact.unwrap().to_string()
        }
    }

    impl Drop for Files {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const RELEASE: &str = "proc/sys/kernel/osrelease";

    /// Kernel, fact, its state, and words of its line.
    const KERNELS: &str = "\
4.19.0-27-amd64|kernel|missing|Linux 5.4 is the first
6.1.0-18-amd64|kernel|limited|metabox (6.17)
6.1.0-18-amd64|kernel|limited|--kernel 6.1
9.0.0|kernel|ok|all features
6.1.0-18-amd64|erofs-zstd|missing|Linux 6.10
6.1.0-18-amd64|erofs-lzma|limited|as root
6.1.0-18-amd64|erofs-files|missing|Linux 6.12
6.1.0-18-amd64|fuse-io_uring|missing|Linux 6.14
6.1.0-18-amd64|mount-beneath|missing|Linux 6.5
";

    #[test]
    fn the_version_of_the_kernel_decides_what_it_mounts() {
        for case in KERNELS.lines() {
            let [release, name, state, words] = case.split('|').collect::<Vec<_>>()[..] else {
                panic!("{case}");
            };
            let line = Files::new("version", &[(RELEASE, release)]).line(name);
            assert!(line.starts_with(state) && line.contains(words), "{line}");
        }
    }

    /// File of the host and its content, with `;` for line feeds; fact, its state, and words of its line.
    const FILES: &str = "\
boot/config-6.18.1-test|CONFIG_EROFS_FS=m|erofs|ok|configured
boot/config-6.18.1-test|CONFIG_EROFS_FS_ZIP_ZSTD=y|erofs-zstd|ok|configured
boot/config-6.18.1-test|# CONFIG_EROFS_FS_ZIP_LZMA is not set|erofs-lzma|missing|not configured
boot/config-6.18.1-test|CONFIG_EROFS_FS=m|erofs-files|missing|CONFIG_EROFS_FS_BACKED_BY_FILE
lib/modules/6.18.1-test/modules.dep|kernel/fs/erofs/erofs.ko.xz:|erofs|ok|a module
proc/filesystems|nodev\tproc;\terofs|erofs|ok|in the kernel
proc/filesystems|\text4|erofs|missing|without --kernel
dev/fuse||fuse|ok|opens
dev/null||fuse|missing|modprobe fuse
dev/null||fusermount3|missing|package fuse3
etc/fuse.conf|# user_allow_other|fuse-allow-other|limited|add the line
etc/fuse.conf|user_allow_other|fuse-allow-other|ok|allowed
proc/sys/kernel/io_uring_disabled|2|io_uring|missing|sysctl kernel.io_uring_disabled=0
sys/module/fuse/parameters/enable_uring|N|fuse-io_uring|limited|echo Y
sys/kernel/mm/transparent_hugepage/enabled|always madvise [never]|huge-pages|limited|echo madvise
sys/kernel/mm/transparent_hugepage/enabled|always [madvise] never|huge-pages|ok|madvise
dev/null||loop|missing|modprobe loop
dev/null||dm-verity|missing|tuff mount --verity
proc/meminfo|MemAvailable:    102400 kB|memory|limited|--memory
";

    #[test]
    fn files_of_the_host_decide_where_nothing_can_be_tried() {
        for case in FILES.lines() {
            let [path, text, name, state, words] = case.split('|').collect::<Vec<_>>()[..] else {
                panic!("{case}");
            };
            let file = (path, &*(text.replace(';', "\n") + "\n"));
            let line = Files::new("files", &[(RELEASE, "6.18.1-test"), file]).line(name);
            assert!(line.starts_with(state) && line.contains(words), "{line}");
        }
    }

    #[test]
    fn the_least_limit_of_nested_control_groups_counts() {
        let files = Files::new(
            "groups",
            &[
                (RELEASE, "6.18.1"),
                ("proc/self/cgroup", "0::/outer/inner\n"),
                ("sys/fs/cgroup/outer/inner/memory.max", "max\n"),
                ("sys/fs/cgroup/outer/memory.max", "67108864\n"),
                ("proc/meminfo", "MemAvailable:    8000000 kB\n"),
            ],
        );
        let line = files.line("memory");
        assert!(
            line.starts_with("limited") && line.contains("64.0 MiB"),
            "{line}"
        );
    }

    #[test]
    fn every_fact_that_is_not_ok_has_advice() {
        let nothing = Files::new("nothing", &[]);
        for host in [
            Host::this(),
            Host::at(&nothing.0, false),
            Host::at(&nothing.0, true),
        ] {
            for fact in examine(&Arc::new(host)) {
                let object = fact.to_json();
                assert_eq!(
                    fact.state == State::Ok,
                    object["advice"].is_null(),
                    "{fact}"
                );
                assert!(fact.to_string().len() < 400, "{fact}");
            }
        }
    }
}
