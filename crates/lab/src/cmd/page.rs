//! `tuff-lab page`: fills the page of requirements.

use std::path::{Path, PathBuf};
use tuff_lab::definition::Definition as _;
use tuff_lab::report::document;
use tuff_lab::report::page::{self, Claims};
use tuff_lab::{At, Result};

/// Fill benchmarks/README.md with a row for each requirement: published figure, ours, ratio, command
///
/// Figures come from records, and outputs from commands that --run runs. benchmarks/claims.toml names them.
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Run the commands whose output is shown, and record what they print
    #[arg(long)]
    run: bool,
    /// Run only commands of a row or an area, such as B1 or B
    #[arg(long, default_value = "", value_name = "ROW", requires = "run")]
    only: String,
    /// Folder of the project
    #[arg(long, default_value = ".", value_name = "DIR")]
    project: PathBuf,
}

/// Runs the command.
pub(crate) fn run(args: &Args) -> Result<bool> {
    let project: &Path = &args.project;
    let claims = Claims::read(&project.join("benchmarks/claims.toml"))?;
    if args.run {
        page::run(&claims, project, &args.only)?;
    }
    let path = project.join("benchmarks/README.md");
    let text = std::fs::read_to_string(&path).at("read", &path)?;
    let spliced = document::splice(&text, "requirements", &page::render(&claims, project)?)?;
    std::fs::write(&path, spliced.text).at("write", &path)?;
    Ok(true)
}
