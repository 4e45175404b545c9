//! Profiles of `~/.aws/credentials` and `~/.aws/config`, which complete what the environment says.

use std::collections::HashMap;
use std::path::PathBuf;

/// Settings of one profile, by their names in the files.
pub(crate) type Profile = HashMap<String, String>;

/// Reads the profile that `AWS_PROFILE` names, or `default`. Absent files are empty.
pub(crate) fn read() -> Profile {
    let profile = std::env::var("AWS_PROFILE")
        .ok()
        .filter(|name| !name.is_empty());
    let profile = profile.unwrap_or_else(|| "default".to_owned());
    let mut out = settings("AWS_CONFIG_FILE", "config", |section| {
        section == profile || section.strip_prefix("profile ").map(str::trim) == Some(&profile)
    });
    out.extend(settings(CREDENTIALS.0, CREDENTIALS.1, |section| {
        section == profile
    }));
    out
}

/// Variable that names the file with keys, and its name in `~/.aws`.
const CREDENTIALS: (&str, &str) = ("AWS_SHARED_CREDENTIALS_FILE", "credentials");

/// File with keys. It need not exist.
pub(crate) fn credentials_file() -> Option<PathBuf> {
    file(CREDENTIALS.0, CREDENTIALS.1)
}

fn file(variable: &str, name: &str) -> Option<PathBuf> {
    let home = || {
        Some(
            PathBuf::from(std::env::var_os("HOME")?)
                .join(".aws")
                .join(name),
        )
    };
    std::env::var_os(variable).map(PathBuf::from).or_else(home)
}

fn settings(variable: &str, name: &str, is_wanted: impl Fn(&str) -> bool) -> Profile {
    let text = file(variable, name).and_then(|path| std::fs::read_to_string(path).ok());
    parse(&text.unwrap_or_default(), is_wanted)
}

/// Settings of the sections that are wanted. Nested settings, which are indented, are left out.
fn parse(text: &str, is_wanted: impl Fn(&str) -> bool) -> Profile {
    let mut out = Profile::new();
    let mut inside = false;
    for line in text.lines() {
        let section = line
            .trim()
            .strip_prefix('[')
            .and_then(|l| l.strip_suffix(']'));
        match (section, line.split_once('=')) {
            (Some(section), _) => inside = is_wanted(section.trim()),
            (None, Some((name, value))) if inside && !line.starts_with([' ', '\t', '#', ';']) => {
                out.insert(name.trim().to_owned(), value.trim().to_owned());
            }
            _ => {}
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_the_wanted_section_counts() {
        let text = "[a]\nk = 1\n[profile b]\nk=2\n#k = 3\ns3 =\n  k = 4\nr = x=y\n[c]\nk = 5\n";
        let found = parse(text, |section| section == "profile b");
        assert_eq!(found["k"], "2");
        assert_eq!(found["r"], "x=y");
        assert!(parse(text, |_| false).is_empty());
    }
}
