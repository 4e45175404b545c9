//! Images of a tree: built by an image builder, or a writable filesystem in a file, into which the tree is copied.

use super::program::{program, version};
use crate::engines::settings::{Action, Algorithm, Settings};
use crate::engines::{self, Places, Tool};
use crate::measure::workspace::{self, Work};
use crate::measure::{self, Job, root};
use crate::record::{Line, Note, Sample, labels};
use crate::{Error, Result};
use rustix::fs::{Advice, fadvise};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ffi::OsString;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Time limit of each command that builds an image.
const MAKING: Duration = Duration::from_secs(3600);

/// Program that builds an image.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
pub enum Maker {
    /// `tuff build`, for EROFS images.
    #[serde(rename = "tuff")]
    Tuff,
    /// The program `mkfs.erofs` of erofs-utils, for EROFS images.
    #[serde(rename = "mkfs.erofs")]
    MkfsErofs,
    /// The program `mksquashfs` of squashfs-tools, for SquashFS images.
    #[serde(rename = "mksquashfs")]
    Mksquashfs,
    /// The program `mkfs.ext4` with its default options.
    #[serde(rename = "mkfs.ext4")]
    MkfsExt4,
    /// The program `mkfs.xfs` with its default options.
    #[serde(rename = "mkfs.xfs")]
    MkfsXfs,
    /// The program `mkfs.btrfs` with its default options. The algorithm of the settings compresses files.
    #[serde(rename = "mkfs.btrfs")]
    MkfsBtrfs,
    /// The program `mkfs.f2fs` with its default options.
    #[serde(rename = "mkfs.f2fs")]
    MkfsF2fs,
}

impl Maker {
    /// Returns the tool that translates the settings. None for writable filesystems.
    pub fn tool(self) -> Option<Tool> {
        match self {
            Maker::Tuff => Some(Tool::Tuff),
            Maker::MkfsErofs => Some(Tool::MkfsErofs),
            Maker::Mksquashfs => Some(Tool::Mksquashfs),
            _ => None,
        }
    }

    /// Returns the name of the program.
    pub fn program(self) -> &'static str {
        match self {
            Maker::MkfsExt4 => "mkfs.ext4",
            Maker::MkfsXfs => "mkfs.xfs",
            Maker::MkfsBtrfs => "mkfs.btrfs",
            Maker::MkfsF2fs => "mkfs.f2fs",
            Maker::Tuff | Maker::MkfsErofs | Maker::Mksquashfs => {
                self.tool().map_or("", Tool::name)
            }
        }
    }

    /// Returns the type of the image as named by mount(8).
    pub fn filesystem(self) -> &'static str {
        let name = self.program();
        self.tool().map_or_else(
            || name.trim_start_matches("mkfs."),
            |tool| tool.format().name(),
        )
    }
}

/// Image built from the tree.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageSpec {
    /// Name in tables, unique among the images.
    pub name: String,
    /// Program that builds the image.
    #[serde(default = "default_maker")]
    pub by: Maker,
    /// Settings of the build.
    #[serde(default)]
    pub settings: Settings,
}

fn default_maker() -> Maker {
    Maker::MkfsErofs
}

impl ImageSpec {
    /// Checks that the program supports the settings.
    pub fn check(&self) -> Result<(), String> {
        match self.by.tool() {
            Some(tool) => engines::plan(tool, Action::Build, &self.settings, &[]).map(|_| ()),
            None => self.mount_options().map(|_| ()),
        }
    }

    /// Returns the options with which a writable filesystem is mounted to copy the tree.
    fn mount_options(&self) -> Result<String, String> {
        let settings = Settings {
            algorithm: None,
            ..self.settings.clone()
        };
        let is_btrfs = self.by == Maker::MkfsBtrfs;
        match self.settings.algorithm {
            _ if settings != Settings::default() => {
                Err(format!("{} takes no settings", self.by.program()))
            }
            None => Ok("loop".to_owned()),
            Some(Algorithm::Zstd) if is_btrfs => Ok("loop,compress-force=zstd".to_owned()),
            Some(_) => Err(format!("{} has no such algorithm here", self.by.program())),
        }
    }
}

