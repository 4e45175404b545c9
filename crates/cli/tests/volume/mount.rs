//! Mounted volumes, and mounts whose server dies.

use crate::common::{Mounted, Place, bad, good, json};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;
use std::time::Duration;
use tuff_testkit::program;

#[test]
fn a_mounted_volume_works_and_returns_its_space() {
    use rustix::fs::{
        AtFlags, CWD, FallocateFlags, Mode, OFlags, RenameFlags, SeekFrom, XattrFlags, fallocate,
        getxattr, linkat, open, renameat_with, seek, setxattr,
    };
    use std::os::unix::fs::FileExt;
    let place = Place::new("mount");
    let Some(mounted) = Mounted::new(&place) else {
        return;
    };
    let m = mounted.0.clone();
    fs::create_dir(m.join("d")).unwrap();
    for n in 0..500 {
        fs::write(m.join(format!("d/{n}")), n.to_string()).unwrap();
    }
    assert_eq!(fs::read_dir(m.join("d")).unwrap().count(), 500);
    // A file without a name lives while it is open.
    let file = fs::File::options()
        .read(true)
        .write(true)
        .create_new(true)
        .open(m.join("gone"))
        .unwrap();
    fs::remove_file(m.join("gone")).unwrap();
    file.write_all_at(b"still here", 100_000).unwrap();
    let mut buf = [0; 10];
    file.read_exact_at(&mut buf, 100_000).unwrap();
    assert_eq!((&buf, file.metadata().unwrap().nlink()), (b"still here", 0));
    drop(file);
    // A file created without a name gets one.
    let temporary = open(&m, OFlags::TMPFILE | OFlags::RDWR, Mode::RUSR | Mode::WUSR).unwrap();
    rustix::io::write(&temporary, b"temporary").unwrap();
    let link = format!(
        "/proc/self/fd/{}",
        std::os::fd::AsRawFd::as_raw_fd(&temporary)
    );
    linkat(CWD, link, CWD, m.join("named"), AtFlags::SYMLINK_FOLLOW).unwrap();
    drop(temporary);
    assert_eq!(fs::read(m.join("named")).unwrap(), b"temporary");
    // The flags of rename.
    let (a, b) = (m.join("d/1"), m.join("d/2"));
    let rename = |flags| renameat_with(CWD, &a, CWD, &b, flags);
    assert_eq!(
        rename(RenameFlags::NOREPLACE),
        Err(rustix::io::Errno::EXIST)
    );
    rename(RenameFlags::EXCHANGE).unwrap();
    assert_eq!(fs::read(&a).unwrap(), b"2");
    rename(RenameFlags::WHITEOUT).unwrap();
    assert_eq!(
        (fs::read(&b).unwrap(), fs::metadata(&a).unwrap().rdev()),
        (b"2".to_vec(), 0)
    );
    // Attributes, including those of overlay filesystems.
    setxattr(
        m.join("d"),
        "trusted.overlay.opaque",
        b"y",
        XattrFlags::CREATE,
    )
    .unwrap();
    let mut value = [0; 9];
    assert_eq!(
        getxattr(m.join("d"), "trusted.overlay.opaque", &mut value),
        Ok(1)
    );
    // Holes, reservations, and the space they take.
    let file = fs::File::create_new(m.join("sparse")).unwrap();
    fallocate(&file, FallocateFlags::empty(), 0, 1 << 20).unwrap();
    file.write_all_at(&[7; 8192], 512 << 10).unwrap();
    file.sync_all().unwrap();
    fallocate(
        &file,
        FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
        0,
        512 << 10,
    )
    .unwrap();
    assert_eq!(seek(&file, SeekFrom::Data(0)), Ok(512 << 10));
    assert_eq!(seek(&file, SeekFrom::Hole(512 << 10)), Ok(520 << 10));
    let blocks = file.metadata().unwrap().blocks();
    assert!((1024..1100).contains(&blocks), "{blocks}");
    drop(file);
    for name in fs::read_dir(&m).unwrap() {
        let path = name.unwrap().path();
        if path.is_dir() {
            fs::remove_dir_all(path).unwrap();
        } else {
            fs::remove_file(path).unwrap();
        }
    }
    mounted.end();
    good(&place.0, &["check", "--data", "v"]);
    let stat = json(&good(&place.0, &["stat", "v", "--json"]));
    assert_eq!(
        (&stat["inodes"], &stat["dead_bytes"]),
        (&1.into(), &0.into())
    );
    assert!(
        stat["allocated_bytes"].as_u64().unwrap() < 4 << 20,
        "{stat}"
    );
}

