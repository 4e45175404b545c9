//! Campaign of hostile names through every output.
//!
//! ```text
//!  random names ──► tar ──► image ──► every verb that prints: text without control characters, JSON, HTML, completion
//! ```
//!
//! Names are those of files, of extended attributes, of targets of links, and of labels. The seed determines them.

use super::program::{self, Ran};
use super::rounds::{self, Campaign, Tally};
use crate::measure::helper;
use crate::measure::workspace::Work;
use crate::{At, Error, Result};
use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use tuff_testkit::Rng;

/// Print hostile names through every verb
///
/// Builds images with names of control characters, terminal escapes, bidirectional controls, shell and HTML syntax and bytes that
/// are not UTF-8. No text that goes to a terminal has a control character, JSON parses, HTML has no element of a name, and
/// completion runs nothing. On a finding, keeps the folder and exits with 1.
#[derive(Clone, Debug, clap::Args)]
pub struct Options {
    /// Number of images with random names
    #[arg(long, default_value_t = 200, value_name = "N")]
    pub images: u64,
    /// Folder, seed, time and programs.
    #[command(flatten)]
    pub common: rounds::Options,
}

/// Counters of a campaign.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// Number of images that were listed.
    pub images: u64,
    /// Number of outputs that were searched.
    pub outputs: u64,
}

impl rounds::Counts for Counts {
    const UNIT: &'static str = "images";

    fn count(&self) -> u64 {
        self.images
    }
}

/// Form of an output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Form {
    /// Lines for a terminal.
    Text,
    /// One JSON value, or one in each line.
    Json,
    /// Bytes of a file, which are not shown.
    Bytes,
}

/// Verbs that read an image, with the form of standard output. IMAGE, OTHER and NAME stand for the images and a name in them.
const VERBS: [(&str, Form); 23] = [
    ("ls -R IMAGE", Form::Text),
    ("ls -lR IMAGE", Form::Text),
    ("ls --json -R IMAGE", Form::Json),
    ("stat --extents IMAGE NAME", Form::Text),
    ("stat --extents --json IMAGE NAME", Form::Json),
    ("info IMAGE", Form::Text),
    ("info --json --files IMAGE", Form::Json),
    ("info --files IMAGE", Form::Text),
    ("dump IMAGE", Form::Text),
    ("dump --json IMAGE", Form::Json),
    ("check IMAGE", Form::Text),
    ("check --json IMAGE", Form::Json),
    ("check DAMAGED", Form::Text),
    ("check --json DAMAGED", Form::Json),
    ("diff IMAGE OTHER", Form::Text),
    ("diff --json IMAGE OTHER", Form::Json),
    ("cat IMAGE NAME-", Form::Bytes),
    ("tar IMAGE -", Form::Bytes),
    ("extract --overwrite IMAGE target", Form::Text),
    ("fsck.erofs --extract=target --overwrite IMAGE", Form::Text),
    ("dump.erofs --ls --path=/ IMAGE", Form::Text),
    ("report --json IMAGE", Form::Json),
    ("extract -k --overwrite DAMAGED target", Form::Text),
];

/// Parts of names. Each is hostile to some output.
const PARTS: [&[u8]; 36] = [
    b"\x1b[2J",
    b"\x1b]0;title\x07",
    b"\x1b]8;;http://x\x1b\\",
    b"\x1bP+q\x1b\\",
    b"\x9b31m",
    b"\x9d0;x\x9c",
    "\u{9b}31m".as_bytes(),
    "\u{85}".as_bytes(),
    b"\x7f",
    b"\x08\x08",
    b"\r",
    b"\n",
    b"\t",
    b"\x01\x02",
    "\u{202e}fdp.".as_bytes(),
    "\u{2066}x\u{2069}".as_bytes(),
    "\u{200f}\u{61c}".as_bytes(),
    "\u{200b}\u{feff}".as_bytes(),
    "\u{2028}\u{2029}".as_bytes(),
    "\u{ad}\u{2060}".as_bytes(),
    "\u{e0041}".as_bytes(),
    b"\xff\xfe",
    b"\xc3",
    b"\xed\xa0\x80",
    b"`touch ran`",
    b"$(touch ran)",
    b";touch ran;",
    b"'\"",
    b"\\",
    b"<script>alert(1)</script>",
    b"<img src=x onerror=alert(1)>",
    b"</script><b>",
    b"&amp;&#x27;",
    b"-rf",
    b" ",
    "\u{e000}\u{10ffff}".as_bytes(),
];

