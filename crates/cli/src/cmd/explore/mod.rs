//! `tuff explore`: shows the tree of an image in the terminal, with sizes, extents and previews.
//!
//! ```text
//!   keys ──► app: mode, panes ──► view: a frame of the terminal
//!             │ app.rs pane.rs     view.rs details.rs preview.rs
//!             └► extraction, comparison: in the loop of this file
//! ```

mod app;
mod details;
mod pane;
mod preview;
mod terminal;
#[cfg(test)]
mod tests;
mod view;

use crate::comparison::Comparison;
use crate::image::{OpenArgs, image_ref};
use crate::progress::on_signal;
use app::{App, Request};
use clap::ValueHint;
use pane::Pane;
use ratatui::crossterm::event::{self, Event, KeyCode, KeyEventKind, KeyModifiers};
use std::io::IsTerminal;
use std::path::Path;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::thread;
use std::time::Duration;
use terminal::Screen;
use tuff_erofs::dump::TreeUsage;
use tuff_erofs::extract::{self, Options};
use tuff_erofs::read::Image;
use tuff_erofs::{Error, Place, Result};
use tuff_open::ImageRef;

/// Explore an image in the terminal: sizes, sharing, previews
///
/// Shows the tree of the image with the size, the bytes in the image and the compression of every file and directory.
/// With two images, what is added, changed or removed in NEW-IMAGE is marked. Files can be searched, previewed and
/// extracted; ? shows the keys. Nothing is written except what is extracted.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Image: a file, a block device, or a URL
    #[arg(value_name = "IMAGE", value_parser = image_ref(), value_hint = ValueHint::AnyPath)]
    image: ImageRef,
    /// Newer image to compare it with
    #[arg(value_name = "NEW-IMAGE", value_parser = image_ref(), value_hint = ValueHint::AnyPath)]
    other: Option<ImageRef>,
    #[command(flatten)]
    open: OpenArgs,
}

/// Interval at which the loop looks at background work and signals.
const TICK: Duration = Duration::from_millis(100);
/// The same while the metadata is being read.
const TICK_LOADING: Duration = Duration::from_millis(10);
/// Exit code of a run that a signal or ^C ended.
const STOPPED: u8 = 130;

/// Result of background work.
enum Done {
    Usage(Result<Vec<TreeUsage>>),
    Comparison(Result<Comparison>),
}

pub(crate) fn run(args: &Args) -> Result<ExitCode> {
    if !std::io::stdout().is_terminal() {
        return Err(Error::usage(
            "standard output is not a terminal; 'tuff report IMAGE -o FILE' writes a page, and 'tuff ls -lR IMAGE' a list",
        ));
    }
    let named = std::iter::once(&args.image).chain(&args.other);
    let named: Vec<&ImageRef> = named.collect();
    let mut images = Vec::new();
    for (name, open) in named.iter().zip(args.open.of_each(&named)?) {
        let image = Arc::new(open.open(name)?.into_image());
        image.root().map_err(|e| e.within(Place::file(name)))?;
        images.push(image);
    }
    let names: Vec<String> = named.iter().map(|name| name.to_string()).collect();
    let stop = on_signal();
    let done = start(&images, &names);
    let mut screen = Screen::start()?;
    explore(&mut screen, &images, &names, &done, &stop)
}

/// Reads the metadata of the images in the background, and compares them.
fn start(images: &[Arc<Image>], names: &[String]) -> Receiver<Done> {
    let (send, done) = channel();
    let (background, images, names) = (send.clone(), images.to_vec(), names.to_vec());
    let spawned = thread::Builder::new().spawn(move || work(&images, &names, &background));
    if let Err(e) = spawned {
        let _ = send.send(Done::Usage(Err(Error::io("thread", "cannot start", e))));
    }
    done
}

/// Body of the background thread. If the view has ended, results are dropped.
fn work(images: &[Arc<Image>], names: &[String], send: &Sender<Done>) {
    let usage = |(image, name): (&Arc<Image>, &String)| {
        TreeUsage::collect(image).map_err(|e| e.within(Place::file(name)))
    };
    let usages = images.iter().zip(names).map(usage).collect();
    let _ = send.send(Done::Usage(usages));
    if let ([a, b], [name_a, name_b]) = (images, names) {
        let comparison = Comparison::new((a, name_a), (b, name_b));
        let _ = send.send(Done::Comparison(comparison));
    }
}

