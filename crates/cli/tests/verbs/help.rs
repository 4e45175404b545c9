//! Help: the examples of every verb run as they are printed.

use crate::common::{Place, code, stderr};
use crate::mount::can_mount;
use std::fs;
use std::path::Path;
use std::process::{Command, Output};

/// Verbs, and the exit codes that their examples may have.
const VERBS: &[(&str, &[i32])] = &[
    ("", &[0]),
    ("build", &[0]),
    ("disk", &[0]),
    ("sysext", &[0]),
    ("patch", &[0]),
    ("suggest", &[0]),
    ("info", &[0]),
    ("stat", &[0]),
    #[cfg(feature = "report")]
    ("report", &[0]),
    ("dump", &[0]),
    // The trees differ.
    ("diff", &[0, 1]),
    ("ls", &[0]),
    ("cat", &[0]),
    ("extract", &[0]),
    ("tar", &[0]),
    ("check", &[0]),
    ("verity", &[0]),
    ("verity add", &[0]),
    ("verity check", &[0]),
    ("verity repair", &[0]),
    ("verity show", &[0]),
    ("profile", &[0]),
    ("profile show", &[0]),
    ("profile merge", &[0]),
    ("volume create", &[0]),
    ("volume check", &[0]),
    ("volume stat", &[0]),
    ("volume trim", &[0]),
    ("volume quota", &[0]),
    ("volume export", &[0]),
    ("volume import", &[0]),
    ("volume send", &[0]),
    ("volume receive", &[0]),
    ("volume snapshot", &[0]),
    ("volume snapshot create", &[0]),
    ("volume snapshot list", &[0]),
    ("volume snapshot delete", &[0]),
    ("backup", &[0]),
    ("store", &[0]),
    ("store list", &[0]),
    ("store mount", &[0]),
    ("store restore", &[0]),
    ("store diff", &[1]),
    ("store copy", &[0]),
    ("store forget", &[0]),
    ("store prune", &[0]),
    ("store check", &[0]),
    ("store repair", &[0]),
    ("store unpin", &[0]),
    ("store key", &[0]),
    ("store key list", &[0]),
    ("store key add", &[0]),
    ("store key remove", &[0]),
    ("mkfs.erofs", &[0]),
    ("fsck.erofs", &[0]),
    ("dump.erofs", &[0]),
    ("doctor", &[0]),
    ("man", &[0]),
    ("completions", &[0]),
];

/// Verbs whose examples need FUSE, with what must be mounted before.
const MOUNTS: &[(&str, &str)] = &[
    ("mount", ""),
    ("volume mount", ""),
    ("volume", ""),
    ("umount", "tuff mount image.erofs mnt/"),
    ("stats", "tuff mount image.erofs mnt/"),
];

/// A directory with every file that an example names.
fn stage(name: &str) -> Place {
    let place = Place::new(name);
    let etc = place.path("rootfs/etc");
    fs::create_dir_all(&etc).unwrap();
    fs::create_dir(place.path("mnt")).unwrap();
    fs::write(etc.join("hostname"), "host\n").unwrap();
    fs::write(etc.join("host.conf"), "multi on\n").unwrap();
    let services: String = (0..2000)
        .map(|port| format!("service{port} {port}/tcp\n"))
        .collect();
    fs::write(etc.join("services"), services).unwrap();
    for line in [
        "tuff build -q rootfs/ base.erofs",
        "tuff tar base.erofs layer.tar",
        "echo more > rootfs/etc/motd",
        "tuff build -q rootfs/ image.erofs",
        "tuff build -q --verity --verity-fec 2 rootfs/ sealed.erofs",
        "tuff volume create -s 64M data.vol",
        "tuff volume import data.vol rootfs/",
        "tuff volume snapshot create data.vol monday",
        "tuff volume send data.vol monday -o monday.stream",
        "tuff volume snapshot create data.vol tuesday",
        "tuff volume send data.vol tuesday --from monday -o tuesday.stream",
        "tuff volume create -s 64M empty.vol",
        "tuff backup -q rootfs/ backups",
        "tuff store mount --print snapshot.erofs backups mnt/ && rm snapshot.erofs",
        "mv backups/pins/* backups/pins/00000001-4711-0",
        "cp backups/pins/00000001-4711-0 backups/pins/00000002-4712-0",
        "echo edited > rootfs/etc/motd",
        "tuff backup -q rootfs/ backups",
        "tuff backup -q --encrypt --key-file secret.key rootfs/ secret 2>&-",
        "mv secret/keys/*.json secret/keys/1f0c2e3d.json",
        "for n in 4b5a6978 8796a5b4; do sed \"s/password/file/\" secret/keys/1f0c2e3d.json > secret/keys/$n.json; done",
        "echo correct > password",
        "mkdir -p update tree/usr/bin",
        "echo tool > tree/usr/bin/tool",
        "echo news > update/news",
    ] {
        let out = sh(&place, line);
        assert_eq!(code(&out), 0, "{line}: {}", stderr(&out));
    }
    for day in ["monday", "tuesday"] {
        let text = "tuff profile 1\n0 1 0 5 /etc/hostname\n";
        fs::write(place.path(&format!("{day}.profile")), text).unwrap();
    }
    place
}

