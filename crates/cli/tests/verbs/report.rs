//! Output of report: its page in a browser, its data, and its treatment of damage.

use crate::common::{Place, code, skipped, stderr};
use serde_json::Value;
use std::fs;
use std::process::Command;

/// Makes a tree whose names would end an element, an attribute or a string if they were not escaped, and its image `h`.
fn hostile() -> Place {
    let place = Place::new("report-hostile");
    let dir = place.path("tree");
    let names: [&[u8]; 6] = [
        b"<img src=x onerror=console.error(1)>",
        b"\"'&quot;><b>.t\"x",
        b"new\nline\r\t.a'b",
        b"not utf-8 \xff\xfe",
        b"\x1b[31mred\x7f",
        "\u{2028}\u{202e}reversed".as_bytes(),
    ];
    use std::os::unix::ffi::OsStrExt;
    for name in names {
        let sub = dir.join(std::ffi::OsStr::from_bytes(name));
        fs::create_dir_all(&sub).unwrap();
        fs::write(
            sub.join(std::ffi::OsStr::from_bytes(name)),
            crate::common::text(),
        )
        .unwrap();
    }
    let script = dir
        .join("<")
        .join("script><script>console.error(2)<")
        .join("script>");
    fs::create_dir_all(&script).unwrap();
    fs::write(script.join("x"), "content of its own").unwrap();
    place.text(&["build", "-q", "--label", "<b>&\"", "tree", "h"]);
    place
}

/// Runs a page in a browser. Returns the document after its scripts, and what they wrote to the console. None if there is no
/// browser.
fn browse(place: &Place, page: &str) -> Option<(String, String)> {
    let profile = place.path("chromium");
    let url = format!("file://{}", place.path(page).display());
    let run = Command::new("chromium")
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-quic",
            "--no-first-run",
        ])
        .args([
            "--disable-background-networking",
            "--disable-component-update",
            "--disable-sync",
        ])
        .args([
            "--disable-dev-shm-usage",
            "--enable-logging=stderr",
            "--virtual-time-budget=2000",
        ])
        .arg(format!("--user-data-dir={}", profile.display()))
        .args(["--window-size=1200,1600", "--dump-dom", &url])
        .output();
    let out = match run {
        Ok(out) => out,
        Err(e) => {
            skipped(format_args!("chromium: {e}"));
            return None;
        }
    };
    let log = stderr(&out);
    assert!(out.status.success(), "{log}");
    let console: Vec<&str> = log
        .lines()
        .filter(|line| line.contains("CONSOLE"))
        .collect();
    Some((
        String::from_utf8_lossy(&out.stdout).into_owned(),
        console.join("\n"),
    ))
}

/// Exact number of the element with an id.
fn shown(page: &str, id: &str) -> u64 {
    let at = [format!("id={id} "), format!("id=\"{id}\" ")];
    let rest = at.iter().find_map(|at| page.split(at.as_str()).nth(1));
    let rest = rest.unwrap_or_else(|| panic!("no element {id}"));
    value(rest)
}

/// Exact number of the first cell with one after `at`.
fn value(at: &str) -> u64 {
    let rest = at.split("data-value=").nth(1).unwrap();
    let digits: String = rest
        .trim_start_matches('"')
        .chars()
        .take_while(char::is_ascii_digit)
        .collect();
    digits.parse().unwrap()
}

/// Numbers of the cells of a table's row.
fn row(page: &str, table: &str, key: &str) -> Vec<u64> {
    let at = [
        format!("<table id={table}>"),
        format!("<table id=\"{table}\">"),
    ];
    let rest = at
        .iter()
        .find_map(|at| page.split(at.as_str()).nth(1))
        .unwrap();
    let table = rest.split("</table>").next().unwrap();
    let rest = table.split(&format!("<tr data-key=\"{key}\">")).nth(1);
    let row = rest.unwrap_or_else(|| panic!("no row {key} in {table}"));
    let row = row.split("</tr>").next().unwrap();
    row.split("data-value=")
        .skip(1)
        .map(|cell| value(&format!("data-value={cell}")))
        .collect()
}

