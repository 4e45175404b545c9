//! HTML page of a report. Its numbers are in tables that need no script; the script adds the tree map and the map of the
//! image.

use crate::overwrite::REPORT_START;
use crate::text::{is_hidden, json};
use crate::units::{percent, size};
use serde_json::Value;
use std::fmt::Write;

const STYLE: &str = include_str!("page.css");
const SCRIPT: &str = include_str!("page.js");
/// Number of file extensions in the table: those with most stored bytes.
const EXTENSIONS: usize = 25;
/// Number of changes that are shown at once. The others are folded.
const CHANGES: usize = 20;

/// Returns the page of a report's data.
pub(super) fn html(data: &Value) -> String {
    let mut page = Page(String::with_capacity(1 << 16), "");
    page.head(data);
    page.summary(data);
    page.comparison(data);
    page.profile(data);
    page.space(data);
    page.diagrams(data);
    page.changes(data);
    page.types(data);
    page.savings(data);
    page.files(data);
    page.end(data);
    page.0
}

/// Text of HTML that is replaced by entities where markup could begin.
fn escape(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            '&' => out.push_str("&amp;"),
            '<' => out.push_str("&lt;"),
            '>' => out.push_str("&gt;"),
            '"' => out.push_str("&quot;"),
            '\'' => out.push_str("&#39;"),
            // Characters that change the direction of text would change what follows the name.
            c if is_hidden(c) => out.extend(c.escape_default()),
            c => out.push(c),
        }
    }
    out
}

/// JSON that a script element may contain: no end tag, comment or line separator can occur in it.
fn script_json(data: &Value) -> String {
    let mut out = String::new();
    for c in json(data).chars() {
        match c {
            '<' | '>' | '&' => {
                let _ = write!(out, "\\u{:04x}", u32::from(c));
            }
            c => out.push(c),
        }
    }
    out
}

fn text(value: &Value) -> &str {
    value.as_str().unwrap_or_default()
}

fn number(value: &Value) -> u64 {
    value.as_u64().unwrap_or_default()
}

/// Formats a number with separators between groups of three digits.
fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::new();
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            out.push(',');
        }
        out.push(digit);
    }
    out
}

/// Total of a table of space, and a label for its area.
fn is_store(table: &Value) -> bool {
    text(&table["device"]) != "metabox"
}

/// Class of the colour for a row of the table of space.
fn purpose_class(name: &str) -> &'static str {
    match name {
        "superblock and tables" => "p0",
        "inodes" | "attributes" | "shared attributes" => "p1",
        "directories" => "p2",
        "indexes" | "chunk tables" => "p3",
        "inline data" | "inline clusters" => "p4",
        "data, as it is" | "data, stored clusters" => "p5",
        "padding and unused" => "p8",
        name if name.starts_with("packed") => "p7",
        _ => "p6",
    }
}

/// Cell of a table.
enum Cell<'a> {
    Text(&'a str),
    /// Number, shown with all digits.
    Count(u64),
    /// Bytes, with the exact number for scripts and as a tooltip.
    Bytes(u64),
    /// Share of the second number that the first has, as a bar.
    Share(u64, u64),
}

