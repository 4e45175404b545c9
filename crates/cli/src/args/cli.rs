//! Command line of `tuff`: its verbs and their arguments.

use crate::cmd;
use clap::{Parser, Subcommand};

/// Build, read, check, extract and mount EROFS images; create and maintain IPLFS volumes
#[derive(Parser)]
#[command(
    name = "tuff",
    version,
    max_term_width = 100,
    arg_required_else_help = true
)]
pub(crate) struct Cli {
    #[command(subcommand)]
    pub(crate) verb: Verb,
}

#[derive(Subcommand)]
pub(crate) enum Verb {
    Build(Box<cmd::build_image::BuildArgs>),
    Disk(Box<cmd::build_image::disk::DiskArgs>),
    Sysext(Box<cmd::build_image::sysext::SysextArgs>),
    Patch(Box<cmd::build_image::patch::PatchArgs>),
    Info(cmd::info::Args),
    Ls(cmd::ls::Args),
    Cat(cmd::cat::Args),
    Stat(cmd::stat::Args),
    Extract(Box<cmd::extract::Args>),
    Tar(cmd::tar::Args),
    Check(cmd::check::Args),
    Diff(cmd::diff::Args),
    Dump(cmd::dump::Args),
    #[cfg(feature = "explore")]
    Explore(cmd::explore::Args),
    #[cfg(feature = "report")]
    Report(cmd::report::Args),
    Profile(cmd::profile::Args),
    #[cfg(feature = "remote")]
    Push(cmd::push::Args),
    #[cfg(feature = "remote")]
    Pull(cmd::pull::Args),
    Mount(Box<cmd::mount::Args>),
    #[cfg(feature = "remote")]
    Serve(cmd::serve::Args),
    Umount(cmd::umount::Args),
    Stats(cmd::stats::Args),
    Suggest(cmd::suggest::Args),
    Doctor(cmd::doctor::Args),
    Verity(cmd::verity::Args),
    Volume(cmd::volume::Args),
    Backup(cmd::backup::Args),
    Store(cmd::store::Args),
    /// Build an image with the options of mkfs.erofs
    ///
    /// docs/reference/mkfs.md lists what each option does here.
    #[command(
        name = "mkfs.erofs",
        disable_help_flag = true,
        override_usage = "tuff mkfs.erofs [OPTIONS] FILE [SOURCE]"
    )]
    MkfsErofs(cmd::compat::RawArgs),
    /// Check or extract an image with the options of fsck.erofs
    ///
    /// docs/reference/mkfs.md lists what each option does here.
    #[command(
        name = "fsck.erofs",
        disable_help_flag = true,
        override_usage = "tuff fsck.erofs [OPTIONS] IMAGE"
    )]
    FsckErofs(cmd::compat::RawArgs),
    /// Show an image with the options of dump.erofs
    ///
    /// docs/reference/mkfs.md lists what each option does here.
    #[command(
        name = "dump.erofs",
        disable_help_flag = true,
        override_usage = "tuff dump.erofs [OPTIONS] IMAGE"
    )]
    DumpErofs(cmd::compat::RawArgs),
    Man(cmd::man::Args),
    Completions(cmd::completions::Args),
}
