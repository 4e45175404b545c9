//! References to images: a path, or a URL that is parsed once.

use std::convert::Infallible;
use std::fmt;
use std::path::{Path, PathBuf};
use std::str::FromStr;
#[cfg(feature = "remote")]
use std::sync::Arc;

/// Reference to an image: what a user or a program names it by.
///
/// Its text form has no credentials.
#[derive(Clone, Debug)]
pub enum ImageRef {
    /// File or block device.
    Path(PathBuf),
    /// `https://`, `http://`, `s3://`, `oci://`, `docker://` or `file://`.
    Url(ImageUrl),
}

/// URL of an image. A text that is no URL of an image is an error when it is opened, which does not repeat it.
#[derive(Clone, Debug)]
pub struct ImageUrl {
    is_local: bool,
    #[cfg(feature = "remote")]
    location: Arc<Result<tuff_remote::Location, tuff_remote::Error>>,
}

impl ImageRef {
    /// Path of a file or block device. `None` for a URL.
    pub fn path(&self) -> Option<&Path> {
        match self {
            Self::Path(path) => Some(path),
            Self::Url(_) => None,
        }
    }

    /// URL. `None` for a path.
    pub fn url(&self) -> Option<&ImageUrl> {
        match self {
            Self::Path(_) => None,
            Self::Url(url) => Some(url),
        }
    }

    /// Path, or the URL without credentials, as a name for messages and mounts.
    pub fn name(&self) -> PathBuf {
        match self {
            Self::Path(path) => path.clone(),
            Self::Url(url) => url.to_string().into(),
        }
    }

    /// Returns true if the image is read over a network, which `file://` is not.
    pub fn is_network(&self) -> bool {
        self.url().is_some_and(|url| !url.is_local)
    }
}

impl ImageUrl {
    /// Location that the URL names.
    ///
    /// # Errors
    /// `Usage` for a text that names no image.
    #[cfg(feature = "remote")]
    pub fn location(&self) -> Result<&tuff_remote::Location, tuff_remote::Error> {
        (*self.location).as_ref().map_err(Clone::clone)
    }

    fn parse(text: &str) -> Self {
        Self {
            is_local: text.starts_with("file://"),
            #[cfg(feature = "remote")]
            location: Arc::new(tuff_remote::Location::parse(text)),
        }
    }
}

impl From<PathBuf> for ImageRef {
    fn from(path: PathBuf) -> Self {
        let url = path.to_str().filter(|text| has_scheme(text));
        match url.map(ImageUrl::parse) {
            Some(url) => Self::Url(url),
            None => Self::Path(path),
        }
    }
}

impl From<&Path> for ImageRef {
    fn from(path: &Path) -> Self {
        path.to_owned().into()
    }
}

impl FromStr for ImageRef {
    type Err = Infallible;

    fn from_str(text: &str) -> Result<Self, Infallible> {
        Ok(Path::new(text).into())
    }
}

impl fmt::Display for ImageRef {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Path(path) => path.display().fmt(f),
            Self::Url(url) => url.fmt(f),
        }
    }
}

impl fmt::Display for ImageUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        #[cfg(feature = "remote")]
        if let Ok(location) = &*self.location {
            return location.fmt(f);
        }
        // A URL that was not parsed may hold a password anywhere.
        f.write_str("the URL of the image")
    }
}

/// Returns true for a text that begins with a scheme.
fn has_scheme(text: &str) -> bool {
    let scheme = text.split_once("://").map_or("", |(scheme, _)| scheme);
    let is_letter = |c: char| c.is_ascii_lowercase() || c.is_ascii_digit();
    !scheme.is_empty() && scheme.chars().all(is_letter)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_not_urls() {
        for path in ["a.erofs", "/a", "oci:dir", "://", "A://b", "./a://b"] {
            let image: ImageRef = path.parse().unwrap();
            assert_eq!(image.path(), Some(Path::new(path)));
            assert!(!image.is_network());
        }
        for url in ["s3://b/k", "https://h/i", "file:///a"] {
            let image: ImageRef = url.parse().unwrap();
            assert!(image.url().is_some(), "{url}");
            assert_eq!(image.is_network(), !url.starts_with("file"), "{url}");
        }
    }

    #[test]
    fn no_text_form_has_credentials() {
        for url in ["https://user:secret@h/i?key=secret", "https://user:secret@"] {
            let image: ImageRef = url.parse().unwrap();
            let texts = [image.to_string(), format!("{image:?}")];
            assert!(
                texts.iter().all(|text| !text.contains("secret")),
                "{texts:?}"
            );
        }
    }
}
