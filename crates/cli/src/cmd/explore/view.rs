//! Frames of the view.

use super::app::{App, Mode};
use super::details::{Details, coding};
use super::pane::{Mark, Pane, Row as TreeRow};
use super::preview::Preview;
use crate::units::{percent, size};
use ratatui::Frame;
use ratatui::layout::{Constraint, Layout, Rect};
use ratatui::style::{Color, Modifier, Style};
use ratatui::text::{Line, Span};
use ratatui::widgets::{Block, Borders, Clear, Paragraph, Row, Table, Wrap};
use tuff_erofs::dump::NodeId;

/// Width from which the details are beside the tree instead of below it.
const WIDE: u16 = 120;
/// Number of cells of the bar that shows the share of a file.
const BAR: u64 = 10;
/// Width of the column of names below which other columns give way.
const NAME_MIN: u16 = 20;
/// Width of a size: `1023.9 KiB`, or a few more digits from 1000 TiB on.
const SIZE: u16 = 10;
const LARGE_SIZE: u16 = 14;
const LARGE: u64 = 1000 << 40;
/// Cells of the name at the cursor that are visible below many directories.
const NAME_SEEN: usize = 12;

/// Columns beside the names: heading and width. Each is shown whole or not at all.
const COLUMNS: [(&str, u16); 6] = [
    ("stored", SIZE),
    ("size", SIZE),
    ("ratio", 7),
    // Fits: a small constant.
    ("share", BAR as u16),
    ("coding", 13),
    ("", 4),
];
/// Columns by the order in which they are left out.
const LEAST_IMPORTANT: [usize; 6] = [3, 4, 5, 2, 1, 0];

const KEYS: &str = "? keys  Enter open  / search  s sort  Space select  e extract  q quit";
const HELP: &[(&str, &str)] = &[
    ("Up Down PgUp PgDn Home End", "move (also k j g G)"),
    ("Right, Enter", "open a directory"),
    ("Left", "close a directory, or go to the one above"),
    ("s", "sort: stored, size, ratio, shared, name"),
    ("< >", "scroll names to the left and to the right"),
    ("/ n N", "search names, next and previous match"),
    ("Enter, p", "preview a file"),
    ("Space, e", "select, extract the selection"),
    ("Tab, c", "other image, next difference"),
    ("q, ^C", "quit"),
    ("", ""),
    ("S", "data shared with another file"),
    ("L", "another name of an inode above"),
    ("F", "data in the packed inode"),
    ("H", "holes"),
    ("+ - ~ *", "added, removed, changed, changes below"),
];

/// Draws the state of the program as a frame.
pub(super) fn draw(frame: &mut Frame<'_>, app: &mut App) {
    let area = frame.area();
    let [title, main, status] = Layout::vertical([
        Constraint::Length(1),
        Constraint::Min(1),
        Constraint::Length(1),
    ])
    .areas(area);
    let is_comparison = app.is_comparison();
    if app.pane().is_none() {
        frame.render_widget(Paragraph::new("reading metadata ... (q quits)"), main);
        return;
    }
    let (list, side) = match main.width >= WIDE {
        true => {
            let [list, side] =
                Layout::horizontal([Constraint::Min(60), Constraint::Length(48)]).areas(main);
            (list, side)
        }
        false => {
            let below = if main.height >= 20 {
                main.height / 3
            } else {
                0
            };
            let [list, side] =
                Layout::vertical([Constraint::Min(1), Constraint::Length(below)]).areas(main);
            (list, side)
        }
    };
    // The heading of the table takes a line.
    app.page = usize::from(list.height.saturating_sub(1)).max(1);
    let page = app.page;
    if let Some(pane) = app.pane_mut() {
        draw_title(frame, title, pane, is_comparison);
        scroll(pane, page);
        draw_tree(frame, list, pane, page, is_comparison);
        draw_details(frame, side, pane);
    }
    draw_status(frame, status, app);
    match &app.mode {
        Mode::Help => draw_help(frame, area),
        Mode::Preview(preview) => {
            app.page = draw_preview(frame, main, preview);
        }
        _ => {}
    }
}

