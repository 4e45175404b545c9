//! Reads once an image is complete: the kernel's mount of the file in the cache, which has replaced the first mount, and FUSE.

use super::session::{Session, bar, definition, wait};
use crate::campaigns::serve::image::Build;
use crate::campaigns::serve::server::{Served, Server, device_of};
use crate::campaigns::serve::workload::{Kind, Script};
use crate::measure::root::BACKGROUND;
use crate::measure::workspace;
use crate::options::Emit;
use crate::record::{Line, labels};
use crate::{Error, Result};
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Mount at the base of ratios.
pub(super) const LOCAL: &str = "kernel, local image";
/// Largest ratio of times.
const RATIO_MAX: f64 = 1.05;
/// Pause before the reads, in which a mount that was replaced ends.
const PAUSE: Duration = Duration::from_millis(500);

/// State of a mount before it is read.
#[derive(Clone, Copy, PartialEq)]
enum Way {
    Local(Server),
    /// Complete, and replaced by the kernel's mount.
    Replaced,
    /// Complete in the cache.
    Complete,
}

/// Mounts, with options of `tuff mount`. With an owner, a mount through FUSE is not replaced.
const WAYS: [(&str, Way, &[&str]); 5] = [
    (LOCAL, Way::Local(Server::Kernel), &[]),
    ("kernel after FUSE", Way::Replaced, &["--fill"]),
    (
        "kernel after --kernel",
        Way::Replaced,
        &["--fill", "--kernel"],
    ),
    ("FUSE, local image", Way::Local(Server::Tuff), &[]),
    (
        "FUSE, complete cache",
        Way::Complete,
        &["--fill", "-ouid=0"],
    ),
];

pub(super) fn run(session: &Session<'_>, emit: Emit<'_>) -> Result<bool> {
    let definition = definition()?;
    let (tree, _) = session.programs(&definition, emit)?;
    let path = session.work.path("image");
    let build = Build {
        tree: &tree,
        work: &session.work,
        options: &session.conditions.options,
    };
    let built = build.run(&definition.images[0], &path, emit)?;
    built.map_err(Error::Command)?;
    for (way, kind, _) in WAYS {
        if kind == Way::Replaced {
            emit(&bar("way", (way, Some(LOCAL)), "read_ms", RATIO_MAX))?;
        }
    }
    let whole = Kind::Tree {
        folder: PathBuf::new(),
    };
    let random = Kind::Random {
        file: PathBuf::from(BACKGROUND),
        count: 2000,
    };
    let script = |kind| Script::new(kind, &tree, 1);
    let reads = [
        ("random pages", script(&random)?),
        ("whole tree", script(&whole)?),
        ("whole tree again", script(&whole)?),
    ];
    let mut fine = true;
    for round in 1..=session.conditions.rounds() {
        for turn in 0..WAYS.len() {
            // Rotates the order in every round, so that no way always runs first.
            let (name, way, options) = WAYS[(turn + round as usize - 1) % WAYS.len()];
            let served = mount(session, way, options, &path)?;
            eprintln!("round {round}: {name}");
            std::thread::sleep(PAUSE);
            for (read, script) in &reads {
                let cell = labels([("read", read), ("way", name)]);
                let (answer, took) = script.run(served.point())?;
                if answer != script.run(&tree)?.0 {
                    fine = false;
                    emit(&Line::failure(
                        cell,
                        "other bytes than in the tree".to_owned(),
                    ))?;
                    continue;
                }
                let time = took.wall.as_secs_f64() * 1e3;
                emit(&Line::sample(cell, round, [("read_ms", time)]))?;
            }
        }
    }
    Ok(fine)
}

/// Mounts an image in a way, and waits for its state. The file that is read is in the page cache.
fn mount(session: &Session<'_>, way: Way, options: &[&str], image: &Path) -> Result<Served> {
    if let Way::Local(server) = way {
        workspace::digest(image)?;
        let program = (server == Server::Tuff).then_some(&*session.tuff);
        let point = session.work.path("mount");
        let served = Served::start(server, program, &[], (image, "erofs"), &point)?;
        return served.map_err(Error::Command);
    }
    let remote = session.serve(image, 1)?;
    let options: Vec<String> = options.iter().map(|option| (*option).to_owned()).collect();
    let served = session.mount_remote(&remote, &options)?;
    let first = device_of(served.point())?;
    match way {
        Way::Replaced => wait("the kernel's mount", || {
            device_of(served.point()).is_ok_and(|now| now != first)
        })?,
        _ => session.wait_complete(served.point())?,
    }
    Ok(served)
}
