//! Peak memory of the operations on a store with many files. Each operation is a process.

use std::env;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use tuff_backup::{Depth, Request, Store, StoreCompression};
use tuff_mkfs::{Options, Progress};
use tuff_testkit::Scratch;

/// Operations, the memory that each may need whatever the number of files in MiB, and that for each file in bytes. At 1,000,000
/// files, none may need more than 300 MiB.
const OPERATIONS: [(&str, u64, u64); 6] = [
    ("backup", 55, 240),
    ("backup", 55, 240),
    ("check", 25, 80),
    ("prune", 28, 80),
    ("rebuild", 28, 80),
    ("mount", 32, 180),
];

/// Environment variable with the operation that a process of this test does, and one with the number of files.
const OPERATION: &str = "TUFF_B25_OPERATION";
const FILES: &str = "TUFF_B25_FILES";
/// Directory of a process of this test.
const DIRECTORY: &str = "TUFF_B25_DIRECTORY";

/// Most memory that this process had so far. Unit: MiB.
fn peak() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:"));
    let kib = line.unwrap().trim().trim_end_matches(" kB");
    kib.parse::<u64>().unwrap() / 1024
}

/// Does an operation, and prints the most memory that it needed.
fn run(operation: &str, dir: &Path) {
    let progress = Progress::default();
    let path = dir.join("store");
    match operation {
        "backup" => {
            let mut options = Options::default();
            options.resources.threads = Some(2);
            let request = Request {
                archives: Vec::new(),
                sources: vec![dir.join("source")],
                series: "test".to_owned(),
                options,
                reads_all: false,
                is_dry: false,
            };
            let mut store = Store::open_to_write(&path).unwrap();
            let report = store.backup(&request, &progress).unwrap();
            println!("files {}", report.files);
        }
        "check" => {
            let store = Store::open(&path).unwrap();
            let checked = store.check(Depth::Data, 2, &progress).unwrap();
            assert_eq!(checked.findings, Vec::<String>::new());
        }
        "prune" => {
            let mut store = Store::open_to_write(&path).unwrap();
            let pruned = store.prune(2, &progress).unwrap();
            assert_eq!(pruned.warnings, Vec::<String>::new());
        }
        "rebuild" => {
            fs::remove_file(path.join("index")).unwrap();
            Store::open(&path).unwrap();
            let mut store = Store::open_to_write(&path).unwrap();
            store.prune(2, &progress).unwrap();
            assert!(path.join("index").exists());
        }
        "mount" => {
            let store = Arc::new(Store::open(&path).unwrap());
            let snapshot = store.snapshots().unwrap().pop().unwrap().unwrap();
            let image = store.image(&snapshot, &dir.join("image"), &progress);
            image.unwrap().open().unwrap();
        }
        _ => panic!("{operation}"),
    }
    println!("peak {}", peak());
}

/// Peak memory of each operation, at 50,000 files in one directory and in many, or as many as `TUFF_B25_FILES` says.
#[test]
fn b25_memory_is_bounded_at_many_files() {
    if let Ok(operation) = env::var(OPERATION) {
        let dir = env::var_os(DIRECTORY).unwrap();
        return run(&operation, Path::new(&dir));
    }
    let files = env::var(FILES).map_or(50_000, |files| files.parse::<u64>().unwrap());
    for directories in [1, files / 100] {
        let scratch = Scratch::new("b25");
        let source = scratch.path().join("source");
        fs::create_dir(&source).unwrap();
        Store::create(&scratch.path().join("store"), StoreCompression::default()).unwrap();
        for n in 0..files {
            let dir = source.join(format!("directory-{:05}", n % directories));
            if n < directories {
                fs::create_dir(&dir).unwrap();
            }
            fs::write(dir.join(format!("file-{n:07}")), n.to_string()).unwrap();
        }
        for (operation, constant, of_file) in OPERATIONS {
            let limit = constant + files * of_file / (1 << 20);
            let test = Command::new(env::current_exe().unwrap())
                .args([
                    "--exact",
                    "b25_memory_is_bounded_at_many_files",
                    "--nocapture",
                ])
                .env(OPERATION, operation)
                .env(DIRECTORY, scratch.path())
                .output()
                .unwrap();
            let text = String::from_utf8_lossy(&test.stdout);
            let peak = text.lines().find_map(|line| line.strip_prefix("peak "));
            let peak: u64 = peak.unwrap_or_else(|| panic!("{test:?}")).parse().unwrap();
            println!("{operation}, {directories} directories: {peak} of {limit} MiB");
            assert!(peak <= limit, "{operation}: {peak} MiB");
        }
    }
}
