//! State of the view and its reactions to keys.

use super::pane::{Mark, Pane};
use super::preview::Preview;
use crate::comparison::Comparison;
use ratatui::crossterm::event::KeyCode;
use std::path::PathBuf;
use tuff_erofs::Result;
use tuff_erofs::diff::Change;

/// Cells by which a key scrolls names.
const SIDEWAYS: usize = 8;
/// Longest name with all its characters escaped, below the deepest indentation.
const SIDEWAYS_MAX: usize = 1200;

/// Input that keys go to.
pub(super) enum Mode {
    Tree,
    /// Text to search for.
    Search(String),
    /// Directory to extract to.
    Extract(String),
    Preview(Preview),
    Help,
}

/// Work that a key requests.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Request {
    Quit,
    /// Extracts paths of the current image to a directory.
    Extract(Vec<Vec<u8>>, PathBuf),
}

/// State of the view.
pub(super) struct App {
    /// Images that were read. Empty while they are being read.
    panes: Vec<Pane>,
    current: usize,
    pub(super) mode: Mode,
    /// Text of the last search.
    search: String,
    /// Message of the last line.
    pub(super) message: String,
    /// Height of the list in rows, as it was drawn last.
    pub(super) page: usize,
}

impl App {
    /// Returns the state while metadata is being read. `two` states that two images are compared.
    pub(super) fn new(two: bool) -> Self {
        let message = match two {
            true => "comparing the images ...",
            false => "",
        };
        Self {
            panes: Vec::new(),
            current: 0,
            mode: Mode::Tree,
            search: String::new(),
            message: message.to_owned(),
            page: 20,
        }
    }

    /// Shows images, the last one first.
    pub(super) fn open(&mut self, panes: Vec<Pane>) {
        self.current = panes.len().saturating_sub(1);
        if let [pane] = &panes[..] {
            self.message = match &pane.usage.stats.errors[..] {
                [] => String::new(),
                [first, ..] => {
                    let first = crate::text::escaped_line(first);
                    format!("damaged, and what could not be read is missing: {first}")
                }
            };
        }
        self.panes = panes;
    }

    /// Marks the differences of the images.
    pub(super) fn compared(&mut self, comparison: Result<Comparison>) {
        let comparison = match comparison {
            Ok(comparison) => comparison,
            Err(e) => {
                self.message = crate::text::escaped_line(format_args!("not compared: {e}"));
                return;
            }
        };
        let [older, newer] = &mut self.panes[..] else {
            return;
        };
        for (path, change) in &comparison.changes {
            match change {
                Change::Added(_) => newer.mark(path, Mark::Added),
                Change::Removed(_) => older.mark(path, Mark::Removed),
                Change::Changed(_) => {
                    older.mark(path, Mark::Changed);
                    newer.mark(path, Mark::Changed);
                }
            }
        }
        let t = &comparison.totals;
        self.message = format!(
            "{} added, {} removed, {} changed",
            t.added, t.removed, t.changed
        );
    }

    /// Shows a message in the last line.
    pub(super) fn tell(&mut self, message: String) {
        self.message = message;
    }

    /// Returns the image that is shown, and whether there is another one.
    pub(super) fn pane(&self) -> Option<&Pane> {
        self.panes.get(self.current)
    }

    /// Returns the image that is shown.
    pub(super) fn pane_mut(&mut self) -> Option<&mut Pane> {
        self.panes.get_mut(self.current)
    }

    /// Returns true if two images are shown.
    pub(super) fn is_comparison(&self) -> bool {
        self.panes.len() > 1
    }

    /// Reacts to a key.
    pub(super) fn key(&mut self, key: KeyCode) -> Option<Request> {
        match &mut self.mode {
            Mode::Tree => return self.tree_key(key),
            Mode::Help => self.mode = Mode::Tree,
            Mode::Preview(preview) => {
                if !preview.key(key, self.page) {
                    self.mode = Mode::Tree;
                }
            }
            Mode::Search(text) => match edit(text, key) {
                Edit::More => {}
                Edit::Cancelled => self.mode = Mode::Tree,
                Edit::Done => {
                    self.search = std::mem::take(text);
                    self.mode = Mode::Tree;
                    self.next_match(true);
                }
            },
            Mode::Extract(text) => match edit(text, key) {
                Edit::More => {}
                Edit::Cancelled => self.mode = Mode::Tree,
                Edit::Done => {
                    let target = PathBuf::from(std::mem::take(text));
                    self.mode = Mode::Tree;
                    if target.as_os_str().is_empty() {
                        return None;
                    }
                    let paths = self.pane().map(Pane::paths)?;
                    return Some(Request::Extract(paths, target));
                }
            },
        }
        None
    }

