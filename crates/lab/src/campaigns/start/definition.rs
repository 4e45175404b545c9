//! Definitions of the start campaign: images, servers and programs.
//!
//! ```toml
//! about = "one sentence"
//! starts = 20
//! needs = ["/etc/profile"]
//!
//! [[image]]
//! name = "lz4 64K"
//! by = "tuff"
//! settings = { algorithm = "lz4", cluster = "64K" }
//!
//! [[server]]
//! name = "tuff"
//! kind = "tuff"
//! image = "lz4 64K"
//!
//! [[program]]
//! name = "perl"
//! command = ["/usr/bin/perl", "-MPOSIX", "-e", "print floor(7.5)"]
//! needs = ["/usr/lib/*/perl-base"]
//! limit = "24M"
//! ```
//!
//! Invariants, checked when a definition is parsed:
//!
//! * Names are unique in each list.
//! * The image of a server exists, and the server supports its format.
//! * Every path is absolute.
//! * Every command has a program.

use crate::campaigns::serve::definition::Cache;
use crate::campaigns::serve::image::{self, ImageSpec};
use crate::campaigns::serve::server::{self, ServerSpec};
use crate::definition::{check_known, check_unique};
use crate::engines::settings::Size;
use serde::Deserialize;
use std::path::{Component, PathBuf};

/// Definition: images, servers and programs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// Purpose of the definition, as a sentence.
    pub about: String,
    /// Number of starts of each program on each server and condition.
    pub starts: u32,
    /// State of the image in the page cache before each mount.
    #[serde(default)]
    pub cache: Cache,
    /// Local paths that every program needs, with the same syntax as those of a program.
    #[serde(default)]
    pub needs: Vec<PathBuf>,
    /// Images to mount, each built from the tree.
    #[serde(rename = "image")]
    pub images: Vec<ImageSpec>,
    /// Servers to compare, each with its image.
    #[serde(rename = "server")]
    pub servers: Vec<ServerSpec>,
    /// Programs to start, in the order of tables.
    #[serde(rename = "program")]
    pub programs: Vec<Program>,
}

/// Program to start, with its files and its memory limit.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Name in tables, unique among the programs.
    pub name: String,
    /// Path of the program in the tree, then its arguments.
    pub command: Vec<String>,
    /// Local paths that the program needs in addition to its own file and libraries. `*` matches a part of a
    /// name. Missing paths are skipped.
    #[serde(default)]
    pub needs: Vec<PathBuf>,
    /// Files written into the tree for the program.
    #[serde(default)]
    pub files: Vec<Written>,
    /// Commands that run before the images are built, with the tree as their root directory.
    #[serde(default)]
    pub prepare: Vec<Vec<String>>,
    /// Memory limit of the control group with program, server and readers under memory pressure. None skips
    /// this condition.
    pub limit: Option<Size>,
}

/// File written into the tree.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Written {
    /// Path of the file in the tree.
    pub path: PathBuf,
    /// Content of the file.
    pub text: String,
}

/// Load on the machine while a program starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Condition {
    /// No other load on the machine.
    Idle,
    /// Four threads read random pages of another file of the mount, 256 KiB a second in total, and write as much to a
    /// file on the host.
    Background,
    /// Program, server and background readers run in a control group that is full when the program starts.
    Pressure,
}

/// All conditions, in the order of tables.
pub const CONDITIONS: [Condition; 3] =
    [Condition::Idle, Condition::Background, Condition::Pressure];

impl Condition {
    /// Returns the name in tables and options.
    pub fn name(self) -> &'static str {
        match self {
            Condition::Idle => "idle",
            Condition::Background => "background",
            Condition::Pressure => "pressure",
        }
    }
}

impl crate::definition::Definition for Definition {
    fn check(&self) -> Result<(), String> {
        let images = image::check_all(&self.images)?;
        let servers: Vec<&str> = self.servers.iter().map(|s| &*s.name).collect();
        let programs: Vec<&str> = self.programs.iter().map(|p| &*p.name).collect();
        check_unique("server", &servers)?;
        check_unique("program", &programs)?;
        for server in &self.servers {
            check_known("image", &images, &server.image)?;
            let serves = |image: &&ImageSpec| server.kind.serves(image.filesystem());
            if let Some(image) = self.image(&server.image).filter(|i| !serves(i)) {
                let (name, maker) = (&server.name, &image.by);
                return Err(format!("server '{name}' cannot serve an image of {maker}"));
            }
        }
        for program in &self.programs {
            let absolute = |c: &Vec<String>| c.first().is_some_and(|path| path.starts_with('/'));
            let mut commands = std::iter::once(&program.command).chain(&program.prepare);
            if !commands.all(absolute) {
                let name = &program.name;
                return Err(format!(
                    "program '{name}': a command begins with an absolute path"
                ));
            }
        }
        let files = self
            .programs
            .iter()
            .flat_map(|p| p.files.iter().map(|f| &f.path));
        let needs = self.programs.iter().flat_map(|p| &p.needs);
        let is_relative = |path: &&PathBuf| {
            !path.is_absolute() || path.components().any(|c| c == Component::ParentDir)
        };
        match self
            .needs
            .iter()
            .chain(needs)
            .chain(files)
            .find(is_relative)
        {
            Some(path) => Err(format!(
                "{}: not an absolute path without ..",
                path.display()
            )),
            None => Ok(()),
        }
    }

    fn compare_with_earlier(&mut self) {
        server::compare_with_earlier(&mut self.servers);
    }
}

impl Definition {
    /// Returns the image with this name.
    pub fn image(&self, name: &str) -> Option<&ImageSpec> {
        self.images.iter().find(|i| i.name == name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::Definition as _;

    const GOOD: &str = r#"
        about = "x"
        starts = 1
        needs = ["/etc/profile"]
        image = [{ name = "plain", by = "mkfs.ext4" }, { name = "small", by = "tuff" }]
        server = [{ name = "kernel", kind = "kernel", image = "plain" }, { name = "tuff", kind = "tuff", image = "small" }]
        [[program]]
        name = "sh"
        command = ["/bin/sh"]
        limit = "8M"
    "#;

    #[test]
    fn what_is_twice_or_nowhere_or_relative_is_refused() {
        assert!(Definition::parse("x", GOOD).is_ok());
        let cases = [
            ("name = \"kernel\"", "name = \"tuff\"", "two servers"),
            ("image = \"plain\"", "image = \"none\"", "no image 'none'"),
            ("image = \"small\"", "image = \"plain\"", "cannot serve"),
            ("[\"/bin/sh\"]", "[]", "absolute path"),
            ("[\"/bin/sh\"]", "[\"sh\"]", "absolute path"),
            ("/etc/profile", "etc/profile", "absolute path"),
            ("/etc/profile", "/etc/../profile", "without .."),
        ];
        for (from, to, expected) in cases {
            let error = Definition::parse("x", &GOOD.replacen(from, to, 1)).unwrap_err();
            assert!(error.to_string().contains(expected), "{error}");
        }
    }
}
