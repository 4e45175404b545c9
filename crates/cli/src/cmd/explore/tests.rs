//! Frames of the view on a terminal in memory.

use super::app::{App, Request};
use super::pane::Pane;
use super::view;
use crate::comparison::Comparison;
use ratatui::Terminal;
use ratatui::backend::TestBackend;
use ratatui::crossterm::event::KeyCode;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tuff_erofs::dump::TreeUsage;
use tuff_erofs::read::{Image, OpenOptions};
use tuff_mkfs::{Options, Progress, Source, build};
use tuff_store::{FileStore, Target};

/// Directory with trees and their images, removed on drop.
struct Place(PathBuf);

impl Place {
    fn new(name: &str) -> Self {
        let dir = tuff_testkit::unused_path(&format!("explore-{name}"));
        let place = Self(dir);
        let text = "The quick brown fox jumps over the lazy dog.\n".repeat(9000);
        place.write("a/etc/conf", b"[section]\nkey = 1\n");
        place.write("a/usr/big.txt", text.as_bytes());
        place.write("a/usr/copy.txt", text.as_bytes());
        place.write("a/usr/old", b"old\n");
        let odd = std::ffi::OsStr::from_bytes(b"esc\x1b[2J\n\xff");
        fs::write(place.0.join("a").join(odd), "\0\x01binary").unwrap();
        symlink("usr/big.txt", place.0.join("a/link")).unwrap();
        fs::hard_link(place.0.join("a/usr/old"), place.0.join("a/usr/older")).unwrap();
        place.write("b/etc/conf", b"[section]\nkey = 2\n");
        place.write("b/usr/big.txt", text.as_bytes());
        place.write("b/usr/new", b"new\n");
        place
    }

    fn write(&self, path: &str, bytes: &[u8]) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, bytes).unwrap();
    }

    fn image(&self, tree: &str) -> Arc<Image> {
        let path = self.0.join(format!("{tree}.erofs"));
        let sources = [Source::Dir(self.0.join(tree))];
        let target = Target::Path(path.clone());
        build(&sources, &Options::default(), &target, &Progress::default()).unwrap();
        let store = FileStore::open(&path).unwrap();
        Arc::new(Image::open(store, OpenOptions::default()).unwrap())
    }

    fn pane(&self, tree: &str) -> Pane {
        let image = self.image(tree);
        let usage = TreeUsage::collect(&image).unwrap();
        Pane::new(tree, &image, usage)
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Draws the state, and returns the lines of the screen.
fn screen(app: &mut App) -> Vec<String> {
    screen_of(app, 140)
}

/// Draws the state on a screen of a number of columns.
fn screen_of(app: &mut App, width: u16) -> Vec<String> {
    let mut terminal = Terminal::new(TestBackend::new(width, 30)).unwrap();
    terminal.draw(|frame| view::draw(frame, app)).unwrap();
    let buffer = terminal.backend().buffer();
    let line = |y| -> String { (0..width).map(|x| buffer[(x, y)].symbol()).collect() };
    (0..30).map(line).collect()
}

fn press(app: &mut App, keys: &str) -> Option<Request> {
    let mut last = None;
    for c in keys.chars() {
        last = app.key(match c {
            '>' => KeyCode::Right,
            '<' => KeyCode::Left,
            '\n' => KeyCode::Enter,
            '\t' => KeyCode::Tab,
            '\x1b' => KeyCode::Esc,
            '\x08' => KeyCode::Backspace,
            c => KeyCode::Char(c),
        });
    }
    last
}

/// First line of the screen that contains `text`.
fn line<'a>(lines: &'a [String], text: &str) -> &'a str {
    let found = lines.iter().find(|line| line.contains(text));
    found.unwrap_or_else(|| panic!("no {text:?} in\n{}", lines.join("\n")))
}

fn explore(place: &Place) -> App {
    let mut app = App::new(false);
    app.open(vec![place.pane("a")]);
    app
}

#[test]
fn the_tree_is_loaded_after_the_first_frame() {
    let mut app = App::new(false);
    line(&screen(&mut app), "reading metadata");
    assert_eq!(press(&mut app, "jks/"), None);
    assert_eq!(press(&mut app, "\x1bq"), Some(Request::Quit));
}

