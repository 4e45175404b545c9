//! Each of the nine discard rules, switched off, must be noticed: otherwise the suite that passes with all of them says nothing.

use tuff_iplfs::Rules;
use tuff_iplfs_crash::{Campaign, scenario};

/// What the bounded campaign says about a volume with these rules.
fn campaign(rules: Rules) -> Result<(), String> {
    let mut campaign = Campaign::new(rules, 11)?;
    campaign.samples = 3;
    let result = campaign.all_of_one().and_then(|()| campaign.sampled(3, 60));
    println!("{:?}", campaign.tally);
    result
}

fn noticed(rule: u8) {
    let result = campaign(Rules::without(rule));
    println!("rule {rule}: {result:?}");
    assert!(result.is_err(), "a volume without rule {rule} passes");
}

#[test]
fn discarding_before_any_checkpoint_is_noticed() {
    noticed(1);
}

#[test]
fn dropping_a_run_from_the_log_before_it_is_confirmed_is_noticed() {
    noticed(3);
}

#[test]
fn using_addresses_again_after_a_crash_is_noticed() {
    noticed(4);
}

fn shown(rule: u8, scenario: fn(Rules) -> Result<(), String>) {
    scenario(Rules::default()).unwrap();
    let result = scenario(Rules::without(rule));
    println!("rule {rule}: {result:?}");
    assert!(result.is_err(), "a volume without rule {rule} passes");
}

#[test]
fn discarding_what_the_older_checkpoint_needs_is_noticed() {
    shown(2, scenario::the_older_checkpoint_stays_whole);
}

#[test]
fn discarding_under_a_reader_is_noticed() {
    shown(5, scenario::a_slow_reader_sees_the_bytes_it_asked_for);
}

#[test]
fn giving_back_a_zone_that_is_in_use_is_noticed() {
    shown(6, scenario::dead_zones_go_and_others_stay);
}

#[test]
fn discarding_parts_of_granules_is_noticed() {
    shown(7, scenario::neighbours_that_die_apart_come_back_together);
}

#[test]
fn losing_the_end_of_a_long_discard_log_is_noticed() {
    shown(8, scenario::a_long_discard_log_overflows_without_a_leak);
    shown(
        8,
        scenario::a_leak_that_could_not_be_avoided_is_found_by_trim,
    );
}

#[test]
fn a_trim_that_finds_nothing_is_noticed() {
    shown(
        9,
        scenario::a_leak_that_could_not_be_avoided_is_found_by_trim,
    );
}

#[test]
fn a_full_volume_can_be_emptied() {
    scenario::a_full_volume_can_be_emptied().unwrap();
}
