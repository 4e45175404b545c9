//! Commands that a release runs.

use std::process::{Command, Stdio};

/// Result with a sentence for the user.
pub(super) type Result<T> = std::result::Result<T, String>;

/// Prints the name of a step.
pub(super) fn heading(step: &str) {
    eprintln!("-- {step}");
}

/// Runs a command to its end.
pub(super) fn run(command: &mut Command) -> Result<()> {
    let status = command.status().map_err(|e| cannot_start(command, &e))?;
    match status.success() {
        true => Ok(()),
        false => Err(format!("{}: {status}", shown(command))),
    }
}

/// Runs a command and returns what it prints.
pub(super) fn output(command: &mut Command) -> Result<String> {
    let out = command
        .stderr(Stdio::inherit())
        .output()
        .map_err(|e| cannot_start(command, &e))?;
    match out.status.success() {
        true => Ok(String::from_utf8_lossy(&out.stdout).into_owned()),
        false => Err(format!("{}: {}", shown(command), out.status)),
    }
}

/// Runs a subcommand of cargo that is a program of its own, and says how it is installed if it is missing.
pub(super) fn installed(tool: &str) -> Result<()> {
    let mut paths = std::env::var_os("PATH")
        .map(|path| std::env::split_paths(&path).collect::<Vec<_>>())
        .unwrap_or_default()
        .into_iter();
    match paths.any(|dir| dir.join(tool).is_file()) {
        true => Ok(()),
        false => Err(format!(
            "{tool} is missing; install it: cargo install --locked {tool}"
        )),
    }
}

fn cannot_start(command: &Command, e: &std::io::Error) -> String {
    format!("{}: cannot run: {e}", shown(command))
}

fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let words: Vec<_> = words.map(|word| word.to_string_lossy()).collect();
    words.join(" ")
}

/// Adds the file or directory to an error.
pub(super) fn at(path: &std::path::Path) -> impl Fn(std::io::Error) -> String {
    move |e| format!("{}: {e}", path.display())
}
