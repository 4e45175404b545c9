//! Images of a tree: built by an image builder, or a writable filesystem in a file, into which the tree is copied.

use crate::definition::check_unique;
use crate::engines::settings::{Action, Algorithm, Settings};
use crate::engines::{self, Places, Tool, version};
use crate::measure::workspace::{self, Work};
use crate::measure::{helper, root};
use crate::options::{Emit, Options};
use crate::record::{Line, labels};
use crate::verify::mount::unmounted;
use crate::{At, Error, Result};
use rustix::fs::{Advice, fadvise};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs::File;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// Time limit of each command that builds an image.
const MAKING: Duration = Duration::from_secs(3600);

/// Programs that make a writable filesystem with their default options. The tree is copied into it. The algorithm of the settings
/// compresses files of Btrfs.
const WRITABLE: [&str; 4] = ["mkfs.ext4", "mkfs.xfs", "mkfs.btrfs", "mkfs.f2fs"];
/// Programs that build an image of the tree.
const BUILDERS: [Tool; 4] = [
    Tool::Tuff,
    Tool::MkfsErofs,
    Tool::Mksquashfs,
    Tool::Mkdwarfs,
];

/// Image built from the tree.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ImageSpec {
    /// Name in tables, unique among the images.
    pub name: String,
    /// Program that builds the image: `tuff`, `mkfs.erofs`, `mksquashfs`, `mkdwarfs`, or that of a writable filesystem.
    #[serde(default = "default_maker")]
    pub by: String,
    /// Settings of the build.
    #[serde(default)]
    pub settings: Settings,
}

/// Checks the names and the settings of images. Returns the names.
pub(crate) fn check_all(images: &[ImageSpec]) -> Result<Vec<&str>, String> {
    let names: Vec<&str> = images.iter().map(|i| &*i.name).collect();
    check_unique("image", &names)?;
    for image in images {
        let wrong = |reason| format!("image '{}': {reason}", image.name);
        image.check().map_err(wrong)?;
    }
    Ok(names)
}

fn default_maker() -> String {
    Tool::MkfsErofs.name().to_owned()
}

impl ImageSpec {
    /// Returns the tool that translates the settings. None for writable filesystems.
    fn tool(&self) -> Option<Tool> {
        BUILDERS.into_iter().find(|tool| tool.name() == self.by)
    }

    /// Returns the type of the image as named by mount(8).
    pub fn filesystem(&self) -> &str {
        match self.tool() {
            Some(tool) => tool.format().name(),
            None => self.by.trim_start_matches("mkfs."),
        }
    }

    /// Checks that the program exists and supports the settings.
    pub fn check(&self) -> Result<(), String> {
        match self.tool() {
            None if !WRITABLE.contains(&&*self.by) => Err(format!("no program '{}'", self.by)),
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
        let is_btrfs = self.by == "mkfs.btrfs";
        match self.settings.algorithm {
            _ if settings != Settings::default() => Err(format!("{} takes no settings", self.by)),
            None => Ok("loop".to_owned()),
            Some(Algorithm::Zstd) if is_btrfs => Ok("loop,compress-force=zstd".to_owned()),
            Some(_) => Err(format!("{} has no such algorithm here", self.by)),
        }
    }
}

/// Tools and places of a build.
pub(crate) struct Build<'a> {
    /// Source tree of the images.
    pub(crate) tree: &'a Path,
    /// Work directory, which holds the output of commands and the mount point.
    pub(crate) work: &'a Work,
    /// Paths of programs.
    pub(crate) options: &'a Options,
}

