//! `--start`: the requests of the start of a mount, as a waterfall.

use super::counters::counters;
use crate::out::Out;
use crate::requests::{Request, Requests, Sum};
use crate::units::{counted, size};
use std::fs::File;
use std::io::Read;
use std::path::Path;
use std::process::ExitCode;
use tuff_erofs::{Error, Result};

/// Longest trace that is read. Unit: bytes.
const TRACE_MAX: u64 = 16 << 20;

/// Width of the bars. Unit: columns.
const WIDTH: usize = 40;

/// Shows the start of the mount at `path`, or of the mount that has written the trace `path`.
pub(super) fn run(path: &Path, json: bool) -> Result<ExitCode> {
    let shown = path.display();
    let requests = match std::fs::metadata(path).is_ok_and(|meta| meta.is_file()) {
        true => Requests::parse(&read(path)?).ok_or_else(|| {
            Error::usage(format_args!("{shown}: is no trace of tuff mount --trace"))
        })?,
        false => Requests::parse(&counters(path)?).ok_or_else(|| {
            Error::usage(format_args!(
                "{shown}: its start sent no requests, since the image is not behind a URL"
            ))
        })?,
    };
    let mut out = Out::new();
    match json {
        true => out.json(&requests.to_json())?,
        false => print(&requests, &mut out)?,
    }
    out.finish()
}

fn read(path: &Path) -> Result<String> {
    let failed = |e| Error::io(path.display(), "cannot read", e);
    let file = File::open(path).map_err(failed)?;
    let mut text = Vec::new();
    file.take(TRACE_MAX)
        .read_to_end(&mut text)
        .map_err(failed)?;
    Ok(String::from_utf8_lossy(&text).into_owned())
}

fn print(requests: &Requests, out: &mut Out) -> Result<()> {
    let list = &requests.list;
    let last = list.iter().map(end).fold(1.0, f64::max);
    let title = ("start ms", "end ms", "reason", "bytes", "used");
    let (start, end, reason, bytes, used) = title;
    out.line(format_args!(
        "{start:>9} {end:>9}  {reason:<8} {bytes:>10} {used:>10}  {:<WIDTH$}  request",
        "waiting ., receiving #"
    ))?;
    for request in list {
        out.line(row(request, last))?;
    }
    out.line("")?;
    out.line(format_args!(
        "{reason:<8} {:>8} {bytes:>10} {used:>10}",
        "requests"
    ))?;
    for (reason, sum) in requests.sums() {
        out.line(sum_row(reason, sum))?;
    }
    out.line(sum_row("all", requests.sum()))?;
    if requests.omitted_requests > 0 {
        out.line(format_args!(
            "{} with {} came later and are not shown",
            counted(requests.omitted_requests, "request"),
            size(requests.omitted_bytes)
        ))?;
    }
    Ok(())
}

/// End of a request, as far as it is known.
fn end(request: &Request) -> f64 {
    request
        .end
        .or(request.first)
        .unwrap_or(request.start)
        .max(request.start)
}

fn row(request: &Request, last: f64) -> String {
    let end_ms = request
        .end
        .map_or_else(|| "-".to_owned(), |ms| format!("{ms:.1}"));
    let used = request.used.map_or_else(|| "-".to_owned(), size);
    format!(
        "{:>9.1} {end_ms:>9}  {:<8} {:>10} {used:>10}  {:<WIDTH$}  {}",
        request.start,
        request.reason,
        size(request.bytes),
        bar(request, last),
        what(request)
    )
}

/// Bar of a request in a waterfall that ends at `last`.
fn bar(request: &Request, last: f64) -> String {
    // Fits: a column of the bar.
    let column = |ms: f64| ((ms / last * WIDTH as f64) as usize).min(WIDTH);
    let start = column(request.start).min(WIDTH - 1);
    let end = column(end(request)).max(start + 1);
    let first = request.first.map_or(end, column).clamp(start, end);
    let (before, waiting, receiving) = (" ".repeat(start), first - start, end - first);
    format!("{before}{}{}", ".".repeat(waiting), "#".repeat(receiving))
}

/// Object of a request, its range, and the status of an answer that is no success.
fn what(request: &Request) -> String {
    let mut text = match request.range {
        Some((start, end)) => format!("{start}-{} of {}", end.saturating_sub(1), request.url),
        None => request.url.clone(),
    };
    match request.status {
        Some(200 | 206) => {}
        Some(status) => text += &format!(" (status {status})"),
        None => text += " (no answer)",
    }
    text
}

fn sum_row(name: &str, sum: Sum) -> String {
    format!(
        "{name:<8} {:>8} {:>10} {:>10}",
        sum.requests,
        size(sum.bytes),
        size(sum.used)
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(start: f64, first: Option<f64>, end: Option<f64>) -> Request {
        Request {
            start,
            first,
            end,
            reason: "demand",
            url: "http://h/i".to_owned(),
            digest: None,
            range: Some((0, 10)),
            status: Some(206),
            bytes: 10,
            used: Some(4),
        }
    }

    #[test]
    fn bars_show_the_wait_and_the_answer() {
        let all = |start, first, end| bar(&request(start, first, end), 40.0);
        assert_eq!(all(0.0, Some(2.0), Some(5.0)), "..###");
        assert_eq!(all(3.0, Some(4.0), Some(4.0)), "   .");
        assert_eq!(all(3.0, None, None), "   .");
        // Times that cannot be are no reason to fail.
        assert_eq!(all(50.0, Some(1.0), Some(2.0)).len(), WIDTH);
        assert_eq!(all(0.0, Some(90.0), Some(80.0)).len(), WIDTH);
    }

    #[test]
    fn a_row_names_the_range_and_a_failure() {
        let mut request = request(1.0, Some(2.0), Some(5.0));
        let row = row(&request, 40.0);
        assert!(row.contains("demand") && row.contains("4 B"), "{row}");
        assert!(row.ends_with("0-9 of http://h/i"), "{row}");
        request.status = Some(429);
        assert!(what(&request).ends_with("(status 429)"));
        request.status = None;
        assert!(what(&request).ends_with("(no answer)"));
    }
}