#[test]
fn directories_open_and_show_sizes_shares_and_flags() {
    let place = Place::new("tree");
    let mut app = explore(&place);
    let lines = screen(&mut app);
    assert!(line(&lines, "> usr/").contains("791."), "{lines:?}");
    assert!(!lines.iter().any(|line| line.contains("big.txt")));
    press(&mut app, "/usr\n>");
    let lines = screen(&mut app);
    let (big, older) = (line(&lines, "big.txt"), line(&lines, "  older"));
    assert!(big.contains("395.5 KiB") && big.contains('S'), "{big}");
    assert!(older.contains('L') && older.contains(" - "), "{older}");
    press(&mut app, "/big\n");
    line(&screen(&mut app), "shared with /usr/copy.txt");
    press(&mut app, "<<");
    assert!(!screen(&mut app).iter().any(|line| line.contains("big.txt")));
}

#[test]
fn names_cannot_write_control_characters() {
    let place = Place::new("names");
    let mut app = explore(&place);
    press(&mut app, "/esc\np");
    for keys in ["", "q"] {
        press(&mut app, keys);
        let lines = screen(&mut app);
        line(&lines, r"esc\x1b[2J\n\xff");
        assert!(!lines.iter().any(|line| line.contains(char::is_control)));
    }
}

#[test]
fn entries_are_sorted_by_the_order_that_s_selects() {
    let place = Place::new("sort");
    let mut app = explore(&place);
    let order = |app: &mut App| {
        let lines = screen(app);
        let at = |name: &str| lines.iter().position(|line| line.contains(name)).unwrap();
        let title = lines[0].clone();
        (at("> etc/") < at("> usr/"), title)
    };
    let (etc_first, title) = order(&mut app);
    assert!(!etc_first && title.contains("sorted by stored"));
    press(&mut app, "ssss");
    let (etc_first, title) = order(&mut app);
    assert!(etc_first && title.contains("sorted by name"));
}

#[test]
fn searches_go_around_the_end_in_both_directions() {
    let place = Place::new("search");
    let mut app = explore(&place);
    let current = |app: &App| {
        let pane = app.pane().unwrap();
        String::from_utf8_lossy(&pane.usage.path(pane.current())).into_owned()
    };
    press(&mut app, "/OLD\n");
    assert_eq!(current(&app), "usr/old");
    press(&mut app, "n");
    assert_eq!(current(&app), "usr/older");
    press(&mut app, "n");
    assert_eq!(current(&app), "usr/old");
    press(&mut app, "N");
    assert_eq!(current(&app), "usr/older");
    press(&mut app, "/nowhere\n");
    line(&screen(&mut app), "nothing contains 'nowhere'");
}

#[test]
fn files_are_previewed_as_text_links_or_hexadecimal() {
    let place = Place::new("preview");
    let mut app = explore(&place);
    press(&mut app, "/conf\n\n");
    line(&screen(&mut app), "key = 1");
    press(&mut app, "q/link\np");
    line(&screen(&mut app), "symlink to usr/big.txt");
    press(&mut app, "q/esc\np");
    line(&screen(&mut app), "00000000  00 01 62 69 6e 61 72 79");
    press(&mut app, "q/usr\np");
    line(&screen(&mut app), "has no content");
}

#[test]
fn the_selection_is_extracted_without_what_a_directory_covers() {
    let place = Place::new("select");
    let mut app = explore(&place);
    press(&mut app, "/conf\n /usr\n /big\n e");
    line(
        &screen(&mut app),
        "extract 3 selected to directory: extracted_",
    );
    let request = press(&mut app, "\x08\x08\n");
    let paths = vec![b"etc/conf".to_vec(), b"usr".to_vec()];
    let target = Path::new("extract").to_owned();
    assert_eq!(request, Some(Request::Extract(paths, target)));
    assert_eq!(press(&mut app, "e\x1b"), None);
}

