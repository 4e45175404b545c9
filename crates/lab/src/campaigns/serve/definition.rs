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
//! bars = [{ image = "lz4 64K", against = "kernel", at_most = 0.65 }]
//! ```
//!
//! Invariants, checked when a definition is parsed: names are unique in each list, and every name in a
//! workload or bar refers to an existing item.

use super::server::Server;
use super::workload::Kind;
use crate::definition::{check_known, check_unique};
use crate::engines::Tool;
use crate::engines::settings::Settings;
use serde::{Deserialize, Serialize};

/// Definition: servers, images and workloads.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// Name of the definition, taken from the file name; also the name of the record.
    #[serde(skip)]
    pub name: String,
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

/// State of the image file's own pages before each mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cache {
    /// The image is in the page cache, so that CPU time is measured rather than the disk.
    #[default]
    Image,
    /// The image has been evicted from the page cache.
    None,
}

/// Server under test, with its arguments.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerSpec {
    /// Name in tables, unique among the servers.
    pub name: String,
    /// Implementation of the server.
    pub kind: Server,
    /// Arguments appended verbatim to those of the server.
    #[serde(default)]
    pub extra: Vec<String>,
}

/// Image built from the source tree.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageSpec {
    /// Name in tables, unique among the images.
    pub name: String,
    /// Tool that builds the image.
    #[serde(default = "default_maker")]
    pub by: Tool,
    /// Settings of the build.
    #[serde(default)]
    pub settings: Settings,
}

fn default_maker() -> Tool {
    Tool::MkfsErofs
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
    /// Bars for the results.
    #[serde(default)]
    pub bars: Vec<Bar>,
}

/// Upper limit of a ratio of medians, or of a median.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bar {
    /// Name of the image. None selects every image of the workload.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Name of the server to which the bar applies.
    #[serde(default = "default_held")]
    pub server: String,
    /// Name of the server at the base of the ratio. None compares the figure itself with the limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against: Option<String>,
    /// Figure that is compared.
    #[serde(default, skip_serializing_if = "Figure::is_time")]
    pub of: Figure,
    /// Pass to which the bar applies. Used for times only.
    #[serde(default)]
    pub pass: Pass,
    /// Limit: a ratio, or milliseconds or MiB without a base.
    pub at_most: f64,
}

/// Figure of a bar. All figures except times are measured until the end of the first pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Figure {
    /// Duration of a pass.
    #[default]
    Time,
    /// Bytes read from the image.
    Fetched,
    /// Largest resident memory of a daemon.
    Daemon,
    /// Growth of the memory in use on the whole machine.
    Machine,
    /// Page cache of the files read and of the image, plus resident memory of a daemon.
    Held,
}

impl Figure {
    fn is_time(&self) -> bool {
        *self == Self::Time
    }
}

fn default_held() -> String {
    "tuff".to_owned()
}

/// Pass of a workload over a fresh mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pass {
    /// First pass after mounting.
    #[default]
    Cold,
    /// Second pass on the same mount.
    Warm,
}

impl crate::definition::Definition for Definition {
    fn set_name(&mut self, name: &str) {
        name.clone_into(&mut self.name);
    }

    fn check(&self) -> Result<(), String> {
        let servers: Vec<&str> = self.servers.iter().map(|s| &*s.name).collect();
        let images: Vec<&str> = self.images.iter().map(|i| &*i.name).collect();
        let workloads: Vec<&str> = self.workloads.iter().map(|w| &*w.name).collect();
        check_unique("server", &servers)?;
        check_unique("image", &images)?;
        check_unique("workload", &workloads)?;
        for workload in &self.workloads {
            for image in workload.images.iter().flatten() {
                check_known("image", &images, image)?;
            }
            for bar in &workload.bars {
                check_known("server", &servers, &bar.server)?;
                if let Some(against) = &bar.against {
                    check_known("server", &servers, against)?;
                }
                if let Some(image) = &bar.image {
                    check_known("image", &images, image)?;
                }
            }
        }
        Ok(())
    }
}

impl Workload {
    /// Returns whether the workload runs on the image `image`.
    pub fn is_for(&self, image: &str) -> bool {
        self.images
            .as_ref()
            .is_none_or(|names| names.iter().any(|n| n == image))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::Definition as _;
    use std::path::Path;

    const GOOD: &str = r#"
        about = "x"
        rounds = 1
        server = [{ name = "tuff", kind = "tuff" }, { name = "kernel", kind = "kernel" }]
        [[image]]
        name = "plain"
        by = "tuff"
        [[workload]]
        name = "walk"
        reads = { kind = "walk", folder = "" }
        bars = [{ against = "kernel", at_most = 1.1, pass = "warm" }]
    "#;

    #[test]
    fn every_definition_that_ships_makes_sense() {
        let folder =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benchmarks/definitions/serve");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let definition = Definition::read(&entry.unwrap().path()).unwrap();
            for image in &definition.images {
                let action = crate::engines::settings::Action::Build;
                let plan = crate::engines::plan(image.by, action, &image.settings, &[]);
                assert!(plan.is_ok(), "{}: {plan:?}", image.name);
            }
            count += 1;
        }
        assert!(count >= 2, "{count} definitions");
    }

    #[test]
    fn names_that_are_twice_or_nowhere_are_refused() {
        assert!(Definition::parse("x", GOOD).is_ok());
        let cases = [
            ("name = \"kernel\"", "name = \"tuff\"", "two servers"),
            (
                "against = \"kernel\"",
                "against = \"ext4\"",
                "no server 'ext4'",
            ),
            (
                "name = \"walk\"",
                "name = \"walk\"\nimages = [\"y\"]",
                "no image 'y'",
            ),
            ("kind = \"walk\"", "kind = \"run\"", "unknown variant"),
        ];
        for (from, to, expected) in cases {
            let error = Definition::parse("x", &GOOD.replacen(from, to, 1)).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
