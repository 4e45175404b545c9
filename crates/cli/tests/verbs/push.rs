//! Uploads and whole copies: what comes back equals the local image, and failures are one sentence.

use crate::common::{Place, code, stderr, tool};
use std::collections::BTreeMap;
use std::fs;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::process::Output;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use tuff_testkit::http::{Answer, Request, Server};
use tuff_testkit::program;
use tuff_testkit::registry::Registry;

/// Runs the command with a cache in the directory and without logins of the user.
pub(crate) fn run(place: &Place, variables: &[(&str, &str)], args: &[&str]) -> Output {
    let mut command = place.command(args);
    for (name, _) in std::env::vars().filter(|(name, _)| name.starts_with("AWS_")) {
        command.env_remove(name);
    }
    command
        .env("XDG_CACHE_HOME", place.path("cache"))
        .env("HOME", &place.0)
        .env("REGISTRY_AUTH_FILE", place.path("auth.json"))
        .envs(variables.iter().copied());
    command.output().unwrap()
}

/// Standard output of a run that must succeed without messages.
pub(crate) fn good(place: &Place, variables: &[(&str, &str)], args: &[&str]) -> Vec<u8> {
    let out = run(place, variables, args);
    assert_eq!((code(&out), stderr(&out).as_str()), (0, ""), "{args:?}");
    out.stdout
}

/// Result of an upload with `--json`. Progress on standard error is left out.
pub(crate) fn pushed(
    place: &Place,
    variables: &[(&str, &str)],
    args: &[&str],
) -> serde_json::Value {
    let args = [&["push", "--json"], args].concat();
    let out = run(place, variables, &args);
    assert_eq!(code(&out), 0, "{args:?}: {}", stderr(&out));
    serde_json::from_slice(&out.stdout).unwrap()
}

/// Registry behind a server, with the URL of an image.
pub(crate) fn start() -> (Arc<Registry>, Server, String) {
    let registry = Arc::new(Registry::default());
    let answering = Arc::clone(&registry);
    let server = Server::start(move |request| answering.answer(request));
    let url = format!("oci://{}/team/app:v1", server.host());
    (registry, server, url)
}

/// Output of a verb, of `info` without the lines about what follows the image: an image behind a URL ends at its hash tree.
pub(crate) fn without_tree(verb: &str, output: Vec<u8>) -> Vec<u8> {
    if verb != "info" {
        return output;
    }
    let text = String::from_utf8(output).unwrap();
    let is_other = |line: &&str| {
        ["stored in", "root hash", "hash tree"].contains(&line.get(..14).unwrap_or(line).trim())
    };
    let kept = text.lines().filter(|line| !is_other(line));
    kept.flat_map(|line| [line, "\n"])
        .collect::<String>()
        .into()
}

/// Compares what verbs print for a URL and for the local image.
pub(crate) fn assert_reads_same(place: &Place, variables: &[(&str, &str)], url: &str, local: &str) {
    for args in [
        &["info", "-b", "IMAGE"][..],
        &["ls", "-lR", "IMAGE"],
        &["cat", "IMAGE", "dir/text", "many/copy", "sparse"],
        &["tar", "IMAGE", "-"],
        &["check", "-q", "IMAGE"],
    ] {
        let of = |image: &str| {
            let args: Vec<&str> = args
                .iter()
                .map(|arg| if *arg == "IMAGE" { image } else { arg })
                .collect();
            without_tree(args[0], good(place, variables, &args))
        };
        assert!(of(url) == of(local), "{args:?} of {url}");
    }
}

#[test]
fn a_pushed_image_reads_as_the_local_one_and_comes_back_whole() {
    let place = Place::with_image("push-same");
    place.text(&["verity", "add", "-q", "i"]);
    let (_, _server, url) = start();
    let first = pushed(&place, &[], &["i", &url]);
    let root = place.json(&["verity", "show", "--json", "i"])[0]["root_hash"].clone();
    assert_eq!(first["layers"][0]["root_hash"], root);
    assert_reads_same(&place, &[], &url, "i");
    let second = pushed(&place, &[], &["i", &url]);
    assert_eq!(first["digest"], second["digest"]);
    assert_eq!(second["layers"][0]["was_present"], true);
    good(&place, &[], &["pull", "-q", &url, "copy"]);
    assert!(fs::read(place.path("copy")).unwrap() == fs::read(place.path("i")).unwrap());
    let by_digest = url.replace(":v1", &format!("@{}", first["digest"].as_str().unwrap()));
    good(&place, &[], &["check", "-q", &by_digest]);
}

