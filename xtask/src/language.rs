//! Language of comments, documents and names, as far as a program can judge it.
//!
//! * No identifier is a word that says nothing about what it names ([`REFUSED`]). No function is called `of`.
//! * No comment opens with a question word, "So" or "Of".
//! * Nearly no doc comment has three words or fewer.
//! * No comment or document uses relative time, which belongs in the changelog and in commit messages.
//! * No sentence of a doc comment or document has more than 35 words.

use std::collections::BTreeMap;
use std::path::Path;

use crate::source::{Comment, scan};
use crate::tidy;

/// Longest sentence, in words.
const SENTENCE_MAX: usize = 35;

/// Doc comments of this many words or fewer count as short.
const SHORT: usize = 3;

/// A crate with fewer short doc comments than one in this many passes.
const SHORT_ONE_IN: usize = 100;

/// Words that open a riddle instead of a statement.
const OPENERS: [&str; 7] = ["What", "Who", "Whose", "Whom", "How", "So", "Of"];

/// Phrases that are true only at the time of writing.
const RELATIVE: [&str; 8] = [
    "since then",
    "no longer",
    "anymore",
    "from now on",
    "until now",
    "used to be",
    "formerly",
    "now",
];

/// Names that a reader has to guess: participles, prepositions and figures of speech. Constants count in their capitals.
const REFUSED: [&str; 18] = [
    "answered",
    "apart",
    "aside",
    "asked",
    "asker",
    "begun",
    "behind",
    "believed",
    "described",
    "grown",
    "look",
    "patience",
    "said",
    "settled",
    "there",
    "told",
    "untangled",
    "wanted",
];

/// All findings by unit: a crate's folder, or the path of a document.
pub(crate) fn run(root: &Path) -> BTreeMap<String, Vec<String>> {
    let mut units: BTreeMap<String, Unit> = BTreeMap::new();
    for file in tidy::files(root) {
        let Ok(text) = std::fs::read_to_string(root.join(&file)) else {
            continue;
        };
        let unit = units.entry(unit_of(&file)).or_default();
        match file.extension().and_then(|e| e.to_str()) {
            Some("rs") => unit.source(&file, &text),
            Some("md") if !file.ends_with("CHANGELOG.md") => unit.document(&file, &text),
            _ => {}
        }
    }
    units
        .into_iter()
        .map(|(name, unit)| (name, unit.findings()))
        .filter(|(_, findings)| !findings.is_empty())
        .collect()
}

/// `crates/NAME` for files of a crate, the path for documents.
fn unit_of(file: &Path) -> String {
    let is_source = file.extension().is_some_and(|e| e == "rs");
    let mut parts = file.iter().map(|p| p.to_string_lossy().into_owned());
    match (is_source, parts.next(), parts.next()) {
        (true, Some(first), Some(second)) if first == "crates" => format!("{first}/{second}"),
        (true, Some(first), _) => first,
        _ => file.display().to_string(),
    }
}

#[derive(Default)]
struct Unit {
    findings: Vec<String>,
    short: Vec<String>,
    docs: usize,
}

impl Unit {
    fn source(&mut self, file: &Path, text: &str) {
        let (tokens, comments) = scan(text);
        for comment in comments {
            self.comment(file, &comment);
        }
        let previous = std::iter::once("").chain(tokens.iter().map(|token| token.text.as_str()));
        for (token, previous) in tokens.iter().zip(previous) {
            let name = token.text.to_lowercase();
            if REFUSED.contains(&name.as_str()) || (previous == "fn" && name == "of") {
                let (file, line, name) = (file.display(), token.line, &token.text);
                self.findings.push(format!(
                    "{file}:{line}: the name \"{name}\" says too little"
                ));
            }
        }
    }

    fn comment(&mut self, file: &Path, comment: &Comment) {
        let at = |what: &str| format!("{}:{}: {what}", file.display(), comment.line);
        let sentences = sentences(&comment.lines);
        if let Some(opener) = opener(&sentences) {
            self.findings.push(at(&format!("opens with \"{opener}\"")));
        }
        for sentence in &sentences {
            if let Some(phrase) = relative_time(sentence) {
                self.findings.push(at(&format!("relative time: {phrase}")));
            }
        }
        if !comment.is_doc() {
            return;
        }
        self.docs += 1;
        let words: usize = sentences.iter().map(|s| s.split_whitespace().count()).sum();
        if words <= SHORT {
            self.short.push(at(&format!("only {words} words")));
        }
        self.findings
            .extend(too_long(&sentences).map(|what| at(&what)));
    }

    fn document(&mut self, file: &Path, text: &str) {
        let lines: Vec<String> = text.lines().map(str::to_owned).collect();
        let at = |what: &str| format!("{}: {what}", file.display());
        let sentences = sentences(&lines);
        for sentence in &sentences {
            if let Some(phrase) = relative_time(sentence) {
                self.findings
                    .push(at(&format!("relative time: {phrase}: {}", start(sentence))));
            }
        }
        self.findings
            .extend(too_long(&sentences).map(|what| at(&what)));
    }

    fn findings(mut self) -> Vec<String> {
        if self.short.len() * SHORT_ONE_IN > self.docs {
            self.findings.append(&mut self.short);
        }
        self.findings
    }
}

