//! Keys of encrypted stores. A store has one key, which is wrapped once for each password and for each key file.
//!
//! ```text
//! password ─ Argon2id (RFC 9106) ─┐
//! key file ─ BLAKE3 derive_key ───┴─► ChaCha20-Poly1305 ─► key of the store ─► keys of objects, see `seal`
//! ```
//!
//! A wrapped key is bound to the identifier of the store. Whoever can write to the store but has no secret can wrap no other key.

use crate::bucket::{Bucket, STORE};
use crate::files::TEXT_MAX;
use crate::seal::{SealKey, cipher, derive, random};
use argon2::{Algorithm, Argon2, Params, Version};
use ring::aead::{Aad, Nonce};
use serde_json::{Value, json};
use std::fmt;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{SystemTime, UNIX_EPOCH};
use tuff_mkfs::{Error, Place, Result};
use zeroize::Zeroizing;

/// Format of encrypted stores: objects as in a bucket, each sealed.
pub(crate) const FORMAT: u64 = 2;
/// Folder of the wrapped keys.
const KEYS: &str = "keys/";
/// Costs of Argon2id for a new password, the second choice of RFC 9106: KiB, passes, lanes.
const COSTS: [u32; 3] = [64 << 10, 3, 4];
/// Highest costs that a stored key may ask for.
const COSTS_MAX: [u32; 3] = [1 << 20, 16, 64];
/// Start of the line of a key file.
const LINE: &str = "tuff-store-key-1";

/// Secret that opens a store.
#[derive(Clone)]
pub enum Secret {
    /// Password, of which only Argon2id makes a key.
    Password(Zeroizing<String>),
    /// The secret of a key file.
    File(KeyFile),
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.kind())
    }
}

impl Secret {
    fn kind(&self) -> &'static str {
        match self {
            Self::Password(_) => "password",
            Self::File(_) => "file",
        }
    }
}

/// Key file of a store.
#[derive(Clone)]
pub struct KeyFile {
    /// Identifier of the store.
    pub store: [u8; 16],
    secret: Zeroizing<[u8; 32]>,
}

impl fmt::Debug for KeyFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "KeyFile of {}", hex::encode(self.store))
    }
}

impl KeyFile {
    /// Makes the secret of a key file.
    ///
    /// # Errors
    /// `Io` if the system gives no random bytes.
    pub fn new(store: [u8; 16]) -> Result<Self> {
        let secret = random().map_err(|e| Error::io(Place::image(), "cannot make a key", e))?;
        Ok(Self {
            store,
            secret: Zeroizing::new(secret),
        })
    }

    /// Name of the key file of a store, below the directory of keys.
    pub fn name(store: [u8; 16]) -> String {
        format!("{}.key", hex::encode(store))
    }

    /// Reads a key file.
    ///
    /// # Errors
    /// `Usage` for a file that is none; `Io` if it cannot be read.
    pub fn read(path: &Path) -> Result<Self> {
        let bytes = crate::files::read(path, TEXT_MAX);
        let bytes = bytes.map_err(|e| Error::io(Place::file(path.display()), "cannot read", e))?;
        let text = Zeroizing::new(String::from_utf8(bytes).unwrap_or_default());
        Self::parse(&text).ok_or_else(|| {
            Error::usage(format_args!(
                "{}: not a key file of a backup store, or damaged",
                path.display()
            ))
        })
    }

    fn parse(text: &str) -> Option<Self> {
        let mut lines = text.lines();
        let line = lines.find(|line| line.starts_with(LINE))?;
        let mut words = line.split_whitespace().skip(1);
        let mut key = Self {
            store: [0; 16],
            secret: Zeroizing::new([0; 32]),
        };
        hex::decode_to_slice(words.next()?, &mut key.store).ok()?;
        hex::decode_to_slice(words.next()?, &mut key.secret[..]).ok()?;
        (words.next()? == key.check()).then_some(key)
    }

    /// Digits by which a wrong digit is found.
    fn check(&self) -> String {
        let check = derive(
            "tuff backup store 2, check of a key file",
            &[&self.store, &self.secret[..]],
        );
        hex::encode(&check[..4])
    }

