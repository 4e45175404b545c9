//! `tuff doctor`: its answers are true, it leaves nothing behind, and shows no secrets.

use crate::common::{Place, code, is_root, stderr, text, tool};
use std::collections::BTreeMap;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::Command;
use tuff_testkit::kernel::Mounted;
use tuff_testkit::{program, skipped};

/// States by the names of the facts.
fn states(place: &Place) -> BTreeMap<String, String> {
    let objects = place.json(&["doctor", "--json"]);
    let facts = objects[0]["facts"].as_array().unwrap();
    let pair = |fact: &serde_json::Value| {
        let text = |key| fact[key].as_str().unwrap().to_owned();
        (text("name"), text("state"))
    };
    facts.iter().map(pair).collect()
}

#[test]
fn each_fact_is_one_line_with_its_state() {
    let place = Place::new("doctor-lines");
    let states = states(&place);
    let lines = place.text(&["doctor"]);
    assert_eq!(lines.lines().count(), states.len(), "{lines}");
    for line in lines.lines() {
        let words: Vec<&str> = line.split_whitespace().collect();
        assert_eq!(states[words[1]], words[0], "{line}");
    }
    let unwell = states.values().filter(|state| *state != "ok").count();
    let quiet = place.text(&["doctor", "--quiet"]);
    assert_eq!(quiet.lines().count(), unwell, "{quiet}");
}

#[test]
fn the_kernel_mounts_the_algorithms_that_doctor_calls_ok() {
    if !is_root() {
        return skipped("mounting needs root");
    }
    let place = Place::new("doctor-kernel");
    fs::create_dir(place.path("src")).unwrap();
    fs::write(place.path("src/text"), text()).unwrap();
    let states = states(&place);
    for algorithm in ["lz4", "lzma", "deflate", "zstd"] {
        place.text(&[
            "build", "-q", "--kernel", "6.12", "-z", algorithm, "src", "i",
        ]);
        let state = &states[&format!("erofs-{algorithm}")];
        // Where the kernel cannot mount one, the test of the others still counts.
        if state != "ok" {
            skipped(format_args!(
                "the kernel has no {algorithm}, as doctor says"
            ));
            continue;
        }
        let mounted = Mounted::new(&place.path("i"), &place.path("mnt"), "");
        let mounted = mounted.expect("doctor called the algorithm ok");
        let read = fs::read(mounted.path().join("text")).unwrap();
        assert!(read == text().as_bytes(), "{algorithm}");
    }
}

#[test]
fn doctor_leaves_nothing_behind() {
    let place = Place::new("doctor-nothing");
    for dir in ["tmp", "home"] {
        fs::create_dir(place.path(dir)).unwrap();
    }
    let loops = || {
        let devices = fs::read_dir("/sys/block").into_iter().flatten().flatten();
        let file = |dir: &Path| fs::read_to_string(dir.join("loop/backing_file")).ok();
        let files = devices.filter_map(|device| file(&device.path()));
        files.filter(|file| file.contains("tuff-doctor")).count()
    };
    let mounts = || {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap();
        mounts.matches("tuff-doctor").count()
    };
    let mut doctor = place.command(&["doctor"]);
    let doctor = doctor
        .env("TMPDIR", place.path("tmp"))
        .env("HOME", place.path("home"));
    let doctor = doctor.env_remove("XDG_CACHE_HOME");
    let out = doctor.output().unwrap();
    assert_eq!((code(&out), stderr(&out).as_str()), (0, ""));
    for dir in ["tmp", "home"] {
        assert_eq!(fs::read_dir(place.path(dir)).unwrap().count(), 0, "{dir}");
    }
    assert_eq!((loops(), mounts()), (0, 0));
}

#[test]
fn logins_are_found_and_never_shown_or_read() {
    let place = Place::new("doctor-secrets");
    for (dir, file) in [(".docker", "config.json"), (".aws", "credentials")] {
        let dir = place.path("home").join(dir);
        fs::create_dir_all(&dir).unwrap();
        fs::write(dir.join(file), "hunter2").unwrap();
        fs::set_permissions(dir.join(file), fs::Permissions::from_mode(0o000)).unwrap();
    }
    for variables in [&[][..], &[("AWS_ACCESS_KEY_ID", "hunter2")]] {
        let mut doctor = place.command(&["doctor", "--json"]);
        for (name, _) in std::env::vars_os() {
            let name = name.to_string_lossy().into_owned();
            if name.starts_with("AWS_") || name.starts_with("XDG_") || name.contains("AUTH_FILE") {
                doctor.env_remove(name);
            }
        }
        doctor
            .env_remove("DOCKER_CONFIG")
            .env("HOME", place.path("home"));
        let out = doctor.envs(variables.iter().copied()).output().unwrap();
        let message = String::from_utf8_lossy(&out.stdout).into_owned();
        assert!(!message.contains("hunter2"), "{message}");
        let object: serde_json::Value = serde_json::from_str(&message).unwrap();
        if cfg!(feature = "remote") {
            for name in ["registry-login", "bucket-login"] {
                let mut facts = object["facts"].as_array().unwrap().iter();
                let fact = facts.find(|fact| fact["name"] == name).unwrap();
                assert_eq!(fact["state"], "ok", "{fact}");
            }
        }
    }
}

/// Opening a pipe without a writer blocks.
#[test]
fn pipes_in_place_of_files_do_not_block() {
    let place = Place::new("doctor-pipes");
    fs::create_dir_all(place.path("home/.docker")).unwrap();
    for pipe in ["home/.docker/config.json", "home/.aws", "home/.cache"] {
        let Some(out) = tool(&place.0, "mkfifo", &[pipe]) else {
            return;
        };
        assert!(out.status.success());
    }
    let mut doctor = place.command(&["doctor"]);
    let doctor = doctor
        .env("HOME", place.path("home"))
        .env_remove("XDG_CACHE_HOME");
    let out = doctor.output().unwrap();
    let message = String::from_utf8_lossy(&out.stdout).into_owned();
    assert_eq!(code(&out), 0, "{message}");
    assert!(!message.contains("did not answer"), "{message}");
    if cfg!(feature = "remote") {
        assert!(message.contains("--cache-dir"), "{message}");
    }
}

#[test]
fn doctor_needs_no_root() {
    let place = Place::new("doctor-user");
    program::copy(env!("CARGO_BIN_EXE_tuff"), place.path("tuff"));
    fs::set_permissions(&place.0, fs::Permissions::from_mode(0o755)).unwrap();
    let other = [
        "setpriv",
        "--reuid=54323",
        "--regid=54323",
        "--clear-groups",
    ];
    let words = if is_root() { &other[..] } else { &["env"] };
    let out = Command::new(words[0])
        .args(&words[1..])
        .args(["./tuff", "doctor"])
        .current_dir(&place.0)
        .output();
    let out = match out {
        Ok(out) => out,
        Err(e) => return skipped(format_args!("setpriv: {e}")),
    };
    let message = String::from_utf8_lossy(&out.stdout);
    assert_eq!((code(&out), stderr(&out).as_str()), (0, ""));
    let limited = |line: &str| line.starts_with("limited  mount-beneath") && line.contains("root");
    assert!(
        message.lines().any(limited) || message.contains("missing  mount-beneath"),
        "{message}"
    );
}
