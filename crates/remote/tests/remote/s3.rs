//! Buckets: signed requests to an endpoint of the environment, by path.
//!
//! The environment belongs to the whole process, so these tests run a second one of themselves.

use crate::common::{Dir, assert_same, image, open, options};
use std::process::Command;
use tuff_testkit::http::{Answer, Server};

const URL: &str = "TUFF_TEST_S3_URL";

#[test]
fn child_reads_the_bucket() {
    // Set by the other tests only.
    if let Ok(url) = std::env::var(URL) {
        let store = open(&url, &options(&Dir::new())).unwrap();
        assert_same(&store, &image(2000, 50));
    }
}

fn run(server: &Server, variables: &[(&str, &str)]) {
    let mut child = Command::new(std::env::current_exe().unwrap());
    child.args(["--exact", "s3::child_reads_the_bucket", "--nocapture"]);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
        child.env_remove(name);
    }
    child
        .env(URL, "s3://bucket/dir/image.erofs")
        .env("HOME", "/nonexistent");
    child.env("AWS_ENDPOINT_URL", server.url(""));
    child.envs(variables.iter().copied());
    let out = child.output().unwrap();
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stdout)
    );
}

fn bucket(is_allowed: impl Fn(&str) -> bool + Send + Sync + 'static) -> Server {
    let bytes = image(2000, 50);
    Server::start(move |request| {
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        match path == "/bucket/dir/image.erofs" && is_allowed(query) {
            true => Answer::object(request, &bytes, "\"e\""),
            false => Answer::status(403),
        }
    })
}

#[test]
fn requests_carry_a_signature_of_the_key_in_the_environment() {
    let server = bucket(|query| {
        query.contains("X-Amz-Signature=")
            && query.contains("X-Amz-Credential=AKID%2F")
            && query.contains("%2Feu-north-1%2Fs3%2F")
            && query.contains("X-Amz-Security-Token=session")
    });
    run(
        &server,
        &[
            ("AWS_ACCESS_KEY_ID", "AKID"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
            ("AWS_SESSION_TOKEN", "session"),
            ("AWS_REGION", "eu-north-1"),
        ],
    );
    for request in server.take_requests() {
        assert!(!request.path.contains("secret"));
    }
}

#[test]
fn the_profile_counts_where_the_environment_names_no_key() {
    let dir = Dir::new();
    std::fs::create_dir(&dir.0).unwrap();
    let (keys, config) = (dir.0.join("keys"), dir.0.join("config"));
    std::fs::write(
        &keys,
        "[a]\naws_access_key_id = PROFILE\naws_secret_access_key = x\n",
    )
    .unwrap();
    std::fs::write(&config, "[profile a]\nregion = eu-west-9\n").unwrap();
    let server = bucket(|query| {
        query.contains("X-Amz-Credential=PROFILE%2F") && query.contains("eu-west-9")
    });
    run(
        &server,
        &[
            ("AWS_PROFILE", "a"),
            ("AWS_SHARED_CREDENTIALS_FILE", keys.to_str().unwrap()),
            ("AWS_CONFIG_FILE", config.to_str().unwrap()),
        ],
    );
}

#[test]
fn a_public_bucket_needs_no_signature() {
    let server = bucket(str::is_empty);
    run(&server, &[("AWS_SKIP_SIGNATURE", "true")]);
}