fn draw_title(frame: &mut Frame<'_>, area: Rect, pane: &Pane, is_comparison: bool) {
    let sums = pane.usage.sums(NodeId::ROOT);
    let whole = pane.image.store_size();
    let facts = format!(
        "  {} in {} inodes, image {} ({})  sorted by {}{}",
        size(sums.bytes),
        sums.inodes,
        size(whole),
        percent(whole, sums.bytes),
        pane.order.name(),
        if is_comparison {
            "  Tab: other image"
        } else {
            ""
        },
    );
    let room = usize::from(area.width).saturating_sub(facts.len());
    let name = window(&format!(" {}", pane.title), 0, room.max(NAME_SEEN));
    let text = whole_words(&format!("{name}{facts}"), area.width);
    let style = Style::new().add_modifier(Modifier::REVERSED);
    frame.render_widget(Paragraph::new(text).style(style), area);
}

/// Returns the part of `text` that `width` cells show from cell `start` on, with `…` where it continues.
fn window(text: &str, start: usize, width: usize) -> String {
    let all = Span::raw(text);
    let whole = all.width();
    if start == 0 && whole <= width {
        return text.to_owned();
    }
    let (mut out, mut at) = (String::new(), 0);
    for grapheme in all.styled_graphemes(Style::new()) {
        let cells = Span::raw(grapheme.symbol).width();
        let is_hidden = at < start || at == start && start > 0;
        let is_end = at + cells >= start + width && start + width < whole;
        match (is_hidden, is_end) {
            (true, _) if at + cells > start => out.push('…'),
            (true, _) => {}
            (false, true) => {
                out.push('…');
                break;
            }
            (false, false) => out.push_str(grapheme.symbol),
        }
        at += cells;
    }
    out
}

/// Returns as many words of `text` as `width` cells show, with `…` if some are missing: a number is not cut.
fn whole_words(text: &str, width: u16) -> String {
    let width = usize::from(width);
    if Span::raw(text).width() <= width {
        return text.to_owned();
    }
    let cut = window(text, 0, width);
    match cut.rfind(' ') {
        Some(end) => format!("{}…", cut[..end].trim_end()),
        None => cut,
    }
}

/// Returns the columns that have room beside the names, in their order with their widths, and the width of the names.
fn columns(width: u16, largest: u64) -> (Vec<(usize, u16)>, u16) {
    let size = if largest < LARGE { SIZE } else { LARGE_SIZE };
    let mut columns: Vec<(usize, u16)> = (0..)
        .zip(COLUMNS)
        .map(|(i, (_, width))| (i, if i < 2 { size } else { width }))
        .collect();
    // Each column has a space before it.
    let used = |columns: &[(usize, u16)]| columns.iter().map(|(_, width)| width + 1).sum::<u16>();
    for least in LEAST_IMPORTANT {
        if used(&columns) + NAME_MIN <= width {
            break;
        }
        columns.retain(|(column, _)| *column != least);
    }
    let names = width.saturating_sub(used(&columns));
    (columns, names)
}

/// Moves the first row so that the cursor is on the screen.
fn scroll(pane: &mut Pane, page: usize) {
    pane.top = pane.top.min(pane.cursor);
    if pane.cursor >= pane.top + page {
        pane.top = pane.cursor + 1 - page;
    }
}

