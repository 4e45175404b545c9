//! Facts about an image behind a URL: what its first start would wait for.
//!
//! The image is opened as a mount opens it, with an empty cache, and its requests are looked at. What is fetched is verified as in a
//! mount. Statements that nothing verifies here are named as such.

use super::fact::Fact;
use crate::image::{container, read};
use crate::requests::{Request, Requests};
use crate::units::{counted, size};
use serde_json::{Value, json};
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;
use tuff_erofs::read::{Image, StartList};
use tuff_erofs::serve::{Profile, StoreRange};
use tuff_erofs::{Error, Result};
use tuff_open::{CacheOptions, Container, ImageRef, OpenOptions, RemoteImage};
use tuff_store::ReadAt;

/// Time after which a part cannot be fetched.
const FETCH_TIMEOUT: Duration = Duration::from_secs(10);

/// Bytes of the image that are read to measure the bandwidth. Unit: bytes.
const SAMPLE: usize = 2 << 20;

/// Result of the examination: facts, and the numbers of the first start.
pub(super) struct Examined {
    pub(super) facts: Vec<Fact>,
    numbers: Value,
}

impl Examined {
    pub(super) fn to_json(&self) -> Value {
        let mut object = self.numbers.clone();
        object["facts"] = self.facts.iter().map(Fact::to_json).collect();
        object
    }
}

/// Cache of an examination, removed on drop.
struct Cache(PathBuf);

impl Cache {
    fn new() -> Result<Self> {
        let dir = format!("tuff-doctor-cache-{}", std::process::id());
        let dir = std::env::temp_dir().join(dir);
        let failed = |e| Error::io(dir.display(), "cannot create", e);
        // Fails if there is anything: a file of another user stays.
        fs::create_dir(&dir).map_err(failed)?;
        let this = Self(dir.clone());
        fs::set_permissions(&dir, Permissions::from_mode(0o700)).map_err(failed)?;
        Ok(this)
    }
}

