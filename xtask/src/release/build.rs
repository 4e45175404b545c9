//! Settings that all steps share: profile, target directory, reproducible paths and time.

use super::run::{Result, at, output, run};
use std::path::{Path, PathBuf};
use std::process::Command;

/// One release: where it is built, and with which profile.
pub(super) struct Build {
    pub(super) root: PathBuf,
    /// Outputs of the release.
    pub(super) dist: PathBuf,
    /// Version of all crates.
    pub(super) version: String,
    target: PathBuf,
    /// Time of the last commit, in seconds since 1970.
    epoch: String,
    /// Uses the profile `dev`, for tests of the packaging itself.
    is_dev: bool,
}

impl Build {
    pub(super) fn new(root: &Path, is_dev: bool) -> Result<Self> {
        let target = std::env::var_os("CARGO_TARGET_DIR")
            .map(|dir| root.join(dir))
            .unwrap_or_else(|| root.join("target"));
        let manifest = root.join("Cargo.toml");
        let text = std::fs::read_to_string(&manifest).map_err(at(&manifest))?;
        let version = text
            .lines()
            .find_map(|line| line.strip_prefix("version = \"")?.strip_suffix('"'))
            .ok_or("Cargo.toml has no version")?
            .to_owned();
        let epoch = match std::env::var("SOURCE_DATE_EPOCH") {
            Ok(epoch) => epoch,
            Err(_) => last_commit(root)?,
        };
        let dist = root.join("target/dist");
        std::fs::create_dir_all(&dist).map_err(at(&dist))?;
        Ok(Self {
            root: root.to_owned(),
            dist,
            version,
            target,
            epoch,
            is_dev,
        })
    }

    /// True if the release is made from the profile of tests.
    pub(super) fn is_dev(&self) -> bool {
        self.is_dev
    }

    /// Time of the release, in seconds since 1970.
    pub(super) fn epoch(&self) -> &str {
        &self.epoch
    }

    /// Folder of cargo's outputs.
    pub(super) fn target_dir(&self) -> &Path {
        &self.target
    }

    /// Files of the packages, before they are packed.
    pub(super) fn stage(&self) -> PathBuf {
        self.dist.join("stage")
    }

    /// A command in the project's root that sees the time of the release.
    pub(super) fn command(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.current_dir(&self.root);
        command.env("SOURCE_DATE_EPOCH", &self.epoch);
        command
    }

    pub(super) fn cargo(&self, args: &[&str]) -> Command {
        let mut cargo = self.command("cargo");
        cargo.args(args);
        cargo
    }

    /// Compiles the program and returns its path. `target`: a triple, or the host.
    ///
    /// With `--dev` and without a target, the variable `TUFF` names a program that exists.
    pub(super) fn program(&self, target: Option<&str>) -> Result<PathBuf> {
        if let (true, None, Some(path)) = (self.is_dev, target, std::env::var_os("TUFF")) {
            return Ok(PathBuf::from(path));
        }
        let dir = self.compile(target)?;
        Ok(dir.join("tuff"))
    }

    /// Compiles the C library and returns the folder that holds it.
    ///
    /// With `--dev`, the variable `TUFF_CAPI` names a folder that exists.
    pub(super) fn library(&self) -> Result<PathBuf> {
        match std::env::var_os("TUFF_CAPI") {
            Some(path) if self.is_dev => Ok(PathBuf::from(path)),
            _ => self.compile(None),
        }
    }

    /// Compiles the library for WebAssembly, with the profile of the npm package, and returns its path.
    pub(super) fn wasm(&self) -> Result<PathBuf> {
        const TARGET: &str = "wasm32-unknown-unknown";
        let mut cargo = self.cargo(&["build", "--package", "tuff-capi", "--no-default-features"]);
        cargo.args(["--locked", "--target", TARGET, "--profile", "wasm"]);
        run(&mut cargo)?;
        let dir = self.target.join(TARGET).join("wasm");
        Ok(dir.join("tuff_capi.wasm"))
    }

    /// Compiles the program, and for the host also the C library, and returns the folder of the results.
    fn compile(&self, target: Option<&str>) -> Result<PathBuf> {
        let mut cargo = self.cargo(&["build", "--package", "tuff-cli", "--locked"]);
        let mut dir = self.target.clone();
        match target {
            // Alone, each would compile what both need with features of its own.
            None => {
                cargo.args(["--package", "tuff-capi"]);
            }
            Some(target) => {
                cargo.args(["--target", target]);
                dir.push(target);
                self.cross(&mut cargo, target);
            }
        }
        // The profile of tests keeps its flags, so that nothing is compiled twice.
        if self.is_dev {
            dir.push("debug");
        } else {
            cargo.arg("--release");
            self.reproducible(&mut cargo)?;
            dir.push("release");
        }
        run(&mut cargo)?;
        Ok(dir)
    }

    /// Replaces paths of this machine in programs.
    fn reproducible(&self, cargo: &mut Command) -> Result<()> {
        let home = output(self.command("rustc").args(["--print", "sysroot"]))?;
        let registry = std::env::var("CARGO_HOME")
            .or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cargo")))
            .map_err(|_| "neither CARGO_HOME nor HOME is set")?;
        let pairs = [
            (self.root.display().to_string(), "/tuff"),
            (registry, "/cargo"),
            (home.trim().to_owned(), "/rust"),
        ];
        let rust: Vec<String> = pairs
            .iter()
            .map(|(from, to)| format!("--remap-path-prefix={from}={to}"))
            .collect();
        let c: Vec<String> = pairs
            .iter()
            .map(|(from, to)| format!("-ffile-prefix-map={from}={to}"))
            .collect();
        // Separated by a unit separator: paths may contain spaces.
        cargo.env("CARGO_ENCODED_RUSTFLAGS", rust.join("\x1f"));
        cargo.env("CFLAGS", c.join(" "));
        Ok(())
    }

    /// Compiler and linker for another target than the host's.
    fn cross(&self, cargo: &mut Command, target: &str) {
        let (cc, ar) = match target {
            "aarch64-unknown-linux-musl" => ("aarch64-linux-gnu-gcc", "aarch64-linux-gnu-ar"),
            _ => ("musl-gcc", "ar"),
        };
        let name = target.replace('-', "_");
        cargo.env(format!("CC_{name}"), cc);
        cargo.env(format!("AR_{name}"), ar);
        let linker = format!("CARGO_TARGET_{}_LINKER", name.to_uppercase());
        cargo.env(linker, "rust-lld");
    }

    /// Writes SHA256SUMS of all outputs.
    pub(super) fn sums(&self) -> Result<()> {
        let mut names: Vec<String> = std::fs::read_dir(&self.dist)
            .map_err(at(&self.dist))?
            .flatten()
            .filter(|entry| entry.file_type().is_ok_and(|t| t.is_file()))
            .filter_map(|entry| entry.file_name().into_string().ok())
            .filter(|name| name != "SHA256SUMS")
            .collect();
        names.sort();
        let sums = output(
            self.command("sha256sum")
                .args(&names)
                .current_dir(&self.dist),
        )?;
        print!("{sums}");
        let path = self.dist.join("SHA256SUMS");
        std::fs::write(&path, sums).map_err(at(&path))
    }
}

fn last_commit(root: &Path) -> Result<String> {
    let mut git = Command::new("git");
    git.args(["log", "-1", "--format=%ct"]).current_dir(root);
    output(&mut git)
        .map(|text| text.trim().to_owned())
        .map_err(|why| format!("{why}; without git, set SOURCE_DATE_EPOCH"))
}
