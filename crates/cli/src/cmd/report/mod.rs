//! `tuff report`: writes a page that shows what an image contains, and what lies where.
//!
//! ```text
//!   usage of the tree ──► facts, a JSON object ──► page with tables, diagrams and the same object
//!                          facts.rs tree.rs          page.rs, page.css, page.js
//! ```

mod facts;
mod page;
mod source;
mod tree;

use crate::comparison::Comparison;
use crate::image::{OpenArgs, image_ref};
use crate::out::Out;
use crate::overwrite::Format;
use crate::progress::{Meter, Show};
use crate::sink::Sink;
use clap::ValueHint;
use facts::Facts;
use source::Source;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tuff_erofs::Result;
use tuff_open::ImageRef;

/// Write an HTML page about an image: sizes, sharing, layout
///
/// The page is one file without external resources. It shows the bytes by path, type and purpose, a map of the image, what
/// compression, sharing, fragments and holes save, and with two images what differs from A to B. --profile marks what the
/// recorded programs read. Small files are added up, so the page stays small for images of any size.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Image: a file, a block device, or a URL
    #[arg(value_name = "IMAGE", value_parser = image_ref(), value_hint = ValueHint::AnyPath)]
    image: ImageRef,
    /// Newer image to compare it with
    #[arg(value_name = "NEW-IMAGE", value_parser = image_ref(), value_hint = ValueHint::AnyPath)]
    other: Option<ImageRef>,
    /// Page to write; - is standard output
    #[arg(
        short,
        long,
        value_name = "FILE",
        required_unless_present = "json",
        conflicts_with = "json"
    )]
    output: Option<PathBuf>,
    /// Mark what this access profile names: see tuff mount --record
    #[arg(long, value_name = "FILE")]
    profile: Option<PathBuf>,
    /// Replace an existing FILE that is no report
    #[arg(short, long)]
    force: bool,
    /// Print the data of the page as one JSON object
    #[arg(long)]
    json: bool,
    #[command(flatten)]
    open: OpenArgs,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    let profile = args.profile.as_deref().map(crate::cmd::profile::read);
    let profile = profile.transpose()?;
    // Nothing is read for a page that cannot be written.
    let sink = args.output.as_deref().map(|path| sink(args, path));
    let sink = sink.transpose()?;
    let meter = Meter::start("report", Show::unless(args.json));
    let open = args.open.watched(&meter);
    let mut read: Vec<Source> = Vec::new();
    let images = std::iter::once(&args.image).chain(&args.other);
    let images: Vec<&ImageRef> = images.collect();
    for (image, open) in images.iter().zip(open.of_each(&images)?) {
        read.push(Source::open(image, &open)?);
        // The share of metadata is not known.
        meter.counter().forget_total();
    }
    let mut sources = read.iter();
    let (Some(first), second) = (sources.next(), sources.next()) else {
        return Ok(ExitCode::SUCCESS); // an argument is there
    };
    let comparison = second.map(|second| {
        let names = [first, second].map(|source| source.path.display().to_string());
        Comparison::new((&first.image, &names[0]), (&second.image, &names[1]))
    });
    let comparison = comparison.transpose()?;
    let facts = Facts {
        first,
        second: second.zip(comparison.as_ref()),
        profile: profile.as_ref(),
    };
    let data = facts.json();
    drop(meter);
    match sink {
        Some(mut sink) => {
            let page = page::html(&data);
            let written = sink.write_all(page.as_bytes());
            written.map_err(|e| sink.failed(e))?;
            sink.finish()?;
        }
        None => {
            let mut out = Out::new();
            out.json(&data)?;
            out.finish()?;
        }
    }
    finish(&read)
}

fn sink(args: &Args, path: &Path) -> Result<Sink> {
    let images = std::iter::once(&args.image).chain(&args.other);
    let mut read: Vec<&Path> = images.flat_map(|image| args.open.files(image)).collect();
    read.extend(args.profile.as_deref());
    Sink::create(path, &read, Format::Report, args.force)
}

/// Reports damage in one sentence. The page or object has everything that could be read.
fn finish(read: &[Source]) -> Result<ExitCode> {
    let mut errors = read.iter().flat_map(|source| &source.usage.stats.errors);
    let Some(first) = errors.next() else {
        return Ok(ExitCode::SUCCESS);
    };
    Err(match errors.count() {
        0 => first.again(),
        more => first
            .again()
            .within(format_args!("{} damaged places, the first", more + 1)),
    })
}