fn draw_tree(frame: &mut Frame<'_>, area: Rect, pane: &Pane, page: usize, is_comparison: bool) {
    let sums = pane.usage.sums(NodeId::ROOT);
    let (columns, names) = columns(area.width, sums.bytes.max(sums.stored_bytes));
    let names_width = usize::from(names);
    // The name at the cursor is visible below any number of directories.
    let depth = pane.rows.get(pane.cursor).map_or(0, |row| row.depth);
    let seen = (2 * depth.min(DEPTH_MAX) + NAME_SEEN).saturating_sub(names_width);
    let place = Place {
        names: names_width,
        start: pane.left.max(seen),
        whole: sums.stored_bytes,
        is_comparison,
    };
    let visible = pane.rows.iter().enumerate().skip(pane.top).take(page);
    let rows = visible.map(|(i, row)| {
        let (name, cells, style) = tree_row(pane, *row, i == pane.cursor, &place);
        let cells = columns.iter().map(|(column, _)| cells[*column].clone());
        Row::new(std::iter::once(name).chain(cells)).style(style)
    });
    let widths = columns.iter().map(|(_, width)| *width);
    let widths = std::iter::once(names).chain(widths).map(Constraint::Length);
    let heading = columns.iter().map(|(column, _)| {
        let heading = Line::from(COLUMNS[*column].0);
        match column {
            0..=2 => heading.right_aligned(),
            _ => heading,
        }
    });
    let heading = Row::new(std::iter::once(Line::from("name")).chain(heading));
    let heading = heading.style(Style::new().add_modifier(Modifier::BOLD));
    frame.render_widget(Table::new(rows, widths).header(heading), area);
}

/// Largest indentation. Unit: directories.
const DEPTH_MAX: usize = 40;

/// Properties of a drawing that all rows share.
struct Place {
    /// Width of the names, and the first cell of them that is shown.
    names: usize,
    start: usize,
    /// Bytes of the image that all rows share.
    whole: u64,
    is_comparison: bool,
}

/// Returns the name, the other columns and the style of a row.
fn tree_row(
    pane: &Pane,
    row: TreeRow,
    is_current: bool,
    place: &Place,
) -> (Line<'static>, [Line<'static>; COLUMNS.len()], Style) {
    let whole = place.whole;
    let usage = &pane.usage;
    let (sums, inode) = (usage.sums(row.id), usage.inode(row.id));
    let is_dir = usage.is_dir(row.id);
    let fold = match (is_dir, pane.expanded.contains(&row.id)) {
        (true, true) => "v ",
        (true, false) => "> ",
        _ => "  ",
    };
    let selected = if pane.selected.contains(&row.id) {
        "*"
    } else {
        " "
    };
    let (sign, mut style) = match pane.marks.get(&row.id) {
        Some(Mark::Added) => ("+ ", Style::new().fg(Color::Green)),
        Some(Mark::Removed) => ("- ", Style::new().fg(Color::Red)),
        Some(Mark::Changed) => ("~ ", Style::new().fg(Color::Yellow)),
        Some(Mark::Below) => ("* ", Style::new()),
        None if place.is_comparison => ("  ", Style::new()),
        None => ("", Style::new()),
    };
    let slash = if is_dir && row.id != NodeId::ROOT {
        "/"
    } else {
        ""
    };
    let indent = "  ".repeat(row.depth.min(DEPTH_MAX));
    let name = format!("{selected}{sign}{indent}{fold}{}{slash}", pane.name(row.id));
    let name = window(&name, place.start, place.names);
    let is_link = usage.is_hard_link(row.id);
    let mut flags = String::new();
    for (flag, is_set) in [
        ('S', sums.shared_bytes > 0),
        ('L', is_link),
        ('F', sums.fragment_bytes > 0),
        ('H', sums.hole_bytes > 0),
    ] {
        flags.push(if is_set { flag } else { ' ' });
    }
    let coding = match is_dir {
        true => String::new(),
        false => coding(inode.codings, inode.sums.fragment_bytes > 0),
    };
    let (stored, share) = match is_link {
        // The first name has the bytes.
        true => ("-".to_owned(), 0),
        false => (size(sums.stored_bytes), sums.stored_bytes),
    };
    let rounded = u128::from(share) * u128::from(BAR) + u128::from(whole / 2);
    // Fits: at most `BAR`.
    let filled = rounded
        .checked_div(u128::from(whole))
        .unwrap_or(0)
        .min(u128::from(BAR)) as usize;
    if is_current {
        style = style.add_modifier(Modifier::REVERSED);
    }
    let name_style = match is_dir {
        true => Style::new().add_modifier(Modifier::BOLD),
        false => Style::new(),
    };
    let ratio = if is_link {
        "-".to_owned()
    } else {
        percent(sums.stored_bytes, sums.bytes)
    };
    let cells = [
        Line::from(stored).right_aligned(),
        Line::from(size(sums.bytes)).right_aligned(),
        Line::from(ratio).right_aligned(),
        Line::styled("#".repeat(filled), Style::new().fg(Color::Cyan)),
        Line::from(coding),
        Line::from(flags),
    ];
    (Line::styled(name, name_style), cells, style)
}

