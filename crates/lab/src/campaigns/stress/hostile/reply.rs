//! Answers of hostile servers: an honest one that faults change.

use tuff_testkit::Rng;
use tuff_testkit::hostile::Step;
use tuff_testkit::http::Answer;

/// Answer to one request.
#[derive(Clone, Debug, Default)]
pub(super) struct Reply {
    pub(super) status: u16,
    headers: Vec<(String, String)>,
    pub(super) body: Vec<u8>,
    /// Value of `Content-Length`. `None`: the length of the body. An empty one leaves the header out.
    pub(super) length: Option<String>,
    /// Steps before the answer.
    pub(super) before: Vec<Step>,
    /// Steps after the answer.
    pub(super) then: Vec<Step>,
}

impl Reply {
    pub(super) fn new(status: u16, body: impl Into<Vec<u8>>) -> Self {
        Self {
            status,
            body: body.into(),
            ..Self::default()
        }
    }

    /// Value of a header.
    pub(super) fn header(&self, name: &str) -> Option<String> {
        let found = self.headers.iter().find(|(known, _)| known == name);
        found.map(|(_, value)| value.clone())
    }

    pub(super) fn remove(&mut self, name: &str) {
        self.headers.retain(|(known, _)| known != name);
    }

    /// Sets a header in place of another value.
    pub(super) fn set(&mut self, name: &str, value: &str) {
        self.remove(name);
        self.headers.push((name.to_owned(), value.to_owned()));
    }

    /// Changes the header `Content-Range`, if there is one.
    pub(super) fn change_range(&mut self, change: impl FnOnce(String) -> String) {
        if let Some(stated) = self.header("Content-Range") {
            self.set("Content-Range", &change(stated));
        }
    }

    /// States another size of the whole object.
    pub(super) fn change_size(&mut self, size: &str) {
        self.change_range(|stated| match stated.split_once('/') {
            Some((range, _)) => format!("{range}/{size}"),
            None => stated,
        });
    }

    /// Answers with the first bytes of the range only.
    pub(super) fn shorten(&mut self, len: usize) {
        let stated = self.header("Content-Range").unwrap_or_default();
        let start = stated.strip_prefix("bytes ").and_then(|rest| {
            let (start, _) = rest.split_once('-')?;
            start.parse::<u64>().ok()
        });
        if let (Some(start), true) = (start, self.body.len() > len) {
            self.body.truncate(len);
            let last = start + len as u64 - 1;
            self.change_range(|stated| match stated.split_once('/') {
                Some((_, size)) => format!("bytes {start}-{last}/{size}"),
                None => stated,
            });
        }
    }

    /// Steps of the answer. `damage` changes some of its bytes.
    pub(super) fn steps(self, is_head: bool, damage: Option<&mut Rng>) -> Vec<Step> {
        let mut head = format!("HTTP/1.1 {} Status\r\n", self.status);
        for (name, value) in &self.headers {
            head += &format!("{name}: {value}\r\n");
        }
        match self.length.as_deref() {
            Some("") => {}
            Some(length) => head += &format!("Content-Length: {length}\r\n"),
            None => head += &format!("Content-Length: {}\r\n", self.body.len()),
        }
        let mut bytes = head.into_bytes();
        bytes.extend_from_slice(b"\r\n");
        if !is_head {
            bytes.extend_from_slice(&self.body);
        }
        let mut then = self.then;
        if let Some(rng) = damage {
            then.extend(spoil(&mut bytes, rng));
        }
        let mut steps = self.before;
        steps.push(Step::Send(bytes));
        steps.extend(then);
        steps
    }
}

impl From<Answer> for Reply {
    fn from(answer: Answer) -> Self {
        Self {
            status: answer.status,
            headers: answer.headers,
            body: answer.body,
            ..Self::default()
        }
    }
}

/// Changes, cuts or repeats parts of an answer, of its beginning more often than of the rest.
fn spoil(bytes: &mut Vec<u8>, rng: &mut Rng) -> Option<Step> {
    for _ in 0..=rng.below(4) {
        let reach = match rng.below(3) {
            0 => bytes.len(),
            _ => bytes.len().min(400),
        };
        if reach == 0 {
            break;
        }
        let at = rng.below(reach);
        let len = (rng.below(20) + 1).min(bytes.len() - at);
        match rng.below(6) {
            0 => bytes[at] ^= 1 << rng.below(8),
            1 => bytes[at] = rng.draw() as u8, // any byte
            2 => drop(bytes.drain(at..at + len)),
            3 => {
                let part = bytes[at..at + len].to_vec();
                bytes.splice(at..at, part);
            }
            4 => {
                const WORDS: [&str; 8] = [
                    "-",
                    "0",
                    "9",
                    "\r\n",
                    "\"",
                    "*",
                    "99999999999999999999",
                    "\u{0}",
                ];
                let word = WORDS[rng.below(WORDS.len())].bytes();
                bytes.splice(at..at, word);
            }
            _ => {
                bytes.truncate(at);
                return Some(Step::Close);
            }
        }
    }
    // A server that has sent less than it stated would wait for the next request.
    Some(Step::Close)
}
