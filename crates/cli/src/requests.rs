//! Requests for an image behind a URL, as `tuff mount --trace` writes them: a line of JSON each, and a last one with the sums.

use serde_json::{Value, json};

/// Reasons of requests, in the order in which a start has them.
pub(crate) const REASONS: [&str; 11] = [
    "login", "manifest", "first", "tree", "beside", "demand", "ahead", "profile", "list", "near",
    "fill",
];

/// Request to a server.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Request {
    /// Times since the start of the mount: of the request, of the first byte of its answer, and of its end. Unit: milliseconds.
    pub(crate) start: f64,
    pub(crate) first: Option<f64>,
    pub(crate) end: Option<f64>,
    pub(crate) reason: &'static str,
    pub(crate) url: String,
    /// Digest of the object whose range was requested.
    pub(crate) digest: Option<String>,
    /// First byte of the range, and the byte after it.
    pub(crate) range: Option<(u64, u64)>,
    pub(crate) status: Option<u64>,
    /// Bytes of the answer, and those of them in chunks that were read. `None` if the object is no part of the image.
    pub(crate) bytes: u64,
    pub(crate) used: Option<u64>,
}

/// Requests of a start.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Requests {
    pub(crate) list: Vec<Request>,
    /// Later requests, which the trace leaves out.
    pub(crate) omitted_requests: u64,
    pub(crate) omitted_bytes: u64,
}

/// Sum of the requests with one reason.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Sum {
    pub(crate) requests: u64,
    pub(crate) bytes: u64,
    pub(crate) used: u64,
}

impl Requests {
    /// Reads the lines of a trace. Others are none: anybody can write a file, or mount a filesystem of this type. `None` without
    /// the sums.
    pub(crate) fn parse(text: &str) -> Option<Self> {
        let mut this = Self::default();
        let mut has_sums = false;
        for line in text.lines().filter(|line| line.starts_with('{')) {
            let Ok(object) = serde_json::from_str::<Value>(line) else {
                continue;
            };
            if let Some(request) = Request::parse(&object) {
                this.list.push(request);
            } else if let (Some(requests), Some(bytes)) = (
                object["omitted_requests"].as_u64(),
                object["omitted_bytes"].as_u64(),
            ) {
                (this.omitted_requests, this.omitted_bytes) = (requests, bytes);
                has_sums = true;
            }
        }
        has_sums.then_some(this)
    }

    /// Sums by reason, of reasons that occur.
    pub(crate) fn sums(&self) -> Vec<(&'static str, Sum)> {
        let sum = |reason: &&'static str| {
            let of_reason = self.list.iter().filter(|r| r.reason == *reason);
            let sum = of_reason.fold(Sum::default(), Sum::with);
            (sum.requests > 0).then_some((*reason, sum))
        };
        REASONS.iter().filter_map(sum).collect()
    }

    /// Sum of all requests.
    pub(crate) fn sum(&self) -> Sum {
        self.list.iter().fold(Sum::default(), Sum::with)
    }

    /// Form of JSON.
    pub(crate) fn to_json(&self) -> Value {
        let sum = |(reason, sum): (&str, Sum)| {
            json!({
                "reason": reason, "requests": sum.requests, "bytes": sum.bytes, "used_bytes": sum.used,
            })
        };
        json!({
            "requests": self.list.iter().map(Request::to_json).collect::<Vec<_>>(),
            "reasons": self.sums().into_iter().map(sum).collect::<Vec<_>>(),
            "omitted_requests": self.omitted_requests,
            "omitted_bytes": self.omitted_bytes,
        })
    }
}

impl Sum {
    fn with(self, request: &Request) -> Self {
        Self {
            requests: self.requests + 1,
            bytes: self.bytes.saturating_add(request.bytes),
            used: self.used.saturating_add(request.used.unwrap_or(0)),
        }
    }
}

impl Request {
    /// Reads one line. `None` for another one.
    fn parse(object: &Value) -> Option<Self> {
        let time = |key: &str| object[key].as_f64().filter(|ms| (0.0..1e12).contains(ms));
        let reason = object["reason"].as_str()?;
        let range = object["range_start"].as_u64();
        Some(Self {
            start: time("start_ms")?,
            first: time("first_ms"),
            end: time("end_ms"),
            reason: REASONS.iter().find(|known| **known == reason)?,
            url: object["url"].as_str()?.to_owned(),
            digest: object["digest"].as_str().map(str::to_owned),
            range: range.zip(object["range_end"].as_u64()),
            status: object["status"].as_u64(),
            bytes: object["bytes"].as_u64()?,
            used: object["used_bytes"].as_u64(),
        })
    }

    fn to_json(&self) -> Value {
        json!({
            "start_ms": self.start, "first_ms": self.first, "end_ms": self.end, "reason": self.reason,
            "url": self.url, "digest": self.digest, "range_start": self.range.map(|range| range.0),
            "range_end": self.range.map(|range| range.1), "status": self.status, "bytes": self.bytes,
            "used_bytes": self.used,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_are_no_requests_are_left_out() {
        let line = r#"{"start_ms":1.5,"first_ms":null,"end_ms":2.0,"reason":"list","url":"http://h/i","digest":null,"range_start":0,"range_end":9,"status":206,"bytes":9,"used_bytes":4}"#;
        let sums = r#"{"requests":3,"bytes":20,"omitted_requests":2,"omitted_bytes":11}"#;
        let other = line.replace("list", "\\u001b[2J");
        let text = format!("reads 1\n{line}\n{other}\n{{\n{sums}\n");
        let found = Requests::parse(&text).unwrap();
        assert_eq!(found.list.len(), 1);
        assert_eq!(found.list[0].to_json().to_string().len(), line.len());
        let sum = Sum {
            requests: 1,
            bytes: 9,
            used: 4,
        };
        assert_eq!(found.sums(), [("list", sum)]);
        assert_eq!((found.omitted_requests, found.omitted_bytes), (2, 11));
        assert_eq!(Requests::parse("reads 1\n"), None);
    }
}