#[test]
fn a_directory_is_built_and_verified() {
    let place = Place::new("push-dir");
    fs::create_dir_all(place.path("tree/sub")).unwrap();
    fs::create_dir(place.path("tmp")).unwrap();
    fs::write(place.path("tree/sub/file"), "content\n").unwrap();
    let (_, _server, url) = start();
    let tmp = place.path("tmp");
    let variables = [("TMPDIR", tmp.to_str().unwrap())];
    let done = pushed(&place, &variables, &["tree", &url]);
    assert!(done["layers"][0]["root_hash"].is_string());
    assert_eq!(fs::read_dir(&tmp).unwrap().count(), 0);
    assert_eq!(good(&place, &[], &["cat", &url, "sub/file"]), b"content\n");
    place.text(&["build", "-q", "--verity", "tree", "local"]);
    good(&place, &[], &["pull", "-q", &url, "copy"]);
    assert!(fs::read(place.path("copy")).unwrap() == fs::read(place.path("local")).unwrap());
}

#[test]
fn compression_and_cluster_size_are_those_of_a_build() {
    let place = Place::new("push-settings");
    fs::create_dir_all(place.path("tree")).unwrap();
    fs::write(
        place.path("tree/file"),
        "content of a line\n".repeat(40_000),
    )
    .unwrap();
    let (_, _server, url) = start();
    let settings = ["-z", "zstd:3", "-C", "128K"];
    pushed(&place, &[], &[&settings[..], &["tree", &url]].concat());
    place.text(
        &[
            &["build", "-q", "--verity"],
            &settings[..],
            &["tree", "local"],
        ]
        .concat(),
    );
    good(&place, &[], &["pull", "-q", &url, "copy"]);
    assert!(fs::read(place.path("copy")).unwrap() == fs::read(place.path("local")).unwrap());
    for (args, message) in [
        (
            ["push", "-z", "zstd:3", "local", &url],
            "--compress: the sources are EROFS images, which are uploaded as they are",
        ),
        (
            ["push", "-C", "128K", "local", &url],
            "--cluster: the sources are EROFS images, which are uploaded as they are",
        ),
        (["push", "-C", "3K", "tree", &url], "cluster size 3072"),
    ] {
        let out = run(&place, &[], &args);
        assert_eq!(code(&out), 2, "{args:?}");
        assert!(stderr(&out).contains(message), "{args:?}: {}", stderr(&out));
    }
}

#[test]
fn two_images_become_two_layers() {
    let place = Place::with_image("push-layers");
    fs::create_dir(place.path("top")).unwrap();
    place.text(&["build", "-q", "top", "j"]);
    let (registry, _server, url) = start();
    let done = pushed(&place, &[], &["--media-type", "containerd", "i", "j", &url]);
    let manifest = registry.manifest("team/app", "v1").unwrap();
    let layers = manifest["layers"].as_array().unwrap();
    assert_eq!(layers.len(), 2);
    for (layer, message) in layers.iter().zip(done["layers"].as_array().unwrap()) {
        assert_eq!(layer["digest"], message["digest"]);
        assert_eq!(layer["mediaType"], "application/vnd.erofs.layer.v1");
    }
}

#[test]
fn failures_of_uploads_are_one_sentence_without_credentials() {
    let place = Place::with_image("push-errors");
    // Its base is not beside it.
    fs::create_dir(place.path("apart")).unwrap();
    place.text(&["build", "-q", "--base", "i", "m", "apart/delta"]);
    let denied = Server::start(|_| Answer::status(401).with("WWW-Authenticate", "Basic realm=x"));
    let auth = r#"{"auths":{"HOST":{"username":"user","password":"secret"}}}"#;
    fs::write(
        place.path("auth.json"),
        auth.replace("HOST", &denied.host()),
    )
    .unwrap();
    let denied = format!("oci://{}/team/app", denied.host());
    let (_, server, url) = start();
    let none = "oci://127.0.0.1:1/team/app";
    let cases: &[(i32, &[&str], &str)] = &[
        (5, &["i", &denied], "access denied"),
        (5, &["--timeout", "1", "i", none], "cannot connect"),
        (2, &["i", "image"], "not a URL"),
        (2, &["i", "https://user:secret@h/i"], "expected oci://"),
        (2, &["i", "oci://h"], "expected oci://"),
        (2, &["apart/delta", &url], "--device FILE"),
        (2, &["--device", "i", "i", &url], "has data there"),
        (5, &["none", &url], "No such file"),
        (2, &["--platform", "linux", "i", &url], "linux/amd64"),
        (2, &["--sign", "k", "i", &url], "KEY.pem,CERT.pem"),
        (5, &["--sign", "k,c", "i", &url], "No such file"),
        (2, &["i"], "2 values"),
    ];
    for (expected, args, words) in cases {
        let args = [&["push"], *args].concat();
        let out = run(&place, &[], &args);
        let message = stderr(&out);
        assert_eq!(code(&out), *expected, "{args:?}: {message}");
        assert!(message.contains(words), "{args:?}: {message}");
        assert!(!message.contains("secret"), "{message}");
    }
    assert!(
        server
            .take_requests()
            .iter()
            .all(|request| request.method != "PUT")
    );
}

