//! Image behind a link, and what mounts it.

use crate::measure::process::Place;
use crate::{At, Result};
use serde_json::json;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Login of the registry with TLS, as user and password.
pub(super) const LOGIN: (&str, &str) = ("lab", "lab");
/// The same in Base64, as headers and files of logins have it.
pub(super) const LOGIN_BASE64: &str = "bGFiOmxhYg==";
/// Way that mounts an image. An error of the kind `Command` is the reason for a failure of the way.
pub(super) trait Mounter: Send {
    /// Prepares what is not measured, such as daemons that always run.
    fn prepare(&mut self) -> Result<()>;

    /// Mounts the image, of which nothing is here. Returns the mount point.
    fn start(&mut self) -> Result<PathBuf>;

    /// Mounts the image again after [`Mounter::unmount`].
    fn again(&mut self) -> Result<PathBuf>;

    /// Unmounts the image and ends its server.
    fn unmount(&mut self);

    /// Returns the processes that serve. The last is that of the way itself.
    fn processes(&self) -> Vec<u32>;
}

/// Image behind a link.
#[derive(Clone)]
pub(super) struct Origin {
    /// Address of the link.
    pub(super) address: SocketAddr,
    pub(super) repository: String,
    pub(super) tag: String,
    /// Identifier of the topmost layer.
    pub(super) chain: String,
    /// True for TLS with a login.
    pub(super) is_encrypted: bool,
    /// Folder for the file with the login.
    pub(super) logins: PathBuf,
}

impl Origin {
    /// Returns the reference of the image without a scheme.
    pub(super) fn reference(&self) -> String {
        format!("{}/{}:{}", self.address, self.repository, self.tag)
    }

    /// Writes the file with the login for the address.
    pub(super) fn write_login(&self) -> Result<()> {
        make(&self.logins)?;
        let login = json!({"auths": {self.address.to_string(): {"auth": LOGIN_BASE64}}});
        let path = self.logins.join("config.json");
        std::fs::write(&path, login.to_string()).at("write", &path)
    }

    /// Gives a command the certificate and the login.
    pub(super) fn authorize(&self, command: &mut Command, place: &Place) {
        if self.is_encrypted {
            command
                .env("SSL_CERT_FILE", place.dir.join("tls/cert.pem"))
                .env("DOCKER_CONFIG", &self.logins)
                .env("REGISTRY_AUTH_FILE", self.logins.join("config.json"));
        }
    }
}

/// Makes a folder and its parents.
pub(super) fn make(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).at("create", folder)
}