/// Runs the view until the user or a signal ends it.
fn explore(
    screen: &mut Screen,
    images: &[Arc<Image>],
    names: &[String],
    done: &Receiver<Done>,
    stop: &Arc<AtomicBool>,
) -> Result<ExitCode> {
    let mut app = App::new(images.len() > 1);
    loop {
        while let Ok(done) = done.try_recv() {
            match done {
                Done::Usage(usages) => {
                    let panes = usages?.into_iter().zip(images).zip(names);
                    let panes = panes.map(|((usage, image), name)| Pane::new(name, image, usage));
                    app.open(panes.collect());
                }
                Done::Comparison(comparison) => app.compared(comparison),
            }
        }
        screen.draw(|frame| view::draw(frame, &mut app))?;
        if stop.load(Relaxed) {
            return Ok(ExitCode::from(STOPPED));
        }
        let tick = match app.pane() {
            Some(_) => TICK,
            None => TICK_LOADING,
        };
        let Some(Event::Key(key)) = next_event(tick)? else {
            continue;
        };
        if key.kind == KeyEventKind::Release {
            continue;
        }
        if is_interrupt(&key) {
            return Ok(ExitCode::from(STOPPED));
        }
        match app.key(key.code) {
            Some(Request::Quit) => return Ok(ExitCode::SUCCESS),
            Some(Request::Extract(paths, target)) => {
                let message = extract(screen, &mut app, paths, &target, stop);
                app.tell(message);
            }
            None => {}
        }
    }
}

fn next_event(wait: Duration) -> Result<Option<Event>> {
    let failed = |e| Error::io("terminal", "cannot read", e);
    match event::poll(wait).map_err(failed)? {
        true => event::read().map(Some).map_err(failed),
        false => Ok(None),
    }
}

/// Returns true for ^C, which a raw terminal delivers as a key.
fn is_interrupt(key: &event::KeyEvent) -> bool {
    key.code == KeyCode::Char('c') && key.modifiers.contains(KeyModifiers::CONTROL)
}

/// Extracts paths of the current image. Esc and ^C stop it. Returns the message about its result.
fn extract(
    screen: &mut Screen,
    app: &mut App,
    paths: Vec<Vec<u8>>,
    target: &Path,
    stop: &Arc<AtomicBool>,
) -> String {
    let Some(image) = app.pane().map(|pane| Arc::clone(&pane.image)) else {
        return String::new();
    };
    let stop_extraction = Arc::new(AtomicBool::new(false));
    let options = Options {
        paths,
        stop: Arc::clone(&stop_extraction),
        ..Options::default()
    };
    let report = extract::extract(&image, target, &options, |totals| {
        let bytes = crate::units::size(totals.bytes);
        app.tell(format!(
            "extracting: {} files, {bytes}; Esc stops",
            totals.files
        ));
        let _ = screen.draw(|frame| view::draw(frame, app));
        let is_stop = match next_event(Duration::ZERO) {
            Ok(Some(Event::Key(key))) => key.code == KeyCode::Esc || is_interrupt(&key),
            _ => false,
        };
        if is_stop || stop.load(Relaxed) {
            stop_extraction.store(true, Relaxed);
        }
    });
    extracted(report, target)
}

/// Message about the result of an extraction.
fn extracted(report: Result<extract::Report>, target: &Path) -> String {
    let target = target.display();
    let report = match report {
        Ok(report) => report,
        Err(Error::Io(_, e)) if e.kind() == std::io::ErrorKind::Interrupted => {
            return format!("extraction to {target} stopped");
        }
        Err(e) => return format!("not extracted: {}", crate::advice::message(&e)),
    };
    let t = &report.totals;
    let files = t.files + t.symlinks + t.specials;
    let noun = if files == 1 { "file" } else { "files" };
    let done = format!("{files} {noun} extracted to {target}");
    let Some(first) = report.problems.first() else {
        return done;
    };
    let problems = report.problems.len() as u64 + report.dropped;
    let what = crate::text::escaped_line(&first.what);
    let path = crate::text::escaped_path(&first.path);
    let problems = crate::units::counted(problems, "problem");
    format!("{done}; {problems}, the first: {path}: {what}")
}
