//! End-to-end tests on a small tree with the tools in PATH: definition, samples, record, report,
//! document.
//!
//! Times are not checked. Tests of missing tools are reported as skipped.

use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::time::{Duration, Instant};
use tuff_lab::record::{self, Line};
use tuff_testkit::program;

struct Lab {
    folder: tempfile::TempDir,
}

impl Lab {
    fn new() -> Lab {
        let folder = tempfile::tempdir().unwrap();
        let lab = Lab { folder };
        let tree = lab.path("tree");
        std::fs::create_dir_all(tree.join("sub/empty")).unwrap();
        for i in 0..20 {
            let text = format!("line {i} of a file that compresses well\n").repeat(200 * i);
            std::fs::write(tree.join(format!("sub/file{i}")), text).unwrap();
        }
        std::fs::hard_link(tree.join("sub/file3"), tree.join("link")).unwrap();
        symlink("sub/file3", tree.join("symlink")).unwrap();
        std::fs::write(tree.join("script"), "#!/bin/sh\n").unwrap();
        let mode = std::fs::Permissions::from_mode(0o750);
        std::fs::set_permissions(tree.join("script"), mode).unwrap();
        std::fs::create_dir(lab.path("work")).unwrap();
        lab
    }

    /// Returns a lab with `tuff` and mounts. None if this host lacks them or one of the programs.
    fn with(programs: &[&str]) -> Option<Lab> {
        let tuff = Path::new(env!("CARGO_BIN_EXE_tuff-lab")).with_file_name("tuff");
        if !is_mountable() || !programs.iter().all(|program| is_there(program)) {
            return None;
        }
        if !tuff.exists() || !Path::new("/dev/fuse").exists() {
            tuff_testkit::skipped(
                "a measurement: no program tuff beside tuff-lab, or no /dev/fuse",
            );
            return None;
        }
        Some(Lab::new())
    }

    /// Asserts that a run has left nothing in the work folder.
    fn assert_clean(&self) {
        let left: Vec<_> = std::fs::read_dir(self.path("work")).unwrap().collect();
        assert!(left.is_empty(), "a run leaves nothing: {left:?}");
    }

    fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn command(&self, arguments: &[&str]) -> Output {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tuff-lab"));
        command
            .args(arguments)
            .current_dir(self.folder.path())
            .output()
            .unwrap()
    }

    /// Runs a campaign of `words` with its record in the folder `records`.
    fn measure(&self, words: &str, more: &[&str]) -> Output {
        let places = "--work work --records records";
        let words = words.split(' ').chain(places.split(' '));
        let all: Vec<&str> = words.chain(more.iter().copied()).collect();
        self.command(&all)
    }

    /// Runs a definition and returns its record.
    fn run(&self, definition: &str, more: &[&str]) -> (Output, Vec<Line>) {
        std::fs::write(self.path("d.toml"), definition).unwrap();
        let output = self.measure("run d.toml --tree tree", more);
        let lines = record::read(&self.path("records/d.jsonl")).unwrap();
        (output, lines)
    }

    /// Creates a shell script that replaces a tool.
    fn script(&self, name: &str, text: &str) -> String {
        let path = self.path(name);
        program::script(&path, &format!("#!/bin/sh\n{text}\n"));
        path.to_string_lossy().into_owned()
    }
}

fn is_there(tool: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path).any(|p| p.join(tool).is_file());
    if !found {
        tuff_testkit::skipped(format_args!("what needs {tool}: it was not found on PATH"));
    }
    found
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8_lossy(bytes).into_owned()
}

fn kept(lines: &[Line], label: &str) -> usize {
    let counts = |l: &&Line| matches!(l, Line::Sample(s) if s.cell["tool"] == label);
    lines.iter().filter(counts).count()
}

fn failures(lines: &[Line], label: &str) -> Vec<String> {
    let reason = |l: &Line| match l {
        Line::Failure(f) if f.cell["tool"] == label => Some(f.text.clone()),
        _ => None,
    };
    lines.iter().filter_map(reason).collect()
}

/// Returns the number of notes that contain a text.
fn notes(lines: &[Line], text: &str) -> usize {
    let has = |l: &&Line| matches!(l, Line::Note(n) if n.text.contains(text));
    lines.iter().filter(has).count()
}