/// Makes the key `NAME.key` and its certificate `NAME.pem`. Returns false, with a note, without openssl.
pub(crate) fn key(place: &Place, name: &str) -> bool {
    let (key, cert) = (format!("{name}.key"), format!("{name}.pem"));
    let args = [
        "req", "-x509", "-nodes", "-newkey", "rsa:2048", "-subj", "/CN=t", "-keyout", &key, "-out",
        &cert,
    ];
    let out = tool(&place.0, "openssl", &args);
    if let Some(out) = &out {
        assert!(out.status.success(), "{}", stderr(out));
    }
    out.is_some()
}

#[test]
fn an_image_that_the_certificate_did_not_sign_is_refused() {
    let place = Place::with_image("push-trust");
    place.text(&["verity", "add", "-q", "i"]);
    if !["a", "b"].iter().all(|name| key(&place, name)) {
        return;
    }
    let (registry, _server, url) = start();
    pushed(&place, &[], &["--sign", "a.key,a.pem", "i", &url]);
    for args in [
        &["ls", "-lR", "--trust", "CERT", &url][..],
        &["check", "-q", "--trust", "CERT", &url],
        &["pull", "-q", "--trust", "CERT", &url, "copy"],
    ] {
        let with = |cert: &str| {
            let args: Vec<&str> = args
                .iter()
                .map(|arg| if *arg == "CERT" { cert } else { arg })
                .collect();
            run(&place, &[], &args)
        };
        let out = with("a.pem");
        assert_eq!(code(&out), 0, "{}", stderr(&out));
        let out = with("b.pem");
        let message = stderr(&out);
        assert_eq!(code(&out), 6, "{message}");
        assert!(message.starts_with("tuff: untrusted image: "), "{message}");
        assert!(
            message.contains("signature") && message.contains("not trusted by b.pem"),
            "{message}"
        );
    }
    // Bytes that the signed root hash does not cover are refused too.
    let index = registry.manifest("team/app", "v1").unwrap();
    let manifest = index["manifests"][0]["digest"].as_str().unwrap();
    let manifest = registry.manifest("team/app", manifest).unwrap();
    let blob = manifest["layers"][0]["digest"].as_str().unwrap();
    registry.change_blob("team/app", blob, |blob| blob[4096 * 2 + 5] ^= 1);
    let args = ["tar", "--trust", "a.pem", "--cache-dir", "fresh", &url, "-"];
    assert_eq!(code(&run(&place, &[], &args)), 3);
}

