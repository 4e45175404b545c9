//! Converts paths on the command line to sources, bases and a target.

use super::args::{Args, SourceType};
use crate::file_kind::{self, FileKind};
use crate::image::{OpenArgs, input, unused};
use crate::next_command::shell_word;
use crate::overwrite::{self, Format};
use std::fs::Metadata;
use std::io::{self, Read};
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use tuff_erofs::{Error, Result};
use tuff_mkfs::{Container, InputImage, Source, container_image};
use tuff_open::{Device, ImageRef, devices};
use tuff_store::Target;

/// Sources of the tree, target of the image, and its base images.
pub(super) struct BuildPaths {
    pub(super) sources: Vec<Source>,
    pub(super) target: Target,
    pub(super) bases: Vec<InputImage>,
    /// Configuration of the last container image among the sources.
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
    match args.settings.get("blob").map(Path::new) {
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
    let trust = args.trust.as_deref();
    let bases = args.settings.all("base").iter().map(PathBuf::from);
    let others = sources.iter().filter(|path| container(path).is_none());
    let images: Vec<Device> = bases
        .clone()
        .chain(others.cloned())
        .map(Device::parse)
        .collect();
    let references: Vec<&ImageRef> = images.iter().map(|device| &device.image).collect();
    let devices = devices::of_images(&references, &args.source_device, false);
    let devices = devices.map_err(|device| unused("--source-device", &device))?;
    let mut images = images.into_iter().zip(devices);
    let opened = images.by_ref().take(bases.len());
    let bases = opened.map(|(base, devices)| input(base, devices, trust));
    let bases = bases.collect::<Result<_>>()?;
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
                if let Some(image) = images.next() {
                    all.push(source(image, args.source_type, trust)?);
                }
            }
        }
    }
    if args.platform.is_some() && !sources.iter().any(|path| container(path).is_some()) {
        return Err(Error::usage(
            "--platform is for container images (oci:DIR, oci-archive:FILE, docker-archive:FILE)",
        ));
    }
    // The content of other sources decides what they are, so that it could replace an image that a signature covers.
    let is_covered = |source: &Source| matches!(source, Source::Image(_) | Source::Dir(_));
    if trust.is_some() && !all.iter().all(is_covered) {
        return Err(Error::usage(
            "--trust verifies images, and a source is neither an image nor a directory",
        ));
    }
    if all.iter().filter(|s| matches!(s, Source::TarStdin)).count() > 1 {
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

/// Sources that are read as archives only because no other kind was detected.
pub(super) fn archives(kind: Option<SourceType>, sources: &[Source]) -> Vec<&Path> {
    let is_guess = kind.is_none();
    let archives = sources.iter().filter_map(|source| match source {
        Source::Tar(path) if is_guess => Some(path.as_path()),
        _ => None,
    });
    archives.collect()
}

/// Returns a source of the given or the detected kind. `devices`: those that it has as an image.
fn source(
    (source, devices): (Device, Vec<Device>),
    kind: Option<SourceType>,
    trust: Option<&Path>,
) -> Result<Source> {
    let path = source.image.name();
    if path == Path::new("-") {
        return Ok(Source::TarStdin);
    }
    let kind = match (kind, &source.image) {
        (Some(kind), _) => kind,
        (None, ImageRef::Url(_)) => SourceType::Image,
        (None, ImageRef::Path(path)) => guess(path)?,
    };
    if source.root.is_some() && kind != SourceType::Image {
        return Err(Error::usage(format_args!(
            "{}: a root hash verifies images alone, and this source is none",
            path.display()
        )));
    }
    if kind == SourceType::Image && path.is_dir() {
        return Err(cannot_open(&path, io::ErrorKind::IsADirectory.into()));
    }
    Ok(match kind {
        SourceType::Dir => Source::Dir(path),
        SourceType::Tar => Source::Tar(path),
        SourceType::Manifest => Source::Manifest(path),
        SourceType::SquashFs => Source::SquashFs(path),
        SourceType::Image => Source::Image(input(source, devices, trust)?),
    })
}

/// Returns what reads a file that can be read twice: an EROFS or SquashFS image, a disk with one, a tar or cpio archive.
pub(crate) fn archive(path: &Path) -> Result<Source> {
    let meta = metadata(path)?;
    let head = head(path, &meta)?;
    if let Some(FileKind::Volume) = FileKind::detect(&head) {
        return Err(Error::usage(format_args!(
            "{}: is an IPLFS volume; mount one of its snapshots with 'tuff volume mount --snapshot', and name the directory",
            path.display()
        )));
    }
    let kind = match meta.is_file() || meta.file_type().is_block_device() {
        true => guess(path)?,
        false => SourceType::Manifest,
    };
    if kind == SourceType::Manifest {
        return Err(Error::usage(format_args!(
            "{}: not a directory, an archive or an image",
            path.display()
        )));
    }
    let device = Device::parse(path.to_owned());
    let mut devices = devices::of_images(&[&device.image], &[], false)
        .map_err(|device| unused("--source-device", &device))?;
    source(
        (device, devices.pop().unwrap_or_default()),
        Some(kind),
        None,
    )
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
    // Images of tars in registries were fetched before.
    if path.exists() || ImageRef::from(path).url().is_some() {
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

/// Returns true if every source is a file or block device that starts with an EROFS image.
#[cfg(feature = "remote")]
pub(crate) fn are_images(sources: &[PathBuf]) -> Result<bool> {
    for path in sources {
        let is_other = path == Path::new("-")
            || container(path).is_some()
            || ImageRef::from(path.as_path()).url().is_some()
            || Device::parse(path.clone()).root.is_some();
        if is_other || !file_kind::is_image(&head(path, &metadata(path)?)?) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Returns true for a file or block device that is an image, or a disk that may hold one.
pub(crate) fn is_image(path: &Path, meta: &Metadata) -> Result<bool> {
    let head = head(path, meta)?;
    Ok(file_kind::is_image(&head) || file_kind::is_disk(&head))
}

/// First bytes of a file or block device. Empty for others.
fn head(path: &Path, meta: &Metadata) -> Result<Vec<u8>> {
    let mut head = Vec::new();
    if meta.is_file() || meta.file_type().is_block_device() {
        let file = std::fs::File::open(path).map_err(|e| cannot_open(path, e))?;
        let read = file.take(8192).read_to_end(&mut head);
        read.map_err(|e| Error::io(path.display(), "cannot read the source", e))?;
    }
    Ok(head)
}

fn metadata(path: &Path) -> Result<Metadata> {
    tuff_store::retry(|| std::fs::metadata(path)).map_err(|e| cannot_open(path, e))
}

fn cannot_open(path: &Path, e: io::Error) -> Error {
    Error::io(path.display(), "cannot open the source", e)
}

fn guess(path: &Path) -> Result<SourceType> {
    let meta = metadata(path)?;
    let manifest = path
        .extension()
        .is_some_and(|e| e == "mtree" || e == "manifest");
    Ok(if meta.is_dir() {
        SourceType::Dir
    } else if manifest {
        SourceType::Manifest
    } else {
        let head = head(path, &meta)?;
        match () {
            () if file_kind::is_image(&head) || file_kind::is_disk(&head) => SourceType::Image,
            () if file_kind::is_squashfs(&head) => SourceType::SquashFs,
            () => SourceType::Tar,
        }
    })
}