#[test]
fn a_background_mount_is_ready_and_closed_after_its_unmount() {
    let place = Place::new("background");
    let dir = &place.0;
    if Mounted::new(&place).is_none() {
        return;
    }
    for round in 0..5 {
        good(dir, &["mount", "v", "m"]);
        assert_eq!(fs::read_dir(dir.join("m")).unwrap().count(), round);
        fs::write(dir.join("m").join(round.to_string()), "here").unwrap();
        let mut umount = Command::new(env!("CARGO_BIN_EXE_tuff"));
        let out = program::retry_busy(umount.current_dir(dir).args(["umount", "m"]));
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
        good(dir, &["check", "--data", "v"]);
    }
    let (code, message) = bad(dir, &["mount", "nothing", "m"]);
    assert_eq!((code, message.contains("nothing")), (5, true), "{message}");
}

#[test]
fn synced_data_survives_the_death_of_the_server() {
    let place = Place::new("kill");
    for round in 0..8 {
        let Some(mounted) = Mounted::new(&place) else {
            return;
        };
        for before in 0..round {
            let read = fs::read(mounted.0.join(format!("file {before}"))).unwrap();
            assert!(
                read == vec![before as u8; 200_000],
                "round {round}: file {before}"
            );
        }
        let path = mounted.0.join(format!("file {round}"));
        fs::write(&path, vec![round as u8; 200_000]).unwrap();
        fs::File::open(&path).unwrap().sync_all().unwrap();
        fs::write(mounted.0.join(format!("unsynced {round}")), "perhaps").unwrap();
        drop(mounted);
        good(&place.0, &["check", "v"]);
    }
}

/// sync writes the page cache back without notifying the server, so durability follows seconds later, as the help
/// states.
#[test]
fn data_written_back_by_sync_is_durable_seconds_later() {
    use std::os::unix::fs::FileExt;
    let place = Place::new("sync");
    let Some(mounted) = Mounted::new(&place) else {
        return;
    };
    let write = |name: &str| {
        let file = fs::File::create(mounted.0.join(name)).unwrap();
        file.write_all_at(&[7; 200_000], 0).unwrap();
        file
    };
    // Closing them would have them written back.
    let files = [write("synced"), write("too")];
    rustix::fs::syncfs(&files[0]).unwrap();
    std::thread::sleep(Duration::from_secs(8));
    drop(mounted);
    let Some(mounted) = Mounted::new(&place) else {
        return;
    };
    for name in ["synced", "too"] {
        assert!(
            fs::read(mounted.0.join(name)).unwrap() == [7; 200_000],
            "{name}"
        );
    }
}

#[test]
fn a_volume_is_the_upper_layer_over_an_image() {
    let place = Place::new("overlay");
    let dir = &place.0;
    let Some(mounted) = Mounted::new(&place) else {
        return;
    };
    let tuff = env!("CARGO_BIN_EXE_tuff");
    let run = |command: &str, args: &[&str]| {
        let out = program::retry_busy(Command::new(command).current_dir(dir).args(args));
        (
            out.status.success(),
            String::from_utf8_lossy(&out.stderr).into_owned(),
        )
    };
    assert!(run(tuff, &["build", "src", "image"]).0);
    for name in ["lower", "all", "m/upper", "m/work"] {
        fs::create_dir(dir.join(name)).unwrap();
    }
    let (lower, message) = run("mount", &["-t", "erofs", "-o", "loop,ro", "image", "lower"]);
    if !lower {
        tuff_testkit::skipped(format_args!("the host mounts no EROFS: {message}"));
        return;
    }
    let layers = "lowerdir=lower,upperdir=m/upper,workdir=m/work";
    let over = run("mount", &["-t", "overlay", "overlay", "-o", layers, "all"]);
    let all = dir.join("all");
    let work = || -> std::io::Result<Vec<u8>> {
        fs::remove_file(all.join("link"))?;
        fs::remove_dir_all(all.join("sub"))?;
        fs::create_dir(all.join("sub"))?;
        fs::write(all.join("sub/new"), "new")?;
        fs::rename(all.join("hello"), all.join("moved"))?;
        fs::read(all.join("moved"))
    };
    let result = over.0.then(work);
    let seen: Option<Vec<_>> = result.is_some().then(|| {
        let names = fs::read_dir(all.join("sub")).unwrap();
        names.map(|e| e.unwrap().file_name()).collect()
    });
    let unmounted = run("umount", &["all"]).0 & run("umount", &["lower"]).0;
    assert!(over.0, "{}", over.1);
    assert_eq!(
        result.unwrap().unwrap(),
        fs::read(dir.join("src/hello")).unwrap()
    );
    assert_eq!(seen.unwrap(), ["new"]);
    assert!(unmounted);
    mounted.end();
    good(dir, &["check", "--data", "v"]);
}
