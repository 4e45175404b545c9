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
use build::{mkdwarfs, mkfs_erofs, mksquashfs, tuff_build};

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
        (Tool::Tuff | Tool::TuffBefore, Action::Build) => tuff_build(&mut plan, settings)?,
        (Tool::MkfsErofs, Action::Build) => mkfs_erofs(&mut plan, settings)?,
        (Tool::Mksquashfs, Action::Build) => mksquashfs(&mut plan, settings)?,
        (Tool::Mkdwarfs, Action::Build) => mkdwarfs(&mut plan, settings)?,
        (Tool::Dwarfsextract, Action::Extract) => {}
        (Tool::Tuff | Tool::TuffBefore, Action::Extract | Action::Check) => {
            plan.word(action.to_string());
        }
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
        (Tool::Tuff | Tool::TuffBefore, Action::Build) => plan.words(["{TREE}", "{IMAGE}"]),
        (Tool::Tuff | Tool::TuffBefore, Action::Extract) => plan.words(["{IMAGE}", "{TARGET}"]),
        (Tool::Mkdwarfs, _) => plan.words(["-i", "{TREE}", "-o", "{IMAGE}"]),
        (Tool::Dwarfsextract, _) => plan.words(["-i", "{IMAGE}", "-o", "{TARGET}"]),
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
    use std::ffi::OsString;
    use std::os::unix::ffi::OsStringExt;
    use std::path::Path;

    /// Plans of all current tools for settings in TOML, as command lines or reasons.
    fn plans(action: Action, settings: &str) -> Vec<Result<Plan, String>> {
        let settings: Settings = toml::from_str(settings).unwrap();
        let plan = |tool| plan(tool, action, &settings, &[]);
        let current = TOOLS.into_iter().filter(|tool| *tool != Tool::TuffBefore);
        current.map(plan).collect()
    }

    #[test]
    fn the_earlier_program_gets_the_same_arguments() {
        let settings: Settings = toml::from_str("algorithm = 'zstd'\ncluster = '64K'").unwrap();
        for action in [Action::Build, Action::Extract, Action::Check] {
            let [now, before] = [Tool::Tuff, Tool::TuffBefore]
                .map(|tool| plan(tool, action, &settings, &["-x".to_owned()]).unwrap());
            assert_eq!(now.template, before.template);
            assert_eq!(before.shown(), now.shown().replace("tuff", "tuff-before"));
        }
    }

    #[test]
    fn settings_are_translated_for_each_tool() {
        let lz4hc = "algorithm = 'lz4hc'\nlevel = 9\ncluster = '64K'\ninline_tails = false\n\
            fragments = 'off'\ndedupe = 'off'";
        let packed = "algorithm = 'zstd'\nlevel = 3\ninline_tails = true\nfragments = 'all'\n\
            fragment_cluster = '128K'\ndedupe = 'content'";
        let shown = |action, settings| -> String {
            let plans = plans(action, settings).into_iter().flatten();
            plans.map(|plan| plan.shown() + "\n").collect()
        };
        let dwarfs = "mkdwarfs --no-progress --log-level=error --with-devices --with-specials --compress-niceness=0";
        assert_eq!(
            shown(Action::Build, lz4hc),
            "tuff build --quiet -z lz4hc:9 -C 64K --tail-packing=off --fragments=off --dedupe=off TREE IMAGE\n\
             mkfs.erofs --quiet -zlz4hc,9 -C65536 IMAGE TREE\n\
             mksquashfs TREE IMAGE -noappend -no-progress -quiet -comp lz4 -Xhc -b 65536 -no-fragments -no-duplicates\n"
        );
        assert_eq!(
            shown(Action::Build, packed),
            "tuff build --quiet --kernel=6.12 -z zstd:3 --tail-packing=on --fragments=all --fragment-cluster=128K \
             --dedupe=content TREE IMAGE\n\
             mkfs.erofs --quiet -zzstd,3 -Eztailpacking,all-fragments=131072,dedupe IMAGE TREE\n"
        );
        assert_eq!(
            shown(Action::Build, ""),
            format!(
                "tuff build --quiet TREE IMAGE\nmkfs.erofs --quiet IMAGE TREE\n\
                 mksquashfs TREE IMAGE -noappend -no-progress -quiet\n{dwarfs} -i TREE -o IMAGE\n"
            )
        );
        assert_eq!(
            shown(Action::Extract, ""),
            "tuff extract IMAGE TARGET\nfsck.erofs --extract=TARGET IMAGE\n\
             unsquashfs -no-progress -dest TARGET IMAGE\n\
             dwarfsextract -i IMAGE -o TARGET\n"
        );
        assert_eq!(
            shown(Action::Check, ""),
            "tuff check IMAGE\nfsck.erofs --extract IMAGE\n"
        );
        assert_eq!(
            shown(Action::Build, "level = 4\ncluster = '1M'"),
            format!("{dwarfs} -l4 -S20 -i TREE -o IMAGE\n")
        );
        let zstd = shown(
            Action::Build,
            "algorithm = 'zstd'\nlevel = 11\ncluster = '4M'",
        );
        let expected = format!("{dwarfs} -C zstd:level=11 -S22 -i TREE -o IMAGE\n");
        assert!(zstd.ends_with(&expected), "{zstd}");
        let squashfs = plans(Action::Build, lz4hc)[3].clone().unwrap();
        assert_eq!(squashfs.notes, ["mksquashfs has one level of LZ4HC"]);
    }

    #[test]
    fn unsupported_settings_and_actions_are_errors() {
        let cases = "\
            algorithm = 'lz4', level = 3 => mkfs.erofs has no level for lz4
            level = 3 => a level needs an algorithm
            algorithm = 'libdeflate' => tuff has no algorithm Libdeflate
            fragments = 'all' => mksquashfs cannot put all files in fragments
            auto = 'size' => mksquashfs has no option to choose settings automatically
            kernel = '6.18' => mkfs.erofs has no option for the target kernel
            unaligned = true => mkfs.erofs has no option for unaligned clusters
            algorithm = 'lz4', level = 3 => mkdwarfs has no level for lz4
            algorithm = 'deflate' => mkdwarfs has no algorithm Deflate
            cluster = '96K' => the block size of mkdwarfs is a power of two, not 96K
            fragments = 'tails' => mkdwarfs packs neither tails nor fragments
            dedupe = 'off' => mkdwarfs has no option for the scope of dedupe
            => unsquashfs cannot build";
        for (settings, expected) in cases.lines().filter_map(|line| line.split_once("=> ")) {
            let settings = &settings.replace(", ", "\n");
            let plans = plans(Action::Build, settings);
            let mut refused = plans.into_iter().filter_map(Result::err);
            assert!(refused.any(|reason| reason == expected), "{expected}");
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
        let plan = plan(Tool::FsckErofs, Action::Extract, &Settings::default(), &[]).unwrap();
        let expected = [
            OsString::from_vec(b"--extract=/t/\xff{IMAGE}".to_vec()),
            "/image".into(),
        ];
        assert_eq!(plan.arguments(places), expected);
    }
}