/// Compares a page with `tuff info --files --json`.
fn has_numbers_of(page: &str, info: &Value) {
    let number = |value: &Value| value.as_u64().unwrap();
    assert_eq!(shown(page, "file-bytes"), number(&info["file_bytes"]));
    assert_eq!(shown(page, "files"), number(&info["types"]["file"]));
    assert_eq!(
        shown(page, "shared-saved"),
        number(&info["shared"]["saved_bytes"])
    );
    assert_eq!(shown(page, "image-bytes"), number(&info["store_bytes"]));
    let space = info["space"][0]["rows"].as_array().unwrap();
    assert!(!space.is_empty());
    for purpose in space {
        let key = purpose["name"].as_str().unwrap();
        let cells = row(page, "space-0", key);
        assert_eq!(
            cells,
            [number(&purpose["bytes"]), number(&purpose["runs"])],
            "{key}"
        );
    }
    for (key, group) in info["by_type"].as_object().unwrap() {
        let cells = row(page, "by-type", key);
        let expected = ["inodes", "bytes", "stored_bytes"].map(|name| number(&group[name]));
        assert_eq!(cells, expected, "{key}");
    }
    for (key, group) in info["by_extension"].as_object().unwrap().iter().take(20) {
        if key.chars().all(|c| c.is_ascii_alphanumeric()) && !key.is_empty() {
            let expected = ["inodes", "bytes", "stored_bytes"].map(|name| number(&group[name]));
            assert_eq!(
                row(page, "by-extension", &format!(".{key}")),
                expected,
                "{key}"
            );
        }
    }
    assert_eq!(
        row(page, "saved", "hole_bytes"),
        [number(&info["holes"]["bytes"])]
    );
}

#[test]
fn a_page_has_the_numbers_of_info_in_a_browser() {
    let place = Place::with_image("report");
    place.text(&["report", "i", "-o", "r.html"]);
    let info = &place.json(&["info", "--files", "--json", "i"])[0];
    let source = fs::read_to_string(place.path("r.html")).unwrap();
    has_numbers_of(&source, info);
    let again = place.run(&["report", "i", "-o", "-"]);
    assert!(again.stdout == source.as_bytes(), "two runs differ");
    if let Some((page, console)) = browse(&place, "r.html") {
        assert_eq!(console, "");
        has_numbers_of(&page, info);
        // The script draws a rectangle per large file, the legend and the map.
        assert!(page.contains("/dir/text, "), "no rectangle");
        assert!(page.contains("compressed data</span>"), "no legend");
        assert!(page.contains("<canvas role=\"img\""), "no map");
    }
}

#[test]
fn hostile_names_are_text_in_every_part_of_a_page() {
    let place = hostile();
    place.text(&["report", "h", "-o", "r.html"]);
    let source = fs::read_to_string(place.path("r.html")).unwrap();
    for part in [
        "<img",
        "<b>.t",
        "alert(1)</script>",
        "\u{1b}",
        "\u{202e}",
        "\u{2028}",
    ] {
        assert!(!source.contains(part), "{part}");
    }
    assert_eq!(source.matches("</script>").count(), 2);
    // A label, a path of a table, and a name in the data of the script.
    assert!(source.contains("label &lt;b&gt;&amp;&quot;"));
    assert!(source.contains("/new\\nline\\r\\t.a&#39;b/"));
    assert!(source.contains("not utf-8 \\\\xff\\\\xfe"));
    let info = &place.json(&["info", "--files", "--json", "h"])[0];
    if let Some((page, console)) = browse(&place, "r.html") {
        assert_eq!(console, "");
        assert!(!page.contains("<img"));
        has_numbers_of(&page, info);
        assert!(page.contains("&lt;img src=x onerror=console.error(1)&gt;"));
    }
}

