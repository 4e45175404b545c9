//! Definition of the campaign: images, ways to start out of them, and blocks of cells.

use crate::definition::{self, check_known, check_unique};
use serde::Deserialize;
use std::fmt;

/// Definition: images, ways and blocks.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Definition {
    /// Purpose of the definition, as a sentence.
    #[allow(dead_code)]
    about: String,
    /// Number of rounds of every cell.
    pub(super) rounds: u32,
    #[serde(rename = "image")]
    pub(super) images: Vec<Image>,
    #[serde(rename = "way")]
    pub(super) ways: Vec<Way>,
    #[serde(rename = "block")]
    blocks: Vec<Block>,
}

/// Container image, and the program that starts.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Image {
    name: String,
    /// Path of the program and its arguments.
    pub(super) command: Vec<String>,
    /// Port of a server, whose start ends with its first answer.
    pub(super) port: Option<u16>,
}

/// Way to start a program.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Way {
    pub(super) name: String,
    /// Format of the image.
    pub(super) format: String,
    pub(super) kind: Kind,
    /// Tag of the image, unless `tuff push` makes it.
    #[serde(default)]
    pub(super) tag: String,
    /// Options of `tuff push`.
    #[serde(default)]
    pub(super) push: Vec<String>,
    /// Content that is fetched in advance.
    #[serde(default)]
    pub(super) prefetch: Prefetch,
    /// True if the image has the recording of an earlier start.
    #[serde(default)]
    pub(super) recording: bool,
    /// True for images of several layers only.
    #[serde(default)]
    is_layered: bool,
}

/// Program that mounts an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    /// containerd, which downloads and unpacks the image.
    Pull,
    /// curl downloads the image of `tuff push`, and the kernel mounts it.
    Download,
    /// Tuff, by `tuff mount`.
    Tuff,
    /// stargz-snapshotter with containerd.
    Stargz,
    /// nydus, by `nydusd` without a snapshotter.
    Nydus,
    /// soci-snapshotter with containerd.
    Soci,
}

/// Content that nydusd fetches in advance.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Prefetch {
    /// Nothing is known in advance.
    #[default]
    None,
    /// Files that the image lists.
    List,
    /// All of the image.
    All,
}

#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct Block {
    name: String,
    images: Vec<String>,
    layers: Vec<u32>,
    round_trip_ms: Vec<u64>,
    mbit: Vec<u32>,
    slow_start: Vec<bool>,
    #[serde(default)]
    tls: bool,
    cold_ms: Option<u64>,
    mounts: Option<u32>,
    requests_per_second: Option<u32>,
}

/// Conditions of samples that are compared.
#[derive(Clone, Debug)]
pub(super) struct Cell {
    pub(super) block: String,
    pub(super) image: Image,
    pub(super) layers: u32,
    pub(super) round_trip_ms: u64,
    pub(super) mbit: u32,
    pub(super) slow_start: bool,
    /// True for TLS with a login.
    pub(super) tls: bool,
    /// Time for which a mirror sends whole blobs, in milliseconds.
    pub(super) cold_ms: Option<u64>,
    /// Number of mounts at once.
    pub(super) mounts: u32,
    /// Requests in a second above which the server answers with 429.
    pub(super) requests_per_second: Option<u32>,
}

impl Definition {
    /// Returns all cells in the order of the blocks.
    pub(super) fn cells(&self) -> Vec<Cell> {
        let mut cells = Vec::new();
        for block in &self.blocks {
            for image in block.images.iter().flat_map(|name| self.image(name)) {
                for &layers in &block.layers {
                    for &round_trip_ms in &block.round_trip_ms {
                        for &mbit in &block.mbit {
                            for &slow_start in &block.slow_start {
                                cells.push(Cell {
                                    block: block.name.clone(),
                                    image: image.clone(),
                                    layers,
                                    round_trip_ms,
                                    mbit,
                                    slow_start,
                                    tls: block.tls,
                                    cold_ms: block.cold_ms,
                                    mounts: block.mounts.unwrap_or(1),
                                    requests_per_second: block.requests_per_second,
                                });
                            }
                        }
                    }
                }
            }
        }
        cells
    }

