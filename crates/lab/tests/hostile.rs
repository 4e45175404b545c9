//! Short run of the campaign of hostile servers.

use std::path::Path;
use tuff_lab::campaigns::stress::hostile::Options;
use tuff_lab::campaigns::stress::rounds::{self, Campaign, Tally};
use tuff_lab::options;

#[test]
fn hostile_servers_get_no_secret_and_give_no_wrong_byte() {
    // It exists if the whole workspace was built.
    let tuff = Path::new(env!("CARGO_BIN_EXE_tuff-lab")).with_file_name("tuff");
    if !tuff.exists() {
        tuff_testkit::skipped("a campaign: no program tuff beside tuff-lab");
        return;
    }
    let folder = tempfile::tempdir().unwrap();
    let options = Options {
        rounds: 200,
        workers: 8,
        fast: true,
        common: rounds::Options {
            out: folder.path().to_owned(),
            seed: 1,
            minutes: None,
            options: options::Options {
                tool: vec![("tuff".to_owned(), tuff)],
                ..options::Options::default()
            },
        },
    };
    let mut tally = Tally::default();
    options.run(&mut tally).unwrap();
    assert_eq!(tally.findings.join("\n"), "");
    assert!(tally.counts.faults >= 130, "{tally}");
    assert!(
        tally.counts.searched > 0 && tally.counts.codes[&0] > 0,
        "{tally}"
    );
}
