//! Arguments of `tuff build` and `tuff patch`.

use super::settings::SettingArgs;
use crate::image::device;
use clap::ValueEnum;
use std::path::PathBuf;
use tuff_open::Device;

/// The arguments that `tuff build` and `tuff patch` have in common.
// The two kinds of paths are one argument because options may stand between them: clap gives a last argument of its own
// the first path that an option follows.
#[derive(clap::Args, Default)]
pub(crate) struct Args {
    /// One or more SOURCEs, then IMAGE unless -o names it
    #[arg(required = true, value_name = "PATH")]
    pub(super) paths: Vec<PathBuf>,
    /// Image to write; every PATH is then a source
    #[arg(short = 'o', long, value_name = "IMAGE")]
    pub(super) output: Option<PathBuf>,

    #[command(flatten)]
    pub(super) settings: SettingArgs,

    /// Kind of every source instead of detecting it; tar includes cpio
    #[arg(long, value_enum, value_name = "KIND", help_heading = "Sources")]
    pub(super) source_type: Option<SourceType>,
    /// Extra device of a base or source image, once for each slot of its device table; those of bases come first. With the
    /// root hash of its hash tree, it is verified, as is a base or source that is given as FILE,ROOT-HASH
    #[arg(long, value_name = "FILE[,ROOT-HASH]", value_parser = device(), help_heading = "Sources")]
    pub(super) source_device: Vec<Device>,
    /// Refuse bases and source images unless a signature of their root hash by this certificate comes with them, and verify
    /// all that is read of them
    #[arg(long, value_name = "CERT", help_heading = "Sources")]
    pub(super) trust: Option<PathBuf>,
    /// Platform of a container image: OS/ARCHITECTURE[/VARIANT] (default: linux on this machine's architecture)
    #[arg(long, value_name = "PLATFORM", help_heading = "Sources")]
    pub(super) platform: Option<String>,
    /// Leave out files and directories of directory sources that cannot be read, vanish or change, list them, and exit
    /// with code 1
    #[arg(short, long, help_heading = "Sources")]
    pub(super) keep_going: bool,

    /// Add the time of each stage to the summary
    #[arg(long, help_heading = "Work")]
    pub(super) stats: bool,
    /// Print neither progress nor summary
    #[arg(short = 'q', long, help_heading = "Work")]
    pub(super) quiet: bool,
    /// Print progress as JSON lines to standard error, and the summary as one JSON object to standard output
    #[arg(long, conflicts_with = "quiet", help_heading = "Work")]
    pub(super) json: bool,
}

/// Kind of a source, if it is not detected.
#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
pub(super) enum SourceType {
    Dir,
    Tar,
    Manifest,
    Image,
    #[value(name = "squashfs")]
    SquashFs,
}
