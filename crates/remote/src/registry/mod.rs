//! Client of registries: tokens, requests to a repository, manifests and the layers that they name.

mod auth;
mod credential_helper;
mod digest;
mod image;
pub(crate) mod media;
pub(crate) mod referrers;
mod repository;

pub use auth::registry_login_files;
pub(crate) use auth::{Session, realms};
pub(crate) use digest::{digest, root};
pub(crate) use image::{
    IndexPlace, Layer, LayeredImage, container, image, images, kept_image, layers, only_image,
    this_platform,
};
pub(crate) use repository::{Call, Manifest, Registry};
