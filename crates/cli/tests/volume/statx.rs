//! Times of creation.

use crate::common::{Mounted, Place, run};
use rustix::fs::{AtFlags, CWD, Statx, StatxFlags};
use std::fs;
use std::path::Path;

/// Returns what statx(2) reports, with the time of creation.
fn statx(path: &Path) -> Statx {
    let mask = StatxFlags::BASIC_STATS | StatxFlags::BTIME;
    rustix::fs::statx(CWD, path, AtFlags::SYMLINK_NOFOLLOW, mask).unwrap()
}

fn btime(path: &Path) -> Option<(i64, u32)> {
    let stat = statx(path);
    let has = stat.stx_mask & StatxFlags::BTIME.bits() != 0;
    has.then_some((stat.stx_btime.tv_sec, stat.stx_btime.tv_nsec))
}

pub(crate) fn kernel() -> (u32, u32) {
    let release = fs::read_to_string("/proc/sys/kernel/osrelease").unwrap();
    let mut numbers = release.split(|c: char| !c.is_ascii_digit());
    let mut number = || numbers.next().and_then(|n| n.parse().ok()).unwrap_or(0);
    (number(), number())
}

#[test]
fn the_time_of_creation_is_shown_and_stays() {
    if kernel() < (6, 6) {
        tuff_testkit::skipped("FUSE carries times of creation from Linux 6.6 on");
        return;
    }
    let place = Place::new("btime");
    let Some(mounted) = Mounted::new(&place) else {
        return;
    };
    let file = mounted.0.join("file");
    fs::write(&file, "one").unwrap();
    let node = run(&mounted.0, "mknod", &["node", "b", "7", "70000"]);
    assert!(node.0, "{}", node.1);
    let created = btime(&file).unwrap();
    let born = fs::metadata(&file).unwrap().modified().unwrap();
    let born = born.duration_since(std::time::UNIX_EPOCH).unwrap();
    assert!(
        created.0.abs_diff(born.as_secs() as i64) < 100,
        "{created:?}"
    );
    let touched = run(&mounted.0, "touch", &["-d", "2001-02-03", "file"]);
    assert!(touched.0, "{}", touched.1);
    let chmod = run(&mounted.0, "chmod", &["4711", "file"]);
    assert!(chmod.0, "{}", chmod.1);
    fs::rename(&file, mounted.0.join("moved")).unwrap();
    let file = mounted.0.join("moved");
    assert_eq!(btime(&file), Some(created));
    mounted.end();
    let Some(mounted) = Mounted::new(&place) else {
        return;
    };
    let stat = statx(&file);
    assert_eq!(btime(&file), Some(created));
    assert_eq!((stat.stx_mode, stat.stx_size), (0o104711, 3));
    assert_eq!(stat.stx_mtime.tv_sec / 1000, 981_158);
    let node = statx(&mounted.0.join("node"));
    assert_eq!((node.stx_rdev_major, node.stx_rdev_minor), (7, 70000));
    mounted.end();
}
