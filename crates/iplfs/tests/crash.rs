//! Crash campaigns, bounded to fit an ordinary test run.
//!
//! The complete ones are ignored tests: `cargo test --release -p tuff-iplfs --test crash -- --ignored --nocapture`.

use tuff_iplfs_crash::Campaign;

fn run(mut campaign: Campaign, inspect: impl FnOnce(&mut Campaign) -> Result<(), String>) {
    let result = inspect(&mut campaign);
    println!("{:?}", campaign.tally);
    result.unwrap();
    assert!(
        campaign.tally.states > 0 && campaign.tally.nested > 0,
        "nothing was looked at"
    );
}

#[test]
fn every_single_operation_survives_every_crash() {
    let mut campaign = Campaign::new(None, 1).unwrap();
    campaign.nested_every = 64;
    run(campaign, Campaign::single_operations);
}

#[test]
fn dependent_sequences_survive_every_crash() {
    let mut campaign = Campaign::new(None, 9).unwrap();
    campaign.samples = 2;
    campaign.nested_every = 64;
    run(campaign, Campaign::dependent_sequences);
}

#[test]
fn some_pairs_of_operations_survive_every_crash() {
    let mut campaign = Campaign::new(None, 3).unwrap();
    campaign.samples = 3;
    campaign.nested_every = 64;
    run(campaign, |c| c.pairs_of_operations(367, 7));
}

#[test]
fn operations_during_a_checkpoint_survive_every_crash() {
    let mut campaign = Campaign::new(None, 10).unwrap();
    campaign.samples = 3;
    campaign.nested_every = 64;
    run(campaign, |c| c.pairs_during_checkpoint(61, 7));
}

#[test]
fn sampled_sequences_of_three_and_ten_survive_every_crash() {
    let mut campaign = Campaign::new(None, 4).unwrap();
    campaign.samples = 2;
    campaign.nested_every = 64;
    run(campaign, |c| {
        c.sampled(3, 20).and_then(|()| c.sampled(10, 8))
    });
}

#[test]
fn a_discard_log_longer_than_its_pack_survives_crashes() {
    let mut campaign = Campaign::with_long_log(None, 5).unwrap();
    campaign.samples = 1;
    campaign.nested_every = 16;
    run(campaign, |c| c.sampled(2, 6));
}

#[test]
fn snapshots_survive_every_crash() {
    let mut campaign = Campaign::with_snapshot(None, 7).unwrap();
    campaign.samples = 2;
    campaign.nested_every = 64;
    run(campaign, |c| {
        c.sampled(2, 12).and_then(|()| c.sampled(12, 8))
    });
}

#[test]
fn a_volume_on_a_block_map_survives_every_crash() {
    let mut campaign = Campaign::with_block_map(11).unwrap();
    campaign.samples = 2;
    campaign.nested_every = 256;
    run(campaign, |c| {
        c.single_operations()
            .and_then(|()| c.pairs_during_checkpoint(401, 7))
            .and_then(|()| c.sampled(12, 8))
    });
}

#[test]
#[ignore = "every pair: about seven million states, twenty minutes of one core in a release build"]
fn every_pair_of_operations_survives_every_crash() {
    run(Campaign::new(None, 2).unwrap(), |c| {
        c.pairs_of_operations(1, 0)
            .and_then(|()| c.pairs_during_checkpoint(1, 0))
    });
}

#[test]
#[ignore = "four thousand sequences of three and twelve: 1.3 million states, five minutes"]
fn many_sampled_sequences_survive_every_crash() {
    run(Campaign::new(None, 6).unwrap(), |c| {
        c.sampled(3, 2000).and_then(|()| c.sampled(12, 500))
    });
    run(Campaign::with_snapshot(None, 8).unwrap(), |c| {
        c.sampled(3, 1000).and_then(|()| c.sampled(12, 500))
    });
}
