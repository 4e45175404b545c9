//! Limits of users.

use std::sync::Arc;
use tuff_iplfs::mem::MemDevice;
use tuff_iplfs::{
    Allocate, Caller, Errno, Error, FormatOptions, Limit, MountOptions, Nid, SetAttr, SetXattr,
    Time, Usage, Volume, mode,
};

const NOW: Time = Time { sec: 1, nsec: 0 };

fn device() -> Arc<MemDevice> {
    let device = Arc::new(MemDevice::new());
    let options = FormatOptions::new([1; 16], [2; 16], 1 << 20);
    Volume::format(device.clone(), &options).unwrap();
    device
}

fn mount(device: &Arc<MemDevice>) -> Volume {
    Volume::mount(device.clone(), MountOptions::default()).unwrap()
}

fn by(uid: u32) -> Caller {
    Caller {
        now: NOW,
        uid,
        gid: uid,
    }
}

fn file(v: &mut Volume, uid: u32, name: &str) -> Result<Nid, Error> {
    let attr = v.create(Nid::ROOT, name.as_bytes(), mode::FILE | 0o644, 0, &by(uid))?;
    Ok(attr.ino)
}

fn limit(blocks: u64, inodes: u64) -> Limit {
    Limit {
        blocks: Some(blocks),
        inodes: Some(inodes),
    }
}

fn refused<T>(result: Result<T, Error>) -> bool {
    matches!(result, Err(Error::Posix(Errno::Quota)))
}

/// What stat says of every inode of a user in the root directory.
fn counted(v: &mut Volume, uid: u32) -> Usage {
    let mut usage = Usage::default();
    for entry in v.read_dir(Nid::ROOT, 0, usize::MAX).unwrap() {
        let attr = v.attr(entry.ino).unwrap();
        if attr.uid == uid && entry.name != b"." && entry.name != b".." {
            usage.blocks += attr.blocks;
            usage.inodes += 1;
        }
    }
    usage
}

fn usage(v: &Volume, uid: u32) -> Usage {
    let quotas = v.quotas();
    quotas.iter().find(|(user, ..)| *user == uid).unwrap().2
}

#[test]
fn a_user_gets_so_much_and_no_more_and_others_are_not_bothered() {
    let device = device();
    let mut v = mount(&device);
    let before = file(&mut v, 7, "before").unwrap();
    v.write(before, 0, &[1; 5 * 4096], NOW).unwrap();
    v.set_quota(7, limit(20, 3), NOW).unwrap();
    assert_eq!(
        usage(&v, 7),
        Usage {
            blocks: 6,
            inodes: 1
        }
    );
    // Space: 6 are taken, an inode makes 7, 12 blocks and a node for them 20.
    let f = file(&mut v, 7, "f").unwrap();
    assert!(refused(v.write(f, 0, &[2; 13 * 4096], NOW)));
    assert_eq!(v.attr(f).unwrap().size, 0);
    v.write(f, 0, &[2; 12 * 4096], NOW).unwrap();
    // What is there may be overwritten, and nothing be added, in no way.
    v.write(f, 0, &[3; 12 * 4096], NOW).unwrap();
    assert!(refused(v.write(f, 1 << 30, &[3; 2 * 4096], NOW)));
    assert!(refused(v.fallocate(f, Allocate::Reserve, 0, 1 << 40, NOW)));
    let large = SetXattr::Any;
    assert!(v.set_xattr(f, b"user.small", &[1; 10], large, NOW).is_ok());
    // Inodes.
    file(&mut v, 7, "third").unwrap();
    assert!(refused(file(&mut v, 7, "fourth")));
    assert!(refused(v.tmpfile(Nid::ROOT, 0o644, &by(7))));
    // Gifts are not accepted.
    let other = file(&mut v, 8, "other").unwrap();
    v.write(other, 0, &[4; 100 * 4096], NOW).unwrap();
    let give = SetAttr {
        uid: Some(7),
        ..SetAttr::default()
    };
    assert!(refused(v.set_attr(other, &give, NOW)));
    // What goes makes room.
    v.unlink(Nid::ROOT, b"before", &by(7)).unwrap();
    file(&mut v, 7, "fourth").unwrap();
    assert_eq!(usage(&v, 7), counted(&mut v, 7));
    v.unmount().unwrap();
    // The limit and the count are there after a mount.
    let mut v = mount(&device);
    assert_eq!(v.quotas()[0].1, limit(20, 3));
    assert_eq!(usage(&v, 7), counted(&mut v, 7));
    assert!(refused(file(&mut v, 7, "fifth")));
    v.set_quota(7, Limit::default(), NOW).unwrap();
    assert!(v.quotas().is_empty());
    file(&mut v, 7, "fifth").unwrap();
}

