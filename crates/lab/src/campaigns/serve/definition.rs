//! What is measured in the second room, as data.
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
//! Invariants, checked when a definition is parsed: names are unique in their list; what a workload or a bar names exists.

use super::server::Server;
use super::workload::Kind;
use crate::definition::{check_known, check_unique};
use crate::engines::Tool;
use crate::engines::settings::Settings;
use serde::{Deserialize, Serialize};

/// A file of servers, images and workloads.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// Name, from the file's name; also the name of the record.
    #[serde(skip)]
    pub name: String,
    /// What the definition is for, in a sentence.
    pub about: String,
    /// Rounds of every workload.
    pub rounds: u32,
    /// Is the image in the page cache when it is mounted?
    #[serde(default)]
    pub cache: Cache,
    /// Who serves.
    #[serde(rename = "server")]
    pub servers: Vec<ServerSpec>,
    /// What is served.
    #[serde(rename = "image")]
    pub images: Vec<ImageSpec>,
    /// What is read.
    #[serde(rename = "workload")]
    pub workloads: Vec<Workload>,
}

/// State of the image's own pages before each mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cache {
    /// The image is in the page cache: what is measured is CPU time, not the disk.
    #[default]
    Image,
    /// The image was evicted.
    None,
}

/// One server.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerSpec {
    /// Name in tables.
    pub name: String,
    /// What it is.
    pub kind: Server,
    /// Arguments passed as they are.
    #[serde(default)]
    pub extra: Vec<String>,
}

/// One image.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageSpec {
    /// Name in tables.
    pub name: String,
    /// Who makes it.
    #[serde(default = "default_maker")]
    pub by: Tool,
    /// At which settings.
    #[serde(default)]
    pub settings: Settings,
}

fn default_maker() -> Tool {
    Tool::MkfsErofs
}

/// One way of reading.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Workload {
    /// Name in tables.
    pub name: String,
    /// What is read.
    pub reads: Kind,
    /// Names of the images it is for; all when absent.
    pub images: Option<Vec<String>>,
    /// What the result is held to.
    #[serde(default)]
    pub bars: Vec<Bar>,
}

/// A ratio of medians, or a median.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Bar {
    /// Name of the image; every image of the workload when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// Name of the server that is held to the bar.
    #[serde(default = "default_held")]
    pub server: String,
    /// Name of the server that the ratio is of. Without it the figure itself is held to the bar.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub against: Option<String>,
    /// What is compared.
    #[serde(default, skip_serializing_if = "Figure::is_time")]
    pub of: Figure,
    /// The first pass after mounting, or the second; of times only.
    #[serde(default)]
    pub pass: Pass,
    /// The ratio; of a figure itself, milliseconds or MiB.
    pub at_most: f64,
}

/// What a bar is about. All but times are counted until the end of the first pass.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Figure {
    /// Time of a pass.
    #[default]
    Time,
    /// What was read from the image.
    Fetched,
    /// Largest resident memory of a daemon.
    Daemon,
    /// Growth of the memory in use on the machine.
    Machine,
    /// Pages of what was read and of the image in the page cache, and resident memory of a daemon.
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

/// Which pass over a fresh mount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Pass {
    /// The first.
    #[default]
    Cold,
    /// The second.
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
    /// Is it for this image?
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
