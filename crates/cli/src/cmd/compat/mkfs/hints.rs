//! Compression hints: lines of a cluster size, an optional algorithm number and an expression. The first matching line
//! wins.

use super::super::ere;
use std::path::Path;
use tuff_erofs::{Error, Result};
use tuff_mkfs::source::lists::read_text;
use tuff_mkfs::{Compression, Rule};

/// Reads the rules of a file. Lines whose cluster size is not a multiple of `block` are skipped with a note.
pub(super) fn rules(
    file: &Path,
    algorithms: &[Compression],
    block: usize,
    notes: &mut Vec<String>,
) -> Result<Vec<Rule>> {
    let text = read_text(file)?;
    let text = String::from_utf8_lossy(&text);
    let mut rules = Vec::new();
    for (i, line) in text.lines().enumerate() {
        let place = format!("{}: line {}", file.display(), i + 1);
        let wrong = |what: &str| Error::usage(format_args!("{place}: {what}"));
        let line = line.trim();
        if line.is_empty() || line.starts_with('#') {
            continue;
        }
        let (cluster, rest) = line
            .split_once(char::is_whitespace)
            .ok_or_else(|| wrong("expected a cluster size and an expression"))?;
        let cluster: usize = cluster
            .parse()
            .map_err(|_| wrong(&format!("'{cluster}' is not a cluster size in bytes")))?;
        let rest = rest.trim_start();
        let (number, expression) = match rest.split_once(char::is_whitespace) {
            Some((number, expression)) => {
                let number = number
                    .parse()
                    .map_err(|_| wrong(&format!("'{number}' is not an algorithm number")))?;
                (number, expression.trim_start())
            }
            None => (0, rest),
        };
        let algorithm = algorithms.get(number).ok_or_else(|| {
            let given = algorithms.len();
            wrong(&format!(
                "algorithm {number}, but -z gives {given}, counted from 0"
            ))
        })?;
        let paths = ere::paths(&place, expression)?;
        if !cluster.is_multiple_of(block) {
            notes.push(format!(
                "{place}: {cluster} is not a multiple of the block size {block}: the line is skipped"
            ));
            continue;
        }
        rules.push(Rule {
            paths,
            compression: (cluster > 0).then_some(*algorithm),
            cluster: (cluster > 0).then_some(cluster),
        });
    }
    Ok(rules)
}
