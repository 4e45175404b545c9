//! `tuff man`: manual pages, generated from the definition of the arguments.

use crate::help::{Topic, topic};
use clap::Command;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, bold, roman};
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tuff_erofs::{Error, Result};

/// Write the manual pages to a directory
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Directory, created if it does not exist
    #[arg(value_name = "DIR")]
    dir: PathBuf,
}

/// Environment variable that every verb obeys.
const NO_COLOR: (&str, &str) = ("NO_COLOR", "Disables colors in help.");

/// Writes the pages of `command` and of its verbs.
pub(crate) fn run(args: &Args, command: Command) -> Result<ExitCode> {
    fs::create_dir_all(&args.dir)
        .map_err(|e| Error::io(args.dir.display(), "cannot make the directory", e))?;
    let mut command = command.disable_help_subcommand(true);
    command.build();
    pages(&command, &args.dir)
        .map_err(|e| Error::io(args.dir.display(), "cannot write the pages", e))?;
    Ok(ExitCode::SUCCESS)
}

fn pages(command: &Command, dir: &Path) -> io::Result<()> {
    let man = Man::new(command.clone());
    fs::write(dir.join(man.get_filename()), page(command, &man)?)?;
    command
        .get_subcommands()
        .try_for_each(|verb| pages(verb, dir))
}

fn page(command: &Command, man: &Man) -> io::Result<Vec<u8>> {
    let mut page = Vec::new();
    man.render_title(&mut page)?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    man.render_options_section(&mut page)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let name = command.get_display_name().unwrap_or(command.get_name());
    let path = name.trim_start_matches("tuff").replace('-', " ");
    if let Some(topic) = topic(path.trim()) {
        sections(topic).to_writer(&mut page)?;
    }
    page.push(b'\n');
    Ok(page)
}

/// The sections that clap does not know.
fn sections(verb: &Topic) -> Roff {
    let mut roff = Roff::new();
    roff.control("SH", ["EXAMPLES"]);
    for (purpose, line) in &verb.examples {
        roff.control("TP", []);
        roff.text([roman(format!("{purpose}:"))]);
        roff.text([bold(*line)]);
    }
    roff.control("SH", ["EXIT STATUS"]);
    // The meaning of 1 is that of the verb. The verbs of other tools have only 0 and 1.
    let is_ours = !verb.path.contains(".erofs");
    for code in topic("").iter().flat_map(|tuff| &tuff.exit_codes) {
        let shown = match code.0 {
            "0" => Some(code),
            "1" => verb.exit_codes.iter().find(|own| own.0 == "1"),
            _ => is_ours.then_some(code),
        };
        entries(&mut roff, shown);
    }
    roff.control("SH", ["ENVIRONMENT"]);
    entries(&mut roff, verb.environment.iter().chain([&NO_COLOR]));
    roff.control("SH", ["SEE ALSO"]);
    let related = verb.related.iter().map(|path| path.replace(' ', "-"));
    let related = related.map(|name| format!("tuff-{name}"));
    let root = (!verb.path.is_empty()).then(|| "tuff".to_owned());
    let pages: Vec<String> = related.chain(root).collect();
    let mut text = Vec::new();
    for (i, name) in pages.iter().enumerate() {
        let end = if i + 1 < pages.len() { "(1), " } else { "(1)" };
        text.extend([bold(name.as_str()), roman(end)]);
    }
    roff.text(text);
    roff
}

fn entries<'a>(roff: &mut Roff, list: impl IntoIterator<Item = &'a (&'static str, &'static str)>) {
    for (term, meaning) in list {
        roff.control("TP", []);
        roff.text([bold(*term)]);
        roff.text([roman(*meaning)]);
    }
}
