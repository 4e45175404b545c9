//! Images behind URLs. Without the feature `remote` they are refused.

#[cfg(not(feature = "remote"))]
mod absent;
#[cfg(feature = "remote")]
mod clients;
#[cfg(feature = "remote")]
mod layer_index;

#[cfg(not(feature = "remote"))]
pub use absent::RemoteImage;
#[cfg(feature = "remote")]
pub use clients::{RemoteImage, failed, index, options, trusted};
#[cfg(feature = "remote")]
pub use layer_index::{LayerIndex, LayersStart, start_of_layers};

use std::path::PathBuf;

/// Complete image as plain files, whose bytes stay as long as the value and the image live.
pub struct CompleteFiles {
    /// Path of the image, or of the index of several layers. It is valid in this process.
    pub image: PathBuf,
    /// Paths of its devices, in their order. They are valid in this process.
    pub devices: Vec<PathBuf>,
    #[cfg(feature = "remote")]
    _files: Vec<tuff_remote::CompleteFile>,
}