#[test]
fn a_credential_helper_gives_the_login() {
    let place = Place::with_image("push-helper");
    let registry = Registry::default();
    // user:secret
    let login = "Basic dXNlcjpzZWNyZXQ=";
    let server = Server::start(move |request| {
        match request
            .headers
            .get("authorization")
            .is_some_and(|value| value == login)
        {
            true => registry.answer(request),
            false => Answer::status(401).with("WWW-Authenticate", "Basic realm=x"),
        }
    });
    let host = server.host();
    fs::write(
        place.path("auth.json"),
        format!(r#"{{"credHelpers":{{"{host}":"test"}}}}"#),
    )
    .unwrap();
    let helper = place.path("docker-credential-test");
    let answer = r#"{"Username":"user","Secret":"secret"}"#;
    let script = format!(
        "#!/bin/sh\nread -r registry\n[ \"$1 $registry\" = \"get {host}\" ] && echo '{answer}'\n"
    );
    program::script(&helper, &script);
    let path = format!("{}:{}", place.0.display(), std::env::var("PATH").unwrap());
    let url = format!("oci://{host}/team/app:v1");
    good(&place, &[("PATH", &path)], &["push", "-q", "i", &url]);
    good(&place, &[("PATH", &path)], &["check", "-q", &url]);
    // A helper that fails is named, and what it printed is not.
    program::script(&helper, "#!/bin/sh\necho secret\nexit 1\n");
    let out = run(&place, &[("PATH", &path)], &["push", "-q", "i", &url]);
    let message = stderr(&out);
    assert_eq!(code(&out), 5, "{message}");
    assert!(
        message.contains("docker-credential-test") && !message.contains("secret"),
        "{message}"
    );
}

/// Bucket in memory, with uploads in parts.
#[derive(Default)]
pub(crate) struct Bucket {
    pub(crate) objects: BTreeMap<String, (Vec<u8>, String)>,
    parts: BTreeMap<String, Vec<u8>>,
}

impl Bucket {
    pub(crate) fn answer(&mut self, request: &Request) -> Answer {
        let (path, query) = request.path.split_once('?').unwrap_or((&request.path, ""));
        let path = path.to_owned();
        let digest = request
            .headers
            .get("x-amz-meta-tuff-digest")
            .cloned()
            .unwrap_or_default();
        let xml = |text: &str| Answer {
            status: 200,
            body: text.as_bytes().to_vec(),
            ..Answer::default()
        };
        match (request.method.as_str(), query) {
            ("POST", "uploads=" | "uploads") => {
                self.objects
                    .insert(format!("{path}?"), (Vec::new(), digest));
                xml(
                    "<InitiateMultipartUploadResult><UploadId>u</UploadId></InitiateMultipartUploadResult>",
                )
            }
            ("PUT", query) if query.contains("partNumber=") => {
                let number = query
                    .split('&')
                    .find_map(|field| field.strip_prefix("partNumber="));
                let number: u32 = number.unwrap().parse().unwrap();
                self.parts
                    .insert(format!("{path}?{number:05}"), request.body.clone());
                Answer::status(200).with("ETag", format!("\"{number}\""))
            }
            ("POST", _) => {
                let (_, digest) = self.objects.remove(&format!("{path}?")).unwrap();
                let whole: Vec<u8> = std::mem::take(&mut self.parts)
                    .into_values()
                    .flatten()
                    .collect();
                self.objects.insert(path, (whole, digest));
                xml(
                    "<CompleteMultipartUploadResult><ETag>\"e\"</ETag></CompleteMultipartUploadResult>",
                )
            }
            ("PUT", _) if request.headers.contains_key("x-amz-copy-source") => {
                let source = format!("/{}", request.headers["x-amz-copy-source"]);
                let copied = self.objects[&source].clone();
                self.objects.insert(path, copied);
                xml("<CopyObjectResult><ETag>\"e\"</ETag></CopyObjectResult>")
            }
            ("PUT", _) => {
                self.objects.insert(path, (request.body.clone(), digest));
                Answer::status(200).with("ETag", "\"e\"")
            }
            (method, _) => match self.objects.get(&path) {
                Some((bytes, digest)) => {
                    let mut answer = Answer::object(request, bytes, "\"e\"");
                    answer.is_head = method == "HEAD";
                    answer
                        .with("x-amz-meta-tuff-digest", digest)
                        .with("Last-Modified", "Wed, 21 Oct 2026 07:28:00 GMT")
                }
                None => Answer::status(404),
            },
        }
    }
}

/// Variables of the environment for a bucket behind `endpoint`.
pub(crate) fn bucket_variables(endpoint: &str) -> [(&str, &str); 3] {
    [
        ("AWS_ENDPOINT_URL", endpoint),
        ("AWS_ACCESS_KEY_ID", "key"),
        ("AWS_SECRET_ACCESS_KEY", "secret"),
    ]
}

#[test]
fn an_image_in_a_bucket_reads_as_the_local_one() {
    let place = Place::with_image("push-bucket");
    place.text(&["verity", "add", "-q", "i"]);
    let bucket = Mutex::new(Bucket::default());
    let server = Server::start(move |request| bucket.lock().unwrap().answer(request));
    let endpoint = server.url("");
    let variables = bucket_variables(&endpoint);
    let first = pushed(&place, &variables, &["i", "s3://bucket/dir/image"]);
    assert_eq!(first["layers"][0]["was_present"], false);
    assert_reads_same(&place, &variables, "s3://bucket/dir/image", "i");
    let second = pushed(&place, &variables, &["i", "s3://bucket/dir/image"]);
    assert_eq!(second["layers"][0]["was_present"], true);
    assert_eq!(first["digest"], second["digest"]);
    let root = good(
        &place,
        &variables,
        &["pull", "-q", "s3://bucket/dir/image", "copy"],
    );
    assert!(root.is_empty());
    assert!(fs::read(place.path("copy")).unwrap() == fs::read(place.path("i")).unwrap());
    // Larger than one part.
    let mut rng = tuff_testkit::Rng::new(2);
    let noise: Vec<u8> = (0..20 << 20).map(|_| rng.draw() as u8).collect();
    fs::create_dir(place.path("large")).unwrap();
    fs::write(place.path("large/noise"), &noise).unwrap();
    pushed(&place, &variables, &["large", "s3://bucket/large"]);
    assert!(good(&place, &variables, &["cat", "s3://bucket/large", "noise"]) == noise);
}

/// Bucket that has nothing, and refuses uploads with an answer that claims a length, or has no end. Returns the bytes that it
/// could send.
fn refusing_bucket(claim: Option<u64>) -> (String, Arc<AtomicU64>) {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let sent = Arc::new(AtomicU64::new(0));
    let count = Arc::clone(&sent);
    let answer = move |mut stream: TcpStream| -> std::io::Result<()> {
        let mut lines = BufReader::new(stream.try_clone()?).lines();
        let first = lines.next().unwrap_or_else(|| Ok(String::new()))?;
        if !first.starts_with("PUT") {
            let nothing =
                b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\nConnection: close\r\n\r\n";
            return stream.write_all(nothing);
        }
        let length = claim.map_or_else(String::new, |len| format!("Content-Length: {len}\r\n"));
        write!(stream, "HTTP/1.1 403 Forbidden\r\n{length}\r\n")?;
        for _ in 0..4096 {
            stream.write_all(&[b' '; 65536])?;
            count.fetch_add(65536, Ordering::Relaxed);
        }
        Ok(())
    };
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let answer = answer.clone();
            // A client that has read enough closes the connection.
            std::thread::spawn(move || drop(answer(stream.unwrap())));
        }
    });
    (url, sent)
}

