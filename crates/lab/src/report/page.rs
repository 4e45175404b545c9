//! Page of requirements: for each a command, what it printed or measured, the published figure and the ratio.
//!
//! ```text
//!  claims.toml ──┬─ record, cell, value ──► median of a record's samples ─┐
//!                ├─ command, prints ──────► line of the command's output ─┼──► table in README.md
//!                └─ command of a test ────────────────────────────────────┘
//! ```
//!
//! No figure is written by hand.

use crate::definition::Definition;
use crate::measure::stats::median;
use crate::record::{Header, Labels, Line, Note, Record, encode, labels};
use crate::{At, Error, Result};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

/// Path of the outputs of commands, below the project.
const OUTPUTS: &str = "benchmarks/record/claims.jsonl";
/// Text in place of a figure or an output that no run has recorded.
pub const NOT_RECORDED: &str = "not recorded";
/// First letters of the rows' names, with the titles of their tables.
const AREAS: [(char, &str); 7] = [
    ('B', "Images: building"),
    ('R', "Images: reading"),
    ('P', "Images: changing"),
    ('V', "Volumes and the device below"),
    ('L', "Lab"),
    ('S', "Remote images"),
    ('A', "Adoption"),
];

/// Content of `benchmarks/claims.toml`.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claims {
    /// Claims in the order of the page. Several may belong to one row.
    pub claim: Vec<Claim>,
}

/// Claim: a figure of a record, a line that a command prints, or a remark.
#[derive(Clone, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Claim {
    /// Name of the row, such as `B1`.
    pub row: String,
    /// Requirement, given with the first claim of a row.
    #[serde(default)]
    pub requirement: String,
    /// Description of the figure, if a row has several.
    #[serde(default)]
    pub what: String,
    /// Published figure with its unit.
    #[serde(default)]
    pub published: String,
    /// Number at the base of the ratio, in the unit of the figure. Absent with `against`.
    pub base: Option<f64>,
    /// Command that shows the claim, run in the folder of the project.
    #[serde(default)]
    pub command: String,
    /// Text in the line of the command's output that is shown. Tests need none: `cargo xtask tidy` checks that they exist.
    prints: Option<String>,
    /// Path of the record with the figure, below `benchmarks/record`.
    pub record: Option<PathBuf>,
    /// Labels of the figure's samples.
    #[serde(default)]
    pub cell: Labels,
    /// Name of the value. Absent for the number of samples.
    pub value: Option<String>,
    /// Number by which values are divided.
    #[serde(default = "one")]
    pub divisor: f64,
    /// Unit of the figure.
    #[serde(default)]
    pub unit: String,
    /// Labels that lead to the samples at the base of the ratio.
    pub against: Option<Labels>,
    /// Page with the whole result, or chart, below `benchmarks`.
    pub see: Option<PathBuf>,
    /// Sentence about what is missing, or why a figure is not better.
    #[serde(default)]
    pub remark: String,
}

fn one() -> f64 {
    1.0
}

impl Definition for Claims {
    fn check(&self) -> Result<(), String> {
        for claim in &self.claim {
            let wrong = |reason: &str| Err(format!("row {}: {reason}", claim.row));
            if !AREAS
                .iter()
                .any(|(letter, _)| claim.row.starts_with(*letter))
            {
                return wrong("belongs to no area");
            }
            let is_test = claim.command.starts_with("cargo test ");
            let is_shown = is_test || claim.record.is_some() || claim.prints.is_some();
            if is_shown == claim.command.is_empty() {
                return wrong("a figure or output needs a command, and a command shows one");
            }
            if !is_shown && claim.remark.is_empty() {
                return wrong("a row without a command needs a remark");
            }
            if claim.base.is_some() && claim.against.is_some() {
                return wrong("a ratio has one base");
            }
        }
        Ok(())
    }
}

impl Claim {
    /// Returns figure and ratio as text.
    fn shown(
        &self,
        project: &Path,
        outputs: &BTreeMap<String, String>,
    ) -> Result<(String, String)> {
        let missing = |what: &str| Error::Usage(format!("row {}: {what}", self.row));
        if self.prints.is_some() {
            let output = outputs.get(&self.command);
            let text = output.map_or(NOT_RECORDED, String::as_str);
            return Ok((text.to_owned(), String::new()));
        }
        let Some(path) = &self.record else {
            return Ok(Default::default());
        };
        let path = project.join("benchmarks/record").join(path);
        if !path.exists() {
            return Ok((NOT_RECORDED.to_owned(), String::new()));
        }
        let record = Record::read(&[&path])?;
        let figure = |cell: &Labels| {
            let is_in =
                |s: &&crate::record::Sample| cell.iter().all(|(l, v)| s.cell.get(l) == Some(v));
            let samples = record.samples.iter().filter(is_in);
            let Some(value) = &self.value else {
                return Some(samples.count() as f64);
            };
            let values: Vec<f64> = samples
                .filter_map(|s| s.values.get(value).copied())
                .collect();
            median(&values).map(|median| median / self.divisor)
        };
        let none = || missing(&format!("{} has no such samples", path.display()));
        let own = figure(&self.cell).ok_or_else(none)?;
        let base = match &self.against {
            Some(against) => {
                let mut cell = self.cell.clone();
                cell.extend(against.clone());
                Some(figure(&cell).ok_or_else(none)?)
            }
            None => self.base,
        };
        let ratio = base.map_or(String::new(), |base| format!("{:.2}", own / base));
        let text = format!("{} {}", super::table::number(own), self.unit);
        Ok((text.trim().to_owned(), ratio))
    }
}