/// Tools and places of a build.
pub(crate) struct Build<'a> {
    /// Source tree of the images.
    pub(crate) tree: &'a Path,
    /// Work directory, which holds the output of commands and the mount point.
    pub(crate) work: &'a Work,
    /// Names and paths of programs. Programs not listed are searched for.
    pub(crate) tools: &'a [(String, PathBuf)],
}

impl Build<'_> {
    /// Builds an image as `image` and records its size and command. The inner error is the reason for a failure.
    pub(crate) fn run(
        &self,
        spec: &ImageSpec,
        image: &Path,
        emit: &mut dyn FnMut(&Line) -> Result<()>,
    ) -> Result<Result<(), String>> {
        let name = spec.by.program();
        let Some(program) = program(name, self.tools) else {
            return Ok(Err(format!(
                "{name}, which builds the image, was not found"
            )));
        };
        let mut files = Vec::new();
        root::list(self.tree, &mut files)?;
        let content: u64 = files.iter().map(|(_, length)| length).sum();
        workspace::remove(image)?;
        let shown = match spec.by.tool() {
            Some(tool) => {
                let plan = engines::plan(tool, Action::Build, &spec.settings, &[])
                    .map_err(Error::Usage)?;
                eprintln!("{}: {}", spec.name, plan.shown());
                let arguments = plan.arguments(Places {
                    tree: self.tree,
                    image,
                    target: self.work.target(),
                });
                if let Err(reason) = self.command(&program, &arguments)? {
                    return Ok(Err(reason));
                }
                plan.shown()
            }
            None => match self.fill(spec, &program, image, files.len() as u64, content)? {
                Ok(shown) => shown,
                Err(reason) => return Ok(Err(reason)),
            },
        };
        // Only clean pages can be evicted.
        let attributes = File::open(image).and_then(|file| {
            file.sync_all()?;
            fadvise(&file, 0, None, Advice::DontNeed)?;
            file.metadata()
        });
        let attributes = attributes.map_err(|e| Error::io("sync", image, e))?;
        let size = attributes.blocks() * 512;
        let cell = labels([("image", &spec.name)]);
        let saving = 100.0 * (1.0 - size as f64 / content.max(1) as f64);
        let mut values = BTreeMap::from([
            ("image_bytes".to_owned(), size as f64),
            ("saving_percent".to_owned(), saving),
        ]);
        if spec.by == Maker::Tuff {
            let percent = in_place_percent(&program, image)?;
            values.extend(percent.map(|percent| ("in_place_percent".to_owned(), percent)));
        }
        emit(&Line::Sample(Sample {
            cell: cell.clone(),
            round: 1,
            values,
        }))?;
        let version = version(&program);
        emit(&Line::Note(Note {
            cell,
            text: format!("`{shown}`, {version}"),
        }))?;
        Ok(Ok(()))
    }

    /// Makes a filesystem in a sparse file and copies the tree into it. Returns the command line for the record.
    fn fill(
        &self,
        spec: &ImageSpec,
        program: &Path,
        image: &Path,
        files: u64,
        content: u64,
    ) -> Result<Result<String, String>> {
        let options = spec.mount_options().map_err(Error::Usage)?;
        let (name, kind) = (spec.by.program(), spec.by.filesystem());
        // Content in whole blocks, with 25 % and a constant for inodes and the journal. XFS needs 300 MiB.
        let size = ((content + (files + 1) * 4096) * 5 / 4 + (512 << 20)).next_multiple_of(1 << 20);
        let force = match spec.by {
            Maker::MkfsExt4 => "-F",
            _ => "-f",
        };
        let shown = format!("{name} -q {force} IMAGE, mount -o {options}, cp -a TREE/.");
        eprintln!("{}: {shown}", spec.name);
        let file = File::create_new(image).and_then(|file| file.set_len(size));
        file.map_err(|e| Error::io("create", image, e))?;
        let point = self.work.path("mount");
        std::fs::create_dir_all(&point).map_err(|e| Error::io("create", &point, e))?;
        let words = |words: &[&str], paths: &[&Path]| -> Vec<OsString> {
            let words = words.iter().map(OsString::from);
            words.chain(paths.iter().map(OsString::from)).collect()
        };
        let made = self.command(program, &words(&["-q", force], &[image]))?;
        if made.is_err() {
            return Ok(made.map(|()| shown));
        }
        let mount = words(&["-t", kind, "-o", &options], &[image, &point]);
        if self.command(Path::new("mount"), &mount)?.is_err() {
            return Ok(Err(format!("this kernel does not mount {kind}")));
        }
        let source = self.tree.join(".");
        let copied = self.command(Path::new("cp"), &words(&["-a"], &[&source, &point]));
        let unmounted = self.command(Path::new("umount"), &words(&[], &[&point]))?;
        Ok(copied?.and(unmounted).map(|()| shown))
    }

    /// Runs a command. The inner error is the reason for its failure.
    fn command(&self, program: &Path, arguments: &[OsString]) -> Result<Result<(), String>> {
        let job = Job {
            program,
            arguments,
            folder: self.work.folder(),
            cgroup: None,
        };
        let name = program.file_name().unwrap_or_default().display();
        Ok(match measure::run_within(&job, MAKING)? {
            Some((Some(0), _)) => Ok(()),
            Some((_, said)) => {
                let folder = &*self.work.folder().to_string_lossy();
                Err(format!("{name} failed: {}", said.replace(folder, "WORK")))
            }
            None => Err(format!("{name} timed out")),
        })
    }
}