    /// Makes the file, which only its owner can read, and the directory above it. `place`: where the store is.
    ///
    /// # Errors
    /// `Io`, also if the file exists: a key file is never replaced.
    pub fn write(&self, path: &Path, place: &str) -> Result<()> {
        let store = hex::encode(self.store);
        let secret = Zeroizing::new(hex::encode(&self.secret[..]));
        let text = Zeroizing::new(format!(
            "# Key of a backup store. Keep a copy elsewhere: without a key nothing in the store can be read.\n\
             # store: {}\n{LINE} {store} {} {}\n",
            place.replace(['\n', '\r'], " "),
            *secret,
            self.check()
        ));
        let make = || {
            let parent = path.parent().filter(|path| !path.as_os_str().is_empty());
            let parent = parent.unwrap_or(Path::new("."));
            fs::DirBuilder::new()
                .recursive(true)
                .mode(0o700)
                .create(parent)?;
            let mut file = OpenOptions::new()
                .write(true)
                .create_new(true)
                .mode(0o600)
                .open(path)?;
            let written = file
                .write_all(text.as_bytes())
                .and_then(|()| file.sync_all());
            if written.is_err() {
                let _ = fs::remove_file(path);
            }
            written?;
            File::open(parent)?.sync_all()
        };
        make().map_err(|e| Error::io(Place::file(path.display()), "cannot create", e))
    }

    /// Key files of a directory that name a place: their paths.
    pub fn of_place(directory: &Path, place: &str) -> Vec<PathBuf> {
        let line = format!("# store: {place}");
        let entries = fs::read_dir(directory).into_iter().flatten().flatten();
        let paths = entries.map(|entry| entry.path());
        let is_of = |path: &PathBuf| {
            let text = crate::files::read(path, TEXT_MAX).unwrap_or_default();
            path.extension().is_some_and(|end| end == "key")
                && String::from_utf8_lossy(&text).lines().any(|l| l == line)
        };
        paths.filter(is_of).collect()
    }
}

/// Wrapped key of a store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyEntry {
    /// Name of the wrapped key, by which it is removed.
    pub name: String,
    /// `password` or `file`.
    pub kind: String,
    /// Time at which it was added, as the host had it. Unit: seconds since 1970.
    pub time: i64,
}

/// Key of an encrypted store, which opens its objects.
pub struct StoreKey {
    key: Zeroizing<[u8; 32]>,
    store: [u8; 16],
}

impl fmt::Debug for StoreKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("StoreKey")
    }
}

impl StoreKey {
    pub(crate) fn new(store: [u8; 16]) -> io::Result<Self> {
        Ok(Self {
            key: Zeroizing::new(random()?),
            store,
        })
    }

    /// Key of the objects of the store.
    pub(crate) fn objects(&self) -> SealKey {
        let key = derive("tuff backup store 2, objects", &[&self.key[..]]);
        SealKey::new(key, self.store)
    }

    /// Key of the names of data.
    pub(crate) fn names(&self) -> Zeroizing<[u8; 32]> {
        derive("tuff backup store 2, names of data", &[&self.key[..]])
    }

