//! Faults of hostile servers, from the table `faults.toml`.

use super::reply::Reply;
use serde::Deserialize;
use std::sync::LazyLock;
use std::time::Duration;
use tuff_testkit::hostile::Step;

/// Kind of server that a URL names.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Source {
    /// Web server, with a password and a secret query in the URL.
    Web,
    /// Registry with a token service.
    Registry,
    /// Bucket, with a session token.
    Bucket,
    /// Registry that an image is uploaded to.
    Upload,
    /// Bucket that an image is uploaded to.
    BucketUpload,
}

impl Source {
    /// Returns true if an image is uploaded.
    pub(super) fn is_upload(self) -> bool {
        matches!(self, Self::Upload | Self::BucketUpload)
    }
}

/// Place of a fault among the answers.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Kind {
    /// Manifest, as a template.
    Manifest(String),
    /// Value of `WWW-Authenticate`, as a template. Without another fault, the service gives a token that is good.
    Challenge(String),
    /// Answer of the token service: status and body, as a template.
    Token(u16, String),
    /// Changes of the answer of the token service.
    TokenChange(Vec<Change>),
    /// Redirects: place of the request, status, target as a template.
    Redirect(Place, u16, String),
    /// Changes of the answer with bytes of the image.
    Object(Vec<Change>),
    /// Changes of the answer to the first request for a manifest.
    Document(Vec<Change>),
    /// Status and place that the registry names for the next part of an upload.
    Upload(u16, String),
    /// Answer that refuses: status, body.
    Refusal(u16, String),
}

/// Requests that are redirected.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Place {
    Object,
    Manifest,
    Token,
    Upload,
}

/// Fault of a server, and whether the verb must succeed.
#[derive(Deserialize)]
pub(super) struct Fault {
    pub(super) name: String,
    pub(super) source: Source,
    #[serde(flatten)]
    pub(super) kind: Kind,
    /// True if the answer is right, although unusual: the verb must succeed.
    #[serde(default)]
    pub(super) is_right: bool,
    /// True if the verb waits for its deadline.
    #[serde(default)]
    pub(super) is_slow: bool,
}

/// Change of an answer.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Change {
    Status(u16),
    /// Sets a header.
    Set(String, String),
    /// Removes a header.
    Remove(String),
    /// Value of `Content-Length`. An empty one leaves the header out.
    Length(String),
    /// States the length of the body, this much longer.
    Stated(usize),
    Body(String),
    /// Adds bytes to the body.
    Extend(usize),
    /// Removes the second half of the body.
    Halve,
    /// Changes bits of all bytes of the body.
    Flip,
    /// Fills the body with zeros.
    Zero,
    /// Answers with this many bytes of the range.
    Shorten(usize),
    /// Replaces a part of the header `Content-Range`.
    Range(String, String),
    /// States another size of the whole object.
    Size(String),
    /// Adds headers.
    Headers(usize),
    /// Sends this many bytes after the answer, one each second.
    Drip(usize),
    Before(Event),
    Then(Event),
    /// Sends more than any memory, without a length.
    Endless,
    /// Waits within the body.
    Stall,
    /// Claims more than any memory, and sends several parts.
    Claim,
}

/// Step before or after an answer.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
pub(super) enum Event {
    Send(String),
    Repeat(String, u64),
    /// Unit: seconds.
    Wait(f64),
    Close,
    Reset,
}

/// Number of repetitions of an answer without an end: 64 KiB each.
const ENDLESS: u64 = 1 << 20;
const STALL: Duration = Duration::from_secs(600);

/// All faults, in the order of the table.
pub(super) static FAULTS: LazyLock<Vec<Fault>> = LazyLock::new(|| {
    #[derive(Deserialize)]
    struct Table {
        fault: Vec<Fault>,
    }
    let table: Table =
        toml::from_str(include_str!("faults.toml")).expect("a table that tests read");
    table.fault
});

impl Event {
    fn step(&self) -> Step {
        match self {
            Self::Send(text) => Step::Send(expand(text).into_bytes()),
            Self::Repeat(text, count) => Step::Repeat(expand(text).into_bytes(), *count),
            Self::Wait(seconds) => Step::Wait(Duration::from_secs_f64(*seconds)),
            Self::Close => Step::Close,
            Self::Reset => Step::Reset,
        }
    }
}

impl Change {
    pub(super) fn apply(&self, reply: &mut Reply) {
        let spaces = |count| Step::Repeat(vec![b' '; 65536], count);
        match self {
            Self::Status(status) => reply.status = *status,
            Self::Set(name, value) => {
                let range = reply.header("Content-Range").unwrap_or_default();
                reply.set(name, &expand(value).replace("{RANGE}", &range));
            }
            Self::Remove(name) => reply.remove(name),
            Self::Length(length) => reply.length = Some(length.clone()),
            Self::Stated(more) => reply.length = Some((reply.body.len() + more).to_string()),
            Self::Body(text) => reply.body = expand(text).into_bytes(),
            Self::Extend(count) => reply.body.extend(vec![7; *count]),
            Self::Halve => reply.body.truncate(reply.body.len() / 2),
            Self::Flip => reply.body.iter_mut().for_each(|byte| *byte ^= 0x55),
            Self::Zero => reply.body.fill(0),
            Self::Shorten(length) => reply.shorten(*length),
            Self::Range(from, to) => reply.change_range(|range| range.replace(from, to)),
            Self::Size(size) => reply.change_size(size),
            Self::Headers(count) => {
                (0..*count).for_each(|number| reply.set(&format!("X-{number}"), "x"));
            }
            Self::Drip(count) => {
                let one = [Step::Send(vec![0]), Step::Wait(Duration::from_secs(1))];
                reply
                    .then
                    .extend(std::iter::repeat_n(one, *count).flatten());
            }
            Self::Before(event) => reply.before.push(event.step()),
            Self::Then(event) => reply.then.push(event.step()),
            Self::Endless => {
                reply.length = Some(String::new());
                reply.remove("Content-Range");
                reply.status = 200;
                reply.then.extend([spaces(ENDLESS), Step::Close]);
            }
            Self::Stall => {
                reply.length = Some(reply.body.len().to_string());
                reply.body.truncate(reply.body.len() / 2);
                reply.then.extend([Step::Wait(STALL), Step::Close]);
            }
            Self::Claim => {
                reply.length = Some("10000000000000".to_owned());
                reply.then.extend([spaces(4), Step::Close]);
            }
        }
    }
}

/// Replaces `«TEXT*N»` by N times TEXT, inner ones first.
pub(super) fn expand(text: &str) -> String {
    let mut text = text.to_owned();
    while let Some((head, tail)) = text.split_once('»')
        && let Some((before, repeated)) = head.rsplit_once('«')
        && let Some((part, count)) = repeated.rsplit_once('*')
    {
        let count = count.parse().expect("a number of repetitions");
        text = [before, &part.repeat(count), tail].concat();
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_is_read_and_its_repetitions_are_expanded() {
        assert!(FAULTS.len() >= 213, "{} faults", FAULTS.len());
        assert_eq!(expand("a«b«c*2»*2»d"), "abccbccd");
    }
}