fn draw_details(frame: &mut Frame<'_>, area: Rect, pane: &mut Pane) {
    if area.height == 0 {
        return;
    }
    let id = pane.current();
    if pane.details.as_ref().is_none_or(|details| details.id != id) {
        pane.details = Some(Details::new(&pane.image, &pane.usage, id));
    }
    let lines = pane.details.iter().flat_map(|details| &details.lines);
    let lines: Vec<Line<'_>> = lines
        .map(|(name, value)| {
            let name = Span::styled(
                format!("{name:<12}"),
                Style::new().add_modifier(Modifier::BOLD),
            );
            match name.content.trim().is_empty() {
                true => Line::from(format!("  {value}")),
                false => Line::from(vec![name, Span::raw(value.clone())]),
            }
        })
        .collect();
    let side = if area.x > 0 {
        Borders::LEFT
    } else {
        Borders::TOP
    };
    let details = Paragraph::new(lines).wrap(Wrap { trim: false });
    frame.render_widget(details.block(Block::new().borders(side)), area);
}

fn draw_status(frame: &mut Frame<'_>, area: Rect, app: &App) {
    let text = match &app.mode {
        Mode::Search(text) => format!("search: {text}_"),
        Mode::Extract(text) => {
            let count = app.pane().map_or(0, |pane| pane.selected.len());
            let what = match count {
                0 => "the entry at the cursor".to_owned(),
                n => format!("{n} selected"),
            };
            format!("extract {what} to directory: {text}_")
        }
        Mode::Preview(_) => "Up Down PgUp PgDn scroll  q back".to_owned(),
        _ if !app.message.is_empty() => format!("{}  ({KEYS})", app.message),
        _ => KEYS.to_owned(),
    };
    let text = whole_words(&crate::text::escaped_line(text), area.width);
    frame.render_widget(Paragraph::new(text), area);
}

fn draw_help(frame: &mut Frame<'_>, area: Rect) {
    let lines: Vec<Line<'_>> = HELP
        .iter()
        .map(|(key, what)| Line::from(format!(" {key:<28}{what}")))
        .collect();
    // Fits: a short list.
    let (width, height) = (
        area.width.min(78),
        (lines.len() as u16 + 2).min(area.height),
    );
    let place = Rect::new(
        (area.width - width) / 2,
        (area.height - height) / 2,
        width,
        height,
    );
    frame.render_widget(Clear, place);
    frame.render_widget(
        Paragraph::new(lines).block(Block::bordered().title(" Keys ")),
        place,
    );
}

/// Draws a preview, and returns the number of its lines on the screen.
fn draw_preview(frame: &mut Frame<'_>, area: Rect, preview: &Preview) -> usize {
    let page = usize::from(area.height.saturating_sub(2)).max(1);
    let lines = preview.lines.iter().skip(preview.top).take(page);
    let width = area.width.saturating_sub(2);
    let lines: Vec<Line<'_>> = lines
        .map(|line| Line::from(whole_words(line, width)))
        .collect();
    let title = format!(" {} ", preview.title);
    frame.render_widget(Clear, area);
    frame.render_widget(
        Paragraph::new(lines).block(Block::bordered().title(title)),
        area,
    );
    page
}
