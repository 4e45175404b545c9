//! Snapshots that arguments name, and their images.

use super::place::StoreArgs;
use std::path::Path;
use std::sync::Arc;
use tuff_backup::{HeldPin, Snapshot, SnapshotImage, Store};
use tuff_erofs::{Error, Result};
use tuff_mkfs::Progress;
use tuff_store::TemporaryDir;

/// Arguments that name a snapshot.
#[derive(clap::Args)]
pub(super) struct SnapshotArgs {
    #[command(flatten)]
    pub(super) place: StoreArgs,
    /// Number of the snapshot (default: the newest one)
    #[arg(short, long, value_name = "N")]
    snapshot: Option<u32>,
}

impl SnapshotArgs {
    /// Opens the store and finds the snapshot.
    pub(super) fn open(&self) -> Result<(Arc<Store>, Snapshot)> {
        let store = self.place.open(false)?;
        let snapshot = match self.snapshot {
            Some(number) => store.snapshot(number)?,
            None => newest(&store, &self.place.store)?,
        };
        Ok((Arc::new(store), snapshot))
    }
}

/// Pins a snapshot for as long as the value lives. Says so where a store cannot be written.
pub(super) fn pin(store: &Store, snapshot: &Snapshot) -> Result<Option<HeldPin>> {
    match store.pin(snapshot) {
        Err(e @ Error::Io(..)) => {
            eprintln!(
                "tuff: warning: snapshot {} has no pin: `tuff store prune` frees its data once it is forgotten: {e}",
                snapshot.number
            );
            Ok(None)
        }
        pinned => pinned.map(Some),
    }
}

/// Newest snapshot of a store.
fn newest(store: &Store, path: &Path) -> Result<Snapshot> {
    let none = || Error::usage(format_args!("{}: no snapshots", path.display()));
    store.snapshots()?.pop().ok_or_else(none)?
}

/// Builds the image of a snapshot in a temporary directory.
pub(super) fn image(
    store: &Arc<Store>,
    snapshot: &Snapshot,
) -> Result<(TemporaryDir, SnapshotImage)> {
    let dir = std::env::temp_dir();
    let failed = |e| Error::io(dir.display(), "cannot make a temporary directory", e);
    let temporary = TemporaryDir::create(&dir).map_err(failed)?;
    let path = temporary.path().join("snapshot.erofs");
    let image = store.image(snapshot, &path, &Progress::default())?;
    Ok((temporary, image))
}
