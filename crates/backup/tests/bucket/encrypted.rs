//! Encrypted stores: in a bucket in memory, and in a directory.

use super::{Memory, age, compare, request};
use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use tuff_backup::{
    Bucket, Depth, Folder, KeyFile, Report, Secret, Store, StoreCompression, StoreKey,
};
use tuff_mkfs::{Error, Progress, Result};
use tuff_testkit::Scratch;
use tuff_testkit::content::{noise, text};
use zeroize::Zeroizing;

/// Name and content that nobody may find in an encrypted store.
const NAME: &str = "a-name-that-is-secret";
const CONTENT: &str = "a content that is secret; ";

struct Place {
    scratch: Scratch,
    bucket: Arc<dyn Bucket>,
    file: KeyFile,
}

impl Place {
    fn new(name: &str, bucket: Arc<dyn Bucket>, scratch: Option<Scratch>) -> Self {
        let scratch = scratch.unwrap_or_else(|| Scratch::new(name));
        let source = scratch.path().join("source");
        fs::create_dir(&source).unwrap();
        for n in 0..20 {
            fs::write(source.join(format!("small-{n}")), text(2000 + n, n as u64)).unwrap();
        }
        fs::write(source.join(NAME), CONTENT.repeat(9000)).unwrap();
        fs::write(source.join("noise"), noise(700_000, 1)).unwrap();
        let mut file = None;
        let compression = StoreCompression::default();
        Store::create_encrypted(&*bucket, compression, None, &mut |new| {
            file = Some(new.clone());
            Ok(())
        })
        .unwrap();
        let file = file.unwrap();
        Self {
            scratch,
            bucket,
            file,
        }
    }

    fn in_memory(name: &str) -> (Self, Memory) {
        let memory = Memory::default();
        (Self::new(name, Arc::new(memory.clone()), None), memory)
    }

    fn in_folder(name: &str) -> (Self, PathBuf) {
        let scratch = Scratch::new(name);
        let path = scratch.path().join("store");
        let folder = Arc::new(Folder::new(&path));
        (Self::new(name, folder, Some(scratch)), path)
    }

    fn at(&self, name: &str) -> PathBuf {
        self.scratch.path().join(name)
    }

    fn open_with(&self, host: &str, writes: bool, secret: &Secret) -> Result<Store> {
        let id = StoreKey::is_needed(&*self.bucket)?.unwrap();
        let key = StoreKey::open(&*self.bucket, id, secret)?;
        Store::open_encrypted(self.bucket.clone(), &key, &self.at(host), writes)
    }

    fn try_open(&self, host: &str, writes: bool) -> Result<Store> {
        self.open_with(host, writes, &Secret::File(self.file.clone()))
    }

    fn open(&self, host: &str, writes: bool) -> Store {
        self.try_open(host, writes).unwrap()
    }

    fn backup(&self, host: &str) -> Report {
        let mut store = self.open(host, true);
        let report = store.backup(&request(&self.at("source")), &Progress::default());
        report.unwrap()
    }

    fn compare(&self, host: &str, number: u32) {
        let store = Arc::new(self.open(host, false));
        compare(&self.scratch, &store, number, &self.at("source"));
    }

    fn findings(&self, host: &str) -> Vec<String> {
        let checked = self
            .open(host, false)
            .check(Depth::Data, 2, &Progress::default());
        checked.unwrap().findings
    }

    /// True if a host that knows nothing gets an error or findings. Wrong content fails the test.
    fn is_refused(&self, number: u32) -> bool {
        let host = self.at("stranger");
        let _ = fs::remove_dir_all(&host);
        let Ok(store) = self.try_open("stranger", false) else {
            return true;
        };
        let store = Arc::new(store);
        let checked = store.check(Depth::Data, 1, &Progress::default());
        if checked.map_or(true, |checked| !checked.findings.is_empty()) {
            return true;
        }
        match store.snapshot(number) {
            Ok(_) => compare(&self.scratch, &store, number, &self.at("source")),
            Err(_) => return true,
        }
        false
    }
}

fn has(bytes: &[u8], part: &[u8]) -> bool {
    bytes.windows(part.len()).any(|window| window == part)
}

/// The names of objects of a kind.
fn named(memory: &Memory, end: &str) -> Vec<String> {
    let mut names = memory.names();
    names.retain(|name| name.ends_with(end));
    names
}

