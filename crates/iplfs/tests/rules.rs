//! Disabling any of the nine discard rules must be detected. Otherwise a suite that passes with all rules proves
//! nothing.

use tuff_iplfs::DiscardRule;
use tuff_iplfs_crash::{Campaign, scenario};

/// Runs a bounded campaign on a volume that breaks the rule.
fn campaign(rule: DiscardRule) -> Result<(), String> {
    let mut campaign = Campaign::new(Some(rule), 11)?;
    campaign.samples = 3;
    let result = campaign
        .single_operations()
        .and_then(|()| campaign.sampled(3, 60));
    println!("{:?}", campaign.tally);
    result
}

fn noticed(rule: DiscardRule) {
    let result = campaign(rule);
    println!("{rule:?}: {result:?}");
    assert!(result.is_err(), "a volume without the rule {rule:?} passes");
}

#[test]
fn discarding_before_any_checkpoint_is_detected() {
    noticed(DiscardRule::DurableCheckpoint);
}

#[test]
fn dropping_an_unconfirmed_run_from_the_log_is_detected() {
    noticed(DiscardRule::LogUntilFlush);
}

#[test]
fn reusing_addresses_after_a_crash_is_detected() {
    noticed(DiscardRule::NoReuse);
}

fn shown(rule: DiscardRule, scenario: fn(Option<DiscardRule>) -> Result<(), String>) {
    scenario(None).unwrap();
    let result = scenario(Some(rule));
    println!("{rule:?}: {result:?}");
    assert!(result.is_err(), "a volume without the rule {rule:?} passes");
}

#[test]
fn discarding_blocks_of_the_older_checkpoint_is_detected() {
    shown(
        DiscardRule::OlderCheckpoint,
        scenario::the_older_checkpoint_stays_intact,
    );
}

#[test]
fn discarding_blocks_of_a_reader_is_detected() {
    shown(
        DiscardRule::Readers,
        scenario::readers_see_the_bytes_they_resolved,
    );
}

#[test]
fn releasing_a_zone_in_use_is_detected() {
    shown(
        DiscardRule::EmptyZones,
        scenario::only_dead_zones_are_released,
    );
}

#[test]
fn discarding_parts_of_granules_is_detected() {
    shown(
        DiscardRule::WholeGranules,
        scenario::granules_are_released_after_their_last_block_died,
    );
}

#[test]
fn losing_the_end_of_a_long_discard_log_is_detected() {
    shown(
        DiscardRule::LogOverflow,
        scenario::a_long_discard_log_overflows_without_a_leak,
    );
    shown(
        DiscardRule::LogOverflow,
        scenario::unavoidable_leaks_are_found_by_trim,
    );
}

#[test]
fn a_trim_that_finds_nothing_is_detected() {
    shown(
        DiscardRule::Trim,
        scenario::unavoidable_leaks_are_found_by_trim,
    );
}

#[test]
fn a_full_volume_can_be_emptied() {
    scenario::a_full_volume_can_be_emptied().unwrap();
}
