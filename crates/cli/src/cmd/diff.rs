//! `tuff diff`: compares two images, or an image and a directory.

use crate::image::{OpenArgs, image_ref};
use crate::out::Out;
use crate::progress::{Meter, Show};
use crate::text::{escaped, escaped_path, full_time, or_root, put_bytes};
use clap::ValueHint;
use serde_json::{Map, Value, json};
use std::io::IsTerminal;
use std::process::ExitCode;
use tuff_erofs::diff::{self, Change, Difference, HostTree, Options, Side, Totals};
use tuff_erofs::{Result, THREADS_MAX};
use tuff_open::{ImageRef, OpenImage};
use tuff_store::retry;

/// Compare two images, or an image and a directory
///
/// Prints one line per path: "-" only in A, "+" only in B, "~" different, with the properties that differ and both values.
/// The comparison covers everything that a mount shows: type, mode, owner, time, hard links, device, attributes, link
/// target and content. The last line has the numbers of differences. Of the paths that differ only in their times the first 10 are
/// printed. The exit code is 0 if the trees are equal and 1 if they differ.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// First image or directory
    #[arg(value_name = "A", value_parser = image_ref(), value_hint = ValueHint::AnyPath)]
    a: ImageRef,
    /// Second image or directory
    #[arg(value_name = "B", value_parser = image_ref(), value_hint = ValueHint::AnyPath)]
    b: ImageRef,
    #[command(flatten)]
    open: OpenArgs,
    /// Compare only names, types, contents, link targets and device numbers
    #[arg(short, long)]
    content_only: bool,
    /// Comparing threads (default: the number of CPUs that the process may use)
    #[arg(short = 'j', long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=THREADS_MAX.into()))]
    threads: Option<u16>,
    /// Print nothing; only set the exit code
    #[arg(short, long)]
    quiet: bool,
    /// Print one JSON object per line, the totals last
    #[arg(long, conflicts_with = "quiet")]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let meter = Meter::start("diff", Show::unless(args.quiet || args.json));
    let watched = args.open.watched(&meter);
    let each = watched.of_each(&[&args.a, &args.b])?;
    let mut images = Vec::new();
    for (path, open_args) in [&args.a, &args.b].into_iter().zip(&each) {
        images.push(open(path, open_args)?);
    }
    let (image_b, image_a) = (images.pop().flatten(), images.pop().flatten());
    let mut a = side(&args.a, image_a.as_ref())?;
    let mut b = side(&args.b, image_b.as_ref())?;
    let options = Options {
        content_only: args.content_only,
        threads: args.threads.map_or(0, usize::from),
    };
    let mut printer = Printer::new(args.json, args.quiet);
    // Lines of the output must not be mixed with the line of progress.
    let is_terminal = meter.is_shown() && std::io::stdout().is_terminal();
    let mut print = |path: &[u8], change: &Change| {
        meter.suspend(|| {
            printer.change(path, change)?;
            match is_terminal {
                true => printer.out.flush(),
                false => Ok(()),
            }
        })
    };
    let totals = diff::diff(&mut a, &mut b, &options, &mut print);
    drop(meter);
    printer.finish(&totals?)
}

/// Prints differences as text or as JSON.
pub(crate) struct Printer {
    out: Out,
    is_json: bool,
    is_quiet: bool,
    /// Number of paths of which only the times differ.
    only_time: u64,
}

impl Printer {
    pub(crate) fn new(is_json: bool, is_quiet: bool) -> Self {
        Self {
            out: Out::new(),
            is_json,
            is_quiet,
            only_time: 0,
        }
    }

    /// Prints a path that differs.
    pub(crate) fn change(&mut self, path: &[u8], change: &Change) -> Result<()> {
        if self.is_quiet {
            return Ok(());
        }
        if self.is_json {
            return self.out.json(&change_json(path, change));
        }
        if is_only_time(change) {
            self.only_time += 1;
            if self.only_time > ONLY_TIME_SHOWN {
                return Ok(());
            }
        }
        self.out.line(change_text(path, change))
    }

    /// Prints the totals. Returns the exit code.
    pub(crate) fn finish(mut self, totals: &Totals) -> Result<ExitCode> {
        if self.is_json {
            self.out.json(&totals_json(totals))?;
        } else if !self.is_quiet && !totals.same() {
            summary(totals, self.only_time, &mut self.out)?;
        }
        self.out.finish()?;
        Ok(ExitCode::from(u8::from(!totals.same())))
    }
}

/// Number of paths that are printed although only their times differ, such as those of a copy.
const ONLY_TIME_SHOWN: u64 = 10;

fn is_only_time(change: &Change) -> bool {
    match change {
        Change::Changed(list) => list.iter().all(|d| matches!(d, Difference::Mtime(..))),
        Change::Removed(_) | Change::Added(_) => false,
    }
}

/// Prints the numbers of differences.
fn summary(totals: &Totals, only_time: u64, out: &mut Out) -> Result<()> {
    let hidden = only_time.saturating_sub(ONLY_TIME_SHOWN);
    if hidden > 0 {
        out.line(format_args!(
            "... {hidden} more differ only in their times: --content-only ignores times, --json prints all"
        ))?;
    }
    let times = match only_time {
        0 => String::new(),
        n => format!(" ({n} only in their times)"),
    };
    out.line(format_args!(
        "{} added, {} removed, {} changed{times}, {} compared",
        totals.added, totals.removed, totals.changed, totals.compared
    ))
}

