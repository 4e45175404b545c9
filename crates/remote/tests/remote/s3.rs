//! Buckets: signed requests to an endpoint of the environment, by path.
//!
//! The environment belongs to the whole process, so these tests read in another one.

use crate::common::{Dir, image};
use crate::first_reads::{BLOCKS, object_in_two_round_trips};
use crate::process::run_with;
use tuff_testkit::http::{Answer, Server};

fn run(server: &Server, variables: &[(&str, &str)]) {
    let endpoint = server.url("");
    let variables = [&[("AWS_ENDPOINT_URL", &*endpoint)], variables].concat();
    let url = "s3://bucket/dir/image.erofs";
    let (is_done, text) = run_with("read", url, &image(2000, 50), &variables);
    assert!(is_done, "{text}");
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

#[test]
fn an_object_of_a_bucket_opens_with_two_round_trips_and_one_handshake() {
    let bytes = image(BLOCKS, 709);
    let (_server, host) = object_in_two_round_trips("/bucket/dir/image.erofs", bytes.clone(), 1);
    let endpoint = format!("http://{host}");
    let variables = [
        ("AWS_ENDPOINT_URL", &*endpoint),
        ("AWS_ACCESS_KEY_ID", "AKID"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
    ];
    let (is_done, text) = run_with("read", "s3://bucket/dir/image.erofs", &bytes, &variables);
    assert!(is_done, "{text}");
}
