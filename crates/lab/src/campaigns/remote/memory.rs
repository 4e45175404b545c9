//! Peak memory of the daemon while eight readers read a whole image, and the rest of it is fetched.

use super::network::Remote;
use super::session::{PATH, Session, bar, definition, wait};
use crate::campaigns::serve::server::Served;
use crate::campaigns::serve::workload::{Answer, Kind, Script};
use crate::measure::{helper, workspace};
use crate::options::Emit;
use crate::record::{Labels, Line, labels};
use crate::{At, Error, Result};
use std::path::{Path, PathBuf};
use std::process::Command;

/// Number of threads that read.
const READERS: usize = 8;
/// Budget of the cache of decoded clusters, which only a mount through FUSE has.
const CACHE: f64 = 48.0 * 1_048_576.0;
/// Largest memory beside that budget.
const MEMORY_MAX: f64 = 64.0 * 1_048_576.0;
/// Number of reads of pages by all readers of a file.
const PAGES: u64 = 8000;
/// Ways that mount, with their options and their budget.
const MOUNTS: [(&str, &str, f64); 2] = [
    ("FUSE", "--cache=48M", CACHE),
    ("--kernel", "--kernel", 0.0),
];
/// Way that serves the image as a file.
const SERVE: &str = "tuff serve";

pub(super) fn run(session: &Session<'_>, emit: Emit<'_>) -> Result<bool> {
    let definition = definition()?;
    let (small, _) = session.programs(&definition, emit)?;
    for way in MOUNTS.map(|(way, ..)| way).into_iter().chain([SERVE]) {
        emit(&bar("way", (way, None), "beside_cache_bytes", MEMORY_MAX))?;
    }
    let mut fine = true;
    let trees: [(&str, &Path, &[&str]); 2] = [
        ("small", &small, &[]),
        ("large", &session.conditions.tree, &["-z", "none"]),
    ];
    for (name, tree, options) in trees {
        let (image, root) = session.verified_image(tree, options)?;
        let size = workspace::length(&image)? as f64;
        let cell = labels([("image", name)]);
        emit(&Line::sample(cell, 1, [("image_bytes", size)]))?;
        let folder = PathBuf::new();
        let script = Script::new(&Kind::Tree { folder }, tree, 1)?.shared_by(READERS);
        let (expected, _) = script.run(tree)?;
        for (way, option, budget) in MOUNTS {
            let remote = session.serve(&image, 1)?;
            let verity = format!("--verity={root}");
            let options = [option.to_owned(), "--fill".to_owned(), verity];
            let served = session.mount_remote(&remote, &options)?;
            let (answer, _) = script.run(served.point())?;
            let cell = labels([("image", name), ("way", way)]);
            fine &= put(cell, (answer, expected), &served, budget, emit)?;
        }
        let cell = labels([("image", name), ("way", SERVE)]);
        fine &= serve(session, &image, cell, emit)?;
    }
    Ok(fine)
}

/// Records the memory of a daemon whose readers got an answer. Returns false if that is wrong.
fn put(
    cell: Labels,
    (answer, expected): (Answer, Answer),
    served: &Served,
    budget: f64,
    emit: Emit<'_>,
) -> Result<bool> {
    let peak = served.used().get("daemon_peak_bytes").copied();
    let (Some(peak), true) = (peak, answer == expected) else {
        let reason = "other bytes than in the source, or the daemon has ended".to_owned();
        emit(&Line::failure(cell, reason))?;
        return Ok(false);
    };
    let beside = (peak - budget).max(0.0);
    eprintln!("{cell:?}: {:.0} MiB", peak / 1_048_576.0);
    let values = [("daemon_peak_bytes", peak), ("beside_cache_bytes", beside)];
    emit(&Line::sample(cell, 1, values))?;
    Ok(true)
}

/// Serves an image as a layer for containers, and reads its file.
fn serve(session: &Session<'_>, image: &Path, cell: Labels, emit: Emit<'_>) -> Result<bool> {
    let sum = helper::output("sha256sum", [image])?;
    let id = sum.split(' ').next().unwrap_or_default();
    let file = PathBuf::from(format!("sha256/{}/{id}.erofs", &id[..id.len().min(2)]));
    let local = session.work.path("local");
    let link = local.join(&file);
    let folder = link.parent().unwrap_or(&local);
    std::fs::create_dir_all(folder).at("create", folder)?;
    std::fs::hard_link(image, &link).at("link", &link)?;
    let path = format!("{PATH}/{id}.erofs");
    let remote = Remote::serve(&path, image, &session.conditions.network, 1)?;
    let (point, store) = (session.work.path("mount"), session.work.path("store"));
    std::fs::create_dir_all(&store).at("create", &store)?;
    let mut command = Command::new(&session.tuff);
    let url = remote.url(&path);
    let cache = session.empty_cache()?;
    command.args(["serve", "--foreground", &url, &cache, "--into"]);
    command.arg(&point).arg("--store").arg(&store);
    let served = Served::run(command, &point)?.map_err(Error::Command)?;
    let files = vec![file.clone(); READERS];
    let pages = Kind::ParallelRandom {
        files,
        count: PAGES,
    };
    let script = Script::new(&pages, &local, 1)?;
    let (answer, _) = script.run(served.point())?;
    let expected = script.run(&local)?.0;
    wait("the complete layer", || {
        std::fs::symlink_metadata(store.join(&file)).is_ok_and(|m| m.is_file())
    })?;
    let whole = Script::new(&Kind::Sequential { file }, &local, 1)?;
    let is_whole = whole.run(&store)?.0 == whole.run(&local)?.0;
    let expected = if is_whole {
        expected
    } else {
        Answer::default()
    };
    let fine = put(cell, (answer, expected), &served, 0.0, emit)?;
    drop(served);
    workspace::remove(&store)?;
    workspace::remove(&local)?;
    Ok(fine)
}
