//! Quotas of users, groups and projects.

use std::sync::Arc;
use tuff_iplfs::backend::MemDevice;
use tuff_iplfs::{
    Allocate, Attr, Caller, CheckOptions, Errno, Error, FormatOptions, Limit, MountOptions, Nid,
    Rename, SetAttr, SetXattr, Subject, Time, Usage, Volume, check, mode,
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

/// Usage of a subject according to `stat` of every inode in the root directory.
fn counted(v: &mut Volume, subject: Subject) -> Usage {
    let mut usage = Usage::default();
    for entry in v.read_dir(Nid::ROOT, 0, usize::MAX).unwrap() {
        let attr = v.attr(entry.ino).unwrap();
        if counts_for(&attr, subject) && entry.name != b"." && entry.name != b".." {
            usage.blocks += attr.blocks;
            usage.inodes += 1;
        }
    }
    usage
}

fn counts_for(attr: &Attr, subject: Subject) -> bool {
    match subject {
        Subject::User(n) => attr.uid == n,
        Subject::Group(n) => attr.gid == n,
        Subject::Project(n) => attr.project == n,
    }
}

fn usage(v: &Volume, subject: Subject) -> Usage {
    let quotas = v.quotas();
    quotas.iter().find(|(s, ..)| *s == subject).unwrap().2
}

/// Changes the owner of an inode to a subject.
fn give(v: &mut Volume, ino: Nid, to: Subject) -> Result<(), Error> {
    let mut set = SetAttr::default();
    match to {
        Subject::User(n) => set.uid = Some(n),
        Subject::Group(n) => set.gid = Some(n),
        Subject::Project(n) => set.project = Some(n),
    }
    v.set_attr(ino, &set, NOW).map(drop)
}

const ONE_OF_EACH: [Subject; 3] = [Subject::User(7), Subject::Group(7), Subject::Project(7)];

#[test]
fn a_limit_binds_its_subject_and_no_other() {
    for subject in ONE_OF_EACH {
        gets_so_much(subject);
    }
}

fn gets_so_much(seven: Subject) {
    let device = device();
    let mut v = mount(&device);
    // A directory of the project 7 for the user 7 of the group 7, and one for other owners.
    let [dir, elsewhere] = [7, 8].map(|n| {
        let name = format!("dir {n}");
        let attr = v.create(Nid::ROOT, name.as_bytes(), mode::DIR | 0o777, 0, &by(9));
        let ino = attr.unwrap().ino;
        give(&mut v, ino, Subject::Project(n)).unwrap();
        ino
    });
    let file = |v: &mut Volume, uid: u32, name: &str| {
        let dir = if uid == 7 { dir } else { elsewhere };
        v.create(dir, name.as_bytes(), mode::FILE | 0o644, 0, &by(uid))
            .map(|attr| attr.ino)
    };
    // The directory itself is charged to the project only.
    let own = Usage {
        blocks: u64::from(matches!(seven, Subject::Project(_))),
        inodes: u64::from(matches!(seven, Subject::Project(_))),
    };
    let before = file(&mut v, 7, "before").unwrap();
    v.write(before, 0, &[1; 5 * 4096], NOW).unwrap();
    let want = limit(20 + own.blocks, 3 + own.inodes);
    v.set_quota(seven, want, NOW).unwrap();
    let has = Usage {
        blocks: 6 + own.blocks,
        inodes: 1 + own.inodes,
    };
    assert_eq!(usage(&v, seven), has, "{seven}");
    // Space: 6 are taken, an inode makes 7, 12 blocks and a node for them 20.
    let f = file(&mut v, 7, "f").unwrap();
    assert!(refused(v.write(f, 0, &[2; 13 * 4096], NOW)));
    assert_eq!(v.attr(f).unwrap().size, 0);
    v.write(f, 0, &[2; 12 * 4096], NOW).unwrap();
    // Existing blocks may be overwritten, but no operation may add one.
    v.write(f, 0, &[3; 12 * 4096], NOW).unwrap();
    assert!(refused(v.write(f, 1 << 30, &[3; 2 * 4096], NOW)));
    assert!(refused(v.fallocate(f, Allocate::Reserve, 0, 1 << 40, NOW)));
    let large = SetXattr::Any;
    assert!(v.set_xattr(f, b"user.small", &[1; 10], large, NOW).is_ok());
    // Limit of inodes.
    file(&mut v, 7, "third").unwrap();
    assert!(refused(file(&mut v, 7, "fourth")));
    assert!(refused(v.tmpfile(dir, 0o644, &by(7))));
    let hide = v.rename(dir, b"third", elsewhere, b"x", Rename::Whiteout, &by(7));
    assert!(refused(hide));
    // An inode may not be transferred to a subject at its limit.
    let other = file(&mut v, 8, "other").unwrap();
    v.write(other, 0, &[4; 100 * 4096], NOW).unwrap();
    assert!(refused(give(&mut v, other, seven)));
    // A deletion makes space available.
    v.unlink(dir, b"before", &by(7)).unwrap();
    file(&mut v, 7, "fourth").unwrap();
    let has = usage(&v, seven);
    assert_eq!((has.blocks, has.inodes), (15 + own.blocks, 3 + own.inodes));
    v.unmount().unwrap();
    // The limit and the usage persist across a mount.
    let mut v = mount(&device);
    assert_eq!(v.quotas(), [(seven, want, has)]);
    assert!(refused(file(&mut v, 7, "fifth")));
    v.set_quota(seven, Limit::default(), NOW).unwrap();
    assert!(v.quotas().is_empty());
    file(&mut v, 7, "fifth").unwrap();
}

#[test]
fn entries_of_other_users_count_against_the_owner_of_the_directory() {
    for subject in ONE_OF_EACH {
        let device = device();
        let mut v = mount(&device);
        let dir = v
            .create(Nid::ROOT, b"open to all", mode::DIR | 0o777, 0, &by(1))
            .unwrap()
            .ino;
        give(&mut v, dir, subject).unwrap();
        v.set_quota(subject, limit(12, 100), NOW).unwrap();
        // The files are outside the project, and no limit applies to their owners.
        let target = file(&mut v, 8, "target").unwrap();
        let enter = |v: &mut Volume, n: usize| {
            let name = format!("{n:0200}");
            v.link(target, dir, name.as_bytes(), &by(8))
        };
        let full = (0..).find(|n| refused(enter(&mut v, *n))).unwrap();
        let has = usage(&v, subject);
        assert_eq!(has.blocks, v.attr(dir).unwrap().blocks, "{subject}");
        assert!((9..=12).contains(&has.blocks), "{subject}: {}", has.blocks);
        assert!(full > 40, "{full} entries of 26 slots");
        // A rejected operation changed nothing, whichever way an entry is created.
        let name = format!("{full:0200}");
        let moved = v.rename(
            Nid::ROOT,
            b"target",
            dir,
            name.as_bytes(),
            Rename::Replace,
            &by(8),
        );
        assert!(refused(moved));
        assert!(refused(v.symlink(dir, name.as_bytes(), b"x", &by(8))));
        assert_eq!(usage(&v, subject), has);
        assert_eq!(v.attr(target).unwrap().nlink as usize, 1 + full);
        // Names may be replaced and removed, which makes space for others.
        let spare = file(&mut v, 8, "spare").unwrap();
        let first = format!("{:0200}", 0);
        v.rename(
            Nid::ROOT,
            b"spare",
            dir,
            first.as_bytes(),
            Rename::Replace,
            &by(8),
        )
        .unwrap();
        assert_eq!(v.lookup(dir, first.as_bytes()).unwrap(), spare);
        for n in 0..full {
            v.unlink(dir, format!("{n:0200}").as_bytes(), &by(8))
                .unwrap();
        }
        enter(&mut v, full).unwrap();
        v.sync().unwrap();
        // Usage of changes that were not durable is recounted, even beyond the limit.
        v.set_quota(subject, limit(1, 100), NOW).unwrap();
        drop(v);
        let v = mount(&device);
        assert!(usage(&v, subject).blocks > 1);
        v.unmount().unwrap();
        is_sound(&device);
    }
}

#[test]
fn an_inode_and_its_entry_count_together_against_a_limit() {
    for subject in ONE_OF_EACH {
        let device = device();
        let mut v = mount(&device);
        let dir = v.create(Nid::ROOT, b"dir", mode::DIR | 0o777, 0, &by(7));
        let dir = dir.unwrap().ino;
        give(&mut v, dir, Subject::Project(7)).unwrap();
        v.set_quota(subject, limit(40, 100), NOW).unwrap();
        let make = |v: &mut Volume, n: usize| {
            let name = format!("{n:0200}");
            v.create(dir, name.as_bytes(), mode::FILE | 0o644, 0, &by(7))
        };
        let made = (0..).find(|n| refused(make(&mut v, *n))).unwrap();
        let has = usage(&v, subject);
        assert!((37..=40).contains(&has.blocks), "{subject}: {has:?}");
        assert_eq!(has.inodes as usize, 1 + made, "{subject}");
    }
}

#[test]
fn new_inodes_are_charged_to_the_project_and_set_group_of_their_directory() {
    let device = device();
    let mut v = mount(&device);
    let dir = v
        .create(Nid::ROOT, b"d", mode::DIR | 0o2777, 0, &by(1))
        .unwrap()
        .ino;
    for subject in ONE_OF_EACH {
        give(&mut v, dir, subject).unwrap();
        v.set_quota(subject, limit(1 << 20, 3), NOW).unwrap();
    }
    v.create(dir, b"a", mode::FILE | 0o644, 0, &by(8)).unwrap();
    v.create(dir, b"b", mode::DIR | 0o755, 0, &by(8)).unwrap();
    let inodes = ONE_OF_EACH.map(|subject| usage(&v, subject).inodes);
    assert_eq!(inodes, [1, 3, 3]);
    assert!(refused(v.create(dir, b"c", mode::FILE | 0o644, 0, &by(8))));
    // The group has space again, the project has not.
    let b = v.lookup(dir, b"b").unwrap();
    give(&mut v, b, Subject::Group(8)).unwrap();
    let inodes = ONE_OF_EACH.map(|subject| usage(&v, subject).inodes);
    assert_eq!(inodes, [1, 2, 3]);
    assert!(refused(v.create(dir, b"c", mode::FILE | 0o644, 0, &by(8))));
    give(&mut v, b, Subject::Project(0)).unwrap();
    v.create(dir, b"c", mode::FILE | 0o644, 0, &by(8)).unwrap();
    v.unmount().unwrap();
    is_sound(&device);
}

fn is_sound(device: &Arc<MemDevice>) {
    let device: Arc<dyn tuff_iplfs::BlockDevice> = device.clone();
    let report = check(&device, CheckOptions::default()).unwrap();
    assert!(report.findings.is_empty(), "{:?}", report.findings);
}

#[test]
fn usage_follows_every_operation() {
    let device = device();
    let mut v = mount(&device);
    let subjects = [7, 8].map(|n| [Subject::User(n), Subject::Group(n), Subject::Project(n)]);
    let subjects = subjects.concat();
    for subject in &subjects {
        v.set_quota(*subject, limit(1 << 20, 1 << 20), NOW).unwrap();
    }
    let mut rng = tuff_testkit::Rng::new(3);
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
                    uid: (rng.below(2) == 0).then_some(uid),
                    gid: (rng.below(2) == 0).then_some(7 + rng.below(2) as u32),
                    project: Some(7 + rng.below(3) as u32),
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
            for subject in &subjects {
                let want = counted(&mut v, *subject);
                assert_eq!(usage(&v, *subject), want, "operation {n}, {subject}");
            }
        }
    }
    v.sync().unwrap();
    // The mount is lost to a crash. The next one counts again.
    drop(v);
    let mut v = mount(&device);
    for subject in subjects {
        assert_eq!(usage(&v, subject), counted(&mut v, subject));
        assert!(usage(&v, subject).blocks > 0, "{subject}");
    }
}

#[test]
fn malformed_limits_are_rejected() {
    let device = device();
    let mut v = mount(&device);
    let name = b"trusted.tuff.quota.user.5";
    for (name, value) in [
        (&name[..], &b"much"[..]),
        (b"trusted.tuff.quota.host.5", b"1 1"),
    ] {
        let bad = v.set_xattr(Nid::ROOT, name, value, SetXattr::Any, NOW);
        assert!(matches!(bad, Err(Error::Posix(Errno::Invalid))));
    }
    v.set_xattr(Nid::ROOT, name, b"8192 -", SetXattr::Any, NOW)
        .unwrap();
    let want = Limit {
        blocks: Some(2),
        inodes: None,
    };
    assert_eq!(v.quotas(), [(Subject::User(5), want, Usage::default())]);
}
