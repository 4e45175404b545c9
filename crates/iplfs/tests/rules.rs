//! Disabling any of the nine discard rules must be detected. Otherwise a suite that passes with all rules proves
//! nothing.

use tuff_iplfs::Rules;
use tuff_iplfs_crash::{Campaign, scenario};

/// Runs a bounded campaign on a volume with these rules.
fn campaign(rules: Rules) -> Result<(), String> {
    let mut campaign = Campaign::new(rules, 11)?;
    campaign.samples = 3;
    let result = campaign
        .single_operations()
        .and_then(|()| campaign.sampled(3, 60));
    println!("{:?}", campaign.tally);
    result
}

fn noticed(rule: u8) {
    let result = campaign(Rules::without(rule));
    println!("rule {rule}: {result:?}");
    assert!(result.is_err(), "a volume without rule {rule} passes");
}

#[test]
fn discarding_before_any_checkpoint_is_detected() {
    noticed(1);
}

#[test]
fn dropping_an_unconfirmed_run_from_the_log_is_detected() {
    noticed(3);
}

#[test]
fn reusing_addresses_after_a_crash_is_detected() {
    noticed(4);
}

fn shown(rule: u8, scenario: fn(Rules) -> Result<(), String>) {
    scenario(Rules::default()).unwrap();
    let result = scenario(Rules::without(rule));
    println!("rule {rule}: {result:?}");
    assert!(result.is_err(), "a volume without rule {rule} passes");
}

#[test]
fn discarding_blocks_of_the_older_checkpoint_is_detected() {
    shown(2, scenario::the_older_checkpoint_stays_intact);
}

#[test]
fn discarding_blocks_of_a_reader_is_detected() {
    shown(5, scenario::readers_see_the_bytes_they_resolved);
}

#[test]
fn releasing_a_zone_in_use_is_detected() {
    shown(6, scenario::only_dead_zones_are_released);
}

#[test]
fn discarding_parts_of_granules_is_detected() {
    shown(
        7,
        scenario::granules_are_released_after_their_last_block_died,
    );
}

#[test]
fn losing_the_end_of_a_long_discard_log_is_detected() {
    shown(8, scenario::a_long_discard_log_overflows_without_a_leak);
    shown(8, scenario::unavoidable_leaks_are_found_by_trim);
}

#[test]
fn a_trim_that_finds_nothing_is_detected() {
    shown(9, scenario::unavoidable_leaks_are_found_by_trim);
}

#[test]
fn a_full_volume_can_be_emptied() {
    scenario::a_full_volume_can_be_emptied().unwrap();
}