fn bytes(memory: &Memory, name: &str) -> Vec<u8> {
    memory.state().objects[name].0.clone()
}

fn set(memory: &Memory, name: &str, bytes: Vec<u8>) {
    let mut state = memory.state();
    state.writes += 1;
    let tag = state.writes;
    let object = state.objects.get_mut(name).unwrap();
    (object.0, object.1) = (bytes, tag);
}

#[test]
fn nothing_in_an_encrypted_store_can_be_read() {
    let (place, memory) = Place::in_memory("sealed-read");
    age();
    assert_eq!(place.backup("h").number, Some(1));
    memory.used();
    let report = place.backup("h");
    assert_eq!((report.number, report.files_read), (Some(2), 0));
    let (requests, read) = memory.used();
    assert!(requests <= 20 && read <= 1_000_000, "{requests}, {read}");
    place.compare("other", 1);
    place.compare("h", 2);
    assert_eq!(place.findings("other"), Vec::<String>::new());
    for name in memory.names() {
        let bytes = bytes(&memory, &name);
        for part in [NAME.as_bytes(), CONTENT.as_bytes(), b"TUFFSEGM", b"series"] {
            assert!(!has(&bytes, part), "{name}");
        }
        let is_sealed = bytes.starts_with(b"TUFFSEAL");
        assert_eq!(
            is_sealed,
            name != "store.json" && !name.starts_with("keys/")
        );
    }
    // A plain store of the same files names its data by a digest that others could compute.
    let plain = Memory::default();
    Store::create_in_bucket(&plain, StoreCompression::default()).unwrap();
    let mut store = Store::open_bucket(Arc::new(plain), &place.at("plain"), true).unwrap();
    place
        .open("h", false)
        .copy_to(&mut store, &[], 1, &Progress::default())
        .unwrap();
    let store = Arc::new(store);
    compare(&place.scratch, &store, 1, &place.at("source"));
}

/// Whoever can write to the store exchanges, mixes, shortens and damages objects.
#[test]
fn exchanged_objects_are_refused() {
    let (place, memory) = Place::in_memory("sealed-exchange");
    place.backup("h");
    fs::write(place.at("source/more"), noise(400_000, 5)).unwrap();
    place.backup("h");
    let state = memory.state().objects.clone();
    let mut cases = 0;
    for end in [".dir", ".json", ".data"] {
        let mut names = named(&memory, end);
        names.retain(|name| !name.starts_with("keys/") && name != "store.json");
        for from in &names {
            for to in names.iter().filter(|to| *to != from) {
                set(&memory, to, bytes(&memory, from));
                assert!(place.is_refused(2), "{from} at {to}");
                memory.state().objects.clone_from(&state);
                cases += 1;
            }
            let whole = bytes(&memory, from);
            for at in [0, 20, 60, whole.len() / 2, whole.len() - 1] {
                let mut damaged = whole.clone();
                damaged[at] ^= 4;
                set(&memory, from, damaged);
                assert!(place.is_refused(2), "{from}, byte {at}");
                set(&memory, from, whole[..at].to_vec());
                assert!(place.is_refused(2), "{from} of {at} bytes");
                cases += 2;
            }
            memory.state().objects.clone_from(&state);
        }
    }
    assert!(cases > 60, "{cases}");
    assert!(!place.is_refused(2));
}

/// A store that is as it was before is noticed by a host that has seen more.
#[test]
fn a_store_that_was_put_back_is_refused() {
    let (place, memory) = Place::in_memory("sealed-back");
    place.backup("h");
    let before = memory.state().objects.clone();
    place.backup("h");
    let after = memory.state().objects.clone();
    memory.state().objects = before;
    let refused = place.try_open("h", true).unwrap_err().to_string();
    assert!(
        refused.contains("snapshot 2, which this host has seen"),
        "{refused}"
    );
    memory.state().objects = after;
    // A snapshot that this host forgets itself is no surprise.
    place.open("h", true).forget(2).unwrap();
    place.open("h", true);
    assert_eq!(place.backup("h").parent, Some(1));
}

