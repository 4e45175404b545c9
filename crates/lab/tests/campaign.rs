//! Short runs of the stress campaigns, including tests that a defect is found.

use std::path::{Path, PathBuf};
use std::process::Command;
use tuff_lab::campaigns::stress::images::{self, Judge};
use tuff_lab::campaigns::stress::rounds::{self, Campaign, Counts as _, Tally};
use tuff_lab::campaigns::stress::{cache, files, kills, names};
use tuff_lab::options;
use tuff_testkit::program;

/// Path of `tuff` beside `tuff-lab`. It exists if the whole workspace was built.
fn tuff() -> Option<PathBuf> {
    let tuff = Path::new(env!("CARGO_BIN_EXE_tuff-lab")).with_file_name("tuff");
    if !tuff.exists() {
        tuff_testkit::skipped("a campaign: no program tuff beside tuff-lab");
        return None;
    }
    Some(tuff)
}

/// Runs a campaign without printing its progress.
fn tally<C: Campaign>(campaign: &C) -> Tally<C::Counts> {
    let mut tally = Tally::default();
    campaign.run(&mut tally).unwrap();
    tally
}

fn run(tuff: &Path, only: Vec<Judge>, cases: u64, out: &Path) -> Tally<images::Counts> {
    tally(&images::Options {
        cases: Some(cases),
        only,
        common: common(tuff, out),
    })
}

#[test]
fn images_of_random_trees_and_settings_match_their_trees() {
    let Some(tuff) = tuff() else { return };
    let folder = tempfile::tempdir().unwrap();
    let tally = run(&tuff, Vec::new(), 30, folder.path());
    for (why, count) in &tally.counts.skipped {
        tuff_testkit::note(format_args!("not verified: {why} ({count} images)"));
    }
    assert_eq!(tally.findings.join("\n"), "");
    assert!(tally.counts.judged[&Judge::Extract] > 30, "{tally:?}");
    assert!(tally.counts.refused < tally.counts.images / 4, "{tally:?}");
    assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
}

#[test]
fn an_additional_byte_is_found_and_the_case_is_kept() {
    let Some(tuff) = tuff() else { return };
    let folder = tempfile::tempdir().unwrap();
    let liar = folder.path().join("liar");
    let script = format!(
        "#!/bin/sh\n'{}' \"$@\" || exit $?\n[ \"$1\" != extract ] || find target -type f | head -n 1 | while read -r f; do echo >> \"$f\"; done\n",
        tuff.display()
    );
    program::script(&liar, &script);
    let out = folder.path().join("out");
    let tally = run(&liar, vec![Judge::Extract], 3, &out);
    let first = &tally.findings[0];
    assert!(first.contains("tuff extract"), "{first}");
    let seed = first.trim_start_matches("seed ").split(':').next().unwrap();
    assert!(out.join(format!("case-{seed}/image")).exists());
    assert!(
        first.contains("\n  liar build --json --threads=1"),
        "{first}"
    );
}