#[test]
fn differences_are_marked_in_both_images() {
    let place = Place::new("compare");
    let (a, b) = (place.pane("a"), place.pane("b"));
    let comparison = Comparison::new((&a.image, "a"), (&b.image, "b"));
    let mut app = App::new(true);
    app.open(vec![a, b]);
    app.compared(comparison);
    press(&mut app, "/new\n");
    let lines = screen(&mut app);
    assert!(line(&lines, "  new").trim_start().starts_with('+'));
    assert!(line(&lines, "v usr/").trim_start().starts_with(['*', '~']));
    press(&mut app, "/conf\n");
    assert!(
        line(&screen(&mut app), "  conf")
            .trim_start()
            .starts_with('~')
    );
    press(&mut app, "\t/copy\n");
    let lines = screen(&mut app);
    assert!(line(&lines, "  copy.txt").trim_start().starts_with('-'));
    line(&lines, "added");
    press(&mut app, "gc");
    let pane = app.pane().unwrap();
    assert!(pane.marks.contains_key(&pane.current()));
}

#[test]
fn small_terminals_are_drawn() {
    let place = Place::new("small");
    let mut app = explore(&place);
    press(&mut app, "?");
    for (width, height) in [(1, 1), (10, 3), (80, 24)] {
        let mut terminal = Terminal::new(TestBackend::new(width, height)).unwrap();
        terminal.draw(|frame| view::draw(frame, &mut app)).unwrap();
        let cells = terminal.backend().buffer().content();
        assert!(cells.iter().any(|cell| cell.symbol() != " "), "{width}");
    }
}

/// Words of a screen that end like a size, with the number before the unit.
fn sizes(lines: &[String]) -> Vec<String> {
    let mut found = Vec::new();
    for line in lines {
        let words: Vec<&str> = line
            .split([' ', '(', ')', ','])
            .filter(|w| !w.is_empty())
            .collect();
        for pair in words.windows(2) {
            if matches!(pair[1], "B" | "KiB" | "MiB" | "%") && pair[0].parse::<f64>().is_ok() {
                found.push(format!("{} {}", pair[0], pair[1]));
            }
        }
    }
    found
}

#[test]
fn numbers_are_shown_whole_or_not_at_all_at_every_width() {
    let place = Place::new("widths");
    let long = "long".repeat(50);
    place.write(&format!("a/usr/{long}"), &[7; 200_000]);
    place.write(
        "a/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/deep",
        &[7; 300_000],
    );
    let mut app = explore(&place);
    press(&mut app, "/deep\n");
    press(&mut app, "/older\n");
    let all: std::collections::BTreeSet<String> =
        sizes(&screen_of(&mut app, 400)).into_iter().collect();
    assert!(
        all.contains("195.3 KiB") && all.contains("395.5 KiB"),
        "{all:?}"
    );
    let mut most = 0;
    for width in 1..260 {
        let lines = screen_of(&mut app, width);
        for size in sizes(&lines) {
            assert!(all.contains(&size), "{width}: {size}\n{}", lines.join("\n"));
        }
        // A further drawing is the same.
        assert_eq!(screen_of(&mut app, width), lines, "{width}");
        if (44..120).contains(&width) {
            let shown = lines
                .iter()
                .filter(|line| line.contains("395.5 KiB"))
                .count();
            assert!(shown >= 2, "{width}\n{}", lines.join("\n"));
            most = most.max(shown);
        }
    }
    assert!(most >= 2);
}

#[test]
fn long_names_give_way_and_are_scrolled() {
    let place = Place::new("sideways");
    let long: String = (0..60).map(|n| format!("{n:03}")).collect();
    place.write(&format!("a/usr/{long}"), &[7; 200_000]);
    let mut app = explore(&place);
    press(&mut app, "/000001\n");
    let row = |app: &mut App| line(&screen_of(app, 80), "195.3 KiB").to_owned();
    assert!(row(&mut app).contains("000001002"), "{}", row(&mut app));
    assert!(!row(&mut app).contains("058059"));
    for _ in 0..21 {
        app.key(KeyCode::Char('>'));
    }
    assert!(row(&mut app).contains("058059"), "{}", row(&mut app));
    for _ in 0..21 {
        app.key(KeyCode::Char('<'));
    }
    assert!(row(&mut app).contains("000001002"));
    // A name below many directories is seen at the cursor.
    place.write(
        "a/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/d/deep",
        &[7; 300_000],
    );
    let mut app = explore(&place);
    press(&mut app, "/deep\n");
    line(&screen_of(&mut app, 60), "deep");
}