impl Campaign for Options {
    type Counts = Counts;

    fn run(&self, tally: &mut Tally<Counts>) -> Result<()> {
        let common = &self.common;
        let tuff = &common.options.need("tuff")?;
        let work = Work::create(common.options.work())?;
        let place = ("names", self.images, &work);
        common.run(place, tally, |seed, folder, counts| {
            counts.images += 1;
            Round { tuff, folder }.run(&mut Rng::new(seed), counts)
        })
    }
}

/// Draws a name of at most 255 bytes.
fn name(rng: &mut Rng) -> Vec<u8> {
    let mut name = Vec::new();
    for _ in 0..1 + rng.below(4) {
        name.extend_from_slice(PARTS[rng.below(PARTS.len())]);
        if rng.below(2) == 0 {
            name.push(b'a' + rng.below(26) as u8);
        }
    }
    name.retain(|byte| !matches!(byte, b'/' | 0));
    name.truncate(200);
    name.push(b'.');
    name.push(b'0' + rng.below(10) as u8);
    name
}

struct Round<'a> {
    tuff: &'a Path,
    folder: &'a Path,
}

impl Round<'_> {
    /// Makes two images and prints them. Returns the outputs that break a rule.
    fn run(&self, rng: &mut Rng, counts: &mut Counts) -> Result<Vec<String>> {
        let mut found = Vec::new();
        let names: Vec<Vec<u8>> = (0..8).map(|_| name(rng)).collect();
        for (image, skip) in [("image", 0), ("other", 3)] {
            let tar = tar(rng, &names[skip..]);
            let path = self.folder.join(format!("{image}.tar"));
            fs::write(&path, tar).at("write", &path)?;
            // Warnings and errors of a build show names, too.
            let words = [format!("{image}.tar"), format!("{image}.erofs")];
            let words = ["build", "-z", "lz4"]
                .map(str::to_owned)
                .into_iter()
                .chain(words);
            let ran = program::run(self.tuff, self.folder, &words.collect::<Vec<_>>(), || None)?;
            counts.outputs += 1;
            found.extend(wrong(&ran, Form::Text).map(|what| format!("build: {what}")));
            if !ran.is_success() {
                return Err(Error::Command(format!(
                    "no image of the seed: {}",
                    ran.message()
                )));
            }
        }
        self.damage(rng)?;
        for (verb, form) in VERBS {
            let words: Vec<&OsStr> = verb
                .split(' ')
                .map(|word| self.word(word, &names))
                .collect();
            let ran = program::run(self.tuff, self.folder, &words, || None)?;
            counts.outputs += 1;
            found.extend(wrong(&ran, form).map(|what| format!("{verb}: {what}")));
        }
        let page = self.folder.join("page.html");
        let ran = program::run(
            self.tuff,
            self.folder,
            &["report", "image.erofs", "-o", "page.html"],
            || None,
        )?;
        found.extend(wrong(&ran, Form::Text).map(|what| format!("report: {what}")));
        let page = fs::read_to_string(&page).at("read", &page)?;
        found.extend(elements(&page).map(|what| format!("report: {what}")));
        found.extend(
            self.completion()?
                .map(|what| format!("completions bash: {what}")),
        );
        counts.outputs += 2;
        Ok(found)
    }

    /// Returns a word of a command line.
    fn word<'n>(&self, word: &'n str, names: &'n [Vec<u8>]) -> &'n OsStr {
        match word {
            "IMAGE" => OsStr::new("image.erofs"),
            "OTHER" => OsStr::new("other.erofs"),
            "DAMAGED" => OsStr::new("damaged.erofs"),
            "NAME" => OsStr::from_bytes(&names[0]),
            // A name that is not in the image appears in the message.
            "NAME-" => OsStr::from_bytes(&names[0][..names[0].len() - 1]),
            word => OsStr::new(word),
        }
    }

    /// Writes a copy of the image with damaged bytes behind the superblock.
    fn damage(&self, rng: &mut Rng) -> Result<()> {
        let path = self.folder.join("image.erofs");
        let mut bytes = fs::read(&path).at("read", &path)?;
        let length = bytes.len();
        for _ in 0..8 {
            if let Some(byte) = bytes.get_mut(2048 + rng.below(length.saturating_sub(2048))) {
                *byte ^= 1 << rng.below(8);
            }
        }
        let path = self.folder.join("damaged.erofs");
        fs::write(&path, bytes).at("write", &path)
    }

    /// Completes paths of the image in bash, runs the completed line, and returns what went wrong.
    fn completion(&self) -> Result<Option<String>> {
        let script = "\
            source <(tuff completions bash) || exit 9\n\
            function=$(complete -p tuff | sed 's/.*-F \\([^ ]*\\) .*/\\1/')\n\
            [ -n \"$function\" ] || exit 9\n\
            for prefix in '' a '`' '$' ';'; do\n\
              COMP_WORDS=(tuff cat image.erofs \"$prefix\") COMP_CWORD=3 COMP_LINE=\"tuff cat image.erofs $prefix\"\n\
              COMP_POINT=${#COMP_LINE} COMPREPLY=()\n\
              $function tuff \"$prefix\" image.erofs 2>/dev/null\n\
              for reply in \"${COMPREPLY[@]}\"; do eval \": $reply\" 2>/dev/null; done\n\
            done\n\
            true\n";
        // The completion runs the program by its name.
        let folder = self.folder.join("bin");
        fs::create_dir(&folder).at("create", &folder)?;
        symlink(self.tuff, folder.join("tuff")).at("link", &folder)?;
        let mut bin = folder.into_os_string();
        bin.push(":");
        bin.push(std::env::var_os("PATH").unwrap_or_default());
        let mut bash = Command::new("bash");
        let ran = bash
            .args(["--norc", "-c", script])
            .current_dir(self.folder)
            .env("PATH", bin);
        let output = ran.output().at("run", Path::new("bash"))?;
        if output.status.code() != Some(0) {
            let message = String::from_utf8_lossy(&output.stderr);
            return Ok(Some(format!("{}: {}", output.status, message.trim())));
        }
        let ran = self.folder.join("ran").exists();
        Ok(ran.then(|| "a completed line ran a command of a name".to_owned()))
    }
}

