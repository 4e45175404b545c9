//! Test tree with every kind of entry, images of it, and runs of the binary.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::{Duration, SystemTime};
pub(crate) use tuff_testkit::skipped;

/// Entries that not every host can store.
const MANIFEST: &str = r"#mtree
/set type=file uid=0 gid=0 mode=0644 time=1700000000.000000000
.                   type=dir mode=0755
./blk               type=block mode=0660 uid=0 gid=6 device=259,7
./chr               type=char mode=0666 device=1,300000
./empty             size=0
./fifo              type=fifo mode=0600
./hello             contents=../hello time=1700000000.123456789 mode=4755 xattr.user.comment=hi\040there
./dir               type=dir mode=1777 xattr.trusted.overlay.opaque=y
./dir/hello-again   hardlink=hello
./dir/new\nline     contents=../hello uid=3000000 gid=4000000 time=-2.500000000
./dir/odd\377       contents=../hello xattr.user.a\075b%c=0xff00 xattr.user.nothing=
./dir/text          contents=../text
./link              type=link link=dir/text mode=0777
./many              type=dir mode=0755
./many/copy         contents=../text
";

/// Temporary directory, removed on drop.
pub(crate) struct Place(pub(crate) PathBuf);

impl Place {
    /// Creates an empty directory.
    pub(crate) fn new(name: &str) -> Self {
        let dir = tuff_testkit::unused_path(&format!("verbs-{name}"));
        fs::create_dir_all(&dir).unwrap();
        Self(dir)
    }

    /// Creates a directory with an image `i` of the tree.
    pub(crate) fn with_image(name: &str) -> Self {
        let place = Self::new(name);
        place.image("i", &["-z", "lz4", "-C", "16K"]);
        place
    }

    /// Builds an image of the tree: the manifest's, a sparse file, and a long path and target.
    pub(crate) fn image(&self, image: &str, options: &[&str]) {
        let m = self.0.join("m");
        if !m.exists() {
            fs::create_dir(&m).unwrap();
            fs::write(self.0.join("hello"), "hello\n").unwrap();
            fs::write(self.0.join("text"), text()).unwrap();
            let long = "n".repeat(200);
            let manifest = format!(
                "{MANIFEST}./{long} type=dir mode=0755\n./{long}/{long} type=link mode=0777 link={}\n",
                "t".repeat(300)
            );
            fs::write(m.join("tree.mtree"), manifest).unwrap();
            let holes = self.0.join("holes");
            fs::create_dir(&holes).unwrap();
            let file = File::create(holes.join("sparse")).unwrap();
            file.set_len(5 << 20).unwrap();
            file.write_all_at(&[b'd'; 8000], 1 << 20).unwrap();
            file.set_modified(SystemTime::UNIX_EPOCH + Duration::from_secs(1_600_000_000))
                .unwrap();
        }
        let mut args = vec!["build", "-q", "--whiteouts", "keep"];
        args.extend(options);
        if !options.contains(&"--sparse") {
            args.extend(["--sparse", "keep"]);
        }
        args.extend(["holes", "m/tree.mtree", image]);
        let out = self.run(&args);
        assert!(out.status.success(), "{}", stderr(&out));
    }

    /// Runs the binary in the directory.
    pub(crate) fn run(&self, args: &[&str]) -> Output {
        self.command(args).output().unwrap()
    }

    /// Command that runs the binary in the directory.
    pub(crate) fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tuff"));
        command
            .env_remove("SOURCE_DATE_EPOCH")
            .current_dir(&self.0)
            .args(args);
        command
    }

    /// Returns the standard output of a run that must succeed without messages.
    pub(crate) fn text(&self, args: &[&str]) -> String {
        let out = self.run(args);
        assert_eq!((code(&out), stderr(&out).as_str()), (0, ""), "{args:?}");
        String::from_utf8(out.stdout).unwrap()
    }

    /// Unmounts `dir`, which must succeed without messages.
    pub(crate) fn unmount(&self, dir: &str) {
        let out = tuff_testkit::program::retry_busy(&mut self.command(&["umount", dir]));
        assert_eq!((code(&out), stderr(&out).as_str()), (0, ""), "{dir}");
        assert!(out.stdout.is_empty());
    }

    /// Extents of a file in an image, as `tuff stat` prints them.
    pub(crate) fn extents(&self, image: &str, path: &str) -> Vec<serde_json::Value> {
        let stat = self.json(&["stat", "--json", "--extents", image, path]);
        stat[0]["extents"].as_array().unwrap().clone()
    }

    /// Returns the standard output, parsed as one JSON value per line.
    pub(crate) fn json(&self, args: &[&str]) -> Vec<serde_json::Value> {
        let text = self.text(args);
        text.lines()
            .map(|l| serde_json::from_str(l).unwrap())
            .collect()
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    /// Writes a copy of the image `i` with one byte changed.
    pub(crate) fn damage(&self, name: &str, at: usize, change: impl FnOnce(u8) -> u8) {
        let mut bytes = fs::read(self.path("i")).unwrap();
        bytes[at] = change(bytes[at]);
        fs::write(self.path(name), bytes).unwrap();
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Compressible text of several clusters.
pub(crate) fn text() -> String {
    (0..20_000)
        .map(|i| format!("line {i} of some text\n"))
        .collect()
}

pub(crate) fn code(out: &Output) -> i32 {
    out.status.code().unwrap_or(-1)
}

pub(crate) fn stderr(out: &Output) -> String {
    String::from_utf8_lossy(&out.stderr).into_owned()
}

pub(crate) fn is_root() -> bool {
    let id = Command::new("id").arg("-u").output();
    id.is_ok_and(|o| o.stdout == b"0\n")
}

/// Runs a tool of the host. Returns `None`, with a note, if it is missing.
pub(crate) fn tool(dir: &Path, name: &str, args: &[&str]) -> Option<Output> {
    match Command::new(name).current_dir(dir).args(args).output() {
        Ok(out) => Some(out),
        Err(e) => {
            skipped(format_args!("{name}: {e}"));
            None
        }
    }
}