/// Salts differ, also where store and host were put back to an earlier state and do the same again.
#[test]
fn no_key_is_used_twice() {
    let (place, memory) = Place::in_memory("sealed-salts");
    let objects = memory.state().objects.clone();
    let mut salts = BTreeSet::new();
    let mut seen = 0;
    for round in 0..3 {
        memory.state().objects.clone_from(&objects);
        let _ = fs::remove_dir_all(place.at("h"));
        place.backup("h");
        place.backup("h");
        for name in memory.names() {
            let bytes = bytes(&memory, &name);
            if bytes.starts_with(b"TUFFSEAL") {
                seen += 1;
                assert!(salts.insert(bytes[16..48].to_vec()), "{name}, {round}");
            }
        }
    }
    assert!(seen >= 12, "{seen}");
}

fn refusal<T>(result: Result<T>) -> String {
    match result {
        Ok(_) => "accepted".to_owned(),
        Err(e) => e.to_string(),
    }
}

#[test]
fn keys_are_added_and_removed() {
    let (place, memory) = Place::in_memory("sealed-keys");
    place.backup("h");
    let data = memory.data();
    let password = |text: &str| Secret::Password(Zeroizing::new(text.to_owned()));
    let key = || {
        let secret = Secret::File(place.file.clone());
        StoreKey::open(&*place.bucket, place.file.store, &secret).unwrap()
    };
    assert!(refusal(place.open_with("h", false, &password("x"))).contains("has no password"));
    let first = StoreKey::list(&memory).unwrap().remove(0).name;
    assert!(refusal(StoreKey::remove(&memory, &first)).contains("is the last key"));
    assert!(refusal(StoreKey::remove(&memory, "none")).contains("no key none"));
    assert!(refusal(key().add(&memory, &password(""))).contains("is empty"));
    key().add(&memory, &password("correct")).unwrap();
    let other = KeyFile::new(place.file.store).unwrap();
    key().add(&memory, &Secret::File(other.clone())).unwrap();
    assert!(refusal(place.open_with("h", false, &password("wrong"))).contains("is wrong"));
    place.open_with("h", false, &password("correct")).unwrap();
    place
        .open_with("other", false, &Secret::File(other))
        .unwrap();
    StoreKey::remove(&memory, &first).unwrap();
    assert!(refusal(place.try_open("h", false)).contains("opens nothing"));
    place.open_with("h", true, &password("correct")).unwrap();
    assert_eq!(memory.data(), data);
    // Costs are claims of whoever can write to the store.
    let mut names = named(&memory, ".json");
    names.retain(|name| name.starts_with("keys/"));
    let texts = names
        .iter()
        .map(|name| (name, String::from_utf8(bytes(&memory, name)).unwrap()));
    let with_costs = |(_, text): &(_, String)| text.contains("\"costs\": [");
    let (name, text) = texts.clone().find(with_costs).unwrap();
    let (start, rest) = text.split_once("\"costs\": [").unwrap();
    let (_, end) = rest.split_once(']').unwrap();
    for costs in [
        "4294967295, 3, 4",
        "65536, 4000000000, 4",
        "65536, 3, 16777215",
        "1, 2",
        "",
    ] {
        let text = format!("{start}\"costs\": [{costs}]{end}");
        set(&memory, name, text.into_bytes());
        let refused = refusal(place.open_with("h", false, &password("correct")));
        assert!(refused.contains("too much memory or time"), "{refused}");
    }
}

/// A key of one store, wrapped or not, opens no other, and a header with another identifier is refused.
#[test]
fn keys_belong_to_one_store() {
    let (a, memory_a) = Place::in_memory("sealed-a");
    let (b, memory_b) = Place::in_memory("sealed-b");
    a.backup("h");
    let name = named(&memory_a, ".json").remove(0);
    assert!(name.starts_with("keys/"));
    memory_b.state().objects.clear();
    memory_b
        .state()
        .objects
        .clone_from(&memory_a.state().objects);
    let secret = Secret::File(b.file.clone());
    assert!(refusal(b.open_with("h", false, &secret)).contains("opens nothing"));
    let header = String::from_utf8(bytes(&memory_a, "store.json")).unwrap();
    let id = |file: &KeyFile| format!("{:032x}", u128::from_be_bytes(file.store));
    let header = header.replace(&id(&a.file), &id(&b.file));
    set(&memory_a, "store.json", header.into_bytes());
    assert!(refusal(a.try_open("h", false)).contains("opens nothing"));
}