/// Returns what a run may not print.
fn wrong(ran: &Ran, form: Form) -> Option<String> {
    let output = match form {
        Form::Bytes => None,
        Form::Text => unsafe_text(&ran.output),
        Form::Json => unsafe_text(&ran.output).or_else(|| unparsed(&ran.output, ran.is_success())),
    };
    let output = output.map(|what| format!("standard output: {what}"));
    let errors = || unsafe_text(&ran.errors).map(|what| format!("standard error: {what}"));
    ran.fault().or(output).or_else(errors)
}

/// Returns the first character that a terminal may obey, that is invisible, or that reorders others.
fn unsafe_text(bytes: &[u8]) -> Option<String> {
    let Ok(text) = std::str::from_utf8(bytes) else {
        return Some("it is not UTF-8".to_owned());
    };
    let is_unsafe = |c: char| {
        let is_control = c.is_control() && c != '\n' && c != '\t';
        let is_hidden = matches!(c,
            '\u{ad}' | '\u{61c}' | '\u{180e}' | '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}'
            | '\u{2060}'..='\u{206f}' | '\u{feff}' | '\u{fff9}'..='\u{fffb}' | '\u{e0000}'..='\u{e007f}');
        is_control || is_hidden
    };
    let (at, c) = text.char_indices().find(|(_, c)| is_unsafe(*c))?;
    let line = text[..at].rsplit('\n').next().unwrap_or_default();
    Some(format!("{} after {line:?}", c.escape_unicode()))
}

/// Returns an error if an output is no JSON value and no line of it either.
fn unparsed(output: &[u8], is_success: bool) -> Option<String> {
    let text = String::from_utf8_lossy(output);
    if text.trim().is_empty() {
        return is_success.then(|| "no JSON".to_owned());
    }
    let values = serde_json::Deserializer::from_slice(output).into_iter::<serde_json::Value>();
    let error = values.filter_map(std::result::Result::err).next()?;
    Some(format!("no JSON: {error}"))
}