#[test]
fn squashfs_is_measured_from_definition_to_document() {
    if !is_there("mksquashfs") || !is_there("unsquashfs") {
        return;
    }
    let lab = Lab::new();
    let definition = r#"
        rounds = 2
        [[task]]
        name = "small"
        action = "build"
        run = [{ tool = "mksquashfs" }]
        [[task]]
        name = "small"
        action = "extract"
        run = [{ tool = "unsquashfs" }]
    "#;
    let (output, lines) = lab.run(definition, &["--seed", "1"]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    assert_eq!(kept(&lines, "mksquashfs"), 2);
    assert_eq!(kept(&lines, "unsquashfs"), 2);
    assert_eq!(notes(&lines, "compared with the source"), 3);
    let raw = std::fs::read_to_string(lab.path("records/d.jsonl")).unwrap();
    assert!(
        !raw.contains(&*lab.folder.path().to_string_lossy()),
        "a record contains a path of the machine"
    );
    lab.assert_clean();

    std::fs::write(
        lab.path("README.md"),
        "# T\n<!-- lab:begin x -->\n<!-- lab:end x -->\nrest\n",
    )
    .unwrap();
    let report = ["report", "--readme", "README.md", "--block", "x", "records"];
    let check = [&report[..], &["--check"]].concat();
    assert_eq!(lab.command(&check).status.code(), Some(1));
    assert!(lab.command(&report).status.success());
    assert!(lab.command(&check).status.success());
    let readme = std::fs::read_to_string(lab.path("README.md")).unwrap();
    assert!(readme.contains("| tree | small | mksquashfs |"), "{readme}");
    assert!(readme.contains("`tuff-lab report --readme README.md --block x records`"));
    assert!(readme.ends_with("<!-- lab:end x -->\nrest\n"));
    std::fs::write(
        lab.path("README.md"),
        readme.replace("| small |", "| large |"),
    )
    .unwrap();
    assert_eq!(lab.command(&check).status.code(), Some(1));
}

#[test]
fn a_run_without_measurements_leaves_no_record() {
    // Regression test: a run with `--only` that matched no task succeeded and left a record with a
    // header only. A run that failed to start also left such a record.
    let lab = Lab::new();
    let definition = r#"
        rounds = 1
        [[task]]
        name = "small"
        action = "build"
        run = [{ tool = "mksquashfs" }]
    "#;
    std::fs::write(lab.path("d.toml"), definition).unwrap();
    let run = |more: &[&str]| {
        let all = ["run", "d.toml", "--tree", "tree", "--records", "records"];
        lab.command(&[&all[..], more].concat())
    };
    for (more, code, says) in [
        (
            &["--work", "work", "--only", "large"][..],
            2,
            "nothing to do",
        ),
        (&["--work", "nowhere"], 5, "nowhere"),
        (
            &["--work", "work", "--tool", "mksquashfs=/none"],
            2,
            "not an executable file",
        ),
    ] {
        let output = run(more);
        assert_eq!(output.status.code(), Some(code), "{more:?}");
        assert!(text(&output.stderr).contains(says), "{more:?}");
        let left = std::fs::read_dir(lab.path("records")).map_or(0, Iterator::count);
        assert_eq!(left, 0, "{more:?}");
    }
}

#[test]
fn an_interrupted_run_leaves_no_folder() {
    let lab = Lab::new();
    let version = "test \"$1\" = --version && { echo tuff 9.9; exit; }";
    let program = lab.script(
        "tuff",
        &format!("{version}\n: > ../../begun; exec sleep 60"),
    );
    let mut child = Command::new(env!("CARGO_BIN_EXE_tuff-lab"))
        .args(["build", "--tree", "tree", "--work", "work", "--tool"])
        .arg(format!("tuff={program}"))
        .current_dir(lab.folder.path())
        .process_group(0)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    let end = Instant::now() + Duration::from_secs(60);
    while !lab.path("begun").exists() {
        assert!(Instant::now() < end, "the tool was not called");
        std::thread::sleep(Duration::from_millis(20));
    }
    // Like a terminal on ^C.
    let group = format!("-{}", child.id());
    let killed = Command::new("kill").args(["-INT", "--", &group]).status();
    assert!(killed.unwrap().success());
    assert_eq!(child.wait().unwrap().code(), Some(130));
    lab.assert_clean();
}

/// Runs tasks with a script in place of `tuff`, and returns the lines of the record. No sample of it counts.
fn run_with_fake(script: &str, rounds: u32, actions: &[&str]) -> Vec<Line> {
    let lab = Lab::new();
    let version = "test \"$1\" = --version && { echo tuff 9.9; exit; }";
    let program = lab.script("tuff", &format!("{version}\n{script}"));
    let task = |action: &&str| {
        format!("[[task]]\nname = 'small'\naction = '{action}'\nrun = [{{ tool = 'tuff' }}]\n")
    };
    let tasks: String = actions.iter().map(task).collect();
    let definition = format!("rounds = {rounds}\n{tasks}");
    let (output, lines) = lab.run(&definition, &["--tool", &format!("tuff={program}")]);
    assert_eq!(output.status.code(), Some(1), "our own tool failed");
    assert!(kept(&lines, "tuff") < rounds as usize);
    lines
}

#[test]
fn a_failing_tool_drops_out_with_its_error_message() {
    let lines = run_with_fake("echo no such thing: $2 $4 >&2; exit 2", 1, &["build"]);
    let expected = ["exit code 2: no such thing: --quiet WORK/image"];
    assert_eq!(failures(&lines, "tuff"), expected);
}

#[test]
fn an_image_of_another_tree_is_rejected() {
    let script = "case $1 in build) echo image > $4;; extract) mkdir $3;; esac";
    let lines = run_with_fake(script, 1, &["build"]);
    let [reason] = failures(&lines, "tuff").try_into().unwrap();
    assert!(reason.contains("names differ in 25 entries"), "{reason}");
    let extracted = notes(&lines, "not mounted; extracted by tuff");
    assert!(
        extracted > 0,
        "an image that cannot be mounted is extracted"
    );
}

#[test]
fn wrong_results_of_ours_are_rejected() {
    if !is_there("mkfs.erofs") || !is_mountable() {
        return;
    }
    let lines = run_with_fake("[ $1 != extract ] || mkdir $3", 1, &["extract", "check"]);
    let expected = [
        "wrong result: names differ in 25 entries, first 'link'",
        "wrong result: a damaged image was not detected",
    ];
    assert_eq!(failures(&lines, "tuff"), expected);
    let lines = run_with_fake(
        "mkfs.erofs --quiet -zlz4 $4 $3 && echo $$ >> $4",
        2,
        &["build"],
    );
    let expected = ["the image differs from that of the first round"];
    assert_eq!(failures(&lines, "tuff"), expected);
}

fn is_mountable() -> bool {
    let root = Path::new("/proc/self/status");
    let status = std::fs::read_to_string(root).unwrap();
    let root = status.lines().any(|l| l.starts_with("Uid:\t0\t"));
    let loops = Path::new("/dev/loop-control").exists();
    if !root || !loops {
        tuff_testkit::skipped("what needs a mount: not root, or no loop devices");
    }
    root && loops
}

#[test]
fn trees_are_copied_out_of_mounted_images() {
    let Some(lab) = Lab::with(&["mksquashfs", "mkfs.erofs", "rsync"]) else {
        return;
    };
    let backup = "paper backup --tree tree";
    let out = lab.measure(backup, &["--only", "LZ4 64K"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let lines: Vec<Line> = record::read(&lab.path("records/backup.jsonl")).unwrap();
    for label in [
        "tuff",
        "tuff, kernel",
        "tuff, tuff mount",
        "mkfs.erofs, kernel",
        "mksquashfs, kernel",
    ] {
        assert_eq!(kept(&lines, label), 1, "{label}: {}", text(&out.stdout));
    }
    // Every n-th file is used of a tree that is larger than requested.
    let out = lab.measure(backup, &["--only", "LZ4 64K", "--size", "1"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    lab.assert_clean();
}

#[test]
fn volumes_are_measured_beside_ext4() {
    let Some(lab) = Lab::with(&["mkfs.ext4"]) else {
        return;
    };
    let out = lab.measure("volumes --rounds 1 --only fdatasync", &[]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let table = text(&out.stdout);
    assert!(table.contains("page write and fdatasync"), "{table}");
    assert!(table.contains("of host"), "{table}");
    let record = std::fs::read_to_string(lab.path("records/volumes.jsonl")).unwrap();
    let samples = record.lines().filter(|l| l.contains("\"sample\""));
    assert_eq!(samples.count(), 4, "a sample for each place: {record}");
    let again = lab.command(&["report", "records/volumes.jsonl"]);
    assert_eq!(text(&again.stdout), table);
    lab.assert_clean();
    let none = lab.command(&["volumes", "--only", "nothing"]);
    assert_eq!(none.status.code(), Some(2), "{}", text(&none.stderr));
    assert!(!lab.path("benchmarks").exists());
}

#[test]
fn programs_start_from_images_and_a_wrong_output_is_rejected() {
    let Some(lab) = Lab::with(&[]) else {
        return;
    };
    // The program prints the type of its root filesystem, which differs between mount and tree.
    let definition = r#"
        about = "x"
        starts = 2
        image = [{ name = "small", by = "tuff", settings = { algorithm = "lz4" } }]
        server = [{ name = "tuff", kind = "tuff", image = "small" }]
        [[program]]
        name = "honest"
        command = ["/bin/sh", "-c", "echo $((6 * 7))"]
        limit = "32M"
        [[program]]
        name = "liar"
        command = ["/bin/sh", "-c", 'while read -r a b c d e f; do [ "$e" = / ] && echo "${f##* - }"; done < /proc/self/mountinfo; :']
        [[program]]
        name = "absent"
        command = ["/bin/no-such-program"]
    "#;
    std::fs::write(lab.path("start.toml"), definition).unwrap();
    let start = |more: &[&str]| lab.measure("start start.toml", more);
    let out = start(&["--only", "honest"]);
    assert!(out.status.success(), "{}", text(&out.stderr));
    let record = std::fs::read_to_string(lab.path("records/start.jsonl")).unwrap();
    let count = |what: &str| record.matches(what).count();
    assert_eq!(count(r#""condition":"idle""#), 2, "{record}");
    assert_eq!(count(r#""condition":"background""#), 2, "{record}");
    let pressed = count(r#""condition":"pressure""#);
    if pressed == 1 {
        tuff_testkit::skipped(format_args!("starts under memory pressure: {record}"));
    } else {
        assert_eq!(pressed, 2, "{record}");
    }
    assert!(!record.contains(&*lab.folder.path().to_string_lossy()));
    let again = lab.command(&["report", "--plot", "start.svg", "records/start.jsonl"]);
    assert_eq!(text(&again.stdout), text(&out.stdout));
    let plot = std::fs::read_to_string(lab.path("start.svg")).unwrap();
    assert!(plot.contains("honest, background"), "{plot}");

    let lying = start(&["--only", "liar", "--condition", "idle"]);
    assert_eq!(lying.status.code(), Some(1), "{}", text(&lying.stderr));
    let message = text(&lying.stdout);
    assert!(
        message.contains("* idle, liar, tuff: the program exits"),
        "{message}"
    );
    assert!(
        !message.contains("from fork to exit"),
        "no time of it counts: {message}"
    );

    let absent = start(&["--only", "absent"]);
    assert_eq!(absent.status.code(), Some(2), "{}", text(&absent.stderr));
    assert!(text(&absent.stderr).contains("not installed on this machine"));
    lab.assert_clean();
}

#[test]
fn programs_start_from_an_image_behind_a_url() {
    let Some(lab) = Lab::with(&["python3", "curl"]) else {
        return;
    };
    let link = "remote --starts 1 --latency 0 --bandwidth 10000";
    lab.measure(link, &["--only", "json and ssl"]);
    let record = record::Record::read(&[lab.path("records/starts.jsonl")]).unwrap();
    for way in ["plain tree", "download first", "no profile"] {
        let sample = record
            .samples
            .iter()
            .find(|s| s.cell.get("way").is_some_and(|w| w == way));
        let sample = sample.unwrap_or_else(|| panic!("{way}: {:?}", record.failures));
        let requests = sample.values.get("requests").copied();
        assert_eq!(
            requests.is_some_and(|n| n > 0.0),
            way != "plain tree",
            "{sample:?}"
        );
    }
    lab.assert_clean();
}

#[test]
fn reads_of_the_erofs_paper_count_the_bytes_of_the_device() {
    let Some(lab) = Lab::with(&["mksquashfs"]) else {
        return;
    };
    for corpus in ["text", "mixed"] {
        let tree = lab.path("trees").join(format!("paper-{corpus}"));
        std::fs::create_dir_all(&tree).unwrap();
        let lines: Vec<String> = (0..40_000)
            .map(|n| format!("line {}\n", n * 7919))
            .collect();
        std::fs::write(tree.join("file"), lines.concat()).unwrap();
    }
    let paper = |more: &[&str]| lab.measure("paper erofs", more);
    let out = paper(&["--part", "reads", "--rounds", "1", "--image", "lz4 4K"]);
    if text(&out.stderr).contains("no direct I/O") {
        tuff_testkit::skipped("reads_of_the_erofs_paper: no direct I/O in the temporary folder");
        return;
    }
    assert!(out.status.success(), "{}", text(&out.stderr));
    let table = text(&out.stdout);
    for row in ["EROFS lz4 4K", "EROFS lz4 4K, tuff", "SquashFS lz4 4K"] {
        // Throughput of two corpora, memory, bytes, and throughput by space.
        let rows = table.matches(&format!("\n| {row} |")).count();
        assert!(rows >= 5, "{row}: {rows} in {table}");
    }
    let record = record::Record::read(&[lab.path("records/erofs.jsonl")]).unwrap();
    let read = |s: &&record::Sample| s.cell.get("read").is_some_and(|r| r == "stride");
    for sample in record.samples.iter().filter(read) {
        let bytes = sample.values["device_bytes"];
        assert!(bytes >= 4096.0, "nothing was cached: {sample:?}");
    }
    let wrong = paper(&["--part", "all"]);
    assert_eq!(wrong.status.code(), Some(2), "{}", text(&wrong.stderr));
    lab.assert_clean();
}

#[test]
fn volumes_are_clean_after_power_cuts_and_never_silently_wrong() {
    let Some(lab) = Lab::with(&[]) else {
        return;
    };
    let output = lab.measure("power-loss --rounds 2", &[]);
    assert!(output.status.success(), "{}", text(&output.stderr));
    let record = record::Record::read(&[lab.path("records/power-loss.jsonl")]).unwrap();
    for sample in &record.samples {
        // Rounds without writes or bit errors would test nothing.
        assert!(sample.values["writes"] > 0.0, "{sample:?}");
        let is_cut = sample.cell["failure"].starts_with("power cut");
        assert_eq!(sample.values["wrong_bits"] == 0.0, is_cut, "{sample:?}");
    }
    for left_out in &record.failures {
        tuff_testkit::skipped(format_args!("power cuts: {left_out:?}"));
    }
    let filesystems = 4 - record.failures.len();
    // Five failures in each of two rounds.
    assert_eq!(record.samples.len(), 2 * 5 * filesystems);
    lab.assert_clean();
}

#[test]
fn fio_measures_volumes_and_images_and_rejects_corrupted_data() {
    let Some(lab) = Lab::with(&["fio"]) else {
        return;
    };
    let run = |more: &[&str]| lab.measure("fio --rounds 1 --file 4", more);
    for (place, cells) in [("volume, one file", 18), ("image, tuff mount", 8)] {
        let out = run(&["--place", place]);
        assert!(out.status.success(), "{}", text(&out.stderr));
        let table = text(&out.stdout);
        assert!(!table.contains("Without a result"), "{table}");
        let rows = table.lines().filter(|line| line.contains(" KiB, "));
        let rows = rows.chain(table.lines().filter(|line| line.contains(" MiB, direct")));
        let rows = rows.chain(table.lines().filter(|line| line.contains(" MiB, buffered")));
        // Each row is in four tables.
        assert_eq!(rows.count(), 4 * cells, "{table}");
    }
    // This replacement of fio corrupts the written file.
    let fio = lab.script(
        "fio",
        r#"PATH=/usr/local/bin:/usr/bin:/bin fio "$@" || exit
        for a; do case $a in --filename=*) f=${a#*=} ;; --rw=randwrite) w=1 ;; esac; done
        [ -z "$w" ] || printf xyz | dd of="$f" bs=1 seek=50000 conv=notrunc status=none"#,
    );
    let fio = format!("fio={fio}");
    let only = [
        "--place",
        "one file",
        "--only",
        "random write, 4 KiB, direct",
    ];
    let out = run(&[&only[..], &["--tool", &fio]].concat());
    assert_eq!(out.status.code(), Some(1), "{}", text(&out.stderr));
    let table = text(&out.stdout);
    let failed = "* volume, one file, random write, 4 KiB, direct: afterwards: fio failed";
    assert!(table.contains(failed), "{table}");
    let none = lab.command(&["fio", "--only", "nothing"]);
    assert_eq!(none.status.code(), Some(2), "{}", text(&none.stderr));
    lab.assert_clean();
}
