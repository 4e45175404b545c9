//! Arguments shared by the verbs that read an image, and opening of that image.

use crate::advice;
use crate::progress::{Counter, Meter};
use crate::remote::RemoteArgs;
use crate::units::parse_size;
use clap::ValueHint;
use clap::builder::{PathBufValueParser, TypedValueParser};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tuff_erofs::read::Image;
use tuff_erofs::verity::Root;
use tuff_erofs::{Error, Place, Remedy, Result};
use tuff_mkfs::InputImage;
use tuff_open::{
    Container, Device, ImageRef, Integrity, OpenImage, OpenOptions, certificate, devices,
    parse_root,
};

/// Reference to an image, and the options to open it.
#[derive(Clone, clap::Args)]
pub(crate) struct ImageArgs {
    /// Image: a file, a block device, or a URL (https://, http://, s3://, oci://, file://)
    #[arg(value_name = "IMAGE", value_parser = image_ref(), value_hint = ValueHint::AnyPath)]
    pub(crate) image: ImageRef,
    #[command(flatten)]
    pub(crate) open: OpenArgs,
}

/// Options to open an image.
#[derive(Clone, Default, clap::Args)]
pub(crate) struct OpenArgs {
    /// Byte offset of the image in its file
    #[arg(long, default_value = "0", value_parser = parse_size, value_name = "BYTES", help_heading = "Image")]
    pub(crate) offset: u64,
    /// Extra device, once for each slot of the device table. Images that the table names by UUID may come in any order, and
    /// are looked for beside IMAGE if they are not given. With the root hash of its hash tree, it is verified
    #[arg(long, value_name = "FILE[,ROOT-HASH]", value_parser = device(), value_hint = ValueHint::AnyPath, help_heading = "Image")]
    pub(crate) device: Vec<Device>,
    /// Accept a superblock with a wrong checksum
    #[arg(long, help_heading = "Image")]
    pub(crate) no_checksum: bool,
    /// Verify every read against the dm-verity hash tree with this root hash
    #[arg(long, visible_alias = "root-hash", value_parser = parse_root, value_name = "ROOT-HASH", help_heading = "Image")]
    pub(crate) verity: Option<Root>,
    /// Hash tree, if it is not appended to the image
    #[arg(long, requires = "verity", value_name = "FILE", help_heading = "Image")]
    pub(crate) verity_tree: Option<PathBuf>,
    /// Refuse the image unless a signature of its root hash by this certificate comes with it, and verify every read
    #[arg(long, conflicts_with_all = ["verity", "offset"], value_name = "CERT", help_heading = "Image")]
    pub(crate) trust: Option<PathBuf>,
    #[command(flatten)]
    pub(crate) remote: RemoteArgs,
    /// Counter of the bytes that are read.
    #[arg(skip)]
    pub(crate) counter: Option<Arc<Counter>>,
}

/// Parser of a path or URL.
pub(crate) fn image_ref() -> impl TypedValueParser<Value = ImageRef> {
    PathBufValueParser::new().map(ImageRef::from)
}

/// Parser of a device: a path or URL, and the root hash of its hash tree, if it is given.
pub(crate) fn device() -> impl TypedValueParser<Value = Device> {
    PathBufValueParser::new().map(Device::parse)
}

/// Opens an image as [`read`] does, and keeps its container.
pub(crate) fn open(image: &ImageRef, options: &OpenOptions) -> Result<OpenImage> {
    let container = container(image, options)?;
    let image = read(&container)?;
    Ok(OpenImage::new(image, container))
}

/// Opens an image that a build reads, with its devices, verified by `trust` or by the root hash of each.
pub(crate) fn input(
    image: Device,
    devices: Vec<Device>,
    trust: Option<&Path>,
) -> Result<InputImage> {
    let integrity = match (image.root, trust) {
        (Some(hash), _) => Integrity::Root { hash, tree: None },
        (None, Some(by)) => Integrity::Certificate(certificate(by)?),
        (None, None) => Integrity::None,
    };
    let options = OpenOptions {
        devices,
        integrity,
        ..OpenOptions::default()
    };
    open_for_build(&image.image, &options).map(OpenImage::into_input)
}

/// Opens an image as [`open`] does, for the verbs that build: errors name no option that only the other verbs have.
pub(crate) fn open_for_build(image: &ImageRef, options: &OpenOptions) -> Result<OpenImage> {
    let for_build = |e: Error| match e.remedy() {
        Some(Remedy::Devices) => e.with_remedy(Remedy::SourceDevices),
        _ => e.without_remedy(),
    };
    let container = container(image, options).map_err(for_build)?;
    let name = container.reference().name();
    let opened = container.image().map_err(for_build);
    let opened = opened.map_err(|e| advice::not_opened(e, &name, &**container.store()))?;
    Ok(OpenImage::new(opened, container))
}

/// Opens the container of an image.
pub(crate) fn container(image: &ImageRef, options: &OpenOptions) -> Result<Container> {
    let container = Container::open(image, options)?;
    for warning in container.remote().iter().flat_map(|image| image.warnings()) {
        eprintln!("tuff: warning: {warning}");
    }
    Ok(container)
}