/// Returns the share of the clusters of an image that can be decoded in place. None without compressed clusters.
fn in_place_percent(tuff: &Path, image: &Path) -> Result<Option<f64>> {
    let mut command = Command::new(tuff);
    command.args(["info", "--json", "--files"]).arg(image);
    let output = command.output().map_err(|e| Error::io("run", tuff, e))?;
    let info: serde_json::Value = serde_json::from_slice(&output.stdout)
        .map_err(|e| Error::Command(format!("tuff info: {e}")))?;
    let number = |name: &str| info["in_place"][name].as_f64();
    let share = number("possible").zip(number("clusters").filter(|all| *all > 0.0));
    Ok(share.map(|(possible, all)| 100.0 * possible / all))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(by: Maker, algorithm: Option<Algorithm>) -> ImageSpec {
        ImageSpec {
            name: "x".to_owned(),
            by,
            settings: Settings {
                algorithm,
                ..Settings::default()
            },
        }
    }

    #[test]
    fn a_maker_knows_its_filesystem() {
        let name = |maker: Maker| (maker.program(), maker.filesystem());
        assert_eq!(name(Maker::MkfsErofs), ("mkfs.erofs", "erofs"));
        assert_eq!(name(Maker::Mksquashfs), ("mksquashfs", "squashfs"));
        assert_eq!(name(Maker::MkfsXfs), ("mkfs.xfs", "xfs"));
    }

    #[test]
    fn settings_that_a_filesystem_does_not_have_are_refused() {
        let zstd = Some(Algorithm::Zstd);
        assert_eq!(spec(Maker::MkfsBtrfs, zstd).check(), Ok(()));
        assert_eq!(spec(Maker::MkfsXfs, None).check(), Ok(()));
        assert!(spec(Maker::MkfsXfs, zstd).check().is_err());
        let mut level = spec(Maker::MkfsBtrfs, zstd);
        level.settings.level = Some(3);
        assert!(level.check().is_err());
    }
}
