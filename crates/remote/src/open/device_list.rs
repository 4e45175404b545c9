//! List of the devices of an image in a bucket or on a web server: the object `KEY.devices`, in JSON.
//!
//! ```json
//! {"devices": [{"name": "sha256-0123....erofs", "root_hash": "89ab..."}], "root_hash": "cdef..."}
//! ```
//!
//! Devices are objects in the directory of the image, in the order of its device table. Their names are made of their
//! digests, so images that share a device share its object. The last root hash is that of the image.
//!
//! The object `KEY.devices.p7s` is a signature of the SHA-256 of the list. As the list names the image, its devices and their order,
//! signed images and devices cannot be combined in another way.

use crate::beside::{DEVICES, DEVICES_SIGNATURE, SIGNATURE_MAX, file};
use crate::client::json;
use crate::error::{Error, Kind, Result};
use crate::location::Location;
use crate::options::Options;
use crate::registry;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tuff_signature::Certificate;
use tuff_verity::Root;

/// Largest number of devices. Each takes up to four open files.
const DEVICES_MAX: usize = 200;

/// Longest list. Unit: bytes.
const LEN_MAX: usize = 1 << 20;

/// Name of the object of a device with a digest.
pub(crate) fn name(digest: &str) -> String {
    format!("{}.erofs", digest.replace(':', "-"))
}

/// Name of the object that holds the name of the image with a digest, beside it.
pub(crate) fn note_name(digest: &str) -> String {
    format!("{}.key", digest.replace(':', "-"))
}

/// Bytes of the list of devices with these digests and root hashes. `image`: root hash of the image.
pub(crate) fn encode<'a>(
    devices: impl Iterator<Item = (&'a str, Option<&'a Root>)>,
    image: Option<&Root>,
) -> Vec<u8> {
    let digits = |root: Option<&Root>| root.map(hex::encode);
    let entry =
        |(digest, root)| serde_json::json!({"name": name(digest), "root_hash": digits(root)});
    let entries: Vec<Value> = devices.map(entry).collect();
    let list = serde_json::json!({"devices": entries, "root_hash": digits(image)});
    format!("{list}\n").into_bytes()
}

/// Digest of a list, which is signed.
pub(crate) fn digest(list: &[u8]) -> [u8; 32] {
    Sha256::digest(list).into()
}

/// Locations and root hashes of the devices in the list beside an image. Empty if there is no list.
///
/// # Errors
/// `Usage` if the options have a root hash without a certificate, since that covers no devices. `Untrusted` if the certificate
/// has not signed the list.
pub(crate) fn read(
    location: &Location,
    options: &Options,
) -> Result<Vec<(Location, Option<Root>)>> {
    let Some(text) = file(location, DEVICES, LEN_MAX, options)? else {
        return Ok(Vec::new());
    };
    let wrong = || {
        let what = format_args!("the list of devices beside the image ({DEVICES}) is damaged");
        Error::new(Kind::Unsupported, location, what)
    };
    let name = "list of devices beside the image";
    let object = json::parse(&text, &location.to_string(), name)?;
    let entries = object["devices"].as_array().ok_or_else(wrong)?;
    let count = entries.len();
    if count > DEVICES_MAX {
        let what = format_args!(
            "the {name} ({DEVICES}) has {count} devices, and at most {DEVICES_MAX} can be opened"
        );
        return Err(Error::new(Kind::Limit, location, what));
    }
    let device = |entry: &Value| {
        let location = location.with_name(entry["name"].as_str()?)?;
        let root = match &entry["root_hash"] {
            Value::Null => None,
            digits => Some(registry::root(digits.as_str()?)?),
        };
        Some((location, root))
    };
    let devices = entries.iter().map(|entry| device(entry).ok_or_else(wrong));
    let devices: Vec<_> = devices.collect::<Result<_>>()?;
    let Some(root) = options.root_hash.filter(|_| !devices.is_empty()) else {
        return Ok(devices);
    };
    let Some(certificate) = &options.trust else {
        let what = "the root hash does not cover the devices of the image; use --trust, or name an image in a registry by its digest as well (NAME@sha256:...)";
        return Err(Error::new(Kind::Usage, location, what));
    };
    let signature = file(location, DEVICES_SIGNATURE, SIGNATURE_MAX, options)?;
    let is_of_image = object["root_hash"].as_str() == Some(&hex::encode(root));
    let why = match signature {
        None => Some("has no signature (KEY.devices.p7s)"),
        Some(signature) if !certificate.has_signed(&digest(&text), &signature) => {
            Some("has no signature by the certificate")
        }
        Some(_) if !is_of_image => Some("is that of another image"),
        // Bytes of a local file are not verified by a root hash.
        Some(_)
            if devices
                .iter()
                .any(|(at, root)| root.is_none() || at.local_path().is_some()) =>
        {
            Some("names devices that no root hash verifies")
        }
        Some(_) => None,
    };
    match why {
        None => Ok(devices),
        Some(why) => Err(untrusted(location, certificate, why)),
    }
}

fn untrusted(location: &Location, certificate: &Certificate, why: &str) -> Error {
    let by = certificate.place();
    let what = format_args!(
        "the list of devices beside the image {why}, so it is not trusted by {by}; tuff push --sign uploads a signed list"
    );
    Error::new(Kind::Untrusted, location, what)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn a_list_names_objects_beside_the_image_and_nowhere_else() {
        let dir = std::env::temp_dir().join(format!("tuff-device-list-{}", std::process::id()));
        fs::create_dir_all(&dir).unwrap();
        let image = Location::of_file(&dir.join("i"));
        let options = Options::new(dir.join("cache"));
        let read = || read(&image, &options);
        assert!(read().unwrap().is_empty());
        let digest = format!("sha256:{}", "ab".repeat(32));
        let root = [7; 32];
        let list = encode(
            [(digest.as_str(), Some(&root)), (&digest, None)].into_iter(),
            None,
        );
        fs::write(dir.join("i.devices"), &list).unwrap();
        let found = read().unwrap();
        let name = dir.join(format!("sha256-{}.erofs", "ab".repeat(32)));
        assert_eq!(found[0].0.local_path(), Some(&*name));
        assert_eq!([found[0].1, found[1].1], [Some(root), None]);
        for bad in [
            "{",
            "{}",
            r#"{"devices":[{"name":"../x"}]}"#,
            r#"{"devices":[{"name":"a","root_hash":"1"}]}"#,
        ] {
            fs::write(dir.join("i.devices"), bad).unwrap();
            let e = read().unwrap_err();
            assert_eq!(e.kind(), Kind::Unsupported, "{bad}: {e}");
        }
        fs::remove_dir_all(&dir).unwrap();
    }
}
