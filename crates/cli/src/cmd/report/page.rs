//! HTML page of a report: `page.html`, filled with tables. Its numbers need no script; the script adds the tree map and the map
//! of the image.

use crate::overwrite::REPORT_START;
use crate::text::{is_hidden, json};
use crate::units::{percent, size};
use serde_json::Value;
use std::cmp::{Ordering, Reverse};
use std::fmt::Write;

/// Page with `{{name}}` where the value of that name belongs.
const TEMPLATE: &str = include_str!("page.html");
/// Number of file extensions in the table: those with most stored bytes.
const EXTENSIONS: usize = 25;
/// Number of changes that are shown at once. The others are folded.
const CHANGES: usize = 20;

/// Returns the page of a report's data.
pub(super) fn html(data: &Value) -> String {
    let values = [
        ("start", REPORT_START.to_owned()),
        ("style", include_str!("page.css").to_owned()),
        ("script", include_str!("page.js").to_owned()),
        ("version", env!("CARGO_PKG_VERSION").to_owned()),
        ("image", escape(text(&data["image"]))),
        ("facts", facts(data)),
        ("tiles", tiles(data)),
        ("damage", damage(&data["info"])),
        ("comparison", comparison(data)),
        ("profile", profile(data)),
        ("space", space(&data["info"])),
        ("colours", colours(data)),
        ("changes", changes(data)),
        ("types", types(&data["info"])),
        ("savings", savings(data)),
        ("files", files(data)),
        ("data", script_json(data)),
    ];
    let mut parts = TEMPLATE.split("{{");
    let mut page = parts.next().unwrap_or_default().to_owned();
    for part in parts {
        let (name, rest) = part.split_once("}}").unwrap_or((part, ""));
        let value = values.iter().find(|(known, _)| *known == name);
        page.push_str(value.map_or("", |(_, value)| value));
        page.push_str(rest);
    }
    page
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

fn list(value: &Value) -> &[Value] {
    value.as_array().map_or(&[], Vec::as_slice)
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

/// Size of an image with its devices.
fn stored(info: &Value) -> u64 {
    let tables = list(&info["space"]).iter();
    let stores = tables.filter(|table| text(&table["device"]) != "metabox");
    stores.map(|table| number(&table["bytes"])).sum()
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

/// Cell of text.
fn name(text: &str) -> String {
    format!("<td class=name>{}</td>", escape(text))
}

/// Cell of a number, shown with all digits.
fn count(n: u64) -> String {
    format!("<td class=num data-value={n}>{}</td>", grouped(n))
}

/// Cell of bytes, with the exact number for scripts and as a tooltip.
fn bytes(n: u64) -> String {
    let (exact, shown) = (grouped(n), size(n));
    format!("<td class=num data-value={n} title=\"{exact} bytes\">{shown}</td>")
}

/// Cells of the share of `whole` that `part` has, with a bar.
fn share(part: u64, whole: u64) -> String {
    let width = part.saturating_mul(1000).checked_div(whole).unwrap_or(0);
    format!(
        "<td class=num>{}</td><td class=bar aria-hidden=true><i style=\"width:{}%\"></i></td>",
        percent(part, whole),
        width.min(1000) as f64 / 10.0
    )
}

/// Row of a table, with a key for scripts.
fn row(key: &str, cells: String) -> String {
    format!("<tr data-key=\"{}\">{cells}</tr>\n", escape(key))
}

/// Table in the section with this title. Headings are separated by `|`. One that starts with `#` is one of numbers, one that starts
/// with `%` of a share with its bar.
fn table(title: &str, id: &str, headings: &str, rows: impl Iterator<Item = String>) -> String {
    let heading = |heading: &str| match heading.split_at_checked(1) {
        Some(("#", name)) => format!("<th class=num scope=col>{name}</th>"),
        Some(("%", name)) => format!("<th class=num scope=col colspan=2>{name}</th>"),
        None => "<td></td>".to_owned(),
        Some(_) => format!("<th scope=col>{heading}</th>"),
    };
    let headings: String = headings.split('|').map(heading).collect();
    // A region that scrolls sideways takes the focus, so that keys scroll it.
    format!(
        "<div class=scroll tabindex=0 role=region aria-label=\"{title}\"><table id={id}><thead><tr>{headings}\
         </tr></thead><tbody>\n{}</tbody></table></div>\n",
        rows.collect::<String>()
    )
}

fn facts(data: &Value) -> String {
    let info = &data["info"];
    let mut facts = vec![
        format!("UUID {}", escape(text(&info["uuid"]))),
        format!("Linux {} or newer", escape(text(&info["lowest_kernel"]))),
        format!("blocks of {}", size(number(&info["block_size"]))),
    ];
    let label = crate::text::escaped(text(&info["label"]).as_bytes());
    if !label.is_empty() {
        facts.insert(0, format!("label {}", escape(&label)));
    }
    if let Some(older) = data["older_image"].as_str() {
        facts.push(format!("compared with {}", escape(older)));
    }
    facts.join(" · ")
}

/// The main numbers.
fn tiles(data: &Value) -> String {
    let info = &data["info"];
    let (total, content) = (stored(info), number(&info["file_bytes"]));
    let files = number(&info["types"]["file"]);
    let saved = number(&data["savings"]["shared_bytes"]);
    let inodes = grouped(number(&info["inodes"]));
    let runs = grouped(number(&info["shared"]["runs"]));
    let mut out = String::new();
    let mut tile = |id: &str, name: &str, value: String, exact: u64, note: &str| {
        out += &format!(
            "<div><dt>{name}</dt><dd id={id} data-value={exact}>{value}</dd><dd class=note>{note}</dd></div>\n"
        );
    };
    tile(
        "image-bytes",
        "image",
        size(total),
        total,
        "with its devices",
    );
    tile(
        "file-bytes",
        "content",
        size(content),
        content,
        "of regular files",
    );
    tile(
        "ratio",
        "ratio",
        percent(total, content),
        total,
        "of the content",
    );
    tile(
        "files",
        "files",
        grouped(files),
        files,
        &format!("{inodes} inodes"),
    );
    let note = format!("{runs} shared runs");
    tile(
        "shared-saved",
        "saved by sharing",
        size(saved),
        saved,
        &note,
    );
    if data["profile"].is_object() {
        let read = number(&data["profile"]["stored_bytes"]);
        let note = format!("{} of the image", percent(read, total));
        tile(
            "profile-stored",
            "read by the profile",
            size(read),
            read,
            &note,
        );
    }
    if data["comparison"].is_object() {
        let before = stored(&data["older_info"]);
        let change = match total.cmp(&before) {
            Ordering::Less => format!("-{}", size(before - total)),
            _ => format!("+{}", size(total - before)),
        };
        tile(
            "older-bytes",
            "change",
            change,
            before,
            &format!("from {}", size(before)),
        );
    }
    out
}

fn damage(info: &Value) -> String {
    let [first, ..] = list(&info["errors"]) else {
        return String::new();
    };
    format!(
        "<p class=damage role=alert>Damaged: {} structures could not be read, and what they hold is missing here. First: {}</p>\n",
        list(&info["errors"]).len(),
        escape(&crate::text::escaped_line(text(first)))
    )
}

/// Space by purpose: one bar and table per store.
fn space(info: &Value) -> String {
    let mut out = String::new();
    for store in list(&info["space"]) {
        let (device, all) = (text(&store["device"]), number(&store["bytes"]));
        match device {
            "0" => {}
            "metabox" => out += "<h3>Metabox (inside the image)</h3>\n",
            n => out += &format!("<h3>Device {}</h3>\n", escape(n)),
        }
        out += "<div class=stack aria-hidden=true>\n";
        let rows = list(&store["rows"]).iter();
        let rows = rows.map(|row| {
            (
                text(&row["name"]),
                number(&row["bytes"]),
                number(&row["runs"]),
            )
        });
        for (name, bytes, _) in rows.clone() {
            let share = bytes as f64 * 100.0 / all.max(1) as f64;
            let (class, name, shown) = (purpose_class(name), escape(name), size(bytes));
            // Writing to a String cannot fail.
            let _ = writeln!(
                out,
                "<i class={class} style=\"flex-grow:{share:.4}\" title=\"{name}: {shown}\"></i>"
            );
        }
        out += "</div>\n";
        let rows = rows.map(|(name, n, runs)| {
            let class = purpose_class(name);
            let first = format!(
                "<td class=name><b class=\"key {class}\"></b>{}</td>",
                escape(name)
            );
            row(name, first + &bytes(n) + &count(runs) + &share(n, all))
        });
        let id = format!("space-{}", escape(device));
        let headings = "purpose|#bytes|#ranges|%share";
        out += &table("Where the bytes go", &id, headings, rows);
    }
    out
}

/// Further choices for the colours of the tree map.
fn colours(data: &Value) -> String {
    let choice = |key: &str, option: &'static str| data[key].is_object().then_some(option);
    let profile = choice("profile", "<option value=profile>read by the profile");
    let changed = choice("comparison", "<option value=changed>changed");
    profile.into_iter().chain(changed).collect()
}

fn types(info: &Value) -> String {
    const TITLE: &str = "By type of file";
    let headings = |first: &str| format!("{first}|#inodes|#content|#stored|%ratio");
    let group = |key: &str, [inodes, content, stored]: [u64; 3]| {
        let sizes = bytes(content) + &bytes(stored) + &share(stored, content);
        row(key, name(key) + &count(inodes) + &sizes)
    };
    let numbers = |g: &Value| ["inodes", "bytes", "stored_bytes"].map(|key| number(&g[key]));
    let of = |key: &str| info[key].as_object().into_iter().flatten();
    let rows = of("by_type").map(|(name, g)| group(name, numbers(g)));
    let by_type = table(TITLE, "by-type", &headings("type"), rows);
    let mut groups: Vec<_> = of("by_extension")
        .map(|(name, g)| (name, numbers(g)))
        .collect();
    groups.sort_by_key(|(name, [_, _, stored])| (Reverse(*stored), *name));
    let (shown, others) = groups.split_at(groups.len().min(EXTENSIONS));
    let shown = shown.iter().map(|(name, numbers)| match name.as_str() {
        "" => group("(none)", *numbers),
        name => group(&format!(".{name}"), *numbers),
    });
    let sum = |i: usize| {
        others
            .iter()
            .fold(0, |sum: u64, (_, n)| sum.saturating_add(n[i]))
    };
    let rest = format!("{} others", others.len());
    let rest = (!others.is_empty()).then(|| group(&rest, [sum(0), sum(1), sum(2)]));
    by_type
        + &table(
            TITLE,
            "by-extension",
            &headings("extension"),
            shown.chain(rest),
        )
}

fn savings(data: &Value) -> String {
    const TITLE: &str = "What is saved";
    let (info, savings) = (&data["info"], &data["savings"]);
    let algorithms = info["algorithms"].as_object().into_iter().flatten();
    let algorithms = algorithms.map(|(name, a)| {
        let clusters = grouped(number(&a["clusters"]) + number(&a["inline_clusters"]));
        let share = percent(number(&a["stored_bytes"]), number(&a["decoded_bytes"]));
        format!("{name}: {clusters} clusters, {share} of their content")
    });
    let algorithms = algorithms.collect::<Vec<_>>().join("; ");
    let fragments = &info["fragments"];
    let tails = grouped(number(&fragments["files"]));
    let tail_bytes = size(number(&fragments["bytes"]));
    let packed = size(number(&fragments["packed_bytes"]));
    let runs = grouped(number(&info["shared"]["runs"]));
    let sparse = grouped(number(&info["holes"]["files"]));
    let links = grouped(number(&info["hard_links"]));
    let rows = [
        ("compression", "compression_bytes", algorithms),
        (
            "shared clusters and chunks",
            "shared_bytes",
            format!("{runs} ranges that several extents refer to"),
        ),
        (
            "equal fragments",
            "fragment_bytes",
            format!("{tails} files have {tail_bytes} in the packed inode, which holds {packed}"),
        ),
        ("holes", "hole_bytes", format!("in {sparse} files")),
        (
            "hard links",
            "hard_link_bytes",
            format!("{links} further names"),
        ),
    ];
    let rows = rows.iter().map(|(technique, key, details)| {
        let saved = bytes(number(&savings[key]));
        row(key, name(technique) + &saved + &name(details))
    });
    let mut out = table(TITLE, "saved", "technique|#saved|details", rows);
    let sharing = list(&data["sharing"]);
    if !sharing.is_empty() {
        out += "<h3>Files with most shared data</h3>\n";
        let rows = sharing.iter().map(|file| {
            let with: Vec<&str> = list(&file["with"]).iter().map(text).collect();
            let with = if with.is_empty() {
                "itself".to_owned()
            } else {
                with.join(", ")
            };
            let path = text(&file["path"]);
            let shared = bytes(number(&file["shared_bytes"]));
            row(path, name(path) + &shared + &name(&with))
        });
        out += &table(TITLE, "sharing", "file|#shared bytes|with", rows);
    }
    out
}

fn comparison(data: &Value) -> String {
    const TITLE: &str = "What has changed";
    let comparison = &data["comparison"];
    if !comparison.is_object() {
        return String::new();
    }
    let infos = [&data["older_info"], &data["info"]];
    let mut rows = vec![("image", infos.map(stored))];
    for (name, pointer) in [
        ("content", "/file_bytes"),
        ("saved by sharing", "/shared/saved_bytes"),
        ("fragments", "/fragments/packed_bytes"),
    ] {
        rows.push((
            name,
            infos.map(|info| info.pointer(pointer).map_or(0, number)),
        ));
    }
    let rows = rows
        .iter()
        .map(|(key, [a, b])| row(key, name(key) + &bytes(*a) + &bytes(*b)));
    let [a, b] = infos.map(|info| count(number(&info["types"]["file"])));
    let rows = rows.chain([row("files", name("files") + &a + &b)]);
    let totals = table(TITLE, "totals", "|#older|#newer", rows);
    let metadata = number(&comparison["metadata_only"]);
    let content = number(&comparison["changed"]).saturating_sub(metadata);
    let rows = [
        ("added", "added", number(&comparison["added"])),
        ("removed", "removed", number(&comparison["removed"])),
        ("changed", "changed content", content),
        (
            "metadata",
            "changed times, owners, modes or attributes only",
            metadata,
        ),
    ];
    let rows = rows.iter().map(|(key, what, paths)| {
        let sum = number(&comparison[format!("{key}_bytes")]);
        row(key, name(what) + &count(*paths) + &bytes(sum))
    });
    let counts = table(
        TITLE,
        "change-counts",
        "change|#paths|#bytes of files",
        rows,
    );
    let [older, newer] = ["older_image", "image"].map(|key| escape(text(&data[key])));
    format!(
        "<section id=comparison><h2>{TITLE}</h2><p class=about>From {older} to {newer}.</p>\n{totals}{counts}</section>\n"
    )
}

/// Largest changes of content: the first ones, and the others folded.
fn changes(data: &Value) -> String {
    let rows = list(&data["comparison"]["changes"]);
    if rows.is_empty() {
        return String::new();
    }
    let of = |id: &str, rows: &[Value]| {
        let rows = rows.iter().map(|change| {
            let (path, kind) = (text(&change["path"]), text(&change["change"]));
            let [older, newer] = ["older_bytes", "bytes"].map(|key| bytes(number(&change[key])));
            row(path, name(path) + &name(kind) + &older + &newer)
        });
        table("Largest changes", id, "path|change|#older|#newer", rows)
    };
    let (first, others) = rows.split_at(rows.len().min(CHANGES));
    let mut out = of("changes", first);
    if !others.is_empty() {
        let count = grouped(others.len() as u64);
        let more = of("more-changes", others);
        out += &format!("<details><summary>{count} more</summary>\n{more}</details>\n");
    }
    format!("<section id=largest-changes><h2>Largest changes</h2>\n{out}</section>\n")
}

fn profile(data: &Value) -> String {
    const TITLE: &str = "What the profile reads";
    let profile = &data["profile"];
    if !profile.is_object() {
        return String::new();
    }
    let [read, content, files, missing] =
        ["stored_bytes", "bytes", "files", "missing_files"].map(|key| number(&profile[key]));
    let total = stored(&data["info"]);
    let all_content = number(&data["info"]["file_bytes"]);
    let all_files = number(&data["info"]["types"]["file"]);
    let read = name("bytes of the image") + &bytes(read) + &share(read, total);
    let content = name("bytes of content") + &bytes(content) + &share(content, all_content);
    let files = name("files") + &count(files) + &share(files, all_files);
    let rows = [("stored", read), ("content", content), ("files", files)].into_iter();
    let rows = rows.map(|(key, cells)| row(key, cells));
    let mut out = table(TITLE, "profile-table", "|#read|%share", rows);
    if missing > 0 {
        let missing = grouped(missing);
        out +=
            &format!("<p class=about>{missing} files of the profile are not in the image.</p>\n");
    }
    format!(
        "<section id=profile><h2>{TITLE}</h2><p class=about>The map of the image marks these parts. A cluster counts whole, because it \
         is read whole.</p>\n{out}</section>\n"
    )
}

fn files(data: &Value) -> String {
    let rows = list(&data["largest"]).iter().map(|file| {
        let (path, content) = (text(&file["path"]), number(&file["bytes"]));
        let stored = number(&file["stored_bytes"]);
        let sizes = bytes(content) + &bytes(stored) + &share(stored, content);
        row(path, name(path) + &sizes)
    });
    table(
        "Largest files",
        "largest",
        "file|#content|#stored|%ratio",
        rows,
    )
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