    /// Identifier of an encrypted store. `None` for one that is not encrypted, and if there is none.
    ///
    /// # Errors
    /// `Io` of the bucket, `Usage` for a store of a newer format.
    pub fn is_needed(bucket: &dyn Bucket) -> Result<Option<[u8; 16]>> {
        let text = match bucket.read(STORE, 0..TEXT_MAX) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            read => read.map_err(|e| failed(bucket, "cannot read", e))?,
        };
        let header: Value = serde_json::from_slice(&text).unwrap_or_default();
        match header["tuff-backup-store"].as_u64() {
            Some(FORMAT) => {}
            Some(newer) if newer > FORMAT => {
                return Err(Error::usage(format_args!(
                    "{}: a backup store of format {newer}; this version of Tuff knows format {FORMAT}",
                    bucket.url()
                )));
            }
            _ => return Ok(None),
        }
        let mut id = [0; 16];
        let digits = header["id"].as_str().unwrap_or_default();
        match hex::decode_to_slice(digits, &mut id) {
            Ok(()) => Ok(Some(id)),
            Err(_) => Err(damaged(bucket, STORE)),
        }
    }

    /// Opens the key of a store with one of the secrets.
    ///
    /// # Errors
    /// `Usage` if no wrapped key is for them; `Io` of the bucket.
    pub fn open(bucket: &dyn Bucket, store: [u8; 16], secret: &Secret) -> Result<Self> {
        let mut is_any = false;
        let mut refused = None;
        for (_, value) in wrapped(bucket)? {
            if value["kind"] != secret.kind() {
                continue;
            }
            is_any = true;
            match unwrap(&value, store, secret) {
                Ok(Some(key)) => return Ok(Self { key, store }),
                Ok(None) => {}
                Err(why) => refused = Some(why),
            }
        }
        let url = bucket.url();
        Err(match (refused, secret) {
            (Some(why), _) => Error::usage(format_args!("{url}: {why}")),
            (None, Secret::Password(_)) if is_any => {
                Error::usage(format_args!("{url}: the password is wrong"))
            }
            (None, Secret::Password(_)) => Error::usage(format_args!(
                "{url}: the store has no password; name a key file"
            )),
            (None, Secret::File(_)) => Error::usage(format_args!(
                "{url}: the key file opens nothing; it was removed from the store, or is of another one"
            )),
        })
    }

    /// Wraps the key for another secret. Returns its name.
    ///
    /// # Errors
    /// `Io` of the bucket; `Usage` for an empty password.
    pub fn add(&self, bucket: &dyn Bucket, secret: &Secret) -> Result<String> {
        if matches!(secret, Secret::Password(password) if password.is_empty()) {
            return Err(Error::usage("the password is empty"));
        }
        let make = || -> io::Result<(String, String)> {
            let salt: [u8; 32] = random()?;
            let name = hex::encode(random::<4>()?);
            let costs = matches!(secret, Secret::Password(_)).then_some(COSTS);
            let wrapping = wrapping(secret, costs, &salt).map_err(io::Error::other)?;
            let mut bytes = self.key.to_vec();
            let nonce = Nonce::assume_unique_for_key([0; 12]);
            let tag = cipher(&wrapping).seal_in_place_separate_tag(
                nonce,
                Aad::from(self.store),
                &mut bytes,
            );
            let tag = tag.map_err(|_| io::Error::other("cannot encrypt it"))?;
            bytes.extend_from_slice(tag.as_ref());
            let time = SystemTime::now().duration_since(UNIX_EPOCH);
            let text = json!({
                "kind": secret.kind(),
                "costs": costs,
                "salt": hex::encode(salt),
                "wrapped": hex::encode(bytes),
                "time": time.map_or(0, |time| time.as_secs()),
            });
            Ok((name, format!("{text:#}\n")))
        };
        let (name, text) = make().map_err(|e| failed(bucket, "cannot make a key", e))?;
        let created = bucket.create(&format!("{KEYS}{name}.json"), text.as_bytes());
        created.map_err(|e| failed(bucket, "cannot add a key", e))?;
        Ok(name)
    }

    /// Wrapped keys of a store, by name. A damaged one has the kind `damaged`.
    ///
    /// # Errors
    /// `Io` of the bucket.
    pub fn list(bucket: &dyn Bucket) -> Result<Vec<KeyEntry>> {
        let keys = wrapped(bucket)?.into_iter().map(|(name, value)| KeyEntry {
            name,
            kind: value["kind"].as_str().unwrap_or("damaged").to_owned(),
            time: value["time"].as_i64().unwrap_or_default(),
        });
        Ok(keys.collect())
    }

    /// Removes a wrapped key, but not the last one.
    ///
    /// # Errors
    /// `Usage` for an unknown name, and for the last key; `Io` of the bucket.
    pub fn remove(bucket: &dyn Bucket, name: &str) -> Result<()> {
        let keys = Self::list(bucket)?;
        if !keys.iter().any(|key| key.name == name) {
            return Err(Error::usage(format_args!(
                "{}: no key {name}; `tuff store key list` shows them",
                bucket.url()
            )));
        }
        if !keys
            .iter()
            .any(|key| key.name != name && key.kind != "damaged")
        {
            return Err(Error::usage(format_args!(
                "{}: {name} is the last key, without which nothing can be read; add another one first",
                bucket.url()
            )));
        }
        let removed = bucket.remove(&format!("{KEYS}{name}.json"));
        removed.map_err(|e| failed(bucket, "cannot remove a key", e))
    }
}

