//! Adds examples, groups of verbs and the two levels of help to the command that clap derives.

use super::topics::{TOPICS, topic};
use clap::builder::styling::Style;
use clap::{Arg, ArgAction, Command};
use std::ffi::OsStr;
use std::fmt::Write;

/// Level of detail of `--help` and `--help-all`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Detail {
    /// Common options in one list.
    Common,
    /// All options under their headings.
    All,
}

impl Detail {
    /// Level for a command line: `tuff help VERB` and `--help-all` print all options.
    pub(crate) fn from_args<T: AsRef<OsStr>>(args: &[T]) -> Self {
        let is_help = args.get(1).is_some_and(|verb| verb.as_ref() == "help");
        match is_help || args.iter().any(|arg| arg.as_ref() == "--help-all") {
            true => Self::All,
            false => Self::Common,
        }
    }
}

/// `derived` with help at the given level.
pub(crate) fn command(derived: Command, detail: Detail) -> Command {
    let style = *derived.get_styles().get_header();
    let verbs = groups(&derived, style);
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{verbs}{}\n\
        {style}Options:{style:#}\n{{options}}{{after-help}}",
        examples("", style)
    );
    with_verbs(derived, "", detail)
        .help_template(template)
        .override_usage("tuff <VERB> [OPTIONS] [ARGUMENTS]")
        .after_help("'tuff VERB --help' shows the common options of a verb, 'tuff VERB --help-all' all of them.")
}

/// The verbs of a command with their help; the other commands of `tuff` define their own.
fn with_verbs(mut parent: Command, path: &str, detail: Detail) -> Command {
    let names: Vec<String> = parent
        .get_subcommands()
        .map(|verb| verb.get_name().to_owned())
        .collect();
    for name in names {
        let path = match path {
            "" => name.clone(),
            path => format!("{path} {name}"),
        };
        parent = parent.mut_subcommand(&name, |verb| match verb.is_disable_help_flag_set() {
            true => verb,
            false => with_verbs(verb_help(verb, &path, detail), &path, detail),
        });
    }
    parent
}

fn verb_help(verb: Command, path: &str, detail: Detail) -> Command {
    let style = *verb.get_styles().get_header();
    let common = topic(path).map_or(&[][..], |topic| &topic.common);
    let is_group = verb.has_subcommands();
    let has_more = |arg: &Arg| !arg.is_positional() && !common.contains(&arg.get_id().as_str());
    let more = verb.get_arguments().any(has_more);
    let all_args = if is_group {
        "{subcommands}"
    } else {
        "{all-args}"
    };
    let heading = match is_group {
        true => format!("{style}Verbs:{style:#}\n"),
        false => String::new(),
    };
    let template = format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{}\n{heading}{all_args}{{after-help}}",
        examples(path, style)
    );
    let verb = verb.mut_args(|arg| match (arg.is_positional(), has_more(&arg)) {
        (true, _) => arg,
        _ if detail == Detail::All => arg,
        (false, true) => arg.hide_short_help(true),
        (false, false) => arg.help_heading(None),
    });
    let verb = verb
        .disable_help_flag(true)
        .help_template(template)
        .arg(
            Arg::new("help")
                .short('h')
                .long("help")
                .action(ArgAction::HelpShort)
                .help("Print the common options and examples"),
        )
        .arg(
            Arg::new("help_all")
                .long("help-all")
                .action(ArgAction::HelpLong)
                .help("Print all options"),
        );
    match (is_group, more) {
        (true, _) => verb.after_help(format!("'tuff {path} VERB --help' explains a verb.")),
        (false, true) => verb
            .after_help(format!("'tuff {path} --help-all' lists all options."))
            .after_long_help(format!(
                "The manual page tuff-{}(1), written by 'tuff man', also lists exit codes and environment variables.",
                path.replace(' ', "-")
            )),
        (false, false) => verb,
    }
}

/// Examples of a verb as a section of its help. The manual page has all of them, the help the first two.
fn examples(path: &str, style: Style) -> String {
    let mut text = format!("{style}Examples:{style:#}\n");
    let examples = topic(path).map_or(&[][..], |topic| &topic.examples);
    for (purpose, line) in examples.iter().take(2) {
        // Writing to a String cannot fail.
        let _ = write!(text, "  # {purpose}\n  {line}\n");
    }
    text
}