#[test]
fn an_answer_of_a_bucket_takes_bounded_memory() {
    let place = Place::with_image("bounded-answer");
    for claim in [Some(10_000_000_000_000), None] {
        let (endpoint, sent) = refusing_bucket(claim);
        let variables = [
            ("AWS_ENDPOINT_URL", endpoint.as_str()),
            ("AWS_ACCESS_KEY_ID", "key"),
            ("AWS_SECRET_ACCESS_KEY", "secret"),
        ];
        let out = run(&place, &variables, &["push", "-q", "i", "s3://bucket/i"]);
        assert_eq!(
            (code(&out), stderr(&out).lines().count()),
            (5, 1),
            "{claim:?}: {}",
            stderr(&out)
        );
        let sent = sent.load(Ordering::Relaxed);
        assert!(sent < 64 << 20, "{claim:?}: {sent} bytes were read");
    }
}

#[test]
fn images_behind_urls_are_sources_and_bases() {
    let place = Place::with_image("push-source");
    place.text(&["verity", "add", "-q", "i"]);
    let (_, _server, url) = start();
    let root = pushed(&place, &[], &["i", &url])["layers"][0]["root_hash"].clone();
    let root = root.as_str().unwrap();
    let file = format!("file://{}", place.path("i").display());
    for source in [url.clone(), format!("{url},{root}"), file] {
        good(&place, &[], &["build", "-q", &source, "copy"]);
        assert_eq!(place.text(&["diff", "i", "copy"]), "", "{source}");
        good(
            &place,
            &[],
            &["build", "-q", "--base", &source, "i", "delta"],
        );
        assert_eq!(place.text(&["diff", "--device", "i", "i", "delta"]), "");
        good(&place, &[], &["patch", "-q", &source, "copy"]);
        assert_eq!(place.text(&["diff", "i", "copy"]), "", "{source}");
    }
    let wrong = format!("{url},{}", "ab".repeat(32));
    let out = run(&place, &[], &["build", &wrong, "new"]);
    assert_eq!(code(&out), 3, "{}", stderr(&out));
    let again = url.replace("app", "again");
    pushed(&place, &[], &[&url, &again]);
    good(&place, &[], &["pull", "-q", &again, "twice"]);
    assert_eq!(place.text(&["diff", "i", "twice"]), "");
}
