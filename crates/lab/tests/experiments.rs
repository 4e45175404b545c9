//! The experiments at the smallest scale: they complete, meet scale-independent limits, and are
//! deterministic. The published results are checked at larger scales.

use tempfile::TempDir;
use tuff_lab::campaigns::experiments::{Conditions, run};
use tuff_lab::campaigns::{plot, report};
use tuff_lab::options::Options;
use tuff_lab::record::{Line, Record};

fn conditions(id: &str, scale: &str, work: &TempDir) -> Conditions {
    Conditions {
        ids: vec![id.to_owned()],
        scale: scale.to_owned(),
        seed: None,
        options: Options {
            work: Some(work.path().to_owned()),
            ..Options::default()
        },
    }
}

/// Record of one experiment, and true if it kept its limits.
struct Tiny(Record, bool);

impl Tiny {
    fn samples_with(&self, label: &str) -> impl Iterator<Item = &tuff_lab::record::Sample> {
        self.0
            .samples
            .iter()
            .filter(move |s| s.cell.contains_key(label))
    }
}

fn tiny(id: &str) -> Tiny {
    let work = TempDir::new().unwrap();
    let mut lines: Vec<Line> = Vec::new();
    let passed = run(&conditions(id, "tiny", &work), &mut |line| {
        lines.push(line.clone());
        Ok(())
    });
    let tiny = Tiny(Record::collect(lines).unwrap(), passed.unwrap());
    let text = report(&tiny.0).unwrap();
    let is_shown = |figure: &str| text.contains(&format!("| {figure} |"));
    for figure in tiny.samples_with("figure") {
        assert!(is_shown(&figure.cell["figure"]), "{text}");
        assert!(figure.values["here"].is_finite(), "{figure:?}");
    }
    assert_eq!(text.contains("**missed**"), !tiny.1, "{text}");
    let svg = plot(&tiny.0).unwrap();
    let title = |s: &tuff_lab::record::Sample| s.cell["chart"].replace('&', "&amp;");
    assert!(tiny.samples_with("chart").all(|s| svg.contains(&title(s))));
    tiny
}

fn figure(tiny: &Tiny, what: &str) -> f64 {
    let found = tiny
        .samples_with("figure")
        .find(|s| s.cell["figure"] == what);
    found.unwrap_or_else(|| panic!("no '{what}'")).values["here"]
}

#[test]
fn e1_iplfs_moves_no_block_and_the_baseline_slows_down_in_every_run() {
    let o = tiny("E1");
    let moved = "IPLFS: blocks moved by the filesystem or the device";
    assert_eq!(figure(&o, moved), 0.0);
    assert!(figure(&o, "F2FS: drop at the end, times") > 3.0);
    assert!(figure(&o, "F2FS batched: drop at the end, times") > 3.0);
    // It is deterministic.
    let again = tiny("E1");
    assert!(o.samples_with("figure").eq(again.samples_with("figure")));
}

#[test]
fn e2_the_device_cleans_for_both_but_only_the_baseline_cleans_itself() {
    let o = tiny("E2");
    assert!(figure(&o, "IPLFS: write amplification of the device at the end") > 1.5);
    let moved = |of: &str| {
        figure(
            &o,
            &format!("{of}: blocks the filesystem moved for each block written"),
        )
    };
    assert_eq!(moved("IPLFS"), 0.0);
    assert!(moved("F2FS batched") > 0.5);
}

#[test]
fn e3_completes() {
    let o = tiny("E3");
    assert!(figure(&o, "throughput of IPLFS / F2FS") > 0.1);
}

#[test]
fn e4_eager_discards_reduce_write_amplification() {
    let o = tiny("E4");
    for percent in [50, 90] {
        assert_eq!(figure(&o, &format!("{percent} %: eager is lower")), 1.0);
        for policy in ["eager", "idle only", "polite", "dispatch"] {
            assert!(figure(&o, &format!("{percent} %: write amplification, {policy}")) >= 1.0);
        }
    }
}

#[test]
fn e5_compaction_saves_memory() {
    let o = tiny("E5");
    for unit in ["16 KiB", "4 KiB"] {
        assert!(figure(&o, &format!("{unit}: saved by compaction")) > 0.3);
    }
}

#[test]
fn e6_both_maps_have_the_same_read_latency() {
    let o = tiny("E6");
    assert!(figure(&o, "direct read: difference") < 0.02);
}

#[test]
fn e7_incremental_maintenance_does_not_stall_the_device() {
    let o = tiny("E7");
    assert!(figure(&o, "longest stop by one piece of upkeep, incremental, ms") < 0.1);
    for of in ["a write command at the device", "a query of the database"] {
        assert!(figure(&o, &format!("p99.9 of {of}: incremental / off")) <= 1.2);
    }
}

#[test]
fn e8_runs_all_nine_combinations() {
    let o = tiny("E8");
    let runs: std::collections::HashSet<_> =
        o.samples_with("run").map(|s| &s.cell["run"]).collect();
    assert_eq!(runs.len(), 9);
}

#[test]
fn e9_allocation_follows_the_harmonic_numbers_and_e10_is_bounded() {
    for id in ["E9", "E10"] {
        let o = tiny(id);
        assert!(o.1, "{}", report(&o.0).unwrap());
    }
}

#[test]
fn unknown_experiments_and_scales_are_rejected() {
    let work = TempDir::new().unwrap();
    let error = |id: &str, scale: &str| {
        let conditions = conditions(id, scale, &work);
        run(&conditions, &mut |_| Ok(())).unwrap_err().to_string()
    };
    assert!(error("E11", "tiny").contains("E11"));
    assert!(error("E9", "huge").contains("full, large, quick, tiny"));
}
