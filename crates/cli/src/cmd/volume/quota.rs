//! `tuff volume quota`: limits of users, groups and projects.

use super::failure::{At, Failure, Result};
use super::open::{VolumeArgs, bytes, mount, now};
use crate::out::Out;
use crate::units::{parse_size, size};
use serde_json::{Value, json};
use std::process::ExitCode;
use tuff_iplfs::{BLOCK_SIZE, Limit, Subject};

/// Show or set the limits of users, groups and projects
///
/// New files inherit the project of their directory. On a mounted volume, 'chattr -p 7 DIR' assigns a directory or file to
/// project 7.
///
/// On a mounted volume, root sets limits with an attribute of the top directory: setfattr -n trusted.tuff.quota.user.1000
/// (or group.100, project.7) -v "1073741824 20000" MOUNTPOINT. The value is bytes and inodes; "-" is no limit.
#[derive(clap::Args)]
pub(crate) struct Args {
    #[command(flatten)]
    volume: VolumeArgs,
    /// Set the limits of this user
    #[arg(long, value_name = "UID", group = "subject")]
    user: Option<u32>,
    /// Set the limits of this group
    #[arg(long, value_name = "GID", group = "subject")]
    group: Option<u32>,
    /// Set the limits of this project
    #[arg(long, value_name = "N", group = "subject")]
    project: Option<u32>,
    /// Limit of space, such as 10G; without it there is no limit
    #[arg(long, value_name = "SIZE", requires = "subject", value_parser = parse_size)]
    space: Option<u64>,
    /// Limit of inodes; without it there is no limit
    #[arg(long, value_name = "N", requires = "subject")]
    inodes: Option<u64>,
    /// Print one JSON object
    #[arg(long, conflicts_with = "subject")]
    json: bool,
}

impl Args {
    /// Returns the user, group or project whose limits are set.
    fn subject(&self) -> Option<Subject> {
        let user = self.user.map(Subject::User);
        let group = self.group.map(Subject::Group);
        user.or(group).or(self.project.map(Subject::Project))
    }
}

pub(super) fn run(args: &Args) -> Result<ExitCode> {
    let place = args.volume.path.display();
    if let Some(subject) = args.subject() {
        let limit = Limit {
            blocks: args.space.map(|bytes| bytes / BLOCK_SIZE as u64),
            inodes: args.inodes,
        };
        let mut volume = mount(&args.volume, false)?;
        let set = volume.set_quota(subject, limit, now());
        set.map_err(|e| match e.errno() {
            28 => Failure::Usage(format!("{place}: no room for another limit")),
            _ => Failure::Volume(place.to_string(), e),
        })?;
        volume.unmount().at(&place)?;
        return Ok(ExitCode::SUCCESS);
    }
    let quotas = mount(&args.volume, true)?.quotas();
    let mut out = Out::new();
    if args.json {
        let list: Vec<Value> = quotas
            .iter()
            .map(|(subject, limit, usage)| {
                json!({
                    (subject.kind()): subject.number(), "space_bytes": bytes(usage.blocks), "inodes": usage.inodes,
                    "space_limit_bytes": limit.blocks.map(bytes), "inodes_limit": limit.inodes,
                })
            })
            .collect();
        out.json(&json!({"quotas": list}))?;
    } else {
        for (subject, limit, usage) in quotas {
            let of = |limit: Option<String>| limit.unwrap_or_else(|| "no limit".to_owned());
            out.line(format_args!(
                "{subject}: {} of {}, {} inodes of {}",
                size(bytes(usage.blocks)),
                of(limit.blocks.map(|n| size(bytes(n)))),
                usage.inodes,
                of(limit.inodes.map(|n| n.to_string())),
            ))?;
        }
    }
    Ok(out.finish()?)
}
