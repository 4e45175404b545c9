//! Arguments of verbs that read or write a whole store.

use crate::progress::Show;
use tuff_erofs::THREADS_MAX;

#[derive(clap::Args)]
pub(super) struct WorkArgs {
    /// Worker threads (default: the number of CPUs that the process may use)
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=THREADS_MAX.into()))]
    threads: Option<u16>,
    /// Print neither progress nor summary
    #[arg(short, long)]
    pub(super) quiet: bool,
    /// Print one JSON object
    #[arg(long, conflicts_with = "quiet")]
    pub(super) json: bool,
}

impl WorkArgs {
    /// Number of threads that the arguments ask for.
    pub(super) fn threads(&self) -> usize {
        let given = self.threads.map(usize::from);
        given.unwrap_or_else(tuff_mkfs::available_threads)
    }

    /// Decides whether progress is shown.
    pub(super) fn show(&self) -> Show {
        Show::unless(self.quiet || self.json)
    }
}
