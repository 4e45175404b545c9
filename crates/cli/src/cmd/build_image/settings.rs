//! Settings of a build as arguments: a flag for each row of the library's table, and `--set` for those without.

use clap::builder::{PossibleValue, PossibleValuesParser};
use clap::error::ErrorKind;
use clap::parser::ValueSource;
use clap::{Arg, ArgAction, ArgMatches, Command, Error, FromArgMatches, value_parser};
use std::ffi::OsStr;
use std::ops::{Deref, DerefMut};
use std::path::PathBuf;
use tuff_mkfs::KernelVersion;
use tuff_mkfs::settings::{Form, SETTINGS, Setting, Settings, parse_kernel};

/// Settings that the command line gives.
#[derive(Clone)]
pub(crate) struct SettingArgs(Settings);

impl Default for SettingArgs {
    fn default() -> Self {
        Self(Settings::with_prefix("--"))
    }
}

impl SettingArgs {
    /// Returns the kernel that is set.
    pub(super) fn kernel(&self) -> Option<KernelVersion> {
        parse_kernel(self.get("kernel")?.to_str()?).ok()
    }
}

impl Deref for SettingArgs {
    type Target = Settings;

    fn deref(&self) -> &Settings {
        &self.0
    }
}

impl DerefMut for SettingArgs {
    fn deref_mut(&mut self) -> &mut Settings {
        &mut self.0
    }
}

/// Settings with flags of their own.
fn flags() -> impl Iterator<Item = &'static Setting> {
    SETTINGS.iter().filter(|setting| !setting.is_rare)
}

/// Argument for a setting.
fn arg(setting: &'static Setting) -> Arg {
    let arg = Arg::new(setting.name).long(setting.name);
    let arg = arg.help(setting.help()).help_heading(setting.heading);
    let arg = match setting.short {
        Some(short) => arg.short(short),
        None => arg,
    };
    if setting.form == Form::Flag {
        return arg.action(ArgAction::SetTrue);
    }
    let arg = arg.value_name(setting.placeholder);
    let arg = match setting.repeats {
        true => arg.action(ArgAction::Append),
        false => arg.action(ArgAction::Set).default_value(setting.default),
    };
    let arg = match setting.value_if_missing {
        Some(value) => arg
            .num_args(0..=1)
            .require_equals(true)
            .default_missing_value(value),
        None => arg.allow_negative_numbers(true),
    };
    match (setting.form, setting.choices) {
        (Form::File, _) => arg.value_parser(value_parser!(PathBuf)),
        (_, []) => arg
            .value_parser(move |text: &str| setting.check(text.as_ref()).map(|()| text.to_owned())),
        (_, choices) => {
            let value = |choice: &&'static str| {
                let names = setting
                    .aliases
                    .iter()
                    .filter(move |(_, name)| name == choice);
                PossibleValue::new(*choice).aliases(names.map(|(alias, _)| *alias))
            };
            arg.value_parser(PossibleValuesParser::new(choices.iter().map(value)))
        }
    }
}

/// The argument `--set`, whose help lists the settings without flags.
fn set() -> Arg {
    let mut help = "Set an option by its name. These have no flag:\n".to_owned();
    for setting in SETTINGS.iter().filter(|setting| setting.is_rare) {
        let value = match (setting.form, setting.choices) {
            (Form::Flag, _) => String::new(),
            (_, []) => format!("={}", setting.placeholder),
            (_, choices) => format!("={}", choices.join("|")),
        };
        let default = setting
            .default
            .map(|default| format!(" (default: {default})"));
        let default = default.unwrap_or_default();
        help += &format!("\n* {}{value}: {}{default}\n", setting.name, setting.help());
    }
    Arg::new("set")
        .long("set")
        .value_name("NAME=VALUE")
        .help("Set an option by its name")
        .long_help(help.trim_end().to_owned())
        .help_heading("Work")
        .action(ArgAction::Append)
        .value_parser(|text: &str| {
            let (name, value) = text.split_once('=').unwrap_or((text, "on"));
            let checked = Settings::default().set(name, value);
            checked.map(|()| (name.to_owned(), value.to_owned()))
        })
}

impl clap::Args for SettingArgs {
    fn augment_args(command: Command) -> Command {
        command.args(flags().map(arg)).arg(set())
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for SettingArgs {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, Error> {
        let mut settings = Self::default();
        settings.update_from_arg_matches(matches)?;
        Ok(settings)
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), Error> {
        let usage = |e: tuff_erofs::Error| Error::raw(ErrorKind::ArgumentConflict, e);
        for setting in flags() {
            if matches.value_source(setting.name) != Some(ValueSource::CommandLine) {
                continue;
            }
            let values = match setting.form {
                Form::Flag => vec![OsStr::new("on")],
                _ => matches
                    .get_raw(setting.name)
                    .into_iter()
                    .flatten()
                    .collect(),
            };
            for value in values {
                self.set(setting.name, value).map_err(usage)?;
            }
        }
        let set = matches.get_many::<(String, String)>("set");
        for (name, value) in set.into_iter().flatten() {
            self.set(name, value).map_err(usage)?;
        }
        // Settings that contradict each other fail when the options are made of all: a verb may add some.
        Ok(())
    }
}