/// B24: a key file is never replaced, whatever becomes of the store.
#[test]
fn b24_a_key_file_is_never_replaced() {
    let scratch = Scratch::new("sealed-b24");
    let path = scratch.path().join("keys/a.key");
    let file = KeyFile::new([7; 16]).unwrap();
    file.write(&path, "/somewhere").unwrap();
    let text = fs::read(&path).unwrap();
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!((mode(&path), mode(path.parent().unwrap())), (0o600, 0o700));
    let again = KeyFile::new([7; 16]).unwrap();
    let refused = again.write(&path, "/somewhere").unwrap_err();
    assert!(matches!(refused, Error::Io(..)), "{refused}");
    assert_eq!(fs::read(&path).unwrap(), text);
    assert_eq!(KeyFile::read(&path).unwrap().store, [7; 16]);
    let found = KeyFile::of_place(path.parent().unwrap(), "/somewhere");
    assert_eq!(found, std::slice::from_ref(&path));
    // A wrong digit is found.
    let text = String::from_utf8(text).unwrap();
    let at = text.rfind("0707 ").unwrap() + 9;
    let digit = if text.as_bytes()[at] == b'0' {
        "1"
    } else {
        "0"
    };
    let mut wrong = text.clone();
    wrong.replace_range(at..=at, digit);
    fs::write(&path, wrong).unwrap();
    assert!(refusal(KeyFile::read(&path)).contains("not a key file"));
    // A store that cannot keep its key is not made.
    let memory = Memory::default();
    let compression = StoreCompression::default();
    let made = Store::create_encrypted(&memory, compression, None, &mut |new| {
        new.write(&path, "/somewhere")
    });
    assert!(made.is_err());
    assert_eq!(memory.names(), Vec::<String>::new());
}

#[test]
fn a_directory_holds_an_encrypted_store() {
    let (place, path) = Place::in_folder("sealed-folder");
    place.backup("h");
    fs::write(place.at("source/more"), noise(300_000, 7)).unwrap();
    place.backup("h");
    place.compare("other", 2);
    let refused = refusal(Store::open(&path));
    assert!(refused.contains("an encrypted backup store"), "{refused}");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o700);
    fs::remove_file(place.at("source/noise")).unwrap();
    place.backup("h");
    let store = place.open("h", true);
    let refused = refusal(place.try_open("other", true));
    assert!(refused.contains("another run writes"), "{refused}");
    drop(store);
    let used = || -> u64 {
        let segments = fs::read_dir(path.join("segments")).unwrap();
        segments
            .map(|entry| entry.unwrap().metadata().unwrap().len())
            .sum()
    };
    let before = used();
    place.open("h", true).forget(1).unwrap();
    place.open("h", true).forget(2).unwrap();
    let mut store = place.open("h", true);
    // A snapshot that is in use keeps its space until it is not.
    let snapshot = store.snapshot(3).unwrap();
    let pin = store.pin(&snapshot).unwrap();
    let pruned = store.prune(1, &Progress::default()).unwrap();
    assert!(
        pruned.wait.is_some() && pruned.freed_bytes == 0,
        "{pruned:?}"
    );
    drop(pin);
    let pruned = store.prune(1, &Progress::default()).unwrap();
    assert!(
        pruned.wait.is_none() && pruned.freed_bytes > 650_000,
        "{pruned:?}"
    );
    drop(store);
    assert!(before - used() >= pruned.freed_bytes);
    place.compare("h", 3);
    place.compare("other", 3);
    assert_eq!(place.findings("h"), Vec::<String>::new());
    // Damage is named, and gives no wrong byte.
    let segments = fs::read_dir(path.join("segments")).unwrap();
    let data = segments.map(|entry| entry.unwrap().path());
    let mut data: Vec<_> = data
        .filter(|path| path.extension().is_some_and(|e| e == "data"))
        .collect();
    data.sort();
    let mut bytes = fs::read(&data[0]).unwrap();
    let middle = bytes.len() / 2;
    bytes[middle] ^= 1;
    fs::write(&data[0], bytes).unwrap();
    assert!(place.is_refused(3));
    assert!(
        place
            .findings("h")
            .iter()
            .any(|line| line.contains("damaged"))
    );
    // Files that are not of the store are left alone.
    fs::write(path.join("a note"), b"x").unwrap();
    fs::create_dir(path.join("lost+found")).unwrap();
    std::thread::sleep(Duration::from_millis(20));
    assert!(place.try_open("third", false).is_ok());
}
