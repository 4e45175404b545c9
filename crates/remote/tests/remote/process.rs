//! Processes that push and read, for tests of what the environment names.

use crate::common::{Dir, child};
use std::fs;
use std::process::Command;

/// Runs a process to its end. Returns whether it succeeded, and what it printed.
pub(crate) fn run(child: &mut Command) -> (bool, String) {
    let out = child.output().unwrap();
    let text = [out.stdout, out.stderr].concat();
    (
        out.status.success(),
        String::from_utf8_lossy(&text).into_owned(),
    )
}

/// Runs a process that does something with an image behind a URL, and knows its bytes.
pub(crate) fn run_with(
    action: &str,
    url: &str,
    bytes: &[u8],
    variables: &[(&str, &str)],
) -> (bool, String) {
    let dir = Dir::new();
    fs::create_dir(&dir.0).unwrap();
    let (cache, content) = (dir.0.join("cache"), dir.0.join("content"));
    fs::write(&content, bytes).unwrap();
    let (cache, content) = (cache.to_str().unwrap(), content.to_str().unwrap());
    let args = match action {
        "push" => vec![action, url, content],
        _ => vec![action, url, cache, content],
    };
    run(child(&args).envs(variables.iter().copied()))
}