/// Runs a line by a shell that finds `tuff`.
fn sh(place: &Place, line: &str) -> Output {
    let tuff = Path::new(env!("CARGO_BIN_EXE_tuff"));
    let path = std::env::var("PATH").unwrap();
    let line = format!(
        "ROOT_HASH=$(tuff verity show --json sealed.erofs 2>&- | sed 's/.*\"root_hash\":\"\\([^\"]*\\).*/\\1/')\n{line}"
    );
    Command::new("sh")
        .args(["-c", &line])
        .env(
            "PATH",
            format!("{}:{path}", tuff.parent().unwrap().display()),
        )
        .env_remove("SOURCE_DATE_EPOCH")
        .env("XDG_CACHE_HOME", place.path("cache"))
        .current_dir(&place.0)
        .output()
        .unwrap()
}

/// The examples that the help of a verb prints.
fn examples(place: &Place, verb: &str) -> Vec<String> {
    // Verbs of other tools print the help of those.
    let args: Vec<&str> = match verb.contains(".erofs") {
        true => return from_page(place, verb),
        false => verb.split_whitespace().chain(["--help"]).collect(),
    };
    let help = place.text(&args);
    let lines = help.lines().skip_while(|line| *line != "Examples:").skip(1);
    let lines = lines.take_while(|line| !line.is_empty());
    let commands = lines.filter_map(|line| line.strip_prefix("  tuff "));
    let found: Vec<String> = commands.map(|line| format!("tuff {line}")).collect();
    assert_eq!(found.len(), 2, "{verb}: {help}");
    found
}

fn from_page(place: &Place, verb: &str) -> Vec<String> {
    place.text(&["man", "pages"]);
    let page = fs::read_to_string(place.path(&format!("pages/tuff-{verb}.1"))).unwrap();
    let examples = page.split(".SH EXAMPLES\n").nth(1).unwrap();
    let examples = examples.split(".SH").next().unwrap().replace('\\', "");
    let lines = examples.lines().filter_map(|line| line.strip_prefix("fB"));
    lines
        .map(|line| line.trim_end_matches("fR").to_owned())
        .collect()
}

/// Replaces `place` by a copy of `from`.
fn copy(from: &Place, name: &str) -> Place {
    let place = Place::new(name);
    let status = Command::new("cp")
        .arg("-a")
        .arg(from.0.join("."))
        .arg(&place.0)
        .status();
    assert!(status.unwrap().success());
    place
}

#[test]
fn examples_in_help_run() {
    let staged = stage("examples");
    for (verb, codes) in VERBS {
        let place = copy(&staged, "example");
        for line in examples(&place, verb) {
            let out = sh(&place, &line);
            assert!(
                codes.contains(&code(&out)),
                "{line}: {} {}",
                code(&out),
                stderr(&out)
            );
        }
    }
}

#[test]
fn examples_of_mounts_run() {
    if !can_mount() {
        return;
    }
    let staged = stage("examples-mount");
    for (verb, before) in MOUNTS {
        for line in examples(&staged, verb) {
            let place = copy(&staged, "example-mount");
            let out = sh(&place, before);
            assert_eq!(code(&out), 0, "{before}: {}", stderr(&out));
            let out = sh(&place, &line);
            sh(&place, "tuff umount mnt/");
            assert_eq!(code(&out), 0, "{line}: {}", stderr(&out));
        }
    }
}

#[test]
fn help_shows_few_options_and_help_all_the_rest() {
    let place = Place::new("help-levels");
    let short = place.text(&["build", "--help"]);
    assert_eq!(short, place.text(&["build", "-h"]));
    assert!(short.lines().count() < 40, "{short}");
    assert!(short.find("Examples:") < short.find("--compress"));
    assert!(!short.contains("--xattr-prefix"));
    let all = place.text(&["build", "--help-all"]);
    assert!(all.contains("--xattr-prefix") && all.contains("Compression:"));
    assert_eq!(all, place.text(&["help", "build"]));
}
