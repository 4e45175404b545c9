//! CPU time of the daemon to fill its cache, with and without a root hash. The difference is the price of verification.

use super::session::{Session, bar};
use crate::campaigns::serve::workload::{Kind, Script};
use crate::options::Emit;
use crate::record::{Line, labels};
use crate::{Error, Result};
use std::path::PathBuf;

/// Length of the file in the image in bytes.
const LENGTH: u64 = 1 << 30;
/// Name of the difference in tables.
pub(super) const DIFFERENCE: &str = "difference";
/// Largest CPU time of verification for 10^9 bytes, in milliseconds.
const CPU_MAX: f64 = 1000.0;

pub(super) fn run(session: &Session<'_>, emit: Emit<'_>) -> Result<bool> {
    let tree = session.noise(LENGTH)?;
    let (image, root) = session.verified_image(&tree, &["-z", "none"])?;
    let file = PathBuf::from("content");
    let script = Script::new(&Kind::Sequential { file }, &tree, 1)?;
    let (expected, _) = script.run(&tree)?;
    emit(&bar("way", (DIFFERENCE, None), "cpu_ms_per_gb", CPU_MAX))?;
    let mut fine = true;
    for round in 1..=session.conditions.rounds() {
        let mut found = Vec::new();
        for (way, root) in [("no root hash", None), ("root hash", Some(&root))] {
            let remote = session.serve(&image, 1)?;
            // With an owner, the mount is not replaced, which would verify everything again.
            let mut options = vec!["--fill".to_owned(), "-ouid=0".to_owned()];
            options.extend(root.map(|root| format!("--verity={root}")));
            let served = session.mount_remote(&remote, &options)?;
            session.wait_complete(served.point())?;
            let used = served.used();
            let cpu = used.get("daemon_cpu_us");
            let cpu = cpu.ok_or_else(|| Error::Command("the daemon has ended".to_owned()))?;
            let cell = labels([("way", way)]);
            if script.run(served.point())?.0 != expected {
                fine = false;
                emit(&Line::failure(
                    cell,
                    "other bytes than in the tree".to_owned(),
                ))?;
                continue;
            }
            let cpu = cpu / 1e3 / (LENGTH as f64 / 1e9);
            eprintln!("{way}: {cpu:.0} ms of CPU time for 1 GB");
            found.push(cpu);
            emit(&sample(way, round, cpu))?;
        }
        if let [without, with] = found[..] {
            emit(&sample(DIFFERENCE, round, with - without))?;
        }
    }
    Ok(fine)
}

fn sample(way: &str, round: u32, cpu: f64) -> Line {
    Line::sample(labels([("way", way)]), round, [("cpu_ms_per_gb", cpu)])
}
