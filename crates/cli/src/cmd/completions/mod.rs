//! `tuff completions`: completion scripts for shells.
//!
//! Verbs and options are in the scripts. For files inside images, the scripts of bash, zsh and fish call this verb again.

mod command_line;
mod hidden;
mod names;

use crate::out::Out;
use clap::Command;
use clap_complete::Shell;
use std::ffi::OsString;
use std::process::ExitCode;
use tuff_erofs::{Error, Result};

/// Print the completion script of a shell
///
/// bash, zsh and fish also complete paths inside of images. For that their scripts run this verb with the command line: it prints
/// the names that its last word may become, one per line. It reads one directory, and prints nothing for a damaged image or one
/// behind a URL.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Shell to complete in
    #[arg(value_enum)]
    shell: Shell,
    /// Command line up to the cursor. For bash: the line as it was typed, and the word that bash replaces
    #[arg(last = true, value_name = "WORD")]
    words: Vec<OsString>,
}

/// Prints the script for `command`, or the names that complete a command line.
pub(crate) fn run(args: &Args, command: Command) -> Result<ExitCode> {
    let text = match args.words.is_empty() {
        true => script(args.shell, command)?,
        false => match names_for(args, command) {
            Some(names) => names,
            // The script completes options and files of the host.
            None => return Ok(ExitCode::FAILURE),
        },
    };
    let mut out = Out::new();
    out.bytes(&text)?;
    out.finish()
}

/// Names in an image, one per line. None if the command line does not end with a path in an image.
fn names_for(args: &Args, command: Command) -> Option<Vec<u8>> {
    let mut text = Vec::new();
    let (words, kept) = match (args.shell, &args.words[..]) {
        (Shell::Bash, [line, replaced]) => {
            let words = command_line::split(line)?;
            let kept = command_line::kept_len(&words, replaced)?;
            (words, kept)
        }
        (Shell::Bash, _) => return None,
        (_, words) => (words.to_vec(), 0),
    };
    for name in names::complete(&words, command)? {
        text.extend(name.get(kept..).unwrap_or_default());
        text.push(b'\n');
    }
    Some(text)
}

fn script(shell: Shell, command: Command) -> Result<Vec<u8>> {
    let mut command = hidden::removed(&command);
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, "tuff", &mut script);
    let script = String::from_utf8(script).map_err(|e| Error::usage(e.utf8_error()))?;
    let script = match shell {
        // Without candidates bash completes files of the host itself, and quotes them.
        Shell::Bash => script.replace(BASH_FILES, "") + include_str!("paths.bash"),
        Shell::Fish => script + include_str!("paths.fish"),
        // The last lines call the function, or register it.
        Shell::Zsh => match script.rfind(ZSH_START) {
            Some(at) => [&script[..at], include_str!("paths.zsh"), &script[at..]].concat(),
            None => script,
        },
        _ => script,
    };
    Ok(script.into_bytes())
}

/// Names of files in the bash script, split at spaces and not quoted.
const BASH_FILES: &str = "$(compgen -f \"${cur}\")";

/// Line of the zsh script after the definition of its functions.
const ZSH_START: &str = "if [ \"$funcstack[1]\" = \"_tuff\" ]";
