//! Commands without hidden options, which clap_complete writes into its scripts.

use clap::{ArgGroup, Command};
use std::collections::HashSet;

/// Returns a command with the visible options and verbs of `command`, and what completions say about them.
pub(super) fn removed(command: &Command) -> Command {
    // clap takes names that live as long as the process, which ends after the script.
    let name: &'static str = command.get_name().to_owned().leak();
    let options = command.get_arguments().filter(|arg| !arg.is_hide_set());
    let options: Vec<_> = options.cloned().collect();
    let ids: HashSet<_> = options.iter().map(clap::Arg::get_id).collect();
    let groups = command.get_groups().map(|group| {
        let kept = group.get_args().filter(|id| ids.contains(id));
        ArgGroup::new(group.get_id().clone())
            .multiple(group.clone().is_multiple())
            .args(kept.cloned().collect::<Vec<_>>())
    });
    let verbs = command.get_subcommands().filter(|verb| !verb.is_hide_set());
    let mut new = Command::new(name)
        .disable_help_flag(command.is_disable_help_flag_set())
        .disable_help_subcommand(command.is_disable_help_subcommand_set())
        .disable_version_flag(command.is_disable_version_flag_set())
        .args(options.clone())
        .groups(groups)
        .subcommands(verbs.map(removed));
    if let Some(version) = command.get_version() {
        new = new.version(version.to_owned().leak() as &'static str);
    }
    if let Some(about) = command.get_about() {
        new = new.about(about.clone());
    }
    new
}
