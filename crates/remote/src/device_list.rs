//! List of the devices of an image in a bucket or on a web server: the object `KEY.devices`, in JSON.
//!
//! ```json
//! {"devices": [{"name": "sha256-0123....erofs", "root_hash": "89ab..."}]}
//! ```
//!
//! Devices are objects in the directory of the image, in the order of its device table. Their names are made of their
//! digests, so images that share a device share its object.

use crate::beside::{DEVICES, file};
use crate::error::{Error, Kind, Result};
use crate::location::Location;
use crate::registry::{hex, unhex};
use crate::retry::RetryPolicy;
use serde_json::{Value, json};
use tuff_verity::Root;

/// Longest list. Unit: bytes.
const LEN_MAX: usize = 1 << 20;

/// Name of the object of a device with a digest.
pub(crate) fn name(digest: &str) -> String {
    format!("{}.erofs", digest.replace(':', "-"))
}

/// Bytes of the list of devices with these digests and root hashes.
pub(crate) fn encode<'a>(devices: impl Iterator<Item = (&'a str, Option<&'a Root>)>) -> Vec<u8> {
    let entry = |(digest, root): (&str, Option<&Root>)| json!({"name": name(digest), "root_hash": root.map(|root| hex(root))});
    let entries: Vec<Value> = devices.map(entry).collect();
    format!("{}\n", json!({"devices": entries})).into_bytes()
}

/// Locations and root hashes of the devices in the list beside an image. Empty if there is no list.
pub(crate) fn read(
    location: &Location,
    retry: RetryPolicy,
) -> Result<Vec<(Location, Option<Root>)>> {
    let Some(text) = file(location, DEVICES, LEN_MAX, retry)? else {
        return Ok(Vec::new());
    };
    let wrong = || {
        let what = format_args!("the list of devices beside the image ({DEVICES}) is damaged");
        Error::new(Kind::Unsupported, location, what)
    };
    let object: Value = serde_json::from_slice(&text).map_err(|_| wrong())?;
    let entries = object["devices"].as_array().ok_or_else(wrong)?;
    let device = |entry: &Value| {
        let location = location.with_name(entry["name"].as_str()?)?;
        let root = match &entry["root_hash"] {
            Value::Null => None,
            root => Some(unhex(root.as_str()?)?),
        };
        Some((location, root))
    };
    let devices = entries.iter().map(|entry| device(entry).ok_or_else(wrong));
    devices.collect()
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
        let read = || read(&image, RetryPolicy::default());
        assert!(read().unwrap().is_empty());
        let digest = format!("sha256:{}", "ab".repeat(32));
        let root = [7; 32];
        let list = encode([(digest.as_str(), Some(&root)), (&digest, None)].into_iter());
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
