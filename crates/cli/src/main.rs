//! The `tuff` command: one verb per file in `cmd`.
//!
//! Exit codes, which scripts may rely on:
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done; also if the reader of standard output went away before the end |
//! | 1 | `check`, `verity check`, `volume check` and `diff`: something was found; `verity repair`: something is still damaged; `extract`: something is not as in the image; `completions`: nothing to complete from an image |
//! | 2 | wrong arguments, a path that is not in the image, or another request that makes no sense |
//! | 3 | the image, or what it is to be built from, is corrupt; so is the volume, or the stream it is to receive |
//! | 4 | the image or volume is unsupported, or a limit was reached |
//! | 5 | the host failed: a file that cannot be read, a full disk, a volume that is in use, or whose server could not write the last changes |
//! | 6 | no signature by the certificate of `--trust` comes with the image |
//! | 130 | stopped by a signal |
//! | SIGABRT | the host has no memory for an allocation |
//!
//! Under the names of other tools, and as verbs of those names, it has their codes: 0 and 1.

// The macro of the standard library panics if standard error cannot be written, such as to a full disk, and prints names of files
// as they are.
macro_rules! eprintln {
    ($($what:tt)*) => { $crate::out::error_line(format_args!($($what)*)) };
}

#[cfg(feature = "remote")]
mod allocator;
mod args;
mod cmd;
#[cfg(any(feature = "explore", feature = "report"))]
mod comparison;
mod disk;
mod file_kind;
mod help;
mod image;
mod output;
mod remote;
mod requests;
mod signing;

use args::{cli, select, usage};
use clap::{CommandFactory, FromArgMatches};
use cli::{Cli, Verb};
use cmd::compat::{self, Tool};
use cmd::mount::helper::{self, Helper};
use help::Detail;
use output::{advice, next_command, out, overwrite, progress, sink, text, units};
use signal_hook::consts::SIGXFSZ;
use std::ffi::OsString;
use std::process::ExitCode;
use std::sync::Arc;
use tuff_erofs::Error;

fn main() -> ExitCode {
    // With a handler, a write past the file size limit (ulimit -f) returns an error instead of killing the process. If
    // it cannot be registered, the default remains.
    let _ = signal_hook::flag::register(SIGXFSZ, Arc::default());
    let args: Vec<OsString> = std::env::args_os().collect();
    if let Some(tool) = args.first().and_then(|program| Tool::from_name(program)) {
        return compat::run(tool, &args[1..]);
    }
    let args = match helper::of_mount(&args) {
        Some(Helper::Mount(args)) => args,
        Some(Helper::Fake) => return ExitCode::SUCCESS,
        None => args,
    };
    let command = help::command(Cli::command(), Detail::from_args(&args));
    let matches = command.clone().try_get_matches_from(&args);
    let cli = matches.and_then(|matches| Cli::from_arg_matches(&matches));
    let cli = match cli {
        Ok(cli) => cli,
        Err(e) => return usage::refuse(e, command, &args),
    };
    let result = match cli.verb {
        Verb::Build(args) => cmd::build_image::run(*args),
        Verb::Disk(args) => cmd::build_image::disk::run(*args),
        Verb::Sysext(args) => cmd::build_image::sysext::run(*args),
        Verb::Patch(args) => cmd::build_image::patch::run(*args),
        Verb::Info(args) => cmd::info::run(&args),
        Verb::Ls(args) => cmd::ls::run(&args),
        Verb::Cat(args) => cmd::cat::run(&args),
        Verb::Stat(args) => cmd::stat::run(&args),
        Verb::Extract(args) => cmd::extract::run(&args),
        Verb::Tar(args) => cmd::tar::run(&args),
        Verb::Check(args) => cmd::check::run(&args),
        Verb::Diff(args) => cmd::diff::run(&args),
        Verb::Dump(args) => cmd::dump::run(&args),
        #[cfg(feature = "explore")]
        Verb::Explore(args) => cmd::explore::run(&args),
        #[cfg(feature = "report")]
        Verb::Report(args) => cmd::report::run(&args),
        Verb::Profile(args) => cmd::profile::run(&args),
        #[cfg(feature = "remote")]
        Verb::Push(args) => cmd::push::run(&args),
        #[cfg(feature = "remote")]
        Verb::Pull(args) => cmd::pull::run(&args),
        Verb::Mount(args) => cmd::mount::run(&args),
        #[cfg(feature = "remote")]
        Verb::Serve(args) => cmd::serve::run(&args),
        Verb::Umount(args) => cmd::umount::run(&args),
        Verb::Stats(args) => cmd::stats::run(&args),
        Verb::Suggest(args) => cmd::suggest::run(&args),
        Verb::Doctor(args) => cmd::doctor::run(&args),
        Verb::Verity(args) => cmd::verity::run(&args),
        Verb::Volume(args) => cmd::volume::run(&args),
        Verb::Backup(args) => cmd::backup::run(&args),
        Verb::Store(args) => cmd::store::run(&args),
        Verb::MkfsErofs(args) => Ok(compat::run(Tool::Mkfs, &args.args)),
        Verb::FsckErofs(args) => Ok(compat::run(Tool::Fsck, &args.args)),
        Verb::DumpErofs(args) => Ok(compat::run(Tool::Dump, &args.args)),
        Verb::Man(args) => cmd::man::run(&args, help::command(Cli::command(), Detail::All)),
        Verb::Completions(args) => {
            cmd::completions::run(&args, help::command(Cli::command(), Detail::All))
        }
    };
    match result {
        Ok(code) => code,
        Err(e) if out::reader_left(&e) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("tuff: {}", advice::message(&e));
            ExitCode::from(exit_code(&e))
        }
    }
}

/// Exit code for an error.
fn exit_code(e: &Error) -> u8 {
    match e {
        Error::Usage(_) => 2,
        Error::Corrupt(_) | Error::Source(_) => 3,
        // An EINTR of the system is not a requested stop.
        Error::Io(_, e)
            if e.kind() == std::io::ErrorKind::Interrupted && e.raw_os_error().is_none() =>
        {
            130
        }
        Error::Io(..) => 5,
        Error::Untrusted(_) => 6,
        _ => 4,
    }
}
