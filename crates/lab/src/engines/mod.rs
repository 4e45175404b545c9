//! Tools under measurement, and the mapping of neutral settings to their command lines.
//!
//! A command line is a template: the words `{TREE}`, `{IMAGE}` and `{TARGET}` are placeholders that
//! only [`Plan::arguments`] replaces. Records contain the template, and so no path of the machine.
//!
//! A setting that a tool does not support is an error, because a comparison must run with the
//! settings in its table. A setting that the tool has fixed to one value is recorded as a note.

mod build;
mod found;
pub mod settings;
mod tool;

use crate::engines::settings::{Action, Settings};
use build::{mkfs_erofs, mksquashfs, tuff_build};

pub use found::{Found, Receipt, find, shown_program};
pub(crate) use found::{is_program, search};
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
        (Tool::Tuff, Action::Extract | Action::Check) => {
            plan.word(action.to_string());
            if action == Action::Extract {
                match settings.xattrs {
                    None => {}
                    Some(true) => plan.word("--xattrs"),
                    Some(false) => plan.word("--no-xattrs"),
                }
            }
            if let Some(n) = settings.threads {
                plan.word(format!("--threads={n}"));
            }
        }
        (Tool::FsckErofs, Action::Extract | Action::Check) => {
            if settings.threads.is_some() {
                return Err("fsck.erofs has no option for threads".to_owned());
            }
            let target = action == Action::Extract;
            plan.word(if target {
                "--extract={TARGET}"
            } else {
                "--extract"
            });
            match settings.xattrs {
                Some(true) if target => plan.word("--xattrs"),
                Some(false) if target => plan.word("--no-xattrs"),
                _ => {}
            }
        }
        (Tool::Unsquashfs, Action::Extract) => {
            plan.word("-no-progress");
            match settings.xattrs {
                None => {}
                Some(true) => plan.word("-xattrs"),
                Some(false) => plan.word("-no-xattrs"),
            }
            if let Some(n) = settings.threads {
                plan.word("-processors");
                plan.word(n.to_string());
            }
            plan.word("-dest");
            plan.word("{TARGET}");
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

    fn shown(tool: Tool, action: Action, settings: &Settings) -> String {
        plan(tool, action, settings, &[]).unwrap().shown()
    }

    fn lz4hc() -> Settings {
        Settings {
            algorithm: Some(Algorithm::Lz4hc),
            level: Some(9),
            cluster: Some(Size(65536)),
            inline_tails: Some(false),
            fragments: Some(Fragments::Off),
            dedupe: Some(Dedupe::Off),
            ..Settings::default()
        }
    }

    #[test]
    fn equal_settings_are_translated_for_each_builder() {
        assert_eq!(
            shown(Tool::Tuff, Action::Build, &lz4hc()),
            "tuff build --quiet -z lz4hc:9 -C 64K --tail-packing=off --fragments=off --dedupe=off TREE IMAGE"
        );
        assert_eq!(
            shown(Tool::MkfsErofs, Action::Build, &lz4hc()),
            "mkfs.erofs --quiet -zlz4hc,9 -C65536 IMAGE TREE"
        );
        let squashfs = plan(Tool::Mksquashfs, Action::Build, &lz4hc(), &[]).unwrap();
        assert_eq!(
            squashfs.shown(),
            "mksquashfs TREE IMAGE -noappend -no-progress -quiet -comp lz4 -Xhc -b 65536 -no-fragments -no-duplicates"
        );
        assert_eq!(squashfs.notes, ["mksquashfs has one level of LZ4HC"]);
    }

    #[test]
    fn every_layout_setting_is_on_the_command_line() {
        let settings = Settings {
            algorithm: Some(Algorithm::Zstd),
            level: Some(3),
            cluster: Some(Size(65536)),
            dict: Some(Size(1 << 20)),
            inline_tails: Some(true),
            fragments: Some(Fragments::All),
            fragment_cluster: Some(Size(131_072)),
            dedupe: Some(Dedupe::Content),
            threads: Some(1),
            ..Settings::default()
        };
        assert_eq!(
            shown(Tool::Tuff, Action::Build, &settings),
            "tuff build --quiet --kernel=6.12 -z zstd:3 -C 64K --dict=1M --tail-packing=on --fragments=all \
             --fragment-cluster=128K --dedupe=content --threads=1 TREE IMAGE"
        );
        assert_eq!(
            shown(Tool::MkfsErofs, Action::Build, &settings),
            "mkfs.erofs --quiet -zzstd,level=3,dictsize=1048576 -C65536 \
             -Eztailpacking,all-fragments=131072,dedupe --workers=1 IMAGE TREE"
        );
    }

    #[test]
    fn only_tuff_supports_unaligned_clusters() {
        let settings = Settings {
            unaligned: Some(true),
            ..Settings::default()
        };
        assert_eq!(
            shown(Tool::Tuff, Action::Build, &settings),
            "tuff build --quiet --unaligned TREE IMAGE"
        );
        assert!(plan(Tool::MkfsErofs, Action::Build, &settings, &[]).is_err());
    }

    #[test]
    fn empty_settings_use_the_defaults_of_the_tool() {
        let none = Settings::default();
        assert_eq!(
            shown(Tool::Tuff, Action::Build, &none),
            "tuff build --quiet TREE IMAGE"
        );
        assert_eq!(
            shown(Tool::MkfsErofs, Action::Build, &none),
            "mkfs.erofs --quiet IMAGE TREE"
        );
        assert_eq!(
            shown(Tool::Mksquashfs, Action::Build, &none),
            "mksquashfs TREE IMAGE -noappend -no-progress -quiet"
        );
    }

    #[test]
    fn readers_get_an_image_and_a_target() {
        let none = Settings::default();
        assert_eq!(
            shown(Tool::Tuff, Action::Extract, &none),
            "tuff extract IMAGE TARGET"
        );
        assert_eq!(shown(Tool::Tuff, Action::Check, &none), "tuff check IMAGE");
        assert_eq!(
            shown(Tool::FsckErofs, Action::Extract, &none),
            "fsck.erofs --extract=TARGET IMAGE"
        );
        assert_eq!(
            shown(Tool::FsckErofs, Action::Check, &none),
            "fsck.erofs --extract IMAGE"
        );
        assert_eq!(
            shown(Tool::Unsquashfs, Action::Extract, &none),
            "unsquashfs -no-progress -dest TARGET IMAGE"
        );
    }

    #[test]
    fn the_xattr_setting_is_translated_for_each_reader() {
        for (xattrs, tuff, fsck, unsquashfs) in [
            (true, "--xattrs", "--xattrs", "-xattrs"),
            (false, "--no-xattrs", "--no-xattrs", "-no-xattrs"),
        ] {
            let settings = Settings {
                xattrs: Some(xattrs),
                ..Settings::default()
            };
            let shown = |tool| shown(tool, Action::Extract, &settings);
            assert_eq!(
                shown(Tool::Tuff),
                format!("tuff extract {tuff} IMAGE TARGET")
            );
            assert_eq!(
                shown(Tool::FsckErofs),
                format!("fsck.erofs --extract=TARGET {fsck} IMAGE")
            );
            assert_eq!(
                shown(Tool::Unsquashfs),
                format!("unsquashfs -no-progress {unsquashfs} -dest TARGET IMAGE")
            );
        }
    }

    #[test]
    fn unsupported_settings_and_actions_are_errors() {
        let refuse =
            |tool, settings: Settings| plan(tool, Action::Build, &settings, &[]).unwrap_err();
        let files = Settings {
            dedupe: Some(Dedupe::Files),
            ..Settings::default()
        };
        assert_eq!(
            refuse(Tool::MkfsErofs, files),
            "mkfs.erofs cannot deduplicate whole files only"
        );
        let level = Settings {
            level: Some(3),
            algorithm: Some(Algorithm::Lz4),
            ..Settings::default()
        };
        assert_eq!(
            refuse(Tool::MkfsErofs, level),
            "mkfs.erofs has no level for lz4"
        );
        let all = Settings {
            fragments: Some(Fragments::All),
            ..Settings::default()
        };
        assert_eq!(
            refuse(Tool::Mksquashfs, all),
            "mksquashfs cannot put all files in fragments"
        );
        let auto = Settings {
            auto: Some("size".to_owned()),
            ..Settings::default()
        };
        assert_eq!(
            refuse(Tool::Mksquashfs, auto),
            "mksquashfs has no option to choose settings automatically"
        );
        let kernel = Settings {
            kernel: Some("6.18".to_owned()),
            ..Settings::default()
        };
        assert_eq!(
            refuse(Tool::MkfsErofs, kernel),
            "mkfs.erofs has no option for the target kernel"
        );
        assert_eq!(
            refuse(Tool::Unsquashfs, Settings::default()),
            "unsquashfs cannot build"
        );
    }

    #[test]
    fn placeholders_accept_paths_that_are_not_utf_8() {
        let odd = OsString::from_vec(b"/t/\xff{IMAGE}".to_vec());
        let places = Places {
            tree: Path::new("/tree"),
            image: Path::new("/image"),
            target: Path::new(&odd),
        };
        let plan = plan(Tool::FsckErofs, Action::Extract, &Settings::default(), &[]).unwrap();
        let expected = [
            OsString::from_vec(b"--extract=/t/\xff{IMAGE}".to_vec()),
            "/image".into(),
        ];
        assert_eq!(plan.arguments(places), expected);
    }
}