#[test]
fn copies_of_open_files_on_a_volume_are_exact() {
    let Some(tuff) = tuff() else { return };
    if !rustix::process::geteuid().is_root() || !Path::new("/dev/fuse").exists() {
        tuff_testkit::skipped("mounting needs root and /dev/fuse");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let run = |args: &[&str]| {
        let out = program::retry_busy(Command::new(&tuff).args(args).current_dir(folder.path()));
        assert!(
            out.status.success(),
            "{args:?}: {}",
            String::from_utf8_lossy(&out.stderr)
        );
    };
    let options = files::Options {
        dir: folder.path().join("m"),
        seed: 3,
        operations: 6000,
        copy_every: 30,
    };
    std::fs::create_dir(folder.path().join("m")).unwrap();
    run(&["volume", "create", "v", "-s", "1G"]);
    for transport in ["dev", "auto"] {
        run(&["volume", "mount", "--transport", transport, "v", "m"]);
        let found = files::run(&options);
        run(&["umount", "m"]);
        let tally = found.unwrap().unwrap();
        assert!(tally.copies > 150 && tally.seeks > 500, "{tally:?}");
    }
    run(&["volume", "check", "v"]);
}

fn common(tuff: &Path, out: &Path) -> rounds::Options {
    rounds::Options {
        out: out.to_owned(),
        seed: 1,
        minutes: None,
        options: options::Options {
            tool: vec![("tuff".to_owned(), tuff.to_owned())],
            ..options::Options::default()
        },
    }
}

/// Writes a program that runs `tuff` and then another command.
fn liar(folder: &Path, tuff: &Path, then: &str) -> PathBuf {
    let liar = folder.join("liar");
    let script = format!(
        "#!/bin/sh\n'{}' \"$@\" || exit $?\n{then}\n",
        tuff.display()
    );
    program::script(&liar, &script);
    liar
}

fn kill(tuff: &Path, kills: u64, only: &[&str], out: &Path) -> Tally<kills::Counts> {
    tally(&kills::Options {
        kills,
        only: only.iter().map(|verb| (*verb).to_owned()).collect(),
        common: common(tuff, out),
    })
}

#[test]
fn killed_verbs_leave_old_or_new_outputs_and_the_next_run_leaves_nothing_else() {
    let Some(tuff) = tuff() else { return };
    let folder = tempfile::tempdir().unwrap();
    let tally = kill(&tuff, 72, &[], folder.path());
    assert_eq!(tally.findings.join("\n"), "");
    assert_eq!(tally.counts.count(), 72);
    assert_eq!(tally.counts.verbs.len(), kills::verbs().count());
}

#[test]
fn a_file_that_a_killed_verb_leaves_is_found() {
    let Some(tuff) = tuff() else { return };
    let folder = tempfile::tempdir().unwrap();
    let liar = liar(folder.path(), &tuff, "[ \"$1\" != tar ] || touch left.$$");
    let tally = kill(&liar, 2, &["tar"], &folder.path().join("out"));
    let found = tally.findings.join("\n");
    assert!(found.contains("after the next run: left."), "{found}");
}

fn attack(tuff: &Path, rounds: u64, out: &Path) -> Tally<cache::Counts> {
    tally(&cache::Options {
        rounds,
        common: common(tuff, out),
    })
}

#[test]
fn wrong_bytes_out_of_an_attacked_cache_are_found() {
    let Some(tuff) = tuff() else { return };
    let folder = tempfile::tempdir().unwrap();
    let liar = liar(folder.path(), &tuff, "[ \"$1\" != cat ] || echo more");
    // Attacks during a run may end it with an error, so the rounds have others that `cat` survives.
    let tally = attack(&liar, 40, &folder.path().join("out"));
    let found = tally.findings.join("\n");
    assert!(!found.is_empty(), "{tally:?}");
    assert!(found.contains("wrong bytes, exit code 0"), "{found}");
}

#[test]
fn attacked_caches_give_right_bytes_or_an_error_and_nothing_outside_changes() {
    let Some(tuff) = tuff() else { return };
    let folder = tempfile::tempdir().unwrap();
    let tally = attack(&tuff, 60, folder.path());
    assert_eq!(tally.findings.join("\n"), "");
    assert!(tally.counts.attacks.len() >= 8, "{tally:?}");
    // Damage is no reason to fail: what is wrong in the cache is fetched again.
    let (rounds, fine) = tally.counts.attacks["poisoned file"];
    assert_eq!(rounds, fine, "{tally:?}");
}

fn print_names(tuff: &Path, images: u64, out: &Path) -> Tally<names::Counts> {
    tally(&names::Options {
        images,
        common: common(tuff, out),
    })
}

#[test]
fn hostile_names_reach_no_terminal_page_or_shell() {
    let Some(tuff) = tuff() else { return };
    let folder = tempfile::tempdir().unwrap();
    let tally = print_names(&tuff, 12, folder.path());
    assert_eq!(tally.findings.join("\n"), "");
    assert!(tally.counts.outputs >= 12 * 25, "{tally:?}");
}

#[test]
fn an_escape_sequence_in_an_output_is_found() {
    let Some(tuff) = tuff() else { return };
    let folder = tempfile::tempdir().unwrap();
    let liar = liar(
        folder.path(),
        &tuff,
        "[ \"$1\" != ls ] || printf '\\033[2J'",
    );
    let tally = print_names(&liar, 1, &folder.path().join("out"));
    let found = tally.findings.join("\n");
    assert!(
        found.contains("ls -R IMAGE: standard output: \\u{1b}"),
        "{found}"
    );
}
