//! Profiles of `--record` and `--pin`.

use crate::cmd::profile::read;
use crate::overwrite::{self, Format};
use crate::units::{parse_size, size};
use std::path::{Path, PathBuf};
use tuff_erofs::serve::{Profile, Server};
use tuff_erofs::{Error, Result};
use tuff_store::{Output, Target};

/// Profile, and the budget for pinned data.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Pin {
    path: PathBuf,
    /// Budget of pinned data. Unit: bytes.
    budget: Option<usize>,
}

impl std::str::FromStr for Pin {
    type Err = String;

    /// Parses `FILE` or `FILE,BYTES`. A file name with a comma requires a size.
    fn from_str(text: &str) -> std::result::Result<Self, String> {
        let (path, budget) = match text.rsplit_once(',') {
            Some((path, bytes)) => (path, Some(parse_size(bytes)?)),
            None => (text, None),
        };
        if path.is_empty() {
            return Err("expected the name of a profile".to_owned());
        }
        Ok(Self {
            path: path.into(),
            budget: budget.map(|b| usize::try_from(b).unwrap_or(usize::MAX)),
        })
    }
}

impl Pin {
    /// Reads the profile to pin.
    pub(super) fn read(&self) -> Result<Profile> {
        read(&self.path)
    }

    /// Decodes and pins the hottest data. Returns a summary for the log.
    pub(super) fn apply(&self, server: &Server, profile: &Profile) -> String {
        let mut session = server.session();
        let pinned = server.pin(&mut session, profile, self.budget.unwrap_or(usize::MAX));
        format!(
            "{}: pinned {} clusters, {}; no room for {} uses, {} are not in the image",
            self.path.display(),
            pinned.clusters,
            size(pinned.bytes),
            pinned.left_out,
            pinned.missing
        )
    }
}

/// Output file of a recording.
pub(super) struct Recording(PathBuf);

impl Recording {
    /// Writes an empty profile, so that errors show before the mount.
    pub(super) fn start(path: &Path) -> Result<Self> {
        let failed = |e| Error::io(path.display(), "cannot write", e);
        overwrite::check(path, Format::Profile)?;
        // The background process changes its working directory.
        let this = Self(std::path::absolute(path).map_err(failed)?);
        this.write(&Profile::default())?;
        Ok(this)
    }

    /// Writes the profile recorded by `server`.
    pub(super) fn save(&self, server: &Server) -> Result<()> {
        self.write(&server.profile()?)
    }

    /// Replaces the file atomically.
    fn write(&self, profile: &Profile) -> Result<()> {
        let failed = |e| Error::io(self.0.display(), "cannot write", e);
        let mut text = Vec::new();
        profile.write(&mut text).map_err(failed)?;
        let output = Output::create(&Target::Path(self.0.clone())).map_err(failed)?;
        output.write_at(&text, 0).map_err(failed)?;
        output.finish(text.len() as u64, false).map_err(failed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_budget_follows_the_last_comma() {
        let pin = |text: &str| text.parse::<Pin>();
        let expected = |path: &str, budget| {
            Ok(Pin {
                path: path.into(),
                budget,
            })
        };
        assert_eq!(pin("a"), expected("a", None));
        assert_eq!(pin("a,4M"), expected("a", Some(4 << 20)));
        assert_eq!(pin("a,b,1K"), expected("a,b", Some(1024)));
        assert!(pin("a,b").is_err() && pin(",4M").is_err() && pin("").is_err());
    }
}
