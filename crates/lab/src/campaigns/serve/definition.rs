//! Definitions of the serve campaign: servers, images and workloads.
//!
//! ```toml
//! about = "one sentence"
//! rounds = 5
//!
//! [[server]]
//! name = "tuff"
//! kind = "tuff"
//!
//! [[server]]
//! name = "kernel"
//! kind = "kernel"
//!
//! [[image]]
//! name = "lz4 64K"
//! settings = { algorithm = "lz4", cluster = "64K", fragments = "off" }
//!
//! [[workload]]
//! name = "sequential"
//! reads = { kind = "sequential", file = "text" }
//! bars = [{ cell = { image = "lz4 64K", server = "tuff" }, value = "cold_ns", against = { server = "kernel" }, at_most = 0.65 }]
//! ```
//!
//! Invariants, checked when a definition is parsed: names are unique in each list, every name in a
//! workload or bar refers to an existing item, and every builder supports its settings.

use super::image::{self, ImageSpec};
use super::server::{self, ServerSpec};
use super::workload::Kind;
use crate::definition::{check_known, check_unique};
use crate::record::Bar;
use serde::{Deserialize, Serialize};

/// Definition: servers, images and workloads.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// Purpose of the definition, as a sentence.
    pub about: String,
    /// Number of rounds of every workload.
    pub rounds: u32,
    /// State of the image in the page cache before each mount.
    #[serde(default)]
    pub cache: Cache,
    /// Servers to compare, in the order of a round.
    #[serde(rename = "server")]
    pub servers: Vec<ServerSpec>,
    /// Images to serve, each built from the source tree.
    #[serde(rename = "image")]
    pub images: Vec<ImageSpec>,
    /// Workloads to run on each image.
    #[serde(rename = "workload")]
    pub workloads: Vec<Workload>,
}

/// State of the image before each mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cache {
    /// The image is in the page cache, so that CPU time is measured rather than the disk.
    #[default]
    Image,
    /// The image is a loop device with direct I/O, which counts bytes. Nothing of it is in the page cache. There is no
    /// second pass.
    Device,
}

impl Cache {
    /// Returns the description for the heading of tables.
    pub fn describe(self) -> &'static str {
        match self {
            Cache::Image => "image in the page cache",
            Cache::Device => "image on a loop device with direct I/O, not cached",
        }
    }
}

/// Sequence of reads with bars for its results.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Name in tables, unique among the workloads.
    pub name: String,
    /// Kind of access and the files it concerns.
    pub reads: Kind,
    /// Names of the images of this workload. None selects all images.
    pub images: Option<Vec<String>>,
    /// Bars for the results. The name of the workload is added to their cells.
    #[serde(default)]
    pub bars: Vec<Bar>,
}

impl crate::definition::Definition for Definition {
    fn check(&self) -> Result<(), String> {
        let servers: Vec<&str> = self.servers.iter().map(|s| &*s.name).collect();
        let images = image::check_all(&self.images)?;
        let workloads: Vec<&str> = self.workloads.iter().map(|w| &*w.name).collect();
        check_unique("server", &servers)?;
        check_unique("workload", &workloads)?;
        for workload in &self.workloads {
            for image in workload.images.iter().flatten() {
                check_known("image", &images, image)?;
            }
            for bar in &workload.bars {
                for (label, name) in bar.cell.iter().chain(bar.against.iter().flatten()) {
                    match label.as_str() {
                        "server" => check_known("server", &servers, name)?,
                        "image" => check_known("image", &images, name)?,
                        _ => return Err(format!("a bar has no label '{label}'")),
                    }
                }
            }
        }
        Ok(())
    }

    fn compare_with_earlier(&mut self) {
        server::compare_with_earlier(&mut self.servers);
        for workload in &mut self.workloads {
            workload.bars.clear();
        }
    }
}

impl Workload {
    /// Returns whether the workload runs on the image `image`.
    pub fn is_for(&self, image: &str) -> bool {
        let images = self.images.as_ref();
        images.is_none_or(|images| images.iter().any(|name| name == image))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::Definition as _;

    const GOOD: &str = r#"
        about = 'x'
        rounds = 1
        server = [{ name = 'tuff', kind = 'tuff' }, { name = 'kernel', kind = 'kernel' }]
        [[image]]
        name = 'plain'
        by = 'tuff'
        [[workload]]
        name = 'walk'
        reads = { kind = 'walk', folder = '' }
        bars = [{ cell = { server = 'tuff' }, value = 'warm_ns', against = { server = 'kernel' }, at_most = 1.1 }]
    "#;

    #[test]
    fn names_that_are_twice_or_nowhere_and_wrong_settings_are_refused() {
        assert!(Definition::parse("x", GOOD).is_ok());
        let cases = "\
            name = 'kernel' => name = 'tuff' => two servers
            against = { server = 'kernel' } => against = { server = 'ext4' } => no server 'ext4'
            name = 'walk' => name = 'walk', images = ['y'] => no image 'y'
            kind = 'walk' => kind = 'run' => unknown variant
            by = 'tuff' => by = 'mkfs.xfs', settings = { level = 1 } => no settings";
        for case in cases.lines() {
            let parts: Vec<&str> = case.trim().split(" => ").collect();
            let text = GOOD.replacen(parts[0], &parts[1].replace("', ", "'\n"), 1);
            let error = Definition::parse("x", &text).unwrap_err();
            assert!(error.to_string().contains(parts[2]), "{error}");
        }
    }
}
