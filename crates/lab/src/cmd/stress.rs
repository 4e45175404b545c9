//! `tuff-lab campaign`: stress tests of images and volumes.

use std::io::IsTerminal;
use std::sync::atomic::{AtomicUsize, Ordering};
use tuff_lab::Result;
use tuff_lab::campaigns::stress::{cache, crash, files, hostile, images, kills, names};
use tuff_lab::record::{Line, Record, RecordWriter};

/// Runs the remaining units, and prints the tables of all records of the folder. Returns false if there are findings.
pub(crate) fn crash(options: &crash::Options) -> Result<bool> {
    let mut writer = RecordWriter::new(&options.out, "crash");
    crash::run(options, &mut |line| {
        if let Line::Sample(sample) = line {
            let (unit, states) = (&sample.cell["unit"], sample.values["states"]);
            eprintln!("{unit}: {states} states");
        }
        writer.write(line)
    })?;
    let record = Record::read(&[&options.out])?;
    print!("{}", tuff_lab::campaigns::report(&record)?);
    Ok(record.failures.is_empty())
}

/// Compares files with a model. Returns false if they differ.
pub(crate) fn files(options: &files::Options) -> Result<bool> {
    Ok(match files::run(options)? {
        Ok(tally) => {
            println!("{tally}: no errors");
            true
        }
        Err(wrong) => {
            println!("{wrong}");
            false
        }
    })
}

/// Verifies images of random trees. Returns false if there are findings.
pub(crate) fn images(options: &images::Options) -> Result<bool> {
    let shown = std::io::stderr().is_terminal();
    let (mut tally, mut told) = (images::Tally::default(), 0);
    let ended = images::run(options, &mut tally, &mut |tally| {
        let found = tally.findings.len();
        if shown {
            eprint!(
                "\r{} cases, {} images, {found} findings ",
                tally.cases, tally.images
            );
        }
        for finding in &tally.findings[told..] {
            print!("{finding}");
        }
        told = found;
    });
    print!("{tally}");
    ended.map(|()| tally.findings.is_empty())
}

/// Kills verbs that write. Returns false if there are findings.
pub(crate) fn kills(options: &kills::Options) -> Result<bool> {
    let mut tally = kills::Tally::default();
    let mut progress = Progress::default();
    let ended = kills::run(options, &mut tally, &mut |tally| {
        progress.show(tally.kills(), "kills", &tally.findings);
    });
    progress.end();
    print!("{tally}");
    ended.map(|()| tally.findings.is_empty())
}

/// Attacks the cache directory. Returns false if there are findings.
pub(crate) fn cache(options: &cache::Options) -> Result<bool> {
    let mut tally = cache::Tally::default();
    let mut progress = Progress::default();
    let ended = cache::run(options, &mut tally, &mut |tally| {
        progress.show(tally.rounds(), "attacks", &tally.findings);
    });
    progress.end();
    print!("{tally}");
    ended.map(|()| tally.findings.is_empty())
}

/// Prints hostile names. Returns false if there are findings.
pub(crate) fn names(options: &names::Options) -> Result<bool> {
    let mut tally = names::Tally::default();
    let mut progress = Progress::default();
    let ended = names::run(options, &mut tally, &mut |tally| {
        progress.show(tally.images, "images", &tally.findings);
    });
    progress.end();
    print!("{tally}");
    ended.map(|()| tally.findings.is_empty())
}

/// Progress of a campaign: a line on a terminal, and each finding once.
#[derive(Default)]
struct Progress {
    told: usize,
}

impl Progress {
    fn show(&mut self, count: u64, what: &str, findings: &[impl std::fmt::Display]) {
        for finding in &findings[self.told..] {
            print!("{finding}");
        }
        self.told = findings.len();
        if std::io::stderr().is_terminal() {
            eprint!("\r{count} {what}, {} findings ", self.told);
        }
    }

    fn end(&self) {
        if std::io::stderr().is_terminal() {
            eprintln!();
        }
    }
}

/// Runs verbs on hostile servers. Returns false if there are findings.
pub(crate) fn hostile(options: &hostile::Options) -> Result<bool> {
    let shown = std::io::stderr().is_terminal();
    let mut tally = hostile::Tally::default();
    let told = AtomicUsize::new(0);
    let ended = hostile::run(options, &mut tally, &|tally| {
        let found = tally.findings.len();
        if shown {
            eprint!("\r{} runs, {found} findings ", tally.runs);
        }
        for finding in &tally.findings[told.swap(found, Ordering::SeqCst)..] {
            println!("{finding}");
        }
    });
    print!("{tally}");
    ended.map(|()| tally.findings.is_empty())
}
