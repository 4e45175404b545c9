//! Table of a record: a line for each kind of image.

use super::record::{Image, Line, Outcome};
use std::fmt::Write as _;

/// Renders the table as Markdown, after a line about the conditions.
pub fn render(lines: &[Line]) -> String {
    let mut out = String::new();
    let mut groups: Vec<(String, Vec<&Image>)> = Vec::new();
    for line in lines {
        match line {
            Line::Header(header) => {
                let (guest, tuff, seed) = (&header.guest, &header.tuff, header.seed);
                let _ = writeln!(out, "Guest kernel {guest}; {tuff}; seed {seed}.\n");
            }
            Line::Image(image) => {
                let kernel = &image.lowest_kernel;
                let name = format!("{} | {kernel}", image.name);
                match groups.iter_mut().find(|(known, _)| *known == name) {
                    Some((_, images)) => images.push(image),
                    None => groups.push((name, vec![image])),
                }
            }
        }
    }
    // Random images come last, in the order of their kernels.
    groups.sort_by_key(|(name, images)| (images[0].name == super::RANDOM).then(|| version(name)));
    out.push_str(
        "| image | lowest kernel | images | files and directories | identical | refused | read error | wrong |\n|---|---|--:|--:|--:|--:|--:|--:|\n",
    );
    for (name, images) in &groups {
        let entries: u64 = images.iter().map(|i| i.entries).sum();
        let right = |is: fn(&Outcome) -> bool| {
            let of = images.iter().filter(|i| i.is_right() && is(&i.outcome));
            of.count()
        };
        let _ = writeln!(
            out,
            "| {name} | {} | {entries} | {} | {} | {} | {} |",
            images.len(),
            right(|o| *o == Outcome::Same),
            right(|o| matches!(o, Outcome::Refused(_))),
            right(|o| matches!(o, Outcome::ReadError(_))),
            images.iter().filter(|i| !i.is_right()).count(),
        );
    }
    out
}

/// Returns the version after the bar as numbers.
fn version(name: &str) -> Vec<u32> {
    let text = name.rsplit(' ').next().unwrap_or_default();
    text.split('.').flat_map(str::parse).collect()
}

/// Returns the images whose outcome is not the promised one.
pub fn wrong(lines: &[Line]) -> impl Iterator<Item = &Image> {
    lines.iter().filter_map(|line| match line {
        Line::Image(image) if !image.is_right() => Some(image),
        _ => None,
    })
}
