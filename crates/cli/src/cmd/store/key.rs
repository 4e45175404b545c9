//! `tuff store key`: keys of an encrypted store.

use super::keys::{ask, password_in};
use super::objects::Objects;
use super::place::StoreArgs;
use crate::out::Out;
use crate::text::time;
use clap::Subcommand;
use serde_json::{Value, json};
use std::path::PathBuf;
use std::process::ExitCode;
use tuff_backup::{KeyFile, Secret, StoreKey};
use tuff_erofs::{Error, Result};

/// List, add and remove keys of an encrypted backup store
///
/// Each password and each key file opens the whole store. Nothing that is stored is written anew when they change.
#[derive(clap::Args)]
#[command(arg_required_else_help = true)]
pub(crate) struct Args {
    #[command(subcommand)]
    verb: Verb,
}

#[derive(Subcommand)]
enum Verb {
    List(ListArgs),
    Add(AddArgs),
    Remove(RemoveArgs),
}

/// List the keys of an encrypted backup store
#[derive(clap::Args)]
struct ListArgs {
    #[command(flatten)]
    place: StoreArgs,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
}

/// Add a password or a key file to an encrypted backup store
///
/// A key that the store has is needed. Without an option, a new password is asked for.
#[derive(clap::Args)]
struct AddArgs {
    #[command(flatten)]
    place: StoreArgs,
    /// File whose first line is the new password
    #[arg(long, value_name = "FILE")]
    new_password_file: Option<PathBuf>,
    /// Make a key file here
    #[arg(long, value_name = "FILE", conflicts_with = "new_password_file")]
    new_key_file: Option<PathBuf>,
}

/// Remove a key of an encrypted backup store, but not the last one
///
/// Who has a copy of the store from before, and the key that is removed, can still read that copy, and what is added to the store
/// later. If a key was stolen, copy the store into a new one.
#[derive(clap::Args)]
struct RemoveArgs {
    #[command(flatten)]
    place: StoreArgs,
    /// Name of the key
    #[arg(value_name = "KEY")]
    key: String,
}

/// Runs a verb of `tuff store key`.
pub(super) fn run(args: &Args) -> Result<ExitCode> {
    match &args.verb {
        Verb::List(args) => list(args),
        Verb::Add(args) => add(args),
        Verb::Remove(args) => {
            let (objects, _) = encrypted(&args.place)?;
            StoreKey::remove(&*objects.bucket, &args.key)?;
            Ok(ExitCode::SUCCESS)
        }
    }
}

/// Objects and identifier of an encrypted store.
fn encrypted(place: &StoreArgs) -> Result<(Objects, [u8; 16])> {
    let objects = Objects::at(&place.store)?;
    let id = objects.encrypted()?;
    let id = id.ok_or_else(|| {
        Error::usage(format_args!(
            "{}: no encrypted backup store",
            place.store.display()
        ))
    })?;
    Ok((objects, id))
}

fn list(args: &ListArgs) -> Result<ExitCode> {
    let (objects, _) = encrypted(&args.place)?;
    let keys = StoreKey::list(&*objects.bucket)?;
    let mut out = Out::new();
    if args.json {
        let keys = keys
            .iter()
            .map(|key| json!({"key": key.name, "kind": key.kind, "time": key.time}));
        out.json(&json!({"keys": keys.collect::<Vec<Value>>()}))?;
    } else {
        for key in keys {
            out.line(format_args!(
                "{}  {}  {}",
                key.name,
                time(key.time),
                key.kind
            ))?;
        }
    }
    out.finish()?;
    Ok(ExitCode::SUCCESS)
}

fn add(args: &AddArgs) -> Result<ExitCode> {
    let (objects, id) = encrypted(&args.place)?;
    let key = args.place.keys.open(&objects, id)?;
    let secret = match (&args.new_key_file, &args.new_password_file) {
        (Some(path), _) => {
            let file = KeyFile::new(id)?;
            file.write(path, &objects.name())?;
            Secret::File(file)
        }
        (None, Some(path)) => Secret::Password(password_in(path)?),
        (None, None) => {
            let password = ask("New password: ")?;
            if ask("Once more: ")? != password {
                return Err(Error::usage("the passwords differ"));
            }
            Secret::Password(password)
        }
    };
    let name = key.add(&*objects.bucket, &secret)?;
    let mut out = Out::new();
    out.line(format_args!("key          {name}"))?;
    out.finish()?;
    Ok(ExitCode::SUCCESS)
}