#[test]
fn the_tree_and_the_maps_add_up_to_the_image() {
    let place = Place::with_image("report-sums");
    place.image(
        "f",
        &[
            "-z",
            "zstd",
            "-C",
            "64K",
            "--fragments",
            "all",
            "--dedupe",
            "content",
        ],
    );
    for image in ["i", "f"] {
        let data = &place.json(&["report", image, "--json"])[0];
        let info = &place.json(&["info", "--files", "--json", image])[0];
        for (key, value) in data["info"].as_object().unwrap() {
            assert_eq!(*value, info[key], "{image}: {key}");
        }
        let number = |value: &Value| value.as_u64().unwrap_or(0);
        let types = info["by_type"].as_object().unwrap();
        let stored: u64 = types
            .values()
            .map(|group| number(&group["stored_bytes"]))
            .sum();
        let bytes: u64 = types.values().map(|group| number(&group["bytes"])).sum();
        let unused = number(&data["savings"]["packed_unused_bytes"]);
        assert_eq!(
            number(&data["tree"]["stored_bytes"]) + unused,
            stored,
            "{image}"
        );
        assert_eq!(number(&data["tree"]["bytes"]), bytes, "{image}");
        let inodes: u64 = types.values().map(|group| number(&group["inodes"])).sum();
        assert_eq!(number(&data["tree"]["inodes"]), inodes, "{image}");
        let map = &data["maps"][0];
        let mut sums = [0u64; 9];
        let cells = map["cells"].as_array().unwrap();
        for (i, cell) in cells.iter().enumerate() {
            let start = i as u64 * number(&map["cell_bytes"]);
            match cell.as_array() {
                None => {
                    let len = number(&map["cell_bytes"]).min(number(&map["bytes"]) - start);
                    sums[number(cell) as usize] += len;
                }
                Some(pairs) => {
                    for pair in pairs.chunks(2) {
                        sums[number(&pair[0]) as usize] += number(&pair[1]);
                    }
                }
            }
        }
        assert_eq!(
            sums.iter().sum::<u64>(),
            number(&info["store_bytes"]),
            "{image}"
        );
        let rows = info["space"][0]["rows"].as_array().unwrap();
        let unused = rows.iter().find(|row| row["name"] == "padding and unused");
        assert_eq!(
            sums[8],
            unused.map_or(0, |row| number(&row["bytes"])),
            "{image}"
        );
    }
}

#[test]
fn shared_data_fragments_and_holes_are_attributed_to_files() {
    let place = Place::with_image("report-sharing");
    let data = &place.json(&["report", "i", "--json"])[0];
    let sharing = data["sharing"].as_array().unwrap();
    let text = sharing
        .iter()
        .find(|row| row["path"] == "/dir/text")
        .unwrap();
    assert_eq!(text["shared_bytes"], 468_890);
    assert_eq!(text["with"], serde_json::json!(["/many/copy"]));
    let children = data["tree"]["children"].as_array().unwrap();
    let sparse = children
        .iter()
        .find(|child| child["name"] == "sparse")
        .unwrap();
    assert!(sparse["hole_bytes"].as_u64().unwrap() > 5_000_000);
    assert!(data["savings"]["shared_bytes"].as_u64().unwrap() > 0);
    assert_eq!(data["savings"]["hard_link_bytes"], 6);
}

#[test]
fn two_images_are_compared_by_path_and_size() {
    let place = Place::with_image("report-compare");
    fs::create_dir(place.path("more")).unwrap();
    fs::write(place.path("more/added"), vec![b'a'; 5000]).unwrap();
    place.text(&["build", "-q", "i", "more", "new"]);
    let data = &place.json(&["report", "i", "new", "--json"])[0];
    let comparison = &data["comparison"];
    assert_eq!(
        (&comparison["added"], &comparison["removed"]),
        (&1.into(), &0.into())
    );
    assert_eq!(comparison["added_bytes"], 5000);
    assert_eq!(comparison["changes"][0]["path"], "/added");
    assert_eq!(data["tree"]["changed_bytes"], 5000);
    let same = &place.json(&["report", "i", "i", "--json"])[0]["comparison"];
    assert_eq!((&same["same"], &same["changed"]), (&true.into(), &0.into()));
    place.text(&["report", "i", "new", "-o", "r.html"]);
    if let Some((page, console)) = browse(&place, "r.html") {
        assert_eq!(console, "");
        assert_eq!(row(&page, "changes", "/added"), [0, 5000]);
        assert_eq!(row(&page, "change-counts", "added"), [1, 5000]);
        assert!(page.contains("4.9 KiB new or changed"));
    }
}

