//! Tools under measurement, and the mapping of neutral settings to their command lines.
//!
//! A command line is a template: the words `{TREE}`, `{IMAGE}` and `{TARGET}` are placeholders that
//! only [`Plan::arguments`] replaces. Records contain the template, and so no path of the machine.
//!
//! A setting that a tool does not support is an error, because a comparison must run with the
//! settings in its table. A setting that the tool has fixed to one value is recorded as a note.

mod build;
pub mod filesystem;
mod found;
pub mod settings;
mod tool;

use crate::engines::settings::{Action, Settings};
use build::{mkfs_erofs, mksquashfs, tuff_build};

pub use found::Found;
pub(crate) use found::{is_program, numbers, search, version};
pub use tool::{Format, Places, Plan, TOOLS, Tool};

/// Returns the command line of `tool` for `action` with `settings`, followed by `extra`. The error
/// names an unsupported setting or action.
pub fn plan(
    tool: Tool,
    action: Action,
    settings: &Settings,
    extra: &[String],
) -> Result<Plan, String> {
    let mut plan = Plan {
        tool,
        template: Vec::new(),
        notes: Vec::new(),
    };
    match (tool, action) {
        (Tool::Tuff, Action::Build) => tuff_build(&mut plan, settings)?,
        (Tool::MkfsErofs, Action::Build) => mkfs_erofs(&mut plan, settings)?,
        (Tool::Mksquashfs, Action::Build) => mksquashfs(&mut plan, settings)?,
        (Tool::Tuff, Action::Extract | Action::Check) => plan.word(action.to_string()),
        (Tool::FsckErofs, Action::Extract) => plan.word("--extract={TARGET}"),
        (Tool::FsckErofs, Action::Check) => plan.word("--extract"),
        (Tool::Unsquashfs, Action::Extract) => {
            plan.words(["-no-progress", "-dest", "{TARGET}"]);
        }
        _ => return Err(format!("{} cannot {action}", tool.name())),
    }
    plan.template.extend_from_slice(extra);
    match (tool, action) {
        (Tool::MkfsErofs, _) => plan.words(["{IMAGE}", "{TREE}"]),
        (Tool::Tuff, Action::Build) => plan.words(["{TREE}", "{IMAGE}"]),
        (Tool::Tuff, Action::Extract) => plan.words(["{IMAGE}", "{TARGET}"]),
        // mksquashfs requires its operands before the options.
        (Tool::Mksquashfs, _) => {
            plan.template
                .splice(0..0, ["{TREE}".to_owned(), "{IMAGE}".to_owned()]);
        }
        _ => plan.word("{IMAGE}"),
    }
    Ok(plan)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::engines::settings::{Algorithm, Dedupe, Fragments, Size};
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    use std::path::Path;

    fn none() -> Settings {
        Settings::default()
    }

    fn lz4hc() -> Settings {
        Settings {
            algorithm: Some(Algorithm::Lz4hc),
            level: Some(9),
            cluster: Some(Size(65536)),
            inline_tails: Some(false),
            fragments: Some(Fragments::Off),
            dedupe: Some(Dedupe::Off),
            ..none()
        }
    }

    fn packed() -> Settings {
        Settings {
            algorithm: Some(Algorithm::Zstd),
            level: Some(3),
            inline_tails: Some(true),
            fragments: Some(Fragments::All),
            fragment_cluster: Some(Size(131_072)),
            dedupe: Some(Dedupe::Content),
            ..none()
        }
    }

    #[test]
    fn settings_are_translated_for_each_tool() {
        use Action::{Build, Check, Extract};
        for (tool, action, settings, expected) in [
            (
                Tool::Tuff,
                Build,
                lz4hc(),
                "tuff build --quiet -z lz4hc:9 -C 64K --tail-packing=off --fragments=off --dedupe=off TREE IMAGE",
            ),
            (
                Tool::MkfsErofs,
                Build,
                lz4hc(),
                "mkfs.erofs --quiet -zlz4hc,9 -C65536 IMAGE TREE",
            ),
            (
                Tool::Mksquashfs,
                Build,
                lz4hc(),
                "mksquashfs TREE IMAGE -noappend -no-progress -quiet -comp lz4 -Xhc -b 65536 -no-fragments -no-duplicates",
            ),
            (
                Tool::Tuff,
                Build,
                packed(),
                "tuff build --quiet --kernel=6.12 -z zstd:3 --tail-packing=on --fragments=all --fragment-cluster=128K \
                --dedupe=content TREE IMAGE",
            ),
            (
                Tool::MkfsErofs,
                Build,
                packed(),
                "mkfs.erofs --quiet -zzstd,3 -Eztailpacking,all-fragments=131072,dedupe IMAGE TREE",
            ),
            (Tool::Tuff, Build, none(), "tuff build --quiet TREE IMAGE"),
            (
                Tool::MkfsErofs,
                Build,
                none(),
                "mkfs.erofs --quiet IMAGE TREE",
            ),
            (Tool::Tuff, Extract, none(), "tuff extract IMAGE TARGET"),
            (Tool::Tuff, Check, none(), "tuff check IMAGE"),
            (
                Tool::FsckErofs,
                Extract,
                none(),
                "fsck.erofs --extract=TARGET IMAGE",
            ),
            (Tool::FsckErofs, Check, none(), "fsck.erofs --extract IMAGE"),
            (
                Tool::Unsquashfs,
                Extract,
                none(),
                "unsquashfs -no-progress -dest TARGET IMAGE",
            ),
        ] {
            assert_eq!(
                plan(tool, action, &settings, &[]).unwrap().shown(),
                expected
            );
        }
        let squashfs = plan(Tool::Mksquashfs, Build, &lz4hc(), &[]).unwrap();
        assert_eq!(squashfs.notes, ["mksquashfs has one level of LZ4HC"]);
    }

    #[test]
    fn unsupported_settings_and_actions_are_errors() {
        let lz4 = Some(Algorithm::Lz4);
        for (tool, settings, expected) in [
            (
                Tool::MkfsErofs,
                Settings {
                    level: Some(3),
                    algorithm: lz4,
                    ..none()
                },
                "mkfs.erofs has no level for lz4",
            ),
            (
                Tool::Tuff,
                Settings {
                    level: Some(3),
                    ..none()
                },
                "a level needs an algorithm",
            ),
            (
                Tool::Tuff,
                Settings {
                    algorithm: Some(Algorithm::Libdeflate),
                    ..none()
                },
                "tuff has no algorithm Libdeflate",
            ),
            (
                Tool::Mksquashfs,
                Settings {
                    fragments: Some(Fragments::All),
                    ..none()
                },
                "mksquashfs cannot put all files in fragments",
            ),
            (
                Tool::Mksquashfs,
                Settings {
                    auto: Some("size".to_owned()),
                    ..none()
                },
                "mksquashfs has no option to choose settings automatically",
            ),
            (
                Tool::MkfsErofs,
                Settings {
                    kernel: Some("6.18".to_owned()),
                    ..none()
                },
                "mkfs.erofs has no option for the target kernel",
            ),
            (
                Tool::MkfsErofs,
                Settings {
                    unaligned: Some(true),
                    ..none()
                },
                "mkfs.erofs has no option for unaligned clusters",
            ),
            (Tool::Unsquashfs, none(), "unsquashfs cannot build"),
        ] {
            let refused = plan(tool, Action::Build, &settings, &[]).unwrap_err();
            assert_eq!(refused, expected);
        }
    }

    #[test]
    fn placeholders_accept_paths_that_are_not_utf_8() {
        let odd = OsString::from_vec(b"/t/\xff{IMAGE}".to_vec());
        let places = Places {
            tree: Path::new("/tree"),
            image: Path::new("/image"),
            target: Path::new(&odd),
        };
        let plan = plan(Tool::FsckErofs, Action::Extract, &none(), &[]).unwrap();
        let expected = [
            OsString::from_vec(b"--extract=/t/\xff{IMAGE}".to_vec()),
            "/image".into(),
        ];
        assert_eq!(plan.arguments(places), expected);
    }
}
