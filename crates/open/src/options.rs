//! Options for opening images.

use crate::certificate::certificate;
use crate::reference::ImageRef;
use crate::root::parse_root;
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tuff_erofs::verity::Root;
use tuff_erofs::{Error, Result};
use tuff_signature::Certificate;
use tuff_store::ReadAt;

/// Options for opening an image.
#[derive(Clone, Default)]
pub struct OpenOptions {
    /// Start of the image in its file or object. If it is 0, a partition table leads to the image. Unit: bytes.
    pub offset: u64,
    /// Extra devices. Those that the device table names by UUID may come in any order, and are looked for beside the image if
    /// nothing verifies it.
    pub devices: Vec<Device>,
    /// Root hash or certificate that verifies the image.
    pub integrity: Integrity,
    /// Accepts a superblock with a wrong checksum.
    pub ignores_checksum: bool,
    /// The kernel will read the image, which takes more preparation if it has several layers behind a URL.
    pub for_kernel: bool,
    /// Compares what is read with the hash tree of the image, if it has one, also without a root hash. That finds damage.
    pub compares_tree: bool,
    /// Cache and requests of images behind URLs.
    pub cache: CacheOptions,
    /// Callback for blocks repaired from parity.
    pub on_repair: Option<OnRepair>,
    /// Wraps the image and each device, for a progress bar.
    pub watch: Option<Watch>,
}

impl OpenOptions {
    /// Sets an option by the name that the command has for it, with a value as on a command line. Sizes are in bytes.
    ///
    /// # Errors
    /// `Usage` for an unknown name or a wrong value, and errors of reading a certificate.
    pub fn set(&mut self, name: &str, value: &OsStr) -> Result<()> {
        let wrong = |what: &str| Error::usage(format_args!("{name}: {what}"));
        let text = || value.to_str().ok_or_else(|| wrong("is not UTF-8"));
        let number = || {
            let number = text()?.parse().ok();
            number.ok_or_else(|| wrong("expected a number"))
        };
        let path = || PathBuf::from(value);
        match name {
            "offset" => self.offset = number()?,
            "device" => self.devices.push(Device::parse(path())),
            "verity" | "root-hash" => {
                let hash = parse_root(text()?).map_err(|what| wrong(&what))?;
                self.integrity = match std::mem::take(&mut self.integrity) {
                    Integrity::None => Integrity::Root { hash, tree: None },
                    _ => return Err(wrong("something else verifies the image already")),
                };
            }
            "verity-tree" => match &mut self.integrity {
                Integrity::Root { tree, .. } => *tree = Some(path()),
                _ => return Err(wrong("give the root hash first")),
            },
            "trust" => {
                self.integrity = match std::mem::take(&mut self.integrity) {
                    Integrity::None => Integrity::Certificate(certificate(&path())?),
                    _ => return Err(wrong("something else verifies the image already")),
                };
            }
            "no-checksum" => self.ignores_checksum = true,
            "cache-dir" => self.cache.dir = Some(path()),
            "cache-max" => self.cache.size_max = Some(number()?),
            "fetch-timeout" => self.cache.fetch_timeout = Some(Duration::from_secs(number()?)),
            _ => return Err(wrong("no such option")),
        }
        Ok(())
    }

    /// Returns true if an image behind a URL is verified as it is fetched: by the hash tree that follows it in its object.
    pub(crate) fn verifies_fetched(&self) -> bool {
        let is_separate = matches!(&self.integrity, Integrity::Root { tree: Some(_), .. });
        self.offset == 0 && !is_separate
    }
}

/// Root hash or certificate that verifies an image.
#[derive(Clone, Debug, Default)]
pub enum Integrity {
    /// Nothing, but digests in the manifest of a registry.
    #[default]
    None,
    /// A dm-verity hash tree.
    Root {
        /// Root hash of the tree.
        hash: Root,
        /// File with the tree. `None` for a tree that follows the image, or lies in a partition.
        tree: Option<PathBuf>,
    },
    /// A root hash that comes with the image, and a signature of it by this certificate.
    Certificate(Certificate),
}

impl Integrity {
    /// Returns true if something verifies the image.
    pub fn is_some(&self) -> bool {
        !matches!(self, Self::None)
    }
}

/// Extra device of an image.
#[derive(Clone, Debug)]
pub struct Device {
    /// File, block device or URL.
    pub image: ImageRef,
    /// Root hash of the hash tree that follows the device. A device of a verified image needs one.
    pub root: Option<Root>,
}

impl Device {
    /// Parses `FILE` or `FILE,ROOT-HASH`.
    pub fn parse(path: PathBuf) -> Self {
        let text = path.to_str().and_then(|text| text.rsplit_once(','));
        match text.and_then(|(name, root)| Some((name, parse_root(root).ok()?))) {
            Some((name, root)) => Self {
                image: Path::new(name).into(),
                root: Some(root),
            },
            None => path.into(),
        }
    }
}

impl From<ImageRef> for Device {
    fn from(image: ImageRef) -> Self {
        Self { image, root: None }
    }
}

impl From<PathBuf> for Device {
    fn from(path: PathBuf) -> Self {
        ImageRef::from(path).into()
    }
}

/// Cache and requests of images behind URLs.
#[derive(Clone, Debug, Default)]
pub struct CacheOptions {
    /// Directory that keeps what was fetched. `None` for `$XDG_CACHE_HOME/tuff` or `~/.cache/tuff`.
    pub dir: Option<PathBuf>,
    /// Largest size of that directory. `None` for 8 GiB. Unit: bytes.
    pub size_max: Option<u64>,
    /// Time after which a part that cannot be fetched is an I/O error. `None` for one minute.
    pub fetch_timeout: Option<Duration>,
    /// Sends no second request when an answer is late.
    pub no_hedging: bool,
    /// Opens what was opened with this option last, with a warning, if the server of a tag or URL cannot be reached.
    pub offline: bool,
}

/// Callback for a repaired block: true for one of the hash tree, and its byte offset.
pub type OnRepair = Arc<dyn Fn(bool, u64) + Send + Sync>;

/// Wrapper of a store that is read.
pub type Watch = Arc<dyn Fn(Arc<dyn ReadAt>) -> Arc<dyn ReadAt> + Send + Sync>;
