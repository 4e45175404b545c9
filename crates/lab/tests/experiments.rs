//! The experiments at the smallest scale: they complete, meet scale-independent limits, and are
//! deterministic. The published results are checked at larger scales.

use tempfile::TempDir;
use tuff_flash_sim::experiment::outcome::Outcome;
use tuff_lab::campaigns::experiments::{PUBLISHED, parse, run};

fn tiny(id: &str) -> (TempDir, Outcome) {
    let definition = parse("published", PUBLISHED).unwrap();
    let dir = TempDir::new().unwrap();
    let out = dir.path().join("out");
    let ids = [id.to_owned()];
    let mut outcomes = run(
        &definition,
        &ids,
        "tiny",
        &out,
        &dir.path().join("work"),
        &mut |_| (),
    )
    .unwrap();
    assert_eq!(outcomes.len(), 1);
    let report = std::fs::read_to_string(out.join("report.md")).unwrap();
    let outcome = outcomes.remove(0);
    assert!(report.contains(&outcome.experiment.title) && report.contains("| here | published |"));
    for figure in &outcome.figures {
        assert!(
            figure.ours.is_finite(),
            "{id}: {} is {}",
            figure.what,
            figure.ours
        );
    }
    for (name, samples) in &outcome.samples {
        assert!(!samples.is_empty(), "{id}: no samples of {name}");
        assert!(out.join(format!("{id}.jsonl")).exists());
    }
    (dir, outcome)
}

fn figure(outcome: &Outcome, what: &str) -> f64 {
    let names: Vec<&str> = outcome.figures.iter().map(|f| f.what.as_str()).collect();
    outcome
        .figure(what)
        .unwrap_or_else(|| panic!("no '{what}' in {names:#?}"))
}

#[test]
fn e1_iplfs_moves_no_block_and_the_baseline_slows_down() {
    let (_dir, o) = tiny("E1");
    assert_eq!(
        figure(&o, "IPLFS: blocks moved by the filesystem or the device"),
        0.0
    );
    assert!(figure(&o, "F2FS: drop at the end, times") > 3.0);
    assert!(figure(&o, "F2FS batched: drop at the end, times") > 3.0);
}

#[test]
fn e1_is_deterministic() {
    let figures = || {
        let (_dir, o) = tiny("E1");
        o.figures
            .iter()
            .map(|f| (f.what.clone(), f.ours.to_bits()))
            .collect::<Vec<_>>()
    };
    assert_eq!(figures(), figures());
}

#[test]
fn e2_the_device_cleans_for_both_but_only_the_baseline_cleans_itself() {
    let (_dir, o) = tiny("E2");
    assert!(figure(&o, "IPLFS: write amplification of the device at the end") > 1.5);
    assert_eq!(
        figure(
            &o,
            "IPLFS: blocks the filesystem moved for each block written"
        ),
        0.0
    );
    assert!(
        figure(
            &o,
            "F2FS batched: blocks the filesystem moved for each block written"
        ) > 0.5
    );
}

#[test]
fn e3_completes() {
    let (_dir, o) = tiny("E3");
    assert!(figure(&o, "throughput of IPLFS / F2FS") > 0.1);
}

#[test]
fn e4_eager_discards_reduce_write_amplification() {
    let (_dir, o) = tiny("E4");
    for percent in [50, 90] {
        assert_eq!(figure(&o, &format!("{percent} %: eager is lower")), 1.0);
    }
}

#[test]
fn e5_compaction_saves_memory() {
    let (_dir, o) = tiny("E5");
    for unit in ["16 KiB", "4 KiB"] {
        assert!(figure(&o, &format!("{unit}: saved by compaction")) > 0.3);
    }
}

#[test]
fn e6_both_maps_have_the_same_read_latency() {
    let (_dir, o) = tiny("E6");
    assert!(figure(&o, "direct read: difference") < 0.02);
}

#[test]
fn e7_incremental_maintenance_does_not_stall_the_device() {
    let (_dir, o) = tiny("E7");
    assert!(figure(&o, "longest stop by one piece of upkeep, incremental, ms") < 0.1);
    assert!(
        figure(
            &o,
            "p99.9 of a write command at the device: incremental / off"
        ) <= 1.2
    );
    assert!(figure(&o, "p99.9 of a query of the database: incremental / off") <= 1.2);
}

#[test]
fn e8_runs_all_nine_combinations() {
    let (_dir, o) = tiny("E8");
    assert_eq!(o.samples.len(), 9);
}

#[test]
fn e9_allocation_follows_the_harmonic_numbers() {
    let (_dir, o) = tiny("E9");
    assert!(o.passed(), "{:#?}", o.figures);
}

#[test]
fn e10_allocated_space_on_the_host_is_bounded() {
    let (_dir, o) = tiny("E10");
    assert!(o.passed(), "{:#?}", o.figures);
}

#[test]
fn unknown_experiments_and_scales_are_rejected() {
    let definition = parse("published", PUBLISHED).unwrap();
    let dir = TempDir::new().unwrap();
    let go = |id: &str, scale| {
        run(
            &definition,
            &[id.to_owned()],
            scale,
            dir.path(),
            dir.path(),
            &mut |_| (),
        )
    };
    assert!(go("E11", "tiny").unwrap_err().to_string().contains("E11"));
    assert!(
        go("E9", "huge")
            .unwrap_err()
            .to_string()
            .contains("full, large, quick, tiny")
    );
}
