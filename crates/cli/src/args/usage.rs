//! Errors of the command line, in the form of all other errors.

use crate::text::escaped_line;
use clap::Command;
use clap::error::{ContextKind, ContextValue, ErrorKind};
use std::ffi::OsString;
use std::process::ExitCode;
use tuff_mkfs::settings::{Form, Setting};

/// Verbs by the names that they have in other tools.
const VERBS: &[(&str, &[&str])] = &[
    ("build", &["create", "make", "mkfs", "new", "pack"]),
    ("cat", &["print", "read", "type"]),
    ("check", &["fsck", "test", "validate", "verify"]),
    ("diff", &["cmp", "compare"]),
    (
        "extract",
        &["cp", "export", "get", "unpack", "unsquashfs", "x"],
    ),
    ("info", &["inspect", "show"]),
    ("ls", &["dir", "list", "tree"]),
    ("patch", &["append", "update"]),
    ("pull", &["download", "fetch"]),
    ("push", &["upload"]),
    // A verb of its own until 0.2.
    ("stat --extents", &["extents"]),
    ("umount", &["eject", "unmount"]),
];

/// Prints help as clap does, and an error as the verbs do. Returns the exit code.
pub(crate) fn refuse(e: clap::Error, command: Command, args: &[OsString]) -> ExitCode {
    let is_help = matches!(
        e.kind(),
        ErrorKind::DisplayHelp
            | ErrorKind::DisplayVersion
            | ErrorKind::DisplayHelpOnMissingArgumentOrSubcommand
    );
    if is_help {
        e.exit();
    }
    // The error names arguments, which may have line feeds.
    let shown = args.iter().map(|arg| escaped_line(arg.to_string_lossy()));
    let shown = command.try_get_matches_from(shown).err();
    let e = with_suggestion(shown.unwrap_or(e), args);
    let text = e.render().to_string();
    let text = text.trim_end();
    let text = text.strip_prefix("error: ").unwrap_or(text);
    for (number, line) in text.lines().enumerate() {
        match number {
            0 => eprintln!("tuff: {line}"),
            _ => eprintln!("{line}"),
        }
    }
    ExitCode::from(2)
}

/// Returns true for a verb with the settings of a build.
fn builds(args: &[OsString]) -> bool {
    let verbs = ["build", "disk", "sysext", "patch"];
    args.get(1)
        .is_some_and(|verb| verbs.iter().any(|name| verb == name))
}

/// Names the verb that does what a verb of other tools does, and the setting that a flag is not.
fn with_suggestion(mut e: clap::Error, args: &[OsString]) -> clap::Error {
    let verb = match e.get(ContextKind::InvalidSubcommand) {
        Some(ContextValue::String(word)) => VERBS
            .iter()
            .find(|(_, names)| names.contains(&word.as_str())),
        _ => None,
    };
    if let Some((verb, _)) = verb {
        let verbs = ContextValue::Strings(vec![(*verb).to_owned()]);
        e.insert(ContextKind::SuggestedSubcommand, verbs);
    }
    let setting = match e.get(ContextKind::InvalidArg) {
        Some(ContextValue::String(flag)) => flag.strip_prefix("--").and_then(Setting::find),
        _ => None,
    };
    if let Some(setting) = setting.filter(|setting| setting.is_rare && builds(args)) {
        let value = if setting.form == Form::Flag {
            ""
        } else {
            "=VALUE"
        };
        let flag = ContextValue::String(format!("--set {}{value}", setting.name));
        e.insert(ContextKind::SuggestedArg, flag);
    }
    e
}
