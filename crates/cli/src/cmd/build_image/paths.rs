//! Converts paths on the command line to sources, bases and a target.

use super::args::{Args, SourceType};
use crate::image::{OpenArgs, unused};
use crate::next_command::shell_word;
use crate::overwrite::{self, Format};
use std::io;
use std::os::unix::fs::{FileExt, FileTypeExt};
use std::path::{Path, PathBuf};
use tuff_erofs::{Error, Result};
use tuff_format::superblock;
use tuff_mkfs::{BaseImage, Container, Source, container_image};
use tuff_open::{Device, ImageRef, devices};
use tuff_store::Target;

/// Sources of the tree, target of the image, and its base images.
pub(super) struct BuildPaths {
    pub(super) sources: Vec<Source>,
    pub(super) target: Target,
    pub(super) bases: Vec<BaseImage>,
    /// Configuration of the last container image among the sources, which only uploads use.
    #[cfg_attr(not(feature = "remote"), expect(dead_code))]
    pub(super) config: Option<Vec<u8>>,
}

/// Separates the path of the image from those of the sources.
pub(super) fn split(args: &Args) -> Result<(&PathBuf, &[PathBuf])> {
    if let Some(image) = &args.output {
        return Ok((image, &args.paths));
    }
    match args.paths.split_last() {
        Some((image, sources)) if !sources.is_empty() => Ok((image, sources)),
        _ => Err(Error::usage(
            "a source and an image are needed: tuff build SOURCE IMAGE",
        )),
    }
}

/// Fails if the build would overwrite anything but an image or an empty file.
pub(super) fn check_outputs(args: &Args) -> Result<()> {
    let (image, sources) = split(args)?;
    if let ([first], true, false) = (sources, image.is_dir(), args.output.is_some())
        && !first.is_dir()
        && first != Path::new("-")
    {
        return Err(Error::usage(format_args!(
            "{}: is a directory; the image comes last: tuff build {} {}",
            image.display(),
            shell_word(image),
            shell_word(first)
        )));
    }
    overwrite::check(image, Format::Image)?;
    match &args.blob {
        Some(blob) if !is_blob_of(blob, image) => overwrite::check(blob, Format::Blob),
        _ => Ok(()),
    }
}

/// Returns true if `image` has one extra device with the length of the file `blob`.
fn is_blob_of(blob: &Path, image: &Path) -> bool {
    let len = std::fs::metadata(blob).ok().filter(|m| m.is_file());
    let image = OpenArgs::default().open(&image.into());
    len.zip(image.ok()).is_some_and(|(blob, image)| {
        let block = image.superblock().block_bits.size();
        matches!(image.slots(), [slot] if slot.blocks.checked_mul(block) == Some(blob.len()))
    })
}

/// Resolves the paths of the command line.
pub(super) fn resolve(args: &Args) -> Result<BuildPaths> {
    let (image, sources) = split(args)?;
    let dash = Path::new("-");
    let target = if image == dash {
        Target::Stdout
    } else {
        Target::Path(image.clone())
    };
    let images = args.base.iter().chain(sources).map(PathBuf::as_path);
    let images = images.filter(|path| container(path).is_none());
    let images: Vec<ImageRef> = images.map(ImageRef::from).collect();
    let mut devices = devices_of(&images, &args.source_device, "--source-device")?.into_iter();
    let base = |path: &PathBuf| BaseImage {
        path: path.clone(),
        devices: devices.next().unwrap_or_default(),
    };
    let bases = args.base.iter().map(base).collect();
    let (mut all, mut config) = (Vec::new(), None);
    for path in sources {
        match container(path) {
            Some((kind, path, name)) => {
                let platform = args.platform.as_deref();
                let image = container_image(kind, &path, name, platform)?;
                all.extend(image.layers);
                config = image.config;
            }
            None => {
                let own = devices.next().unwrap_or_default();
                all.push(source(path, args.source_type, own)?);
            }
        }
    }
    if args.platform.is_some() && !sources.iter().any(|path| container(path).is_some()) {
        return Err(Error::usage(
            "--platform is for container images (oci:DIR, oci-archive:FILE, docker-archive:FILE)",
        ));
    }
    if all.iter().filter(|s| **s == Source::TarStdin).count() > 1 {
        return Err(Error::usage(
            "standard input can be only one of the sources",
        ));
    }
    Ok(BuildPaths {
        sources: all,
        target,
        bases,
        config,
    })
}