    fn tree_key(&mut self, key: KeyCode) -> Option<Request> {
        if matches!(key, KeyCode::Char('q')) {
            return Some(Request::Quit);
        }
        // Fits: the height of a terminal.
        let page = self.page.max(2) as isize - 1;
        let current = self.current;
        let pane = self.panes.get_mut(current)?;
        match key {
            KeyCode::Up | KeyCode::Char('k') => pane.step(-1),
            KeyCode::Down | KeyCode::Char('j') => pane.step(1),
            KeyCode::PageUp => pane.step(-page),
            KeyCode::PageDown => pane.step(page),
            KeyCode::Home | KeyCode::Char('g') => pane.cursor = 0,
            KeyCode::End | KeyCode::Char('G') => pane.step(isize::MAX),
            KeyCode::Left | KeyCode::Char('h') => pane.collapse(),
            KeyCode::Right | KeyCode::Char('l') => _ = pane.expand(),
            KeyCode::Enter if pane.usage.is_dir(pane.current()) => pane.toggle(),
            KeyCode::Enter | KeyCode::Char('p') => self.mode = Mode::Preview(Preview::new(pane)),
            KeyCode::Char(' ') => pane.select(),
            KeyCode::Char('<') => pane.left = pane.left.saturating_sub(SIDEWAYS),
            KeyCode::Char('>') => pane.left = (pane.left + SIDEWAYS).min(SIDEWAYS_MAX),
            KeyCode::Char('s') => {
                pane.order = pane.order.next();
                let id = pane.current();
                pane.refresh(id);
            }
            KeyCode::Char('/') => self.mode = Mode::Search(String::new()),
            KeyCode::Char('n') => self.next_match(true),
            KeyCode::Char('N') => self.next_match(false),
            KeyCode::Char('c') => self.next_change(),
            KeyCode::Char('e') => self.mode = Mode::Extract("extracted".to_owned()),
            KeyCode::Char('?') => self.mode = Mode::Help,
            KeyCode::Tab if self.panes.len() > 1 => self.other_image(),
            _ => {}
        }
        None
    }

    /// Shows the other image, at the same path if it has it.
    fn other_image(&mut self) {
        let path = self.pane().map(|pane| pane.usage.path(pane.current()));
        self.current = (self.current + 1) % self.panes.len();
        if let (Some(path), Some(pane)) = (path, self.pane_mut())
            && let Some(id) = pane.usage.find(&path)
        {
            pane.reveal(id);
        }
    }

    /// Goes to the next name that contains the text of the search, in any case of ASCII letters.
    fn next_match(&mut self, forward: bool) {
        let lowercase = self.search.to_ascii_lowercase();
        if lowercase.is_empty() {
            return;
        }
        let current = self.current;
        let Some(pane) = self.panes.get_mut(current) else {
            return;
        };
        let found = pane.find(forward, |id| {
            pane.name(id).to_ascii_lowercase().contains(&lowercase)
        });
        match found {
            Some(id) => pane.reveal(id),
            None => self.message = format!("nothing contains '{}'", self.search),
        }
    }

    /// Goes to the next name that differs between the images.
    fn next_change(&mut self) {
        let current = self.current;
        let Some(pane) = self.panes.get_mut(current) else {
            return;
        };
        let is_change = |id| pane.marks.get(&id).is_some_and(|mark| *mark != Mark::Below);
        match pane.find(true, is_change) {
            Some(id) => pane.reveal(id),
            None => self.message = "no differences in this image".to_owned(),
        }
    }
}

/// State of a line of text after a key.
enum Edit {
    More,
    Done,
    Cancelled,
}

fn edit(text: &mut String, key: KeyCode) -> Edit {
    match key {
        KeyCode::Enter => return Edit::Done,
        KeyCode::Esc => return Edit::Cancelled,
        KeyCode::Backspace => _ = text.pop(),
        KeyCode::Char(c) => text.push(c),
        _ => {}
    }
    Edit::More
}
