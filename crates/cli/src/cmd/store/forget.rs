//! `tuff store forget`: removes snapshots.

use super::place::StoreArgs;
use crate::out::Out;
use crate::text::time;
use crate::units::counted;
use serde_json::{Value, json};
use std::process::ExitCode;
use tuff_backup::{Choice, Policy};
use tuff_erofs::{Error, Result};

/// Remove snapshots of a backup store, by number or by rules
///
/// Rules keep snapshots of each series apart from those of others: the newest ones, and the newest one of each of the last days,
/// weeks, months and years that have one, in UTC. The newest snapshot of a series stays in any case.
///
/// Snapshots in doubt are neither removed nor counted by rules: those that have less than half of the files of the one before, and
/// those whose time is before that of their predecessor or in the future. --confirm ends the doubt.
///
/// `tuff store prune` frees the space.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    place: StoreArgs,
    /// Numbers of snapshots
    #[arg(value_name = "N", conflicts_with_all = ["last", "daily", "weekly", "monthly", "yearly", "series"])]
    numbers: Vec<u32>,
    /// Keep the newest snapshots
    #[arg(long = "keep-last", value_name = "COUNT", default_value_t = 0)]
    last: u32,
    /// Keep the newest snapshot of each of the last days
    #[arg(long = "keep-daily", value_name = "COUNT", default_value_t = 0)]
    daily: u32,
    /// Keep the newest snapshot of each of the last weeks
    #[arg(long = "keep-weekly", value_name = "COUNT", default_value_t = 0)]
    weekly: u32,
    /// Keep the newest snapshot of each of the last months
    #[arg(long = "keep-monthly", value_name = "COUNT", default_value_t = 0)]
    monthly: u32,
    /// Keep the newest snapshot of each of the last years
    #[arg(long = "keep-yearly", value_name = "COUNT", default_value_t = 0)]
    yearly: u32,
    /// Apply the rules to this series only
    #[arg(long, value_name = "NAME")]
    series: Option<String>,
    /// Count this snapshot like others, although it is in doubt, and remove nothing
    #[arg(long, value_name = "N", conflicts_with_all = ["numbers", "last", "daily", "weekly", "monthly", "yearly", "series"])]
    confirm: Option<u32>,
    /// Remove nothing, and print what would be removed
    #[arg(short = 'n', long, conflicts_with = "confirm")]
    dry_run: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    if let Some(number) = args.confirm {
        args.place.open(true)?.confirm(number)?;
        return Ok(ExitCode::SUCCESS);
    }
    let policy = Policy {
        last: args.last,
        daily: args.daily,
        weekly: args.weekly,
        monthly: args.monthly,
        yearly: args.yearly,
    };
    if args.numbers.is_empty() && policy == Policy::default() {
        return Err(Error::usage(
            "name snapshots by their numbers, or rules that keep some, such as --keep-daily 7",
        ));
    }
    let mut store = match args.dry_run {
        true => args.place.open(false)?,
        false => args.place.open(true)?,
    };
    if !args.numbers.is_empty() {
        if !args.dry_run {
            args.numbers
                .iter()
                .try_for_each(|number| store.forget(*number))?;
        }
        return shown(args, &[], &args.numbers);
    }
    let choices = store.choose(policy, args.series.as_deref())?;
    let removed = choices.iter().filter(|choice| !choice.is_kept);
    let removed: Vec<u32> = removed.map(|choice| choice.snapshot.number).collect();
    if !args.dry_run {
        removed
            .iter()
            .try_for_each(|number| store.forget(*number))?;
    }
    shown(args, &choices, &removed)
}

fn shown(args: &Args, choices: &[Choice], removed: &[u32]) -> Result<ExitCode> {
    let mut out = Out::new();
    let in_doubt = choices.iter().filter_map(|choice| {
        let doubt = choice.doubt.as_ref()?;
        Some((choice.snapshot.number, doubt))
    });
    let in_doubt: Vec<(u32, &String)> = in_doubt.collect();
    for (number, doubt) in &in_doubt {
        eprintln!("tuff: warning: snapshot {number} is not counted: {doubt}; see --confirm");
    }
    if args.json {
        let kept = choices.iter().filter(|choice| choice.is_kept);
        let doubts = in_doubt
            .iter()
            .map(|(number, doubt)| json!({"snapshot": number, "doubt": doubt}));
        out.json(&json!({
            "removed": removed,
            "kept": kept.map(|choice| choice.snapshot.number).collect::<Vec<u32>>(),
            "in_doubt": doubts.collect::<Vec<Value>>(),
        }))?;
    } else {
        for choice in choices {
            let state = match (choice.is_kept, &choice.doubt) {
                (_, Some(_)) => "in doubt",
                (true, None) => "kept",
                (false, None) => "removed",
            };
            out.line(format_args!(
                "{:>6}  {}  {state:<8}  {}",
                choice.snapshot.number,
                time(choice.snapshot.time),
                choice.snapshot.series
            ))?;
        }
        let verb = if args.dry_run {
            "would be removed"
        } else {
            "removed"
        };
        out.line(format_args!(
            "{} {verb}",
            counted(removed.len(), "snapshot")
        ))?;
    }
    out.finish()
}
