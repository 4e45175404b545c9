//! Images that claim more than they contain: every verb ends soon with a documented code, and at once on a signal.

use crate::common::{Place, code, stderr};
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::process::{Output, Stdio};
use std::time::{Duration, Instant};
use tuff_testkit::shapes;

/// Timeout, far above the time of a healthy run.
const HANG: Duration = Duration::from_secs(60);
/// Limit from a signal to the end of the process.
const STOP: Duration = Duration::from_secs(1);

/// Command lines of the verbs for the image `i`.
const VERBS: [&[&str]; 12] = [
    &["check", "-q", "i"],
    &["extract", "-q", "i", "out"],
    &["extract", "-q", "-k", "i", "out"],
    &["fsck.erofs", "--extract=out", "i"],
    &["build", "-q", "i", "built"],
    &[
        "build", "-q", "--sparse", "fill", "-z", "none", "i", "built",
    ],
    &["verity", "add", "-q", "i"],
    &["tar", "i", "t.tar"],
    &["diff", "i", "j"],
    &["dump", "i"],
    &["info", "i"],
    &["ls", "-l", "-R", "i"],
];

/// Runs a verb, which must end on its own. Returns its output.
fn run(place: &Place, args: &[&str]) -> Output {
    for made in ["out", "built", "t.tar"] {
        let path = place.path(made);
        let _ = fs::remove_dir_all(&path);
        let _ = fs::remove_file(&path);
    }
    let files = ["stdout", "stderr"].map(|name| File::create(place.path(name)).unwrap());
    let [stdout, stderr] = files;
    let mut child = place
        .command(args)
        .stdout(stdout)
        .stderr(stderr)
        .spawn()
        .unwrap();
    let start = Instant::now();
    let status = loop {
        if let Some(status) = child.try_wait().unwrap() {
            break status;
        }
        if start.elapsed() > HANG {
            child.kill().unwrap();
            child.wait().unwrap();
            panic!("{args:?} does not end");
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    Output {
        status,
        stdout: Vec::new(),
        stderr: fs::read(place.path("stderr")).unwrap(),
    }
}

fn put(place: &Place, bytes: &[u8]) {
    for name in ["i", "j"] {
        fs::write(place.path(name), bytes).unwrap();
    }
}

#[test]
fn every_verb_ends_on_files_of_any_claimed_size() {
    let place = Place::new("claimed");
    for (name, bytes) in shapes::claimed_files(&[1 << 46, 1 << 58, (1 << 63) - 4096]) {
        for args in VERBS {
            put(&place, &bytes);
            let out = run(&place, args);
            let message = stderr(&out);
            assert!(
                [0, 1, 3, 4, 5].contains(&code(&out)),
                "{name}: {args:?}: {}, {message}",
                out.status
            );
            // One line, unless the verb continues after damage.
            let goes_on = args.contains(&"-k") || args[0] == "dump";
            assert!(
                goes_on || message.lines().count() <= 1,
                "{name}: {args:?}: {message}"
            );
        }
    }
}

#[test]
fn a_hole_of_a_source_image_stays_a_hole_in_every_layout() {
    let place = Place::new("source-holes");
    put(&place, &shapes::holes(1 << 40));
    let out = run(&place, &["build", "-q", "i", "built"]);
    assert_eq!((code(&out), stderr(&out).as_str()), (0, ""));
    assert!(fs::metadata(place.path("built")).unwrap().len() < 8 << 20);
    let diff = place.run(&["diff", "--content-only", "i", "built"]);
    assert_eq!((code(&diff), stderr(&diff).as_str()), (0, ""));
    // Written as zeros they would exceed the limit.
    let out = run(&place, &["build", "-q", "--sparse", "fill", "i", "built"]);
    let message = stderr(&out);
    assert_eq!(code(&out), 4, "{message}");
    assert!(message.contains("content_per_byte"), "{message}");
}

/// Regression: a hash tree was built for 1 TiB of zeros.
#[test]
fn verity_rejects_an_image_shorter_than_its_superblock_states() {
    let place = Place::new("short-verity");
    let mut bytes = shapes::deep(3, 3);
    // No checksum, and 2^28 blocks.
    bytes[1024 + 8] &= !1;
    bytes[1024 + 0x24..1024 + 0x28].copy_from_slice(&(1u32 << 28).to_le_bytes());
    put(&place, &bytes);
    let out = run(&place, &["verity", "add", "-q", "i"]);
    let message = stderr(&out);
    assert_eq!(code(&out), 3, "{message}");
    assert!(message.contains("by its blocks"), "{message}");
    assert_eq!(fs::read(place.path("i")).unwrap(), bytes);
}

#[test]
fn deep_trees_take_linear_time() {
    let place = Place::new("deep");
    put(&place, &shapes::deep(10_000, 1));
    for args in VERBS {
        // A listing contains each directory's path, so its size is quadratic.
        if args[0] == "ls" {
            continue;
        }
        let out = run(&place, args);
        assert!(
            [0, 1].contains(&code(&out)),
            "{args:?}: {}, {}",
            out.status,
            stderr(&out)
        );
        let _ = crate::common::tool(&place.0, "rm", &["-rf", "out"]);
    }
}

#[test]
fn shared_directories_end_at_a_limit() {
    let place = Place::new("shared");
    put(&place, &shapes::shared(300, 3_000));
    for args in VERBS {
        // These create files up to the limit.
        if ["extract", "fsck.erofs", "build"].contains(&args[0]) || args[0] == "verity" {
            continue;
        }
        let out = run(&place, args);
        let want = if args[0] == "check" { 1 } else { 4 };
        assert_eq!(code(&out), want, "{args:?}: {}", stderr(&out));
    }
    put(&place, &shapes::deep(2_000, 200));
    for args in VERBS.iter().filter(|args| args[0] != "verity") {
        let out = run(&place, args);
        let message = stderr(&out);
        assert!([1, 4].contains(&code(&out)), "{args:?}: {message}");
        assert!(message.len() < 10_000, "{args:?}");
        let _ = crate::common::tool(&place.0, "rm", &["-rf", "out"]);
    }
}

#[test]
fn a_signal_ends_long_work_within_a_second() {
    let place = Place::new("signal");
    // 3 GiB of content in 32 MiB.
    put(&place, &shapes::same_blocks(100, 32 << 20));
    // 1 TiB for a hash tree.
    let blocks = 1u32 << 28;
    let mut head = shapes::deep(3, 3);
    head[1024 + 8] &= !1;
    head[1024 + 0x24..1024 + 0x28].copy_from_slice(&blocks.to_le_bytes());
    fs::write(place.path("long"), &head).unwrap();
    let long = File::options()
        .write(true)
        .open(place.path("long"))
        .unwrap();
    long.write_all_at(&head, 0).unwrap();
    long.set_len(u64::from(blocks) * 4096).unwrap();
    for args in [
        &["extract", "-q", "i", "out"][..],
        &["extract", "-q", "-k", "i", "out"],
        &["fsck.erofs", "--extract=out", "i"],
        &["build", "-q", "--dedupe", "off", "i", "built"],
        &["tar", "i", "t.tar"],
        &["diff", "i", "j"],
        &["verity", "add", "-q", "--into", "tree", "long"],
    ] {
        let mut child = place
            .command(args)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        std::thread::sleep(Duration::from_millis(100));
        assert!(child.try_wait().unwrap().is_none(), "{args:?} has ended");
        let pid = child.id().to_string();
        let kill = std::process::Command::new("kill").arg(&pid).status();
        assert!(kill.unwrap().success());
        let start = Instant::now();
        child.wait().unwrap();
        let took = start.elapsed();
        assert!(
            took <= STOP,
            "{args:?}: {took:?} from the signal to the end"
        );
        let _ = fs::remove_dir_all(place.path("out"));
    }
}