    /// Returns the ways of a cell. Several mounts at once are those of programs that need no containerd.
    pub(super) fn ways(&self, cell: &Cell) -> Vec<Way> {
        let is_in = |way: &&Way| {
            (cell.layers > 1 || !way.is_layered)
                && (cell.mounts == 1 || matches!(way.kind, Kind::Tuff | Kind::Nydus))
        };
        self.ways.iter().filter(is_in).cloned().collect()
    }

    fn image(&self, name: &str) -> Option<&Image> {
        self.images.iter().find(|image| image.name == name)
    }
}

impl definition::Definition for Definition {
    fn check(&self) -> Result<(), String> {
        let images: Vec<&str> = self.images.iter().map(|i| i.name.as_str()).collect();
        let ways: Vec<&str> = self.ways.iter().map(|w| w.name.as_str()).collect();
        let blocks: Vec<&str> = self.blocks.iter().map(|b| b.name.as_str()).collect();
        check_unique("image", &images)?;
        check_unique("way", &ways)?;
        check_unique("block", &blocks)?;
        for name in self.blocks.iter().flat_map(|block| &block.images) {
            check_known("image", &images, name)?;
        }
        let has_tag = |way: &Way| !way.tag.is_empty();
        let needs_tag = |way: &Way| !matches!(way.kind, Kind::Tuff | Kind::Download);
        match self.ways.iter().find(|way| has_tag(way) != needs_tag(way)) {
            Some(way) => Err(format!(
                "way '{}': a tag is for images that tuff push does not make",
                way.name
            )),
            None => Ok(()),
        }
    }
}

impl Cell {
    /// Returns the repository of the image.
    pub(super) fn repository(&self) -> String {
        format!("{}-{}", self.image.name, self.layers)
    }

    /// Returns the conditions of the link, for the label `link`.
    pub(super) fn link(&self) -> String {
        let slow = if self.slow_start { ", slow start" } else { "" };
        format!("{} ms, {} Mbit/s{slow}", self.round_trip_ms, self.mbit)
    }

    /// Returns the image and its layers, for the label `image`.
    pub(super) fn image(&self) -> String {
        let s = if self.layers == 1 { "" } else { "s" };
        format!("{}, {} layer{s}", self.image.name, self.layers)
    }
}

/// The cell's name for `--cell`.
impl fmt::Display for Cell {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let slow = if self.slow_start { "-slow" } else { "" };
        let (block, repository) = (&self.block, self.repository());
        write!(
            f,
            "{block}-{repository}-{}ms-{}M{slow}",
            self.round_trip_ms, self.mbit
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::Definition as _;

    #[test]
    fn cells_are_all_combinations_of_a_block_under_names_of_their_own() {
        let definition = super::super::definition().unwrap();
        let cells = definition.cells();
        let names: Vec<String> = cells.iter().map(Cell::to_string).collect();
        assert_eq!(names[0], "links-python-1-20ms-20M");
        assert!(names.contains(&"links-nginx-5-100ms-1000M-slow".to_owned()));
        let count = |block: &str| cells.iter().filter(|cell| cell.block == block).count();
        assert_eq!(count("links"), 3 * 2 * 2 * 3 * 2);
        let names: Vec<&str> = names.iter().map(String::as_str).collect();
        check_unique("cell", &names).unwrap();
    }

    #[test]
    fn tuff_stands_twice_in_each_cell_with_and_without_a_recording() {
        let definition = super::super::definition().unwrap();
        for cell in definition.cells() {
            let ways = definition.ways(&cell);
            for recording in [false, true] {
                let is_ours =
                    |w: &&Way| w.kind == Kind::Tuff && w.recording == recording && !w.is_layered;
                assert_eq!(ways.iter().filter(is_ours).count(), 2, "{cell}");
            }
            let has_layers = ways.iter().any(|way| way.is_layered);
            assert_eq!(has_layers, cell.layers > 1, "{cell}");
        }
    }

    #[test]
    fn a_block_names_images_that_exist() {
        let text = "about = 'a'\nrounds = 1\nimage = []\nway = []\n[[block]]\nname = 'b'\nimages = ['c']\nlayers = [1]\n\
                    round_trip_ms = [1]\nmbit = [1]\nslow_start = [false]\n";
        let error = Definition::parse("x", text).unwrap_err().to_string();
        assert_eq!(error, "definition 'x': there is no image 'c'");
    }
}