/// HTML of the page so far, and the title of the section that is written.
struct Page(String, &'static str);

impl Page {
    fn put(&mut self, html: &str) {
        self.0.push_str(html);
        self.0.push('\n');
    }

    fn cell(&mut self, cell: &Cell<'_>) {
        let html = match cell {
            Cell::Text(text) => format!("<td class=name>{}</td>", escape(text)),
            Cell::Count(n) => format!("<td class=num data-value={n}>{}</td>", grouped(*n)),
            Cell::Bytes(n) => format!(
                "<td class=num data-value={n} title=\"{} bytes\">{}</td>",
                grouped(*n),
                size(*n)
            ),
            Cell::Share(part, whole) => {
                let width = part.saturating_mul(1000).checked_div(*whole).unwrap_or(0);
                format!(
                    "<td class=num>{}</td><td class=bar aria-hidden=true><i style=\"width:{}%\"></i></td>",
                    percent(*part, *whole),
                    width.min(1000) as f64 / 10.0
                )
            }
        };
        self.0.push_str(&html);
    }

    /// Opens a table. A heading that starts with `#` is one of numbers, one that starts with `%` of a share with its bar.
    fn table(&mut self, id: &str, headings: &[&str]) {
        // A region that scrolls sideways takes the focus, so that keys scroll it.
        let title = self.1;
        let _ = write!(
            self.0,
            "<div class=scroll tabindex=0 role=region aria-label=\"{title}\"><table id={id}><thead><tr>"
        );
        for heading in headings {
            let html = match (heading.strip_prefix('#'), heading.strip_prefix('%')) {
                (Some(name), _) => format!("<th class=num scope=col>{name}</th>"),
                (_, Some(name)) => format!("<th class=num scope=col colspan=2>{name}</th>"),
                _ if heading.is_empty() => "<td></td>".to_owned(),
                _ => format!("<th scope=col>{heading}</th>"),
            };
            self.0.push_str(&html);
        }
        self.put("</tr></thead><tbody>");
    }

    fn row(&mut self, key: &str, cells: &[Cell<'_>]) {
        let _ = write!(self.0, "<tr data-key=\"{}\">", escape(key));
        for cell in cells {
            self.cell(cell);
        }
        self.put("</tr>");
    }

    fn table_end(&mut self) {
        self.put("</tbody></table></div>");
    }

    fn section(&mut self, id: &str, title: &'static str, about: &str) {
        self.1 = title;
        let _ = write!(self.0, "<section id={id}><h2>{title}</h2>");
        if !about.is_empty() {
            let _ = write!(self.0, "<p class=about>{about}</p>");
        }
        self.0.push('\n');
    }

    fn head(&mut self, data: &Value) {
        let image = escape(text(&data["image"]));
        let _ = writeln!(
            self.0,
            "{REPORT_START}\n<head><meta charset=utf-8>\n\
             <meta http-equiv=\"Content-Security-Policy\" content=\"default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'\">\n\
             <meta name=viewport content=\"width=device-width, initial-scale=1\"><meta name=color-scheme content=\"light dark\">\n\
             <title>{image} - tuff report</title>\n<style>\n{STYLE}</style></head>\n<body><header><h1>{image}</h1>"
        );
        let info = &data["info"];
        let label = text(&info["label"]);
        let mut facts = vec![
            format!("UUID {}", escape(text(&info["uuid"]))),
            format!("Linux {} or newer", escape(text(&info["lowest_kernel"]))),
            format!("blocks of {}", size(number(&info["block_size"]))),
        ];
        if !label.is_empty() {
            let label = crate::text::escaped(label.as_bytes());
            facts.insert(0, format!("label {}", escape(&label)));
        }
        if data["older_image"].is_string() {
            let older = escape(text(&data["older_image"]));
            facts.push(format!("compared with {older}"));
        }
        let _ = writeln!(
            self.0,
            "<p class=facts>{}</p></header>\n<main>",
            facts.join(" · ")
        );
    }

    /// The main numbers as tiles.
    fn summary(&mut self, data: &Value) {
        let info = &data["info"];
        let total: u64 = stored(info);
        let content = number(&info["file_bytes"]);
        let files = number(&info["types"]["file"]);
        let saved = number(&data["savings"]["shared_bytes"]);
        let mut tiles = vec![
            (
                "image-bytes",
                "image",
                size(total),
                total,
                "with its devices".to_owned(),
            ),
            (
                "file-bytes",
                "content",
                size(content),
                content,
                "of regular files".to_owned(),
            ),
            (
                "ratio",
                "ratio",
                percent(total, content),
                total,
                "of the content".to_owned(),
            ),
            (
                "files",
                "files",
                grouped(files),
                files,
                format!("{} inodes", grouped(number(&info["inodes"]))),
            ),
            (
                "shared-saved",
                "saved by sharing",
                size(saved),
                saved,
                format!("{} shared runs", grouped(number(&info["shared"]["runs"]))),
            ),
        ];
        if data["profile"].is_object() {
            let read = number(&data["profile"]["stored_bytes"]);
            tiles.push((
                "profile-stored",
                "read by the profile",
                size(read),
                read,
                format!("{} of the image", percent(read, total)),
            ));
        }
        if data["comparison"].is_object() {
            let before = stored(&data["older_info"]);
            let change = match total.cmp(&before) {
                std::cmp::Ordering::Less => format!("-{}", size(before - total)),
                _ => format!("+{}", size(total - before)),
            };
            tiles.push((
                "older-bytes",
                "change",
                change,
                before,
                format!("from {}", size(before)),
            ));
        }
        self.put("<section class=tiles aria-label=Summary><dl>");
        for (id, name, value, exact, note) in tiles {
            let _ = writeln!(
                self.0,
                "<div><dt>{name}</dt><dd id={id} data-value={exact}>{value}</dd><dd class=note>{note}</dd></div>"
            );
        }
        self.put("</dl></section>");
        let errors = info["errors"].as_array().map_or(0, Vec::len);
        if errors > 0 {
            let first = info["errors"][0].as_str().unwrap_or_default();
            let first = escape(&crate::text::escaped_line(first));
            let _ = writeln!(
                self.0,
                "<p class=damage role=alert>Damaged: {errors} structures could not be read, and what they hold is missing here. First: {first}</p>"
            );
        }
    }

    /// Space by purpose: one bar and table per store.
    fn space(&mut self, data: &Value) {
        self.section("space", "Where the bytes go", "");
        for table in data["info"]["space"].as_array().into_iter().flatten() {
            let (device, all) = (text(&table["device"]), number(&table["bytes"]));
            match device {
                "0" => {}
                "metabox" => self.put("<h3>Metabox (inside the image)</h3>"),
                n => self.put(&format!("<h3>Device {}</h3>", escape(n))),
            }
            self.put("<div class=stack aria-hidden=true>");
            let rows = table["rows"].as_array();
            for row in rows.into_iter().flatten() {
                let (name, bytes) = (text(&row["name"]), number(&row["bytes"]));
                let share = bytes as f64 * 100.0 / all.max(1) as f64;
                let class = purpose_class(name);
                let (name, shown) = (escape(name), size(bytes));
                let _ = writeln!(
                    self.0,
                    "<i class={class} style=\"flex-grow:{share:.4}\" title=\"{name}: {shown}\"></i>"
                );
            }
            self.put("</div>");
            let id = format!("space-{}", escape(device));
            self.table(&id, &["purpose", "#bytes", "#ranges", "%share"]);
            for row in rows.into_iter().flatten() {
                let (name, bytes) = (text(&row["name"]), number(&row["bytes"]));
                let _ = write!(
                    self.0,
                    "<tr data-key=\"{0}\"><td class=name><b class=\"key {1}\"></b>{0}</td>",
                    escape(name),
                    purpose_class(name)
                );
                for cell in [
                    Cell::Bytes(bytes),
                    Cell::Count(number(&row["runs"])),
                    Cell::Share(bytes, all),
                ] {
                    self.cell(&cell);
                }
                self.put("</tr>");
            }
            self.table_end();
        }
        self.put("</section>");
    }

    /// Places of the diagrams, which the script fills.
    fn diagrams(&mut self, data: &Value) {
        let mut colours = String::from(
            "<option value=ratio>compression<option value=kind>type of file<option value=shared>shared data",
        );
        if data["profile"].is_object() {
            colours.push_str("<option value=profile>read by the profile");
        }
        if data["comparison"].is_object() {
            colours.push_str("<option value=changed>changed");
        }
        self.section(
            "tree",
            "Bytes by path",
            "Each rectangle is a file or directory. Select a directory to enlarge it; Escape goes up.",
        );
        let _ = writeln!(
            self.0,
            "<noscript><p class=about>The tree map and the map of the image need JavaScript. All tables are complete without it.</p></noscript>\n\
             <form class=controls hidden><label>Area <select id=tree-size><option value=stored_bytes>bytes in the image<option value=bytes>bytes of content</select></label>\n\
             <label>Colour <select id=tree-colour>{colours}</select></label></form>\n\
             <nav id=tree-path aria-label=\"Path of the tree map\"></nav>\n<div id=tree-map role=group aria-label=\"Tree map\"></div>\n\
             <p id=tree-legend class=legend></p>\n\
             <details><summary>The same as a table</summary><div class=scroll id=tree-table tabindex=0 role=region aria-label=\"Bytes by path, as a table\"></div></details></section>"
        );
        self.section("map", "Map of the image", "Each cell is a part of the image of equal length, from its first byte at the top left to its last.");
        self.put("<div id=maps></div>\n<p id=map-legend class=legend></p></section>");
    }

    fn types(&mut self, data: &Value) {
        let info = &data["info"];
        self.section("types", "By type of file", "Bytes of content, and their share of the data in the image. The bytes of a cluster with data of several files are divided among them.");
        let headings = ["type", "#inodes", "#content", "#stored", "%ratio"];
        self.table("by-type", &headings);
        for (name, group) in info["by_type"].as_object().into_iter().flatten() {
            self.group(name, group);
        }
        self.table_end();
        let groups = info["by_extension"].as_object().into_iter().flatten();
        let mut groups: Vec<_> = groups.collect();
        groups.sort_by_key(|(name, g)| (std::cmp::Reverse(number(&g["stored_bytes"])), *name));
        self.table(
            "by-extension",
            &["extension", "#inodes", "#content", "#stored", "%ratio"],
        );
        let (shown, others) = groups.split_at(groups.len().min(EXTENSIONS));
        for (name, group) in shown {
            match name.as_str() {
                "" => self.group("(none)", group),
                name => self.group(&format!(".{name}"), group),
            }
        }
        if !others.is_empty() {
            let sum = |key: &str| {
                let numbers = others.iter().map(|(_, g)| number(&g[key]));
                numbers.fold(0, u64::saturating_add)
            };
            let (inodes, bytes, stored) = (sum("inodes"), sum("bytes"), sum("stored_bytes"));
            let name = format!("{} others", others.len());
            self.row(
                &name,
                &[
                    Cell::Text(&name),
                    Cell::Count(inodes),
                    Cell::Bytes(bytes),
                    Cell::Bytes(stored),
                    Cell::Share(stored, bytes),
                ],
            );
        }
        self.table_end();
        self.put("</section>");
    }

    fn group(&mut self, name: &str, group: &Value) {
        let (bytes, stored) = (number(&group["bytes"]), number(&group["stored_bytes"]));
        let cells = [
            Cell::Text(name),
            Cell::Count(number(&group["inodes"])),
            Cell::Bytes(bytes),
            Cell::Bytes(stored),
            Cell::Share(stored, bytes),
        ];
        self.row(name, &cells);
    }

    fn savings(&mut self, data: &Value) {
        let (info, savings) = (&data["info"], &data["savings"]);
        self.section("savings", "What is saved", "");
        self.table("saved", &["technique", "#saved", "details"]);
        let algorithms = info["algorithms"].as_object().into_iter().flatten();
        let names: Vec<String> = algorithms
            .map(|(name, a)| {
                let clusters = number(&a["clusters"]) + number(&a["inline_clusters"]);
                let share = percent(number(&a["stored_bytes"]), number(&a["decoded_bytes"]));
                format!(
                    "{name}: {} clusters, {share} of their content",
                    grouped(clusters)
                )
            })
            .collect();
        let fragments = &info["fragments"];
        let (tails, tail_bytes) = (number(&fragments["files"]), number(&fragments["bytes"]));
        let packed = number(&fragments["packed_bytes"]);
        let rows = [
            ("compression", "compression_bytes", names.join("; ")),
            (
                "shared clusters and chunks",
                "shared_bytes",
                format!(
                    "{} ranges that several extents refer to",
                    grouped(number(&info["shared"]["runs"]))
                ),
            ),
            (
                "equal fragments",
                "fragment_bytes",
                format!(
                    "{} files have {} in the packed inode, which holds {}",
                    grouped(tails),
                    size(tail_bytes),
                    size(packed)
                ),
            ),
            (
                "holes",
                "hole_bytes",
                format!("in {} files", grouped(number(&info["holes"]["files"]))),
            ),
            (
                "hard links",
                "hard_link_bytes",
                format!("{} further names", grouped(number(&info["hard_links"]))),
            ),
        ];
        for (name, key, details) in rows {
            self.row(
                key,
                &[
                    Cell::Text(name),
                    Cell::Bytes(number(&savings[key])),
                    Cell::Text(&details),
                ],
            );
        }
        self.table_end();
        let sharing = data["sharing"].as_array();
        if sharing.is_some_and(|list| !list.is_empty()) {
            self.put("<h3>Files with most shared data</h3>");
            self.table("sharing", &["file", "#shared bytes", "with"]);
            for row in sharing.into_iter().flatten() {
                let with: Vec<&str> = row["with"]
                    .as_array()
                    .into_iter()
                    .flatten()
                    .map(text)
                    .collect();
                let with = if with.is_empty() {
                    "itself".to_owned()
                } else {
                    with.join(", ")
                };
                self.row(
                    text(&row["path"]),
                    &[
                        Cell::Text(text(&row["path"])),
                        Cell::Bytes(number(&row["shared_bytes"])),
                        Cell::Text(&with),
                    ],
                );
            }
            self.table_end();
        }
        self.put("</section>");
    }

    fn comparison(&mut self, data: &Value) {
        let comparison = &data["comparison"];
        if !comparison.is_object() {
            return;
        }
        let about = format!(
            "From {} to {}.",
            escape(text(&data["older_image"])),
            escape(text(&data["image"]))
        );
        self.section("comparison", "What has changed", &about);
        self.table("totals", &["", "#older", "#newer"]);
        let (older, newer) = (&data["older_info"], &data["info"]);
        let mut pair = |name: &str, a: u64, b: u64| {
            self.row(name, &[Cell::Text(name), Cell::Bytes(a), Cell::Bytes(b)]);
        };
        pair("image", stored(older), stored(newer));
        pair(
            "content",
            number(&older["file_bytes"]),
            number(&newer["file_bytes"]),
        );
        pair(
            "saved by sharing",
            number(&older["shared"]["saved_bytes"]),
            number(&newer["shared"]["saved_bytes"]),
        );
        pair(
            "fragments",
            number(&older["fragments"]["packed_bytes"]),
            number(&newer["fragments"]["packed_bytes"]),
        );
        let files = [older, newer].map(|info| number(&info["types"]["file"]));
        self.row(
            "files",
            &[
                Cell::Text("files"),
                Cell::Count(files[0]),
                Cell::Count(files[1]),
            ],
        );
        self.table_end();
        self.table("change-counts", &["change", "#paths", "#bytes of files"]);
        let metadata = number(&comparison["metadata_only"]);
        let content = number(&comparison["changed"]).saturating_sub(metadata);
        for (word, name, paths) in [
            ("added", "added", number(&comparison["added"])),
            ("removed", "removed", number(&comparison["removed"])),
            ("changed", "changed content", content),
            (
                "metadata",
                "changed times, owners, modes or attributes only",
                metadata,
            ),
        ] {
            let bytes = number(&comparison[format!("{word}_bytes")]);
            self.row(
                word,
                &[Cell::Text(name), Cell::Count(paths), Cell::Bytes(bytes)],
            );
        }
        self.table_end();
        self.put("</section>");
    }

    /// Largest changes of content: the first ones, and the others folded.
    fn changes(&mut self, data: &Value) {
        let rows = data["comparison"]["changes"].as_array();
        let rows = rows.map(Vec::as_slice).unwrap_or_default();
        if rows.is_empty() {
            return;
        }
        self.section("largest-changes", "Largest changes", "");
        let (first, others) = rows.split_at(rows.len().min(CHANGES));
        self.change_table("changes", first);
        if !others.is_empty() {
            let count = grouped(others.len() as u64);
            self.put(&format!("<details><summary>{count} more</summary>"));
            self.change_table("more-changes", others);
            self.put("</details>");
        }
        self.put("</section>");
    }

    fn change_table(&mut self, id: &str, rows: &[Value]) {
        self.table(id, &["path", "change", "#older", "#newer"]);
        for row in rows {
            let path = text(&row["path"]);
            self.row(
                path,
                &[
                    Cell::Text(path),
                    Cell::Text(text(&row["change"])),
                    Cell::Bytes(number(&row["older_bytes"])),
                    Cell::Bytes(number(&row["bytes"])),
                ],
            );
        }
        self.table_end();
    }

    fn profile(&mut self, data: &Value) {
        let profile = &data["profile"];
        if !profile.is_object() {
            return;
        }
        let total = stored(&data["info"]);
        let content = number(&data["info"]["file_bytes"]);
        self.section("profile", "What the profile reads", "The map of the image marks these parts. A cluster counts whole, because it is read whole.");
        self.table("profile-table", &["", "#read", "%share"]);
        let (read, bytes) = (number(&profile["stored_bytes"]), number(&profile["bytes"]));
        self.row(
            "stored",
            &[
                Cell::Text("bytes of the image"),
                Cell::Bytes(read),
                Cell::Share(read, total),
            ],
        );
        self.row(
            "content",
            &[
                Cell::Text("bytes of content"),
                Cell::Bytes(bytes),
                Cell::Share(bytes, content),
            ],
        );
        let (files, all) = (
            number(&profile["files"]),
            number(&data["info"]["types"]["file"]),
        );
        self.row(
            "files",
            &[
                Cell::Text("files"),
                Cell::Count(files),
                Cell::Share(files, all),
            ],
        );
        self.table_end();
        let missing = number(&profile["missing_files"]);
        if missing > 0 {
            let _ = writeln!(
                self.0,
                "<p class=about>{} files of the profile are not in the image.</p>",
                grouped(missing)
            );
        }
        self.put("</section>");
    }

    fn files(&mut self, data: &Value) {
        self.section("files", "Largest files", "");
        self.table("largest", &["file", "#content", "#stored", "%ratio"]);
        for row in data["largest"].as_array().into_iter().flatten() {
            let (path, bytes) = (text(&row["path"]), number(&row["bytes"]));
            let stored = number(&row["stored_bytes"]);
            self.row(
                path,
                &[
                    Cell::Text(path),
                    Cell::Bytes(bytes),
                    Cell::Bytes(stored),
                    Cell::Share(stored, bytes),
                ],
            );
        }
        self.table_end();
        self.put("</section>");
    }

    fn end(&mut self, data: &Value) {
        let json = script_json(data);
        let version = env!("CARGO_PKG_VERSION");
        let _ = writeln!(
            self.0,
            "</main>\n<footer>tuff {version}. The data of this page: <code>tuff report --json</code>.</footer>\n\
             <div id=tip role=tooltip hidden></div>\n\
             <script type=\"application/json\" id=data>{json}</script>\n<script>\n{SCRIPT}</script></body></html>"
        );
    }
}

/// Size of an image with its devices.
fn stored(info: &Value) -> u64 {
    let tables = info["space"].as_array().into_iter().flatten();
    tables
        .filter(|t| is_store(t))
        .map(|t| number(&t["bytes"]))
        .sum()
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn names_cannot_end_an_element() {
        let name = "</script><!-- \"'&\u{2028}";
        let json = script_json(&json!({ "name": name }));
        assert_eq!(
            json,
            r#"{"name":"\u003c/script\u003e\u003c!-- \"'\u0026\u2028"}"#
        );
        assert_eq!(serde_json::from_str::<Value>(&json).unwrap()["name"], name);
        assert_eq!(escape("</td>\"'&"), "&lt;/td&gt;&quot;&#39;&amp;");
    }

    #[test]
    fn numbers_have_groups_of_three_digits() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
    }

    #[test]
    fn each_purpose_has_the_colour_of_the_map() {
        let classes = ["inodes", "packed, zstd", "data, lz4", "data, as it is"].map(purpose_class);
        assert_eq!(classes, ["p1", "p7", "p6", "p5"]);
    }
}