/// Sentences of a comment or document, without code blocks. Items, cells and headings count as sentences.
fn sentences(lines: &[String]) -> Vec<String> {
    let mut out = Vec::new();
    let mut current = String::new();
    let mut is_code = false;
    for line in lines {
        let line = line.trim();
        if line.starts_with("```") || line.starts_with("~~~") {
            is_code = !is_code;
            continue;
        }
        if is_code {
            continue;
        }
        let is_new = line.is_empty()
            || ["* ", "- ", "#", "|", ">"]
                .iter()
                .any(|m| line.starts_with(m))
            || line
                .split_once(". ")
                .is_some_and(|(n, _)| n.bytes().all(|b| b.is_ascii_digit()));
        if is_new {
            split(&mut out, &current);
            current.clear();
        }
        if line.starts_with('|') {
            for cell in line.split('|') {
                split(&mut out, cell);
            }
        } else {
            current.push_str(line.trim_start_matches(['*', '-', '#', '>']));
            current.push(' ');
        }
    }
    split(&mut out, &current);
    out
}

/// Splits a paragraph after `.`, `!`, `?` and `:`.
fn split(out: &mut Vec<String>, paragraph: &str) {
    let mut current = Vec::new();
    for word in paragraph.split_whitespace() {
        current.push(word);
        if word.ends_with(['.', '!', '?', ':']) || word.ends_with(".)") || word.ends_with(".\"") {
            out.push(current.join(" "));
            current.clear();
        }
    }
    if !current.is_empty() {
        out.push(current.join(" "));
    }
}

fn opener(sentences: &[String]) -> Option<&'static str> {
    let first = sentences.first()?.split_whitespace().next()?;
    let first = first.trim_end_matches([',', '.', ':', '?']);
    OPENERS.into_iter().find(|o| *o == first)
}

/// A phrase of relative time in a sentence, code spans left out.
fn relative_time(sentence: &str) -> Option<&'static str> {
    let outside: Vec<&str> = sentence.split('`').step_by(2).collect();
    let plain = outside.join("`").to_lowercase();
    let words: Vec<&str> = plain
        .split_whitespace()
        .map(|w| w.trim_matches(|c: char| !c.is_alphanumeric() && c != '`'))
        .collect();
    RELATIVE.into_iter().find(|phrase| {
        let phrase: Vec<&str> = phrase.split(' ').collect();
        words
            .windows(phrase.len())
            .enumerate()
            .any(|(i, w)| w == phrase && words.get(i + phrase.len()) != Some(&"than"))
    })
}

fn too_long(sentences: &[String]) -> impl Iterator<Item = String> {
    sentences.iter().filter_map(|sentence| {
        let words = sentence.split_whitespace().count();
        (words > SENTENCE_MAX).then(|| format!("sentence of {words} words: {}", start(sentence)))
    })
}

/// Start of a sentence, to find it by.
fn start(sentence: &str) -> String {
    sentence.chars().take(60).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_and_documents_are_in_the_projects_language() {
        let found: Vec<String> = run(tidy::root()).into_values().flatten().collect();
        assert!(found.is_empty(), "{}", found.join("\n"));
    }

    fn of_source(text: &str) -> Vec<String> {
        let mut unit = Unit::default();
        unit.source(&std::path::PathBuf::from("a.rs"), text);
        unit.findings()
    }

    #[test]
    fn riddles_are_found() {
        assert_eq!(
            of_source("/// What a build made of it.\n"),
            ["a.rs:1: opens with \"What\""]
        );
        assert_eq!(of_source("// So.\n"), ["a.rs:1: opens with \"So\""]);
        assert_eq!(of_source("/// Result of a build.\n"), [""; 0]);
    }

    #[test]
    fn names_that_say_too_little_are_found_in_code_alone() {
        let text = "// The said thing.\nlet said = \"told\";\nconst PATIENCE: u8 = 1;\nfn of() {}\nlet of = 1;\n";
        let names = [
            "2: the name \"said\"",
            "3: the name \"PATIENCE\"",
            "4: the name \"of\"",
        ];
        let expected = names.map(|name| format!("a.rs:{name} says too little"));
        assert_eq!(of_source(text), expected);
    }

    #[test]
    fn short_doc_comments_are_found_where_they_are_frequent() {
        assert_eq!(
            of_source("/// Number of blocks.\n"),
            ["a.rs:1: only 3 words"]
        );
        let many = "/// Number of blocks in it.\na\n".repeat(99);
        assert_eq!(
            of_source(&format!("{many}/// Three words only.\n")),
            [""; 0]
        );
        assert_eq!(of_source("// Three words only.\n"), [""; 0]);
    }

    #[test]
    fn relative_time_is_found_outside_of_code_spans() {
        assert_eq!(relative_time("It is faster now."), Some("now"));
        assert_eq!(relative_time("It no longer waits."), Some("no longer"));
        assert_eq!(
            relative_time("A name no longer than `now` or `Instant::now`."),
            None
        );
        assert_eq!(relative_time("It is known."), None);
    }

    #[test]
    fn long_sentences_are_found_in_paragraphs_items_and_cells() {
        let long = ["word"; 36].join(" ");
        let lines = |text: &str| -> Vec<String> { text.lines().map(str::to_owned).collect() };
        let count = |text: &str| too_long(&sentences(&lines(text))).count();
        assert_eq!(count(&long), 1);
        assert_eq!(count(&format!("| a | {long} |")), 1);
        assert_eq!(count(&long.replacen("word", "word.", 1)), 0);
        assert_eq!(count(&format!("```\n{long}\n```")), 0);
        assert_eq!(count(&format!("* a\n* {}", ["b"; 35].join(" "))), 0);
    }
}