impl Build<'_> {
    /// Builds an image as `image` and records its size and command. The inner error is the reason for a failure.
    pub(crate) fn run(
        &self,
        spec: &ImageSpec,
        image: &Path,
        emit: Emit<'_>,
    ) -> Result<Result<(), String>> {
        let name = &spec.by;
        let Some(program) = self.options.program(name) else {
            return Ok(Err(format!(
                "{name}, which builds the image, was not found"
            )));
        };
        let mut files = Vec::new();
        root::list(self.tree, &mut files)?;
        let content: u64 = files.iter().map(|(_, length)| length).sum();
        workspace::remove(image)?;
        let shown = match spec.tool() {
            Some(tool) => {
                let plan = engines::plan(tool, Action::Build, &spec.settings, &[])
                    .map_err(Error::Usage)?;
                eprintln!("{}: {}", spec.name, plan.shown());
                let arguments = plan.arguments(Places {
                    tree: self.tree,
                    image,
                    target: self.work.target(),
                });
                if let Err(reason) = self.command(&program, &arguments) {
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
        let attributes = attributes.at("sync", image)?;
        let size = attributes.blocks() * 512;
        let cell = labels([("image", &spec.name)]);
        let saving = 100.0 * (1.0 - size as f64 / content.max(1) as f64);
        let mut values = BTreeMap::from([
            ("image_bytes".to_owned(), size as f64),
            ("saving_percent".to_owned(), saving),
        ]);
        if spec.tool() == Some(Tool::Tuff) {
            let percent = in_place_percent(&program, image)?;
            values.extend(percent.map(|percent| ("in_place_percent".to_owned(), percent)));
        }
        emit(&Line::sample(cell.clone(), 1, values))?;
        emit(&Line::note(
            cell,
            format!("`{shown}`, {}", version(&program)),
        ))?;
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
        let (name, kind) = (&spec.by, spec.filesystem());
        // Content in whole blocks, with 25 % and a constant for inodes and the journal. XFS needs 300 MiB.
        let size = ((content + (files + 1) * 4096) * 5 / 4 + (512 << 20)).next_multiple_of(1 << 20);
        let force = if kind == "ext4" { "-F" } else { "-f" };
        let shown = format!("{name} -q {force} IMAGE, mount -o {options}, cp -a TREE/.");
        eprintln!("{}: {shown}", spec.name);
        File::create_new(image)
            .and_then(|file| file.set_len(size))
            .at("create", image)?;
        let point = self.work.path("mount");
        std::fs::create_dir_all(&point).at("create", &point)?;
        let word = OsStr::new;
        let made = [word("-q"), word(force), image.as_os_str()];
        let mounted = [word("-t"), word(kind), word("-o"), word(&options)];
        let mounted = mounted
            .into_iter()
            .chain([image.as_os_str(), point.as_os_str()]);
        let source = self.tree.join(".");
        let copied = [word("-a"), source.as_os_str(), point.as_os_str()];
        if let Err(reason) = self.command(program, made) {
            return Ok(Err(reason));
        }
        if self.command(Path::new("mount"), mounted).is_err() {
            return Ok(Err(format!("this kernel does not mount {kind}")));
        }
        let copied = self.command(Path::new("cp"), copied);
        let unmounted = unmounted(&point).map_err(|e| format!("{}: {e}", point.display()));
        Ok(copied.and(unmounted).map(|()| shown))
    }

    /// Runs a command. The error is the reason for its failure.
    fn command(
        &self,
        program: &Path,
        arguments: impl IntoIterator<Item = impl AsRef<OsStr>>,
    ) -> Result<(), String> {
        let folder = self.work.folder();
        let mut command = Command::new(program);
        command.args(arguments).current_dir(folder);
        let done = helper::run(command.env("TMPDIR", folder), 0, MAKING);
        done.map(|_| ())
            .map_err(|e| e.replace(&*folder.to_string_lossy(), "WORK"))
    }
}

/// Returns the share of the clusters of an image that can be decoded in place. None without compressed clusters.
fn in_place_percent(tuff: &Path, image: &Path) -> Result<Option<f64>> {
    let words = ["info", "--json", "--files"].map(OsStr::new);
    let info = helper::json(tuff, words.into_iter().chain([image.as_os_str()]))?;
    let number = |name: &str| info["in_place"][name].as_f64();
    let share = number("possible").zip(number("clusters").filter(|all| *all > 0.0));
    Ok(share.map(|(possible, all)| 100.0 * possible / all))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(by: &str, algorithm: Option<Algorithm>) -> ImageSpec {
        ImageSpec {
            name: "x".to_owned(),
            by: by.to_owned(),
            settings: Settings {
                algorithm,
                ..Settings::default()
            },
        }
    }

    #[test]
    fn settings_that_a_filesystem_does_not_have_are_refused() {
        let zstd = Some(Algorithm::Zstd);
        assert_eq!(spec("mkfs.btrfs", zstd).check(), Ok(()));
        assert_eq!(spec("mkfs.xfs", None).check(), Ok(()));
        assert!(spec("mkfs.xfs", zstd).check().is_err());
        let mut level = spec("mkfs.btrfs", zstd);
        level.settings.level = Some(3);
        assert!(level.check().is_err());
    }
}