/// Opens the image of one side. Returns `None` for a directory.
fn open(side: &ImageRef, args: &OpenArgs) -> Result<Option<OpenImage>> {
    let meta = side.path().map(|path| retry(|| path.metadata()));
    if meta.is_some_and(|meta| meta.is_ok_and(|m| m.is_dir())) {
        return Ok(None);
    }
    let image = args.open(side)?;
    image.with_devices()?;
    Ok(Some(image))
}

fn side<'a>(side: &ImageRef, image: Option<&'a OpenImage>) -> Result<Side<'a>> {
    match image {
        Some(image) => Ok(Side::Image(image, side.to_string())),
        None => Ok(Side::Host(HostTree::open(&side.name())?)),
    }
}

fn change_text(path: &[u8], change: &Change) -> String {
    match change {
        Change::Removed(kind) => format!("- {} ({})", escaped_path(path), kind.name()),
        Change::Added(kind) => format!("+ {} ({})", escaped_path(path), kind.name()),
        Change::Changed(list) => {
            let list: Vec<String> = list.iter().map(difference_text).collect();
            format!("~ {}: {}", escaped_path(path), list.join(", "))
        }
    }
}

fn difference_text(d: &Difference) -> String {
    let opt = |v: &Option<Vec<u8>>| {
        v.as_ref()
            .map_or("none".to_owned(), |v| format!("\"{}\"", escaped(v)))
    };
    match d {
        Difference::Type(a, b) => format!("type {} -> {}", a.name(), b.name()),
        Difference::Mode(a, b) => format!("mode {a:04o} -> {b:04o}"),
        Difference::Uid(a, b) => format!("owner {a} -> {b}"),
        Difference::Gid(a, b) => format!("group {a} -> {b}"),
        Difference::Mtime(a, b) => format!("time {} -> {}", full_time(*a), full_time(*b)),
        Difference::Nlink(a, b) => format!("links {a} -> {b}"),
        Difference::LinkTo(a, b) => format!("hard link to {} -> {}", opt(a), opt(b)),
        Difference::Size(a, b) => format!("size {a} -> {b}"),
        Difference::Device(a, b) => format!("device {},{} -> {},{}", a.0, a.1, b.0, b.1),
        Difference::Target(a, b) => format!("target \"{}\" -> \"{}\"", escaped(a), escaped(b)),
        Difference::Xattr(name, a, b) => {
            format!("xattr {} {} -> {}", escaped(name), opt(a), opt(b))
        }
        Difference::Content(at) => format!("content from byte {at}"),
        _ => "something else".to_owned(),
    }
}

fn change_json(path: &[u8], change: &Change) -> Value {
    let mut out = Map::new();
    put_bytes(&mut out, "path", or_root(path));
    let (word, more) = match change {
        Change::Removed(kind) => ("removed", ("type", kind.name().into())),
        Change::Added(kind) => ("added", ("type", kind.name().into())),
        Change::Changed(list) => (
            "changed",
            (
                "differences",
                list.iter().map(difference_json).collect::<Vec<_>>().into(),
            ),
        ),
    };
    out.insert("change".into(), word.into());
    out.insert(more.0.into(), more.1);
    Value::Object(out)
}

fn difference_json(d: &Difference) -> Value {
    let time = |t: &(i64, u32)| json!([t.0, t.1]);
    let mut out = Map::new();
    let mut put = |field: &str, a: Value, b: Value| {
        out.insert("field".into(), field.into());
        out.insert("a".into(), a);
        out.insert("b".into(), b);
    };
    match d {
        Difference::Type(a, b) => put("type", a.name().into(), b.name().into()),
        Difference::Mode(a, b) => put("mode", format!("{a:04o}").into(), format!("{b:04o}").into()),
        Difference::Uid(a, b) => put("uid", (*a).into(), (*b).into()),
        Difference::Gid(a, b) => put("gid", (*a).into(), (*b).into()),
        Difference::Mtime(a, b) => put("mtime", time(a), time(b)),
        Difference::Nlink(a, b) => put("nlink", (*a).into(), (*b).into()),
        Difference::Size(a, b) => put("size", (*a).into(), (*b).into()),
        Difference::Device(a, b) => put("device", json!([a.0, a.1]), json!([b.0, b.1])),
        Difference::Content(at) => {
            out.insert("field".into(), "content".into());
            out.insert("at".into(), (*at).into());
        }
        Difference::LinkTo(a, b) => put_both(&mut out, "link", a.as_deref(), b.as_deref()),
        Difference::Target(a, b) => put_both(&mut out, "target", Some(a), Some(b)),
        Difference::Xattr(name, a, b) => {
            put_both(&mut out, "xattr", a.as_deref(), b.as_deref());
            put_bytes(&mut out, "name", name);
        }
        _ => _ = out.insert("field".into(), "other".into()),
    }
    Value::Object(out)
}

fn put_both(out: &mut Map<String, Value>, field: &str, a: Option<&[u8]>, b: Option<&[u8]>) {
    out.insert("field".into(), field.into());
    for (key, value) in [("a", a), ("b", b)] {
        match value {
            Some(value) => put_bytes(out, key, value),
            None => _ = out.insert(key.into(), Value::Null),
        }
    }
}

fn totals_json(t: &Totals) -> Value {
    json!({
        "event": "done", "same": t.same(), "compared": t.compared, "added": t.added, "removed": t.removed,
        "changed": t.changed, "content_bytes": t.content_bytes,
    })
}
