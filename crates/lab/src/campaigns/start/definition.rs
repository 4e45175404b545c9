//! What is started in the sixth room, as data.
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
//! Invariants, checked when a definition is parsed: names are unique in their list; the image of a server exists, and the server
//! can serve it; every path is absolute; every command has a program.

use crate::campaigns::serve::definition::Cache;
use crate::campaigns::serve::server::Server;
use crate::definition::{check_known, check_unique};
use crate::engines::settings::{Settings, Size};
use crate::engines::{Format, Tool};
use serde::{Deserialize, Serialize};
use std::path::{Component, PathBuf};

/// A file of images, servers and programs.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Definition {
    /// Name, from the file's name; also the name of the record.
    #[serde(skip)]
    pub name: String,
    /// What the definition is for, in a sentence.
    pub about: String,
    /// How often everything is started.
    pub starts: u32,
    /// Is the image in the page cache when it is mounted?
    #[serde(default)]
    pub cache: Cache,
    /// Paths of this machine that every program needs, as those of a program.
    #[serde(default)]
    pub needs: Vec<PathBuf>,
    /// What is mounted.
    #[serde(rename = "image")]
    pub images: Vec<ImageSpec>,
    /// Who mounts it.
    #[serde(rename = "server")]
    pub servers: Vec<ServerSpec>,
    /// What is started.
    #[serde(rename = "program")]
    pub programs: Vec<Program>,
}

/// Who makes an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Maker {
    /// Ours.
    #[serde(rename = "tuff")]
    Tuff,
    /// EROFS, by the program of others.
    #[serde(rename = "mkfs.erofs")]
    MkfsErofs,
    /// SquashFS.
    #[serde(rename = "mksquashfs")]
    Mksquashfs,
    /// ext4 with its defaults.
    #[serde(rename = "mkfs.ext4")]
    MkfsExt4,
}

impl Maker {
    /// The tool whose settings it takes; ext4 takes none.
    pub fn tool(self) -> Option<Tool> {
        match self {
            Maker::Tuff => Some(Tool::Tuff),
            Maker::MkfsErofs => Some(Tool::MkfsErofs),
            Maker::Mksquashfs => Some(Tool::Mksquashfs),
            Maker::MkfsExt4 => None,
        }
    }

    /// Name of the program.
    pub fn program(self) -> &'static str {
        self.tool().map_or("mkfs.ext4", Tool::name)
    }

    /// Kind of image, as mount(8) calls it.
    pub fn filesystem(self) -> &'static str {
        self.tool().map_or("ext4", |tool| tool.format().name())
    }
}

/// One image.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageSpec {
    /// Its name.
    pub name: String,
    /// Who makes it.
    pub by: Maker,
    /// At which settings.
    #[serde(default)]
    pub settings: Settings,
}

/// One server of one image.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerSpec {
    /// Name in tables.
    pub name: String,
    /// What it is.
    pub kind: Server,
    /// Name of the image.
    pub image: String,
    /// Arguments passed as they are.
    #[serde(default)]
    pub extra: Vec<String>,
}

/// One program.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Name in tables.
    pub name: String,
    /// The program and its arguments, in the tree.
    pub command: Vec<String>,
    /// Paths of this machine that it needs beside itself and its libraries. A part of a name may be `*`. What is not there is
    /// left out.
    #[serde(default)]
    pub needs: Vec<PathBuf>,
    /// Files made in the tree for it.
    #[serde(default)]
    pub files: Vec<Written>,
    /// Commands that run in the tree before images are made of it, with the tree as their root.
    #[serde(default)]
    pub prepare: Vec<Vec<String>>,
    /// What program, server and readers get together under memory pressure. Without it, there is no start under pressure.
    pub limit: Option<Size>,
}

/// A file that is made.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Written {
    /// Where.
    pub path: PathBuf,
    /// Its content.
    pub text: String,
}

/// What else goes on while a program starts.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Condition {
    /// Nothing.
    Idle,
    /// Four threads read 256 KiB a second in all, pages at random, from another file of the mount.
    Background,
    /// Program, server and readers in a control group that was full when the program began.
    Pressure,
}

/// All of them, in the order of tables.
pub const CONDITIONS: [Condition; 3] =
    [Condition::Idle, Condition::Background, Condition::Pressure];

impl Condition {
    /// Name in tables and options.
    pub fn name(self) -> &'static str {
        match self {
            Condition::Idle => "idle",
            Condition::Background => "background",
            Condition::Pressure => "pressure",
        }
    }
}

impl std::str::FromStr for Condition {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let found = CONDITIONS.into_iter().find(|c| c.name() == text);
        found.ok_or_else(|| format!("'{text}' is not one of idle, background and pressure"))
    }
}

impl crate::definition::Definition for Definition {
    fn set_name(&mut self, name: &str) {
        name.clone_into(&mut self.name);
    }

    fn check(&self) -> Result<(), String> {
        let images: Vec<&str> = self.images.iter().map(|i| &*i.name).collect();
        let servers: Vec<&str> = self.servers.iter().map(|s| &*s.name).collect();
        let programs: Vec<&str> = self.programs.iter().map(|p| &*p.name).collect();
        check_unique("image", &images)?;
        check_unique("server", &servers)?;
        check_unique("program", &programs)?;
        for server in &self.servers {
            check_known("image", &images, &server.image)?;
            if let Some(image) = self
                .image(&server.image)
                .filter(|i| !serves(server.kind, i.by))
            {
                let (name, maker) = (&server.name, image.by.program());
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
}

impl Definition {
    /// The image of that name.
    pub fn image(&self, name: &str) -> Option<&ImageSpec> {
        self.images.iter().find(|i| i.name == name)
    }
}

/// The kernel serves everything, others the format that they know; the tree is no server here.
fn serves(server: Server, maker: Maker) -> bool {
    let format: Option<Format> = maker.tool().map(Tool::format);
    match (server, format) {
        (Server::Tree, _) => false,
        (Server::Kernel | Server::KernelLoop, _) => true,
        (server, Some(format)) => server.serves(format),
        (_, None) => false,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::definition::Definition as _;
    use std::path::Path;

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
    fn every_definition_that_ships_makes_sense() {
        let folder =
            Path::new(env!("CARGO_MANIFEST_DIR")).join("../../benchmarks/definitions/start");
        let mut count = 0;
        for entry in std::fs::read_dir(folder).unwrap() {
            let definition = Definition::read(&entry.unwrap().path()).unwrap();
            for image in &definition.images {
                let Some(tool) = image.by.tool() else {
                    continue;
                };
                let action = crate::engines::settings::Action::Build;
                let plan = crate::engines::plan(tool, action, &image.settings, &[]);
                assert!(plan.is_ok(), "{}: {plan:?}", image.name);
            }
            count += 1;
        }
        assert!(count >= 1, "{count} definitions");
    }

    #[test]
    fn what_is_twice_or_nowhere_or_relative_is_refused() {
        assert!(Definition::parse("x", GOOD).is_ok());
        let cases = [
            ("name = \"kernel\"", "name = \"tuff\"", "two servers"),
            ("image = \"plain\"", "image = \"none\"", "no image 'none'"),
            ("image = \"small\"", "image = \"plain\"", "cannot serve"),
            ("kind = \"kernel\"", "kind = \"tree\"", "cannot serve"),
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