#[test]
fn changes_of_times_alone_are_counted_and_not_ranked() {
    let place = Place::with_image("report-times");
    for (tree, image, seconds) in [("old", "o", 1_000_000_000), ("new", "n", 1_100_000_000)] {
        fs::create_dir(place.path(tree)).unwrap();
        for (name, content) in [("same", vec![b'a'; 90_000]), ("edited", tree.into())] {
            fs::write(place.path(&format!("{tree}/{name}")), content).unwrap();
            let file = fs::File::open(place.path(&format!("{tree}/{name}"))).unwrap();
            let time = std::time::UNIX_EPOCH + std::time::Duration::from_secs(seconds);
            file.set_modified(time).unwrap();
        }
        place.text(&["build", "-q", tree, image]);
    }
    let data = &place.json(&["report", "o", "n", "--json"])[0];
    let comparison = &data["comparison"];
    let paths: Vec<&Value> = comparison["changes"].as_array().unwrap().iter().collect();
    assert_eq!(paths.len(), 1, "{paths:?}");
    assert_eq!(paths[0]["path"], "/edited");
    assert_eq!(comparison["changed_bytes"], 3);
    // The other file, and the root if its time differs.
    let metadata_only = comparison["metadata_only"].as_u64().unwrap();
    assert_eq!(comparison["changed"].as_u64().unwrap(), metadata_only + 1);
    assert!(metadata_only >= 1, "{comparison}");
    place.text(&["report", "o", "n", "-o", "r.html"]);
    let page = fs::read_to_string(place.path("r.html")).unwrap();
    assert_eq!(row(&page, "change-counts", "changed"), [1, 3]);
    assert_eq!(row(&page, "change-counts", "metadata"), [metadata_only, 0]);
}

/// Colours of an element's style: background and text.
fn colours(style: &str) -> Option<[[f64; 3]; 2]> {
    let colour = |name: &str| -> Option<[f64; 3]> {
        let rest = style.split(name).nth(1)?.split(')').next()?;
        let mut parts = rest.trim_start_matches(" rgb(").split(", ");
        let mut part = || parts.next()?.parse::<f64>().ok();
        Some([part()?, part()?, part()?])
    };
    Some([colour("background:")?, colour("; color:")?])
}

/// Contrast of two colours by the Web Content Accessibility Guidelines.
fn contrast([a, b]: [[f64; 3]; 2]) -> f64 {
    let luminance = |colour: [f64; 3]| {
        let linear = colour.map(|v| match v / 255.0 {
            v if v <= 0.04045 => v / 12.92,
            v => ((v + 0.055) / 1.055).powf(2.4),
        });
        0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]
    };
    let [a, b] = [luminance(a), luminance(b)];
    (a.max(b) + 0.05) / (a.min(b) + 0.05)
}

#[test]
fn text_on_the_tree_map_has_a_contrast_of_at_least_4_5() {
    let place = Place::with_image("report-contrast");
    place.text(&["report", "i", "-o", "r.html"]);
    let source = fs::read_to_string(place.path("r.html")).unwrap();
    let mut seen = 0;
    for colour in ["ratio", "kind", "shared"] {
        // The page with another choice of the colours.
        let chosen = format!("<option value={colour} selected>");
        let page = source.replace(&format!("<option value={colour}>"), &chosen);
        fs::write(place.path("c.html"), page).unwrap();
        let Some((page, console)) = browse(&place, "c.html") else {
            return;
        };
        assert_eq!(console, "");
        for style in page.split("style=\"left:").skip(1) {
            let style = style.split('"').next().unwrap();
            if let Some(colours) = colours(style) {
                seen += 1;
                assert!(contrast(colours) >= 4.5, "{colour}: {style}");
            }
        }
    }
    assert!(seen > 10, "{seen} rectangles");
}

#[test]
fn regions_that_scroll_take_the_focus_and_have_a_name() {
    let place = Place::with_image("report-focus");
    place.text(&["report", "i", "-o", "r.html"]);
    let page = fs::read_to_string(place.path("r.html")).unwrap();
    let regions: Vec<&str> = page.split("<div class=scroll").skip(1).collect();
    assert!(regions.len() >= 5);
    for region in regions {
        let tag = region.split('>').next().unwrap();
        assert!(
            tag.contains("tabindex=0 role=region aria-label=\""),
            "{tag}"
        );
    }
}

