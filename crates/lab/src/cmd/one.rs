//! `tuff-lab build`, `extract` and `check`: one measurement with settings from the command line.

use super::options::MeasureOptions;
use tuff_lab::Result;
use tuff_lab::campaigns;
use tuff_lab::campaigns::commands::definition::Definition;
use tuff_lab::campaigns::commands::run;
use tuff_lab::definition::Definition as _;
use tuff_lab::engines::settings::{Action, Size};
use tuff_lab::record::{Line, Record};

/// Measure one action with the given settings, and print the table
#[derive(clap::Args)]
pub(crate) struct Args {
    /// Algorithm and level, such as zstd:3
    #[arg(
        short = 'z',
        long,
        default_value = "lz4hc:9",
        value_name = "ALG[:LEVEL]"
    )]
    compress: String,
    /// Cluster size (EROFS) or block size (SquashFS)
    #[arg(short = 'C', long, default_value = "64K", value_name = "SIZE")]
    cluster: Size,
    #[command(flatten)]
    options: MeasureOptions,
}

/// Runs the command. Returns false if our own tool failed or gave a wrong result.
pub(crate) fn run(args: &Args, action: Action) -> Result<bool> {
    let definition = one_task(&args.compress, args.cluster, action)?;
    let mut lines: Vec<Line> = Vec::new();
    let conditions = args.options.conditions()?;
    let fine = run::run("commands", &definition, &conditions, &mut |line| {
        lines.push(line.clone());
        Ok(())
    })?;
    print!("{}", campaigns::report(&Record::collect(lines)?)?);
    Ok(fine)
}

/// Returns a definition with every tool that supports `action`, at the same settings.
fn one_task(compress: &str, cluster: Size, action: Action) -> Result<Definition> {
    let (algorithm, level) = match compress.split_once(':') {
        Some((algorithm, level)) => (algorithm, format!(", level = {level}")),
        None => (compress, String::new()),
    };
    let settings = format!(
        "{{ algorithm = '{algorithm}'{level}, cluster = '{cluster}', inline_tails = false, fragments = 'off', dedupe = 'off' }}"
    );
    let runs = match action {
        Action::Build => ["tuff", "mkfs.erofs", "mksquashfs"].as_slice(),
        Action::Extract => ["tuff", "fsck.erofs", "unsquashfs"].as_slice(),
        Action::Check => ["tuff", "fsck.erofs"].as_slice(),
    };
    let runs: Vec<String> = runs
        .iter()
        .map(|name| format!("{{ tool = '{name}' }}"))
        .collect();
    let text = format!(
        "[[task]]\nname = '{compress} {cluster}'\naction = '{action}'\nsettings = {settings}\nrun = [{}]\n",
        runs.join(", ")
    );
    Definition::parse("command line", &text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_task_contains_every_tool_that_supports_the_action() {
        let labels = |action| -> Vec<String> {
            let definition = one_task("zstd:3", Size(65536), action).unwrap();
            definition.tasks[0]
                .runs
                .iter()
                .map(|r| r.label().to_owned())
                .collect()
        };
        assert_eq!(labels(Action::Build), ["tuff", "mkfs.erofs", "mksquashfs"]);
        assert_eq!(labels(Action::Check), ["tuff", "fsck.erofs"]);
        assert!(one_task("zstd:x", Size(65536), Action::Build).is_err());
    }
}
