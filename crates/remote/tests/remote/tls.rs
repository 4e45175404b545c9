//! TLS with a certificate that only `SSL_CERT_FILE` names.
//!
//! The environment belongs to the whole process, so these tests push and read in another one.

use crate::common::{Dir, image};
use crate::process::run_with;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::fs;
use std::net::{Ipv4Addr, TcpListener};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use tuff_testkit::hostile::Origin;
use tuff_testkit::http::{Answer, Server};
use tuff_testkit::registry::Registry;
use tuff_testkit::skipped;

/// Makes a certificate that signs itself. `None`, with a note, without openssl.
fn certificate(dir: &Path) -> Option<()> {
    let mut openssl = Command::new("openssl");
    openssl.args([
        "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2",
    ]);
    openssl.args([
        "-subj",
        "/CN=test",
        "-addext",
        "subjectAltName=IP:127.0.0.2",
        "-addext",
        "basicConstraints=critical,CA:FALSE",
    ]);
    openssl
        .args(["-keyout", "key.pem", "-out", "cert.pem"])
        .current_dir(dir);
    match openssl.output() {
        Ok(out) if out.status.success() => Some(()),
        other => {
            skipped(format_args!("a certificate needs openssl: {other:?}"));
            None
        }
    }
}

/// Puts a server behind TLS. Returns its host and port.
fn start(dir: &Path, server: Server) -> String {
    let server = Arc::new(server);
    let certificate = CertificateDer::from_pem_file(dir.join("cert.pem")).unwrap();
    let key = PrivateKeyDer::from_pem_file(dir.join("key.pem")).unwrap();
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let config = Arc::new(config);
    // Registries on 127.0.0.1 are read without TLS.
    let listener = TcpListener::bind("127.0.0.2:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (config, server) = (Arc::clone(&config), Arc::clone(&server));
            std::thread::spawn(move || {
                let connection = ServerConnection::new(config).unwrap();
                server.serve_stream(StreamOwned::new(connection, stream.unwrap()));
            });
        }
    });
    host
}

/// Pushes an image to a registry and reads it.
fn push_and_read(host: &str, certificates: Option<&Path>, logins: &Path) -> (bool, String) {
    let url = format!("oci://{host}/team/app:v1");
    let mut variables = vec![("REGISTRY_AUTH_FILE", logins.to_str().unwrap())];
    variables.extend(certificates.map(|file| ("SSL_CERT_FILE", file.to_str().unwrap())));
    let bytes = image(1000, 80);
    let (is_pushed, text) = run_with("push", &url, &bytes, &variables);
    match is_pushed {
        true => run_with("read", &url, &bytes, &variables),
        false => (false, text),
    }
}

#[test]
fn a_certificate_of_the_environment_is_trusted_and_others_are_not() {
    let dir = Dir::new();
    fs::create_dir(&dir.0).unwrap();
    if certificate(&dir.0).is_none() {
        return;
    }
    let registry = Registry::default();
    let server = Server::start(move |request| registry.answer(request));
    let host = start(&dir.0, server);
    let none = Path::new("/nonexistent");
    let (is_done, message) = push_and_read(&host, Some(&dir.0.join("cert.pem")), none);
    assert!(is_done, "{message}");
    let (is_done, message) = push_and_read(&host, None, none);
    assert!(!is_done && message.contains("certificate"), "{message}");
}

#[test]
fn no_password_of_a_registry_with_tls_is_sent_without() {
    let dir = Dir::new();
    fs::create_dir(&dir.0).unwrap();
    if certificate(&dir.0).is_none() {
        return;
    }
    let other = Origin::start(Ipv4Addr::new(127, 0, 0, 2));
    let challenge = format!("Bearer realm=\"http://{}/token\"", other.host());
    let server = Server::start(move |_| Answer::status(401).with("WWW-Authenticate", &challenge));
    let host = start(&dir.0, server);
    for login in [
        r#"{"username":"u","password":"SECRET"}"#,
        r#"{"identitytoken":"SECRET"}"#,
    ] {
        let logins = dir.0.join("logins.json");
        fs::write(&logins, format!(r#"{{"auths":{{"{host}":{login}}}}}"#)).unwrap();
        let (is_done, message) = push_and_read(&host, Some(&dir.0.join("cert.pem")), &logins);
        assert!(
            !is_done && message.contains("a token service without TLS"),
            "{message}"
        );
        assert!(
            other.received().is_empty() && !message.contains("SECRET"),
            "{message}"
        );
    }
}
