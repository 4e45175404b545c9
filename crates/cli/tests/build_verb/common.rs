//! Runs the binary in a directory with a small tree.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};

pub(crate) fn tuff() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tuff"));
    command.env_remove("SOURCE_DATE_EPOCH");
    command
}

pub(crate) fn run(args: &[&str], dir: &Path) -> Output {
    tuff().current_dir(dir).args(args).output().unwrap()
}

/// Returns exit code and standard error.
pub(crate) fn code(out: &Output) -> (i32, String) {
    (
        out.status.code().unwrap_or(-1),
        String::from_utf8_lossy(&out.stderr).into_owned(),
    )
}

/// Temporary directory with a small tree in `tree`.
pub(crate) struct Place(pub(crate) PathBuf);

impl Place {
    pub(crate) fn new(name: &str) -> Self {
        let dir = tuff_testkit::unused_path(&format!("cli-build-{name}"));
        std::fs::create_dir_all(dir.join("tree/sub")).unwrap();
        std::fs::write(dir.join("tree/hello"), "hello, image\n".repeat(1000)).unwrap();
        std::fs::write(dir.join("tree/sub/same"), "hello, image\n".repeat(1000)).unwrap();
        std::fs::write(dir.join("tree/empty"), "").unwrap();
        Self(dir)
    }

    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = std::fs::read_dir(&self.0)
            .unwrap()
            .map(|e| e.unwrap().file_name().to_string_lossy().into_owned())
            .collect();
        names.sort();
        names
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Random letters of an alphabet of sixteen: entropy coding halves them, and almost nothing repeats.
pub(crate) fn sixteen_letters(len: usize) -> Vec<u8> {
    let mut seed = 1u64;
    (0..len)
        .map(|_| {
            seed = seed
                .wrapping_mul(6364136223846793005)
                .wrapping_add(1442695040888963407);
            (seed >> 60) as u8 + b'a'
        })
        .collect()
}

/// Writes manifests, given by name and lines.
pub(crate) fn manifests(place: &Place, all: &[(&str, &str)]) {
    for (name, lines) in all {
        std::fs::write(place.0.join(name), format!("#mtree\n{lines}\n")).unwrap();
    }
}
