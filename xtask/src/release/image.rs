//! Programs without libraries, a directory for `docker build`, and an EROFS image of it.

use super::build::Build;
use super::licenses;
use super::run::{Result, at, run};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

/// Targets of static programs, and the names of their files.
const TARGETS: [(&str, &str); 2] = [
    ("x86_64-unknown-linux-musl", "x86_64"),
    ("aarch64-unknown-linux-musl", "aarch64"),
];

/// Makes the static programs.
pub(super) fn static_programs(build: &Build) -> Result<()> {
    for (target, processor) in TARGETS {
        let program = build.program(Some(target)).map_err(|why| {
            format!("{why}; needs rustup target add {target}, and Debian's musl-tools and gcc-aarch64-linux-gnu")
        })?;
        let to = build.dist.join(name(build, processor));
        copy(&program, &to)?;
    }
    Ok(())
}

/// Makes the directory and the image, from the static program of this host.
pub(super) fn run_all(build: &Build) -> Result<()> {
    let program = build.dist.join(name(build, std::env::consts::ARCH));
    if !program.exists() {
        return Err(format!(
            "{} is missing; make it: cargo xtask release static",
            program.display()
        ));
    }
    let dir = build.dist.join("image");
    if dir.exists() {
        std::fs::remove_dir_all(&dir).map_err(at(&dir))?;
    }
    std::fs::create_dir_all(&dir).map_err(at(&dir))?;
    copy(&program, &dir.join("tuff"))?;
    copy(
        &build.root.join("packaging/Dockerfile"),
        &dir.join("Dockerfile"),
    )?;
    let texts = dir.join("third-party-licenses");
    std::fs::write(&texts, licenses::of_dependencies(build, "tuff-cli")?).map_err(at(&texts))?;
    // The image of the project, made by the project: the tree that the Dockerfile describes.
    let tree = build.dist.join("tree");
    if tree.exists() {
        std::fs::remove_dir_all(&tree).map_err(at(&tree))?;
    }
    for (from, to) in [
        ("tuff", "usr/bin/tuff"),
        (
            "third-party-licenses",
            "usr/share/doc/tuff/third-party-licenses",
        ),
    ] {
        copy(&dir.join(from), &tree.join(to))?;
    }
    std::fs::create_dir(tree.join("tmp")).map_err(at(&tree))?;
    // Modes do not depend on the umask.
    run(build
        .command("chmod")
        .args(["-R", "u=rwX,go=rX"])
        .arg(&tree))?;
    run(build.command("chmod").arg("1777").arg(tree.join("tmp")))?;
    let image = build.dist.join(format!("tuff-{}.erofs", build.version));
    let tuff = program.display().to_string();
    let mut make = build.command(&tuff);
    make.args(["build", "--quiet", "--force", "--all-root"]);
    make.args(["--timestamp", build.epoch()]);
    run(make.arg(&tree).arg(&image))?;
    run(build.command(&tuff).args(["check", "--quiet"]).arg(&image))?;
    std::fs::remove_dir_all(&tree).map_err(at(&tree))
}

/// Name of a static program.
fn name(build: &Build, processor: &str) -> String {
    format!("tuff-{}-{processor}-linux", build.version)
}

/// Copies a file into a new folder, with a mode that depends on nothing.
fn copy(from: &Path, to: &Path) -> Result<()> {
    let dir = to.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(dir).map_err(at(dir))?;
    std::fs::copy(from, to).map_err(at(from))?;
    let mode = std::fs::metadata(from)
        .map_err(at(from))?
        .permissions()
        .mode();
    let mode = if mode & 0o100 == 0 { 0o644 } else { 0o755 };
    std::fs::set_permissions(to, std::fs::Permissions::from_mode(mode)).map_err(at(to))
}
