//! Output for people at a terminal: progress and the next command. Elsewhere there is neither.

use crate::common::{Place, code, skipped, stderr};
use std::fs;
use std::process::{Command, Output, Stdio};

/// Runs a shell command on a terminal of 100 columns, in a directory.
fn on_terminal(place: &Place, command: &str) -> Option<Output> {
    let tuff = env!("CARGO_BIN_EXE_tuff");
    let line = format!("stty cols 100; tuff() {{ {tuff} \"$@\"; }}; {command}");
    let out = Command::new("script")
        .args(["-qec", &line, "/dev/null"])
        .env("SHELL", "/bin/sh")
        .env("TERM", "xterm")
        .current_dir(&place.0)
        .stdin(Stdio::null())
        .output();
    match out {
        Ok(out) => Some(out),
        Err(e) => {
            skipped(format_args!("script: {e}"));
            None
        }
    }
}

fn message(out: &Output) -> String {
    String::from_utf8_lossy(&out.stdout).into_owned()
}

/// A directory with a tree, an image with a hash tree, a tar, a volume with a snapshot and a stream.
fn stage(name: &str) -> Place {
    let place = Place::new(name);
    fs::create_dir(place.path("src")).unwrap();
    fs::write(place.path("src/text"), crate::common::text()).unwrap();
    place.text(&["build", "-q", "--verity", "--verity-fec", "2", "src", "i"]);
    place.text(&["tar", "i", "t"]);
    place.text(&["volume", "create", "-s", "64M", "v"]);
    place.text(&["volume", "import", "v", "src"]);
    place.text(&["volume", "snapshot", "create", "v", "s"]);
    place.text(&["volume", "send", "v", "-o", "stream"]);
    place
}

/// Commands that take time with enough data, and the stage that they show.
const LONG: &[(&str, &str)] = &[
    ("tuff build src a", ""),
    ("tuff patch src a", ""),
    ("tuff check i", "check"),
    ("tuff info i", "info"),
    ("tuff extract i out", "extract"),
    ("tuff extract --update i out /text", "extract"),
    ("tuff diff i src", "diff"),
    ("tuff tar i t2", "tar"),
    ("tuff suggest src", "-z"),
    ("tuff verity add --into tree a", ""),
    ("tuff verity check i $ROOT", "verify"),
    ("tuff verity repair i $ROOT", "verify"),
    ("tuff volume check --data v", "check"),
    ("tuff volume check --repair v", "repair"),
    ("tuff volume export v t3", "export"),
    ("tuff volume send v -o stream2", "send"),
    ("tuff volume receive -i stream v2", "receive"),
    (
        "mkdir more; touch more/x; tuff volume import v more",
        "import",
    ),
];

/// Start of each drawing of the line: the cursor goes to its first column, and the rest is erased.
const ERASE: &str = "\u{1b}[2K";

#[test]
fn long_verbs_show_progress_on_a_terminal_and_clear_it() {
    let place = stage("terminal-progress");
    let tree = place.json(&["verity", "show", "--json", "i"]);
    let root = tree[0]["root_hash"].as_str().unwrap();
    for (command, stage) in LONG {
        let Some(out) = on_terminal(&place, &command.replace("$ROOT", root)) else {
            return;
        };
        let message = message(&out);
        assert!(code(&out) <= 1, "{command}: {message:?}");
        assert!(message.contains(ERASE), "{command}: {message:?}");
        assert!(message.contains(stage), "{command}: {message:?}");
        // Results follow the line, which is gone.
        let after = message.rsplit(ERASE).next().unwrap();
        assert!(
            !after.contains(" eta ") && !after.contains(" 0s"),
            "{command}: {message:?}"
        );
    }
}

#[test]
fn there_is_no_progress_off_a_terminal_or_in_quiet_mode() {
    let place = stage("terminal-none");
    for command in [
        "tuff build -q src a",
        "tuff build --json src a 2>err",
        "tuff check -q i",
        "tuff extract -q i out",
        "tuff diff -q i i",
        "tuff tar i > t2",
        "tuff check i 2>err",
    ] {
        let Some(out) = on_terminal(&place, command) else {
            return;
        };
        let message = message(&out);
        assert!(code(&out) <= 1, "{command}: {message:?}");
        assert!(!message.contains('\u{1b}'), "{command}: {message:?}");
        let err = fs::read_to_string(place.path("err")).unwrap_or_default();
        assert!(!err.contains('\u{1b}'), "{command}: {err:?}");
    }
    for args in [
        &["check", "i"][..],
        &["verity", "add", "--replace", "i"],
        &["info", "i"],
    ] {
        let out = place.run(args);
        assert_eq!((code(&out), stderr(&out).as_str()), (0, ""), "{args:?}");
    }
}

#[test]
fn the_next_command_is_suggested_on_a_terminal_only() {
    let place = stage("terminal-next");
    for (args, next) in [
        (
            "build src 'my image'",
            "next         tuff mount 'my image' DIR",
        ),
        ("build --verity src b", "next         tuff mount --verity "),
        ("patch src b", "next         tuff mount "),
        (
            "verity add --replace i",
            "next         tuff verity check i ",
        ),
        (
            "volume create -s 64M v3",
            "next         tuff volume mount v3 DIR",
        ),
        (
            "volume import v3 src",
            "next         tuff volume mount v3 DIR",
        ),
    ] {
        let Some(out) = on_terminal(&place, &format!("tuff {args}")) else {
            return;
        };
        let shown = message(&out);
        assert_eq!(code(&out), 0, "{args}: {shown}");
        assert_eq!(shown.matches("next  ").count(), 1, "{args}: {shown}");
        assert!(shown.contains(next), "{args}: {shown}");
    }
    for command in [
        "tuff build src c | cat",
        "tuff build -q src c",
        "tuff build --json src c",
        "tuff build --base i src d",
        "tuff verity add --replace --json i",
    ] {
        let out = on_terminal(&place, command).unwrap();
        let shown = message(&out);
        assert!(
            code(&out) == 0 && !shown.contains("next  "),
            "{command}: {shown}"
        );
    }
}

/// A server whose answers take longer than the time between two drawings.
#[cfg(feature = "remote")]
#[test]
fn progress_has_a_rate_and_the_remaining_time() {
    use std::time::Duration;
    use tuff_testkit::content::noise;
    use tuff_testkit::http::{Answer, Server};

    let place = Place::new("terminal-eta");
    fs::create_dir(place.path("src")).unwrap();
    fs::write(place.path("src/noise"), noise(4 << 20, 1)).unwrap();
    place.text(&["build", "-q", "src", "i"]);
    let image = fs::read(place.path("i")).unwrap();
    let server = Server::start(move |request| {
        std::thread::sleep(Duration::from_millis(250));
        Answer::object(request, &image, "\"v1\"")
    });
    let command = format!("tuff check --cache-dir cache {}", server.url("/i"));
    let Some(out) = on_terminal(&place, &command) else {
        return;
    };
    let shown = message(&out);
    assert_eq!(code(&out), 0, "{shown:?}");
    assert!(
        shown.contains("/s eta ") && shown.contains("/4.0"),
        "{shown:?}"
    );
}