/// Returns an element of the page that only a name has.
fn elements(page: &str) -> Option<String> {
    let hostile = ["<script>alert", "<img src=x", "</script><b>"];
    let found = hostile.iter().find(|element| page.contains(**element));
    found
        .map(|element| format!("the page has {element}"))
        .or_else(|| {
            let is_control = |c: char| c.is_control() && !matches!(c, '\n' | '\t' | '\r');
            let control = page.chars().find(|c| is_control(*c));
            control.map(|c| format!("the page has {}", c.escape_unicode()))
        })
}

/// Composes a tar of files, links and attributes with these names.
fn tar(rng: &mut Rng, names: &[Vec<u8>]) -> Vec<u8> {
    let mut tar = Vec::new();
    for (number, name) in names.iter().enumerate() {
        let mut records = Vec::new();
        record(&mut records, b"path", name);
        if rng.below(3) == 0 {
            let mut key = b"SCHILY.xattr.user.".to_vec();
            key.extend(
                names[rng.below(names.len())]
                    .iter()
                    .filter(|byte| **byte != b'='),
            );
            record(&mut records, &key, &names[rng.below(names.len())]);
        }
        let is_link = number % 4 == 3;
        if is_link {
            record(&mut records, b"linkpath", &names[rng.below(names.len())]);
        }
        member(&mut tar, b'x', &records);
        match is_link {
            true => member(&mut tar, b'2', b""),
            false => member(&mut tar, b'0', &helper::noise(rng, 40 + number * 1000)),
        }
    }
    tar.resize(tar.len() + 1024, 0);
    tar
}

/// Appends a record of an extended header: its own length in digits, a key and a value.
fn record(records: &mut Vec<u8>, key: &[u8], value: &[u8]) {
    let rest = key.len() + value.len() + 3;
    let mut length = rest + 1;
    while length != rest + length.to_string().len() {
        length = rest + length.to_string().len();
    }
    records.extend_from_slice(format!("{length} ").as_bytes());
    records.extend_from_slice(key);
    records.push(b'=');
    records.extend_from_slice(value);
    records.push(b'\n');
}

/// Appends a member: a header of POSIX ustar, and its content in whole blocks.
fn member(tar: &mut Vec<u8>, kind: u8, content: &[u8]) {
    let mut header = [0_u8; 512];
    let mut put = |at: usize, bytes: &[u8]| header[at..at + bytes.len()].copy_from_slice(bytes);
    put(0, b"name");
    put(100, b"0000644\0");
    put(108, b"0000000\0");
    put(116, b"0000000\0");
    put(124, format!("{:011o}\0", content.len()).as_bytes());
    put(136, b"14524776400\0");
    put(148, b"        ");
    put(156, &[kind]);
    put(257, b"ustar\x0000");
    let sum: u32 = header.iter().map(|byte| u32::from(*byte)).sum();
    header[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
    tar.extend_from_slice(&header);
    tar.extend_from_slice(content);
    tar.resize(tar.len().next_multiple_of(512), 0);
}

impl fmt::Display for Counts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} outputs", self.outputs)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn control_and_bidirectional_characters_are_unsafe_in_text() {
        assert_eq!(unsafe_text("a\tb\nü 日本\n".as_bytes()), None);
        for hostile in [
            "\u{1b}[2J",
            "\u{7f}",
            "\u{9b}m",
            "\r",
            "\u{202e}",
            "\u{2066}",
            "\u{200f}",
        ] {
            assert!(unsafe_text(hostile.as_bytes()).is_some(), "{hostile:?}");
        }
        assert!(unsafe_text(b"\xff").is_some());
    }

    #[test]
    fn records_of_extended_headers_state_their_own_length() {
        let mut records = Vec::new();
        record(&mut records, b"path", b"abc");
        record(&mut records, b"path", &[b'x'; 91]);
        assert!(
            records.starts_with(b"12 path=abc\n101 path=x"),
            "{records:?}"
        );
        assert_eq!(records.len(), 12 + 101);
    }
}