#[test]
fn the_count_follows_every_operation() {
    let device = device();
    let mut v = mount(&device);
    v.set_quota(7, limit(1 << 20, 1 << 20), NOW).unwrap();
    v.set_quota(8, limit(1 << 20, 1 << 20), NOW).unwrap();
    let mut rng = tuff_iplfs::crash::Rng::new(3);
    let mut files: Vec<(String, Nid)> = Vec::new();
    for n in 0..400 {
        let at = rng.below(files.len());
        let uid = 7 + rng.below(2) as u32;
        let offset = (rng.below(900) * 4096) as u64;
        match (rng.below(8), files.get(at).cloned()) {
            (0 | 1, _) | (_, None) => {
                let name = format!("n{n}");
                files.push((name.clone(), file(&mut v, uid, &name).unwrap()));
            }
            (2, Some((_, ino))) => {
                v.write(ino, offset, &vec![1; 4096 * (1 + rng.below(9))], NOW)
                    .unwrap();
            }
            (3, Some((_, ino))) => {
                v.fallocate(ino, Allocate::KeepSize, offset, 50_000, NOW)
                    .unwrap();
            }
            (4, Some((_, ino))) => {
                v.fallocate(ino, Allocate::PunchHole, offset, 500_000, NOW)
                    .unwrap();
            }
            (5, Some((_, ino))) => {
                let set = SetAttr {
                    size: (rng.below(2) == 0).then_some(offset),
                    uid: Some(uid),
                    ..SetAttr::default()
                };
                v.set_attr(ino, &set, NOW).unwrap();
            }
            (6, Some((_, ino))) => {
                let value = vec![1; [10, 3000][rng.below(2)]];
                v.set_xattr(ino, b"user.x", &value, SetXattr::Any, NOW)
                    .unwrap();
            }
            (_, Some((name, _))) => {
                v.unlink(Nid::ROOT, name.as_bytes(), &by(uid)).unwrap();
                files.remove(at);
            }
        }
        if n % 40 == 0 {
            v.sync().unwrap();
            for uid in [7, 8] {
                assert_eq!(usage(&v, uid), counted(&mut v, uid), "operation {n}");
            }
        }
    }
    v.sync().unwrap();
    // A mount that is lost; the next one counts anew.
    drop(v);
    let mut v = mount(&device);
    for uid in [7, 8] {
        assert_eq!(usage(&v, uid), counted(&mut v, uid));
        assert!(usage(&v, uid).blocks > 0);
    }
}

#[test]
fn a_limit_that_is_none_is_refused() {
    let device = device();
    let mut v = mount(&device);
    let name = b"trusted.tuff.quota.user.5";
    let bad = v.set_xattr(Nid::ROOT, name, b"much", SetXattr::Any, NOW);
    assert!(matches!(bad, Err(Error::Posix(Errno::Invalid))));
    v.set_xattr(Nid::ROOT, name, b"8192 -", SetXattr::Any, NOW)
        .unwrap();
    let want = Limit {
        blocks: Some(2),
        inodes: None,
    };
    assert_eq!(v.quotas(), [(5, want, Usage::default())]);
}