/// Paths of the devices of each of several images. `option` has named those that are given.
pub(crate) fn devices_of(
    images: &[ImageRef],
    given: &[PathBuf],
    option: &str,
) -> Result<Vec<Vec<PathBuf>>> {
    let given: Vec<Device> = given.iter().cloned().map(Device::from).collect();
    let images: Vec<&ImageRef> = images.iter().collect();
    let all = devices::of_images(&images, &given, false);
    let all = all.map_err(|device| unused(option, &device))?;
    let paths = |devices: Vec<Device>| devices.iter().map(|d| d.image.name()).collect();
    Ok(all.into_iter().map(paths).collect())
}

/// Sources that are read as archives only because no other kind was detected.
pub(super) fn archives(kind: Option<SourceType>, sources: &[Source]) -> Vec<&Path> {
    let is_guess = kind.is_none();
    let archives = sources.iter().filter_map(|source| match source {
        Source::Tar(path) if is_guess => Some(path.as_path()),
        _ => None,
    });
    archives.collect()
}

/// Returns the source at `path`, of the given or the detected kind.
fn source(path: &Path, kind: Option<SourceType>, devices: Vec<PathBuf>) -> Result<Source> {
    if path == Path::new("-") {
        return Ok(Source::TarStdin);
    }
    let kind = match kind {
        Some(kind) => kind,
        None => guess(path)?,
    };
    Ok(match kind {
        SourceType::Dir => Source::Dir(path.to_owned()),
        SourceType::Tar => Source::Tar(path.to_owned()),
        SourceType::Manifest => Source::Manifest(path.to_owned()),
        SourceType::Image => Source::Image {
            path: path.to_owned(),
            devices,
        },
    })
}

/// Prefixes of paths that name container images.
const CONTAINERS: [(&str, Container); 3] = [
    ("oci:", Container::Oci),
    ("oci-archive:", Container::OciArchive),
    ("docker-archive:", Container::DockerArchive),
];

/// Splits `oci:DIR`, `oci-archive:FILE:NAME` and the like into kind, path and name. Returns `None` for an existing file
/// of that name.
fn container(path: &Path) -> Option<(Container, PathBuf, Option<&str>)> {
    let text = path.to_str()?;
    let known = |(word, kind)| Some((text.strip_prefix(word)?, kind));
    let (rest, kind) = CONTAINERS.into_iter().find_map(known)?;
    if path.exists() {
        return None;
    }
    let is_there = |place: &str| match kind {
        Container::Oci => Path::new(place).is_dir(),
        _ => Path::new(place).exists(),
    };
    // Path and name may both contain colons.
    let splits = rest
        .match_indices(':')
        .map(|(at, _)| (&rest[..at], &rest[at + 1..]));
    let found = splits.into_iter().find(|(place, _)| is_there(place));
    match found.filter(|_| !is_there(rest)) {
        Some((place, name)) => Some((kind, place.into(), Some(name))),
        None => Some((kind, rest.into(), None)),
    }
}

/// Returns true if one of the sources is a container image.
#[cfg(feature = "remote")]
pub(super) fn have_container(sources: &[PathBuf]) -> bool {
    sources.iter().any(|path| container(path).is_some())
}

/// Returns true if every source is an EROFS image.
#[cfg(feature = "remote")]
pub(crate) fn are_images(sources: &[PathBuf]) -> Result<bool> {
    for path in sources {
        let is_other = path == Path::new("-")
            || container(path).is_some()
            || ImageRef::from(path.as_path()).url().is_some();
        if is_other || guess(path)? != SourceType::Image {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns true for a file or block device with the superblock of an image.
pub(crate) fn is_image(path: &Path, meta: &std::fs::Metadata) -> Result<bool> {
    if !(meta.is_file() || meta.file_type().is_block_device()) {
        return Ok(false);
    }
    let mut magic = [0; 4];
    let file = std::fs::File::open(path).map_err(|e| cannot_open(path, e))?;
    match file.read_exact_at(&mut magic, superblock::OFFSET) {
        Ok(()) => Ok(u32::from_le_bytes(magic) == superblock::MAGIC),
        // Too short for a superblock.
        Err(e) if e.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        Err(e) => Err(Error::io(path.display(), "cannot read the source", e)),
    }
}

fn cannot_open(path: &Path, e: io::Error) -> Error {
    Error::io(path.display(), "cannot open the source", e)
}

fn guess(path: &Path) -> Result<SourceType> {
    let meta = tuff_store::retry(|| std::fs::metadata(path)).map_err(|e| cannot_open(path, e))?;
    let manifest = path
        .extension()
        .is_some_and(|e| e == "mtree" || e == "manifest");
    Ok(if meta.is_dir() {
        SourceType::Dir
    } else if manifest {
        SourceType::Manifest
    } else if is_image(path, &meta)? {
        SourceType::Image
    } else {
        SourceType::Tar
    })
}