/// True for the names of wrapped keys.
pub(crate) fn is_key(name: &str) -> bool {
    name.starts_with(KEYS)
}

/// Wrapped keys: names and contents, `Null` for what is damaged.
fn wrapped(bucket: &dyn Bucket) -> Result<Vec<(String, Value)>> {
    let listed = bucket
        .list()
        .map_err(|e| failed(bucket, "cannot list", e))?;
    let mut keys = Vec::new();
    for object in listed {
        let name = object.name.strip_prefix(KEYS);
        let Some(name) = name.and_then(|name| name.strip_suffix(".json")) else {
            continue;
        };
        let text = bucket.read(&object.name, 0..TEXT_MAX);
        let text = text.map_err(|e| failed(bucket, "cannot read a key", e))?;
        keys.push((
            name.to_owned(),
            serde_json::from_slice(&text).unwrap_or_default(),
        ));
    }
    Ok(keys)
}

/// Key that wraps that of a store. Errors are sentences.
fn wrapping(
    secret: &Secret,
    costs: Option<[u32; 3]>,
    salt: &[u8; 32],
) -> std::result::Result<Zeroizing<[u8; 32]>, String> {
    match secret {
        Secret::File(file) => Ok(derive(
            "tuff backup store 2, key file",
            &[&file.secret[..], salt],
        )),
        Secret::Password(password) => {
            let costs = costs.filter(|costs| costs.iter().zip(COSTS_MAX).all(|(c, max)| *c <= max));
            let [memory, passes, lanes] =
                costs.ok_or("a wrapped key asks for too much memory or time")?;
            let params = Params::new(memory, passes, lanes, Some(32));
            let params = params.map_err(|_| "a wrapped key has costs that Argon2 does not know")?;
            let mut key = Zeroizing::new([0; 32]);
            Argon2::new(Algorithm::Argon2id, Version::V0x13, params)
                .hash_password_into(password.as_bytes(), salt, &mut key[..])
                .map_err(|e| format!("Argon2: {e}"))?;
            Ok(key)
        }
    }
}

/// Key in a wrapped one. `None` if the secret does not open it. Errors are sentences.
fn unwrap(
    value: &Value,
    store: [u8; 16],
    secret: &Secret,
) -> std::result::Result<Option<Zeroizing<[u8; 32]>>, String> {
    let costs = value["costs"].as_array().and_then(|list| {
        let costs: Vec<u32> = list
            .iter()
            .filter_map(|cost| u32::try_from(cost.as_u64()?).ok())
            .collect();
        costs.try_into().ok()
    });
    let mut salt = [0; 32];
    let mut bytes = [0; 48];
    let text = |key: &str| value[key].as_str().unwrap_or_default();
    let is_read = hex::decode_to_slice(text("salt"), &mut salt).is_ok()
        && hex::decode_to_slice(text("wrapped"), &mut bytes).is_ok();
    if !is_read {
        return Ok(None);
    }
    let wrapping = wrapping(secret, costs, &salt)?;
    let nonce = Nonce::assume_unique_for_key([0; 12]);
    let opened = cipher(&wrapping).open_in_place(nonce, Aad::from(store), &mut bytes);
    let key = opened.ok().and_then(|key| key.first_chunk::<32>().copied());
    Ok(key.map(Zeroizing::new))
}

fn failed(bucket: &dyn Bucket, what: &str, e: io::Error) -> Error {
    Error::io(Place::file(bucket.url()), what, e)
}

fn damaged(bucket: &dyn Bucket, name: &str) -> Error {
    let place = Place::file(format!("{}/{name}", bucket.url()));
    Error::corrupt(place, "not the header of a backup store")
}