/// The verbs of `tuff`, by purpose.
fn groups(tuff: &Command, style: Style) -> String {
    let mut text = String::new();
    let mut heading = "";
    // The first topic is that of `tuff` itself. Without its cargo feature, a verb is absent.
    for topic in TOPICS.iter().skip(1) {
        let Some(verb) = tuff.find_subcommand(topic.path) else {
            continue;
        };
        if heading != topic.group {
            let end = if heading.is_empty() { "" } else { "\n" };
            heading = topic.group;
            let _ = writeln!(text, "{end}{style}{heading}:{style:#}");
        }
        let about = verb.get_about().map(ToString::to_string);
        let _ = writeln!(text, "  {:<12} {}", topic.path, about.unwrap_or_default());
    }
    text + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cli::Cli;
    use clap::CommandFactory;

    fn tuff(detail: Detail) -> Command {
        command(Cli::command(), detail)
    }

    /// Every command below `parent`, with its path.
    fn all(parent: &Command, path: &str, found: &mut Vec<(String, Command)>) {
        for verb in parent.get_subcommands() {
            let path = format!("{path} {}", verb.get_name()).trim().to_owned();
            all(verb, &path, found);
            found.push((path, verb.clone()));
        }
    }

    #[test]
    fn every_verb_has_a_topic_and_every_topic_a_verb() {
        let mut verbs = Vec::new();
        all(&tuff(Detail::All), "", &mut verbs);
        let mut paths: Vec<&str> = verbs.iter().map(|(path, _)| path.as_str()).collect();
        paths.push("");
        paths.sort_unstable();
        let mut topics: Vec<&str> = TOPICS.iter().map(|topic| topic.path).collect();
        topics.sort_unstable();
        assert_eq!(paths, topics);
    }

    #[test]
    fn the_arguments_are_consistent() {
        for detail in [Detail::Common, Detail::All] {
            tuff(detail).debug_assert();
        }
    }

    #[test]
    fn common_options_exist_and_are_few() {
        let mut verbs = Vec::new();
        all(&tuff(Detail::All), "", &mut verbs);
        for (path, verb) in verbs {
            let common = &topic(&path).unwrap().common;
            assert!(common.len() <= 6, "{path}");
            for id in common {
                let mut args = verb.get_arguments();
                assert!(args.any(|arg| arg.get_id() == *id), "{path}: {id}");
            }
        }
    }

    #[test]
    fn help_lines_of_verbs_are_short() {
        for verb in tuff(Detail::All).get_subcommands() {
            let about = verb.get_about().unwrap().to_string();
            assert!(about.len() <= 65 && !about.ends_with('.'), "{about}");
        }
    }

    #[test]
    fn every_verb_has_two_examples_that_parse() {
        for topic in TOPICS.iter() {
            assert!(topic.examples.len() >= 2, "{}", topic.path);
            for (_, line) in &topic.examples {
                // Redirections follow the arguments.
                let line = line.replace("\"$ROOT_HASH\"", &"0".repeat(64));
                let args = line
                    .split([' '])
                    .take_while(|word| !matches!(*word, "<" | ">" | "|"));
                let args: Vec<String> = args.map(|arg| arg.trim_matches('\'').to_owned()).collect();
                let parsed = tuff(Detail::Common).try_get_matches_from(&args);
                assert!(parsed.is_ok(), "{line}: {}", parsed.unwrap_err());
                let path = args[1..].join(" ");
                assert!(path.starts_with(topic.path), "{line}");
            }
        }
    }

    #[test]
    fn help_all_and_the_help_verb_print_everything() {
        assert!(Detail::from_args(&["tuff", "build", "--help-all"]) == Detail::All);
        assert!(Detail::from_args(&["tuff", "help", "build"]) == Detail::All);
        assert!(Detail::from_args(&["tuff", "build", "--help"]) == Detail::Common);
    }

    #[test]
    fn the_short_help_of_build_fits_a_screen() {
        let help = |detail, flag| {
            let result = tuff(detail).try_get_matches_from(["tuff", "build", flag]);
            result.unwrap_err().to_string()
        };
        let short = help(Detail::Common, "-h");
        assert_eq!(short, help(Detail::Common, "--help"));
        assert!(short.lines().count() <= 40, "{short}");
        assert!(short.contains("Examples:") && short.contains("--compress"));
        assert!(!short.contains("--xattr-prefix"));
        let long = help(Detail::All, "--help-all");
        assert!(long.contains("--xattr-prefix") && long.contains("--compress"));
    }
}
