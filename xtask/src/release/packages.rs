//! Debian and RPM packages.

use super::build::Build;
use super::licenses;
use super::run::{Result, at, installed, output, run};
use std::os::unix::fs::symlink;
use std::path::Path;

/// Variants of the packages: the program, and the names of other tools.
const VARIANTS: [Option<&str>; 2] = [None, Some("erofs-utils")];

/// Tools whose names the program takes.
const TOOLS: [&str; 3] = ["mkfs.erofs", "fsck.erofs", "dump.erofs"];

/// Compiles the program and makes its packages.
pub(super) fn run_all(build: &Build) -> Result<()> {
    installed("cargo-deb")?;
    installed("cargo-generate-rpm")?;
    let program = build.program(None)?;
    stage(build, &program)?;
    // Packages of another version would lie beside the new ones.
    for entry in std::fs::read_dir(&build.dist)
        .map_err(at(&build.dist))?
        .flatten()
    {
        let path = entry.path();
        if path.extension().is_some_and(|e| e == "deb" || e == "rpm") {
            std::fs::remove_file(&path).map_err(at(&path))?;
        }
    }
    let dist = build.dist.display().to_string();
    for variant in VARIANTS {
        let mut deb = build.cargo(&["deb", "--package", "tuff-cli", "--no-build", "--no-strip"]);
        // The names of staged files are not those of cargo's outputs, about which it warns.
        deb.args(["--quiet", "--output", &dist]);
        let mut rpm = build.cargo(&["generate-rpm", "--package", "crates/cli"]);
        rpm.args(["--output", &dist]);
        if let Some(variant) = variant {
            deb.args(["--variant", variant]);
            rpm.args(["--variant", variant]);
        }
        if build.is_dev() {
            deb.arg("--fast");
            rpm.args(["--payload-compress", "none"]);
        }
        run(&mut deb)?;
        run(&mut rpm)?;
    }
    Ok(())
}

/// Collects the files of the packages.
fn stage(build: &Build, program: &Path) -> Result<()> {
    let stage = build.stage();
    if stage.exists() {
        std::fs::remove_dir_all(&stage).map_err(at(&stage))?;
    }
    let man = stage.join("man");
    std::fs::create_dir_all(&man).map_err(at(&man))?;
    let tuff = stage.join("tuff");
    let mut strip = build.command("strip");
    run(strip.arg("-o").args([&tuff, &program.to_owned()]))?;
    let tuff = tuff.display().to_string();
    run(build.command(&tuff).arg("man").arg(&man))?;
    let scripts = [
        ("bash", "tuff.bash"),
        ("zsh", "_tuff"),
        ("fish", "tuff.fish"),
    ];
    for (shell, name) in scripts {
        let script = output(build.command(&tuff).args(["completions", shell]))?;
        let path = stage.join(name);
        std::fs::write(&path, script).map_err(at(&path))?;
    }
    names_of_tools(&stage)?;
    let changelog = stage.join("changelog");
    std::fs::write(&changelog, entry(build)?).map_err(at(&changelog))?;
    let changes = stage.join("changelog.md");
    std::fs::copy(build.root.join("CHANGELOG.md"), &changes).map_err(at(&changes))?;
    let texts = stage.join("third-party-licenses");
    std::fs::write(&texts, licenses::of_dependencies(build, "tuff-cli")?).map_err(at(&texts))?;
    // cargo-deb compresses manual pages, cargo-generate-rpm does not.
    let gz = stage.join("gz");
    run(build.command("cp").arg("-r").args([&man, &gz]))?;
    let mut pages: Vec<_> = std::fs::read_dir(&gz)
        .map_err(at(&gz))?
        .flatten()
        .map(|entry| entry.path())
        .collect();
    pages.extend([texts, changes]);
    run(build.command("gzip").args(["-9", "-n"]).args(pages))?;
    let from = stage.join("changelog.md.gz");
    std::fs::rename(&from, stage.join("changelog.gz")).map_err(at(&from))
}

/// Entry of a Debian changelog for this version.
pub(super) fn entry(build: &Build) -> Result<String> {
    let time = format!("@{}", build.epoch());
    let date = output(build.command("date").args(["--utc", "-R", "-d", &time]))?;
    let (version, name) = (&build.version, "The Tuff authors");
    Ok(format!(
        "tuff ({version}-1) unstable; urgency=medium\n\n  * Release {version}.\n\n -- {name} <>  {date}"
    ))
}

/// Makes the names of other tools: symbolic links, and scripts for packages that hold no links.
fn names_of_tools(stage: &Path) -> Result<()> {
    for dir in [
        "links/bin",
        "links/man",
        "links/man8",
        "scripts/bin",
        "scripts/man",
    ] {
        let dir = stage.join(dir);
        std::fs::create_dir_all(&dir).map_err(at(&dir))?;
    }
    let page = stage.join("links/man8/mount.tuff.8.gz");
    symlink("../man1/tuff-mount.1.gz", &page).map_err(at(&page))?;
    for tool in TOOLS {
        let page = format!("{tool}.1");
        for (target, link) in [
            ("tuff".to_owned(), format!("links/bin/{tool}")),
            (format!("tuff-{page}.gz"), format!("links/man/{page}.gz")),
        ] {
            let link = stage.join(link);
            symlink(target, &link).map_err(at(&link))?;
        }
        for (text, file) in [
            (
                format!("#!/bin/sh\nexec /usr/bin/tuff {tool} \"$@\"\n"),
                format!("scripts/bin/{tool}"),
            ),
            (
                format!(".so man1/tuff-{page}\n"),
                format!("scripts/man/{page}"),
            ),
        ] {
            let file = stage.join(file);
            std::fs::write(&file, text).map_err(at(&file))?;
        }
    }
    Ok(())
}