impl Drop for Cache {
    fn drop(&mut self) {
        // A failure leaves it in the directory of temporary files.
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Requests of the start, in numbers.
struct Start {
    requests: Requests,
    /// Requests each of which began after the end of the one before: as many as possible.
    chain: Vec<Request>,
}

impl Start {
    fn examine(image: &RemoteImage) -> Self {
        let requests = Requests::parse(&image.requests(usize::MAX)).unwrap_or_default();
        Self {
            chain: chain(&requests.list),
            requests,
        }
    }

    fn bytes(&self) -> u64 {
        self.requests.sum().bytes
    }
}

/// Longest chain of requests each of which began after the end of the one before.
fn chain(requests: &[Request]) -> Vec<Request> {
    let mut by_end: Vec<&Request> = requests.iter().filter(|r| r.end.is_some()).collect();
    let end = |request: &Request| request.end.unwrap_or(f64::MAX);
    by_end.sort_by(|a, b| end(a).total_cmp(&end(b)));
    let mut chain: Vec<Request> = Vec::new();
    for request in by_end {
        if chain.last().is_none_or(|last| request.start >= end(last)) {
            chain.push(request.clone());
        }
    }
    chain
}

/// Examines the image at a URL.
///
/// # Errors
/// Errors of opening the image, each with one sentence.
pub(super) fn examine(reference: &ImageRef) -> Result<Examined> {
    if !reference.is_network() {
        return Err(Error::usage(format_args!(
            "{reference}: doctor examines images behind URLs; for a file use tuff info and tuff check"
        )));
    }
    let cache = Cache::new()?;
    let options = OpenOptions {
        cache: CacheOptions {
            dir: Some(cache.0.clone()),
            fetch_timeout: Some(FETCH_TIMEOUT),
            ..CacheOptions::default()
        },
        ..OpenOptions::default()
    };
    let opened = container(reference, &options)?;
    let image = read(&opened)?;
    let remote = opened
        .remote()
        .ok_or_else(|| Error::usage("bug: a URL without a remote image"))?;
    let start = Start::examine(remote);
    let list = StartList::read(&image);
    let stated = remote.stated_profile();
    let is_stated = stated.is_some();
    let profile = match stated {
        Some((text, true)) => Ok(Some(text)),
        _ => remote.profile(),
    };
    let statements = remote.statements();
    if start.bytes() < SAMPLE as u64 {
        // The first requests may be too small. A failure comes again in a mount.
        let _ = remote.read_at(&mut vec![0; SAMPLE], 0);
    }
    let all = Start::examine(remote);
    let (round_trip, bandwidth) = remote.measured();
    let facts = vec![
        before_mount(&start, round_trip, bandwidth),
        link(round_trip, bandwidth),
        ranges(&all.requests.list),
        metadata(&statements),
        verification(&opened, &statements),
        signature(&statements),
        start_list(&list, &remote.stated_start()),
        profile_fact(&profile, is_stated, &image),
    ];
    let list_bytes = match &list {
        Ok(Some(list @ StartList::Known { .. })) => Some((list.ranges().len(), list.bytes())),
        _ => None,
    };
    let profile_bytes = profile.as_ref().ok().and_then(Option::as_ref);
    let statements = statements.ok();
    let numbers = json!({
        "round_trips": start.chain.len(),
        "requests": start.requests.sum().requests,
        "bytes": start.bytes(),
        "round_trip_ms": round_trip.map(|time| time.as_secs_f64() * 1e3),
        "bytes_per_second": bandwidth,
        "whole_answers": whole_answers(&all.requests.list),
        "images": statements.as_ref().map(|s| s.images),
        "stated_metadata": statements.as_ref().map(|s| s.with_metadata),
        "signatures": statements.as_ref().map(|s| s.signatures),
        "list_entries": list_bytes.map(|(entries, _)| entries),
        "list_bytes": list_bytes.map(|(_, bytes)| bytes),
        "profile_bytes": profile_bytes.map(Vec::len),
    });
    Ok(Examined { facts, numbers })
}

fn before_mount(start: &Start, round_trip: Option<Duration>, bandwidth: Option<u64>) -> Fact {
    let fact = Fact::about("before-mount", "requests that a mount waits for");
    let mut steps: Vec<(&str, u64)> = Vec::new();
    for request in &start.chain {
        match steps.last_mut() {
            Some((reason, count)) if *reason == request.reason => *count += 1,
            _ => steps.push((request.reason, 1)),
        }
    }
    let steps: Vec<String> = steps
        .iter()
        .map(|(reason, count)| format!("{count} {reason}"))
        .collect();
    let mut found = format!(
        "{} one after another ({}), {} in all, {}",
        counted(start.chain.len(), "round trip"),
        steps.join(", "),
        counted(start.requests.sum().requests, "request"),
        size(start.bytes())
    );
    if let (Some(round_trip), Some(bandwidth)) = (round_trip, bandwidth.filter(|b| *b > 0)) {
        let trips = start.chain.len() as f64 * round_trip.as_secs_f64();
        let time = trips + start.bytes() as f64 / bandwidth as f64;
        found += &format!(", about {time:.2} s without connecting");
    }
    fact.ok(found)
}

fn link(round_trip: Option<Duration>, bandwidth: Option<u64>) -> Fact {
    let fact = Fact::about("link", "pace of the server, by these requests");
    let trip = match round_trip {
        Some(time) => format!("a round trip takes {:.1} ms", time.as_secs_f64() * 1e3),
        None => "no round trip was measured".to_owned(),
    };
    match bandwidth {
        Some(bandwidth) => fact.ok(format!("{trip}, and {} arrive per second", size(bandwidth))),
        None => fact.ok(format!(
            "{trip}; the image is too small to measure the bandwidth"
        )),
    }
}

/// Number of answers with a whole object to requests for ranges.
fn whole_answers(requests: &[Request]) -> usize {
    let is_whole = |r: &&Request| r.range.is_some() && r.status == Some(200);
    requests.iter().filter(is_whole).count()
}

fn ranges(requests: &[Request]) -> Fact {
    let fact = Fact::about("ranges", "reading a part of the image");
    let parts = requests.iter().filter(|r| r.status == Some(206)).count();
    match whole_answers(requests) {
        0 => fact.ok(format!(
            "the server answers {} with the range (206)",
            counted(parts, "request")
        )),
        whole => fact.limited(
            format!(
                "{whole} of {} for ranges got the whole object (200), as from a mirror that has no copy yet",
                counted(whole + parts, "request")
            ),
            "wait until the mirror has its copy, or name a server that supports ranges",
        ),
    }
}

type Statements = Result<tuff_remote::Statements>;

fn metadata(statements: &Statements) -> Fact {
    let fact = Fact::about("metadata", "one round trip for first bytes and metadata");
    match statements {
        Err(e) => fact.limited(e.to_string(), "try again"),
        Ok(s) if !s.is_registry => fact.ok("no manifest: the superblock tells the place"),
        Ok(s) if s.with_metadata == s.images => fact.ok("the manifest states the place"),
        Ok(s) => fact.limited(
            format!(
                "the manifest states the place for {} of {}",
                s.with_metadata,
                counted(s.images, "image")
            ),
            "push the image again with tuff push",
        ),
    }
}

fn verification(opened: &Container, statements: &Statements) -> Fact {
    let fact = Fact::about("verification", "verifying parts while they are fetched");
    let tree = "build the image with --verity, and push it again";
    match statements {
        Err(e) => return fact.limited(e.to_string(), "try again"),
        Ok(s) if s.is_registry && s.with_root == s.images => {
            return fact.ok("by the root hash that the manifest states");
        }
        Ok(s) if s.is_registry && s.with_root + s.with_index == s.images => {
            return fact.ok("by root hashes and chunk indexes that the manifest states");
        }
        Ok(s) if s.is_registry => {
            let without = s.images.saturating_sub(s.with_root + s.with_index);
            return fact.limited(
                format!("{} cannot be verified in parts", counted(without, "image")),
                tree,
            );
        }
        Ok(_) => {}
    }
    match opened.tree_if_any() {
        Ok(Some(_)) => fact.limited(
            "a hash tree follows the image, and nothing names its root hash",
            "give it with --root-hash, or a certificate with --trust",
        ),
        Ok(None) => fact.limited("there is no hash tree", tree),
        Err(e) => fact.limited(e.to_string(), tree),
    }
}

fn signature(statements: &Statements) -> Fact {
    let fact = Fact::about("signature", "--trust");
    match statements {
        Err(e) => fact.limited(e.to_string(), "try again"),
        Ok(s) if s.signatures > 0 => fact.ok(format!(
            "{} of the root hash, not verified here",
            counted(s.signatures, "signature")
        )),
        Ok(_) => fact.limited("none", "tuff push --sign KEY,CERT"),
    }
}

fn start_list(list: &Result<Option<StartList>>, stated: &[StoreRange]) -> Fact {
    let fact = Fact::about("start-list", "fetching what the start of the command reads");
    let advice = "build the image with --start-with PATH";
    match list {
        Ok(Some(list)) => match list.skipped() {
            Some(why) => fact.limited(why.to_string(), "use a newer tuff"),
            None => fact.ok(format!(
                "{} with {}",
                counted(list.ranges().len(), "range"),
                size(list.bytes())
            )),
        },
        Ok(None) if !stated.is_empty() => fact.ok(format!(
            "{} with {} in the manifest",
            counted(stated.len(), "range"),
            size(sum(stated))
        )),
        Ok(None) => fact.limited("none", advice),
        Err(e) => fact.limited(e.to_string(), advice),
    }
}

fn sum(ranges: &[StoreRange]) -> u64 {
    let lens = ranges
        .iter()
        .map(|of| of.range.end.saturating_sub(of.range.start));
    lens.fold(0, u64::saturating_add)
}

/// `is_stated`: the manifest has the profile, or its beginning.
fn profile_fact(profile: &Result<Option<Vec<u8>>>, is_stated: bool, image: &Image) -> Fact {
    let fact = Fact::about("profile", "fetching what a program has read before");
    let advice =
        "record one with tuff mount --record, and push it with --profile or as URL.profile";
    let text = match profile {
        Ok(Some(text)) => text,
        Ok(None) => return fact.limited("none", advice),
        Err(e) => return fact.limited(e.to_string(), advice),
    };
    match Profile::parse(text) {
        Ok(profile) => {
            let ranges = profile.physical_ranges(image);
            let place = if is_stated { ", in the manifest" } else { "" };
            fact.ok(format!(
                "{} that name {} of the image{place}",
                size(text.len() as u64),
                size(sum(&ranges))
            ))
        }
        Err(e) => fact.limited(e.to_string(), advice),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(reason: &'static str, start: f64, end: f64) -> Request {
        Request {
            start,
            first: Some(end),
            end: Some(end),
            reason,
            url: String::new(),
            digest: None,
            range: None,
            status: Some(200),
            bytes: 0,
            used: None,
        }
    }

    #[test]
    fn requests_at_once_are_one_round_trip() {
        let requests = [
            request("manifest", 0.0, 20.0),
            request("login", 20.0, 40.0),
            request("manifest", 40.0, 60.0),
            request("first", 61.0, 90.0),
            request("first", 61.5, 85.0),
            request("first", 61.7, 120.0),
        ];
        let reasons: Vec<_> = chain(&requests).iter().map(|r| r.reason).collect();
        assert_eq!(reasons, ["manifest", "login", "manifest", "first"]);
    }

    #[test]
    fn whole_answers_to_ranges_are_counted() {
        let mut whole = request("first", 0.0, 1.0);
        assert_eq!(whole_answers(&[whole.clone()]), 0);
        whole.range = Some((0, 10));
        let fact = ranges(&[whole]).to_string();
        assert!(
            fact.starts_with("limited") && fact.contains("mirror"),
            "{fact}"
        );
    }
}