/// Opens the image of a container. The error for another file says what it is.
pub(crate) fn read(container: &Container) -> Result<Image> {
    let name = container.reference().name();
    let image = container.image();
    image.map_err(|e| advice::not_opened(e, &name, &**container.store()))
}

impl ImageArgs {
    /// Arguments with which an image is opened whose reads the meter counts.
    pub(crate) fn watched(&self, meter: &Meter) -> Self {
        Self {
            open: self.open.watched(meter),
            ..self.clone()
        }
    }

    /// Opens the image with its devices.
    pub(crate) fn open(&self) -> Result<OpenImage> {
        self.open.open(&self.image)
    }

    /// Opens the image with its devices, for verbs that give out its content: damage is an error if the image has a hash
    /// tree.
    pub(crate) fn open_compared(&self) -> Result<OpenImage> {
        let options = OpenOptions {
            compares_tree: true,
            ..self.open.options()?
        };
        open(&self.image, &options)
    }

    /// Opens the image even if its superblock has a wrong checksum, for verbs that report that.
    pub(crate) fn open_unverified(&self) -> Result<OpenImage> {
        let options = OpenOptions {
            ignores_checksum: true,
            ..self.open.options()?
        };
        open(&self.image, &options)
    }

    /// Opens the image as [`open_unverified`](Self::open_unverified) does, whatever was to verify it.
    pub(crate) fn open_unchecked(&self) -> Result<OpenImage> {
        Self {
            image: self.image.clone(),
            open: self.open.unchecked(),
        }
        .open_unverified()
    }

    /// Opens the container of the image, whatever is to verify it.
    pub(crate) fn plain(&self) -> Result<Container> {
        container(&self.image, &self.open.unchecked().options()?)
    }

    /// Files that the image is read from, which no output may replace.
    pub(crate) fn files(&self) -> Vec<&Path> {
        self.open.files(&self.image)
    }

    /// Adds the path of the image to an error about its content, unless the error names it.
    pub(crate) fn named(&self, e: Error) -> Error {
        match e {
            Error::Corrupt(_) | Error::Unsupported(_) | Error::Limit(_)
                if !e.place().is_in_file(&self.image) =>
            {
                e.within(Place::file(&self.image))
            }
            e => e,
        }
    }
}

impl OpenArgs {
    /// As [`ImageArgs::watched`].
    pub(crate) fn watched(&self, meter: &Meter) -> Self {
        Self {
            counter: meter.is_shown().then(|| Arc::clone(meter.counter())),
            ..self.clone()
        }
    }

    /// Files of an image: the image, its extra devices and its hash tree.
    pub(crate) fn files<'a>(&'a self, image: &'a ImageRef) -> Vec<&'a Path> {
        let devices = self.device.iter().map(|device| &device.image);
        let images = std::iter::once(image).chain(devices);
        let tree = self.verity_tree.as_deref();
        images.filter_map(ImageRef::path).chain(tree).collect()
    }

    /// Returns the arguments for each of several images, which share the given devices.
    pub(crate) fn of_each(&self, images: &[&ImageRef]) -> Result<Vec<Self>> {
        let is_elsewhere = self.offset > 0 || images.iter().any(|image| image.url().is_some());
        if self.device.is_empty() || is_elsewhere {
            return Ok(vec![self.clone(); images.len()]);
        }
        let all = devices::of_images(images, &self.device, true);
        let all = all.map_err(|device| unused("--device", &device))?;
        let own = |device| Self {
            device,
            ..self.clone()
        };
        Ok(all.into_iter().map(own).collect())
    }

    fn unchecked(&self) -> Self {
        Self {
            verity: None,
            verity_tree: None,
            trust: None,
            ..self.clone()
        }
    }

    /// Options of the library.
    pub(crate) fn options(&self) -> Result<OpenOptions> {
        let integrity = match (self.verity, &self.trust) {
            (None, None) if self.verity_tree.is_some() => {
                let what = "a file with a hash tree verifies nothing without its root hash";
                return Err(Error::usage(what));
            }
            (None, None) => Integrity::None,
            (Some(hash), None) => Integrity::Root {
                hash,
                tree: self.verity_tree.clone(),
            },
            (None, Some(path)) => Integrity::Certificate(certificate(path)?),
            // Mount options are checked here, and others by the parser.
            (Some(_), Some(_)) => {
                let what = "--trust: the certificate states the root hash, so none can be given";
                return Err(Error::usage(what));
            }
        };
        let counter = self.counter.clone();
        Ok(OpenOptions {
            offset: self.offset,
            devices: self.device.clone(),
            integrity,
            ignores_checksum: self.no_checksum,
            cache: self.remote.cache(),
            watch: counter.map(|counter| Arc::new(move |store| counter.watch(store)) as _),
            ..OpenOptions::default()
        })
    }

    /// Opens an image.
    pub(crate) fn open(&self, image: &ImageRef) -> Result<OpenImage> {
        open(image, &self.options()?)
    }
}

/// Error for a device of the option `name` that belongs to no image.
pub(crate) fn unused(name: &str, device: &Device) -> Error {
    let device = &device.image;
    Error::usage(format_args!(
        "{name} {device}: no image that was given has data there"
    ))
}