/// Renders the tables of the page.
///
/// # Errors
/// `Usage` names a row whose record has no such samples.
pub fn render(claims: &Claims, project: &Path) -> Result<String> {
    let outputs = outputs(project)?;
    let mut out = String::new();
    for (letter, title) in AREAS {
        // Writing to a String cannot fail, here and below.
        let _ = write!(
            out,
            "\n### {title}\n\n| | requirement | published | here | ratio | command |\n|---|---|--:|--:|--:|---|\n"
        );
        let mut last = "";
        for claim in claims.claim.iter().filter(|c| c.row.starts_with(letter)) {
            let (figure, ratio) = claim.shown(project, &outputs)?;
            let row = if claim.row == last {
                ""
            } else {
                claim.row.as_str()
            };
            last = &claim.row;
            let mut command = String::new();
            if !claim.command.is_empty() {
                command = format!("`{}`", claim.command.replace('|', "\\|"));
            }
            if let Some(see) = &claim.see {
                let name = see.file_stem().unwrap_or_default().to_string_lossy();
                let _ = write!(command, " [{name}]({})", see.display());
            }
            let texts = [&claim.requirement, &claim.what, &claim.remark];
            let texts: Vec<&str> = texts
                .into_iter()
                .map(|t| t.trim())
                .filter(|t| !t.is_empty())
                .collect();
            let _ = writeln!(
                out,
                "| {row} | {} | {} | {figure} | {ratio} | {} |",
                texts.join(". "),
                claim.published,
                command.trim()
            );
        }
    }
    Ok(out.trim_start().to_owned())
}

/// Returns the recorded outputs by command.
fn outputs(project: &Path) -> Result<BTreeMap<String, String>> {
    let path = project.join(OUTPUTS);
    if !path.exists() {
        return Ok(BTreeMap::new());
    }
    let notes = Record::read(&[&path])?.notes.into_iter();
    Ok(notes
        .map(|mut note| (note.cell.remove("command").unwrap_or_default(), note.text))
        .collect())
}

/// Runs the commands of a row or of an area, such as `B1` or `B`, or of all if `only` is empty. Records the lines that they
/// print.
///
/// # Errors
/// `Command` if a command printed no such line. The others are recorded.
pub fn run(claims: &Claims, project: &Path, only: &str) -> Result<()> {
    let mut known = outputs(project)?;
    known.retain(|command, _| claims.claim.iter().any(|c| c.command == *command));
    let mut done: Vec<&str> = Vec::new();
    let mut failed = 0;
    let is_selected = |row: &str| {
        only.is_empty() || row == only || row.trim_end_matches(char::is_numeric) == only
    };
    for claim in claims.claim.iter().filter(|c| is_selected(&c.row)) {
        let Some(prints) = &claim.prints else {
            continue;
        };
        if done.contains(&claim.command.as_str()) {
            continue;
        }
        done.push(&claim.command);
        eprintln!("{}: {}", claim.row, claim.command);
        match output(&claim.command, project, prints) {
            Ok(output) => known.insert(claim.command.clone(), output),
            Err(e) => {
                eprintln!("tuff-lab: {}: {e}", claim.row);
                failed += 1;
                known.remove(&claim.command)
            }
        };
        let header = Header::here("claims", [])?;
        let mut text = encode(&Line::Header(header)) + "\n";
        for (command, output) in &known {
            let cell = labels([("command", command)]);
            text += &encode(&Line::Note(Note {
                cell,
                text: output.clone(),
            }));
            text.push('\n');
        }
        let path = project.join(OUTPUTS);
        std::fs::write(&path, text).at("write", &path)?;
    }
    match failed {
        0 => Ok(()),
        _ => Err(Error::Command(format!("{failed} commands failed"))),
    }
}

/// Runs a command of the shell with the program's folder in PATH, and returns the lines of its output that contain `prints`.
fn output(command: &str, project: &Path, prints: &str) -> Result<String> {
    let mut path = std::env::current_exe()
        .ok()
        .and_then(|exe| Some(exe.parent()?.as_os_str().to_owned()))
        .unwrap_or_default();
    path.push(":");
    path.push(std::env::var_os("PATH").unwrap_or_default());
    let mut shell = Command::new("sh");
    shell
        .args(["-c", command])
        .current_dir(project)
        .env("PATH", path);
    let run = shell
        .stdin(Stdio::null())
        .output()
        .at("run", Path::new(command))?;
    let text =
        String::from_utf8_lossy(&run.stdout).into_owned() + &String::from_utf8_lossy(&run.stderr);
    let lines: Vec<&str> = text
        .lines()
        .filter(|line| line.contains(prints))
        .map(str::trim)
        .collect();
    if lines.is_empty() {
        let end: Vec<&str> = text.lines().rev().take(5).collect();
        return Err(Error::Command(format!(
            "`{command}` does not print '{prints}': {}",
            end.into_iter().rev().collect::<Vec<_>>().join("; ")
        )));
    }
    Ok(lines.join("; "))
}