#[test]
fn profiles_mark_what_they_read() {
    let place = Place::with_image("report-profile");
    let profile = "tuff profile 1\n5 1 0 4096 /dir/text\n9 1 0 4096 /gone\n";
    fs::write(place.path("p"), profile).unwrap();
    let data = &place.json(&["report", "i", "--profile", "p", "--json"])[0];
    let of = &data["profile"];
    assert_eq!((&of["files"], &of["missing_files"]), (&1.into(), &1.into()));
    assert_eq!(
        (&of["bytes"], &of["last_use_us"]),
        (&4096.into(), &9.into())
    );
    // One cluster, which other parts of the file are in as well.
    let stored = of["stored_bytes"].as_u64().unwrap();
    assert!(stored > 0 && stored <= 16384, "{stored}");
    let cells = of["cells"].as_array().unwrap();
    assert_eq!(
        cells.iter().map(|cell| cell.as_u64().unwrap()).sum::<u64>(),
        stored
    );
    assert_eq!(data["tree"]["profile_bytes"], 4096);
    place.text(&["report", "i", "--profile", "p", "-o", "r.html"]);
    if let Some((page, console)) = browse(&place, "r.html") {
        assert_eq!(console, "");
        assert_eq!(shown(&page, "profile-stored"), stored);
        assert!(page.contains("read by the profile</span>"));
    }
}

#[test]
fn many_small_files_are_added_up() {
    let place = Place::new("report-many");
    let dir = place.path("tree");
    for d in 0..20 {
        let sub = dir.join(format!("directory-{d}"));
        fs::create_dir_all(&sub).unwrap();
        for i in 0..400 {
            fs::write(
                sub.join(format!("file-with-a-long-name-{i}")),
                format!("{i} {d}"),
            )
            .unwrap();
        }
    }
    place.text(&["build", "-q", "tree", "i"]);
    place.text(&["report", "i", "-o", "r.html"]);
    let len = fs::metadata(place.path("r.html")).unwrap().len();
    assert!(len < 600_000, "{len} bytes");
    let data = &place.json(&["report", "i", "--json"])[0];
    let children = data["tree"]["children"].as_array().unwrap();
    assert_eq!(children.len(), 20);
    let inodes: u64 = children
        .iter()
        .map(|child| child["inodes"].as_u64().unwrap())
        .sum();
    assert_eq!(inodes, 20 * 401);
}

#[test]
fn damage_is_one_sentence_and_the_page_has_the_rest() {
    let place = Place::with_image("report-damage");
    // The root of a superblock whose checksum is not verified is no inode.
    place.damage("root", 1024 + 14, |b| b ^ 0x40);
    let out = place.run(&["report", "root", "--no-checksum", "-o", "r.html"]);
    let message = stderr(&out);
    assert!([3, 4].contains(&code(&out)), "{message}");
    assert_eq!(message.lines().count(), 1, "{message}");
    assert!(!place.path("r.html").exists());
    let mut damaged = 0;
    let root = &place.json(&["stat", "--json", "i", "/"])[0];
    let root = root["position"].as_u64().unwrap() as usize;
    let len = fs::metadata(place.path("i")).unwrap().len() as usize;
    for at in (root..len.min(root + 3000)).step_by(37) {
        place.damage("d", at, |b| b ^ 0x55);
        let out = place.run(&["report", "d", "--no-checksum", "--json"]);
        let message = stderr(&out);
        assert!([0, 3, 4].contains(&code(&out)), "{at}: {message}");
        assert!(message.lines().count() <= 1, "{at}: {message}");
        damaged += u32::from(code(&out) != 0);
    }
    assert!(damaged > 0);
    let out = place.run(&["report", "m/tree.mtree", "-o", "r.html"]);
    assert_eq!((code(&out), stderr(&out).lines().count()), (3, 1));
}

#[test]
fn outputs_that_are_no_report_are_kept() {
    let place = Place::with_image("report-output");
    fs::write(place.path("notes"), "mine\n").unwrap();
    let out = place.run(&["report", "i", "-o", "notes"]);
    assert_eq!(code(&out), 2);
    assert!(stderr(&out).contains("not a report"), "{}", stderr(&out));
    assert_eq!(fs::read(place.path("notes")).unwrap(), b"mine\n");
    place.text(&["report", "i", "-o", "notes", "--force"]);
    place.text(&["report", "i", "-o", "notes"]);
    let out = place.run(&["report", "i", "-o", "i"]);
    assert_eq!(code(&out), 2);
    assert_eq!(code(&place.run(&["report", "i"])), 2);
}
