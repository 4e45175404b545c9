//! Shared parts of the benchmarks: arguments, sampled files, and CPU time.

use std::ffi::{c_int, c_long};
use std::path::{Path, PathBuf};

use tuff_codec::{EncoderSpec, Method};

/// Arguments of a benchmark.
pub(crate) struct Selection {
    /// Directory with the files.
    pub(crate) dir: String,
    /// Size of the sample. Unit: MiB.
    pub(crate) mib: u64,
    pub(crate) runs: usize,
    only: String,
    clusters: String,
    flags: Vec<String>,
}

impl Selection {
    /// Parses the command line, with defaults for the number of runs and the methods. Prints an error and returns
    /// `None` if it names no directory.
    pub(crate) fn new(program: &str, runs: usize, only: &str) -> Option<Self> {
        let mut selection = Self {
            dir: std::env::var("FIT_DIR").unwrap_or_default(),
            mib: 16,
            runs,
            only: only.to_owned(),
            clusters: "4096,65536".to_owned(),
            flags: Vec::new(),
        };
        let mut args = std::env::args().skip(1);
        while let Some(arg) = args.next() {
            let mut value = || args.next().expect("a value follows the option");
            match &*arg {
                "--mib" => selection.mib = value().parse().expect("a number"),
                "--runs" => selection.runs = value().parse().expect("a number"),
                "--only" => selection.only = value(),
                "--cluster" => selection.clusters = value(),
                flag if flag.starts_with("--") => selection.flags.push(arg),
                _ => selection.dir = arg,
            }
        }
        if selection.dir.is_empty() {
            println!("no directory given: {program} DIR, or FIT_DIR");
            return None;
        }
        Some(selection)
    }

    /// Returns true if the flag is given.
    #[allow(dead_code)] // not every benchmark has some
    pub(crate) fn flag(&self, name: &str) -> bool {
        self.flags.iter().any(|flag| flag == name)
    }

    /// Returns each method with each cluster size.
    pub(crate) fn specs(&self) -> Vec<EncoderSpec> {
        let mut specs = Vec::new();
        for name in self.only.split(',') {
            let (method, level) = name.split_once(':').unwrap_or((name, ""));
            let method = Method::from_name(method).expect("a method");
            let level = level.parse().unwrap_or(method.default_level());
            for cluster in self.clusters.split(',') {
                let cluster = cluster.parse().expect("a number");
                specs.push(EncoderSpec::new(method, cluster).with_level(level));
            }
        }
        specs
    }
}

unsafe extern "C" {
    fn clock_gettime(clock: c_int, time: *mut [c_long; 2]) -> c_int;
}

/// Returns the title of a table row.
pub(crate) fn title(spec: &EncoderSpec) -> String {
    format!("{}:{} {}", spec.method, spec.level, spec.cluster)
}

/// Returns the CPU time of this thread. Unit: nanoseconds.
pub(crate) fn cpu_ns() -> u64 {
    const CLOCK_THREAD_CPUTIME_ID: c_int = 3;
    let mut time = [0; 2];
    // SAFETY: two longs are a timespec on 64-bit Linux.
    unsafe { clock_gettime(CLOCK_THREAD_CPUTIME_ID, &mut time) };
    time[0] as u64 * 1_000_000_000 + time[1] as u64
}

pub(crate) fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values[values.len() / 2]
}

fn walk(dir: &Path, files: &mut Vec<(PathBuf, u64)>) {
    let Ok(entries) = std::fs::read_dir(dir) else {
        return;
    };
    for entry in entries.flatten() {
        let Ok(kind) = entry.file_type() else {
            continue;
        };
        if kind.is_dir() {
            walk(&entry.path(), files);
        } else if kind.is_file() {
            let len = entry.metadata().map_or(0, |meta| meta.len());
            if len > 0 {
                files.push((entry.path(), len));
            }
        }
    }
}

/// Samples files evenly from the tree, about `budget` bytes together, at most a quarter of it each.
pub(crate) fn sample(dir: &Path, budget: u64) -> Vec<Vec<u8>> {
    let mut files = Vec::new();
    walk(dir, &mut files);
    files.sort();
    let cap = (budget / 4).min(8 << 20);
    let total: u64 = files.iter().map(|(_, len)| len.min(&cap)).sum();
    // Every n-th file, whatever its size: the sample has the tree's mix of small and large files.
    let step = (total as f64 / budget as f64).max(1.0);
    let mut taken = Vec::new();
    let mut due = (step - 1.0) / 2.0;
    for (i, (path, _)) in files.iter().enumerate() {
        if i as f64 >= due {
            due += step;
            if let Ok(mut data) = std::fs::read(path) {
                data.truncate(cap as usize);
                taken.push(data);
            }
        }
    }
    taken
}
