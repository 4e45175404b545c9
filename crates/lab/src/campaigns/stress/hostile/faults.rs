//! Table of the faults of hostile servers. Each is one thing that a server may say or do.
//!
//! Templates name hosts, `{A}` (the server of the URL), `{B}` (another host) and `{C}` (another port of the first host), and
//! parts of the honest manifest: `{LAYER}`, `{DIGEST}`, `{SIZE}`, `{ROOT}`, `{CONFIG}`, `{OTHER}`.

use super::reply::Reply;
use std::time::Duration;
use tuff_testkit::hostile::Step;

/// Kind of server that a URL names.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Source {
    /// Web server, with a password and a secret query in the URL.
    Web,
    /// Registry with a token service.
    Registry,
    /// Bucket, with a session token.
    Bucket,
    /// Registry that an image is uploaded to.
    Upload,
    /// Bucket that an image is uploaded to.
    BucketUpload,
}

impl Source {
    /// Returns true if an image is uploaded.
    pub(super) fn is_upload(self) -> bool {
        matches!(self, Self::Upload | Self::BucketUpload)
    }
}

/// Place of a fault among the answers.
#[derive(Clone, Copy)]
pub(super) enum Kind {
    /// Manifest, as a template.
    Manifest(&'static str),
    /// Manifest that a function makes.
    ManifestOf(fn() -> Vec<u8>),
    /// Value of `WWW-Authenticate`, as a template. Without another fault, the service gives a token that is good.
    Challenge(&'static str),
    /// Answer of the token service: status and body, as a template.
    Token(u16, &'static str),
    /// Change of the answer of the token service.
    TokenOf(fn(&mut Reply)),
    /// Redirects: place of the request, status, target as a template.
    Redirect(Place, u16, &'static str),
    /// Change of the answer with bytes of the image.
    Object(fn(&mut Reply)),
    /// Change of the answer to the first request for a manifest.
    Document(fn(&mut Reply)),
    /// Status and place that the registry names for the next part of an upload.
    Upload(u16, &'static str),
    /// Answer that refuses: status, body.
    Refusal(u16, &'static str),
}

/// Requests that are redirected.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Object,
    Manifest,
    Token,
    Upload,
}

/// Fault of a server, and whether the verb must succeed.
pub(super) struct Fault {
    pub(super) name: &'static str,
    pub(super) source: Source,
    pub(super) kind: Kind,
    /// True if the answer is right, although unusual: the verb must succeed.
    pub(super) is_right: bool,
    /// True if the verb waits for its deadline.
    pub(super) is_slow: bool,
}

const fn fault(name: &'static str, source: Source, kind: Kind) -> Fault {
    Fault {
        name,
        source,
        kind,
        is_right: false,
        is_slow: false,
    }
}

const fn right(name: &'static str, source: Source, kind: Kind) -> Fault {
    Fault {
        is_right: true,
        ..fault(name, source, kind)
    }
}

const fn slow(name: &'static str, source: Source, kind: Kind) -> Fault {
    Fault {
        is_slow: true,
        ..fault(name, source, kind)
    }
}

use Kind::{
    Challenge, Document, Manifest, ManifestOf, Object, Redirect, Refusal, Token, TokenOf, Upload,
};
use Source::{Bucket, BucketUpload, Registry, Web};

const SECOND: Duration = Duration::from_secs(1);
const STALL: Duration = Duration::from_secs(600);

/// Number of repetitions of an answer without an end: 64 KiB each.
const ENDLESS: u64 = 1 << 20;

pub(super) const FAULTS: &[Fault] = &[
    // Manifests.
    right(
        "honest manifest",
        Registry,
        Manifest(r#"{"schemaVersion":2,"layers":[{LAYER}]}"#),
    ),
    right(
        "unknown fields",
        Registry,
        Manifest(r#"{"x":[[[1e9]]],"layers":[{LAYER}]}"#),
    ),
    right(
        "duplicate keys",
        Registry,
        Manifest(r#"{"layers":[],"layers":[{LAYER}]}"#),
    ),
    fault("empty manifest", Registry, Manifest("")),
    fault("not JSON", Registry, Manifest("<html>")),
    fault("null", Registry, Manifest("null")),
    fault("an array", Registry, Manifest("[[],[]]")),
    fault("a number", Registry, Manifest("1e400")),
    fault("no layers", Registry, Manifest(r#"{"schemaVersion":2}"#)),
    fault("layers is null", Registry, Manifest(r#"{"layers":null}"#)),
    fault(
        "layers is an object",
        Registry,
        Manifest(r#"{"layers":{"0":{LAYER}}}"#),
    ),
    fault(
        "layers of numbers",
        Registry,
        Manifest(r#"{"layers":[1,2,3]}"#),
    ),
    fault(
        "size 0",
        Registry,
        Manifest(
            r#"{"layers":[{"mediaType":"application/vnd.erofs","digest":"{DIGEST}","size":0}]}"#,
        ),
    ),
    fault(
        "size 1",
        Registry,
        Manifest(
            r#"{"layers":[{"mediaType":"application/vnd.erofs","digest":"{DIGEST}","size":1}]}"#,
        ),
    ),
    fault(
        "size -1",
        Registry,
        Manifest(
            r#"{"layers":[{"mediaType":"application/vnd.erofs","digest":"{DIGEST}","size":-1}]}"#,
        ),
    ),
    fault(
        "size 2^40",
        Registry,
        Manifest(
            r#"{"layers":[{"mediaType":"application/vnd.erofs","digest":"{DIGEST}","size":1099511627776}]}"#,
        ),
    ),
    fault(
        "size 2^50",
        Registry,
        Manifest(
            r#"{"layers":[{"mediaType":"application/vnd.erofs","digest":"{DIGEST}","size":1125899906842624}]}"#,
        ),
    ),
    fault(
        "size 2^63",
        Registry,
        Manifest(
            r#"{"layers":[{"mediaType":"application/vnd.erofs","digest":"{DIGEST}","size":9223372036854775808}]}"#,
        ),
    ),
    fault(
        "size 2^64-1",
        Registry,
        Manifest(
            r#"{"layers":[{"mediaType":"application/vnd.erofs","digest":"{DIGEST}","size":18446744073709551615}]}"#,
        ),
    ),
    fault(
        "size 2^64",
        Registry,
        Manifest(
            r#"{"layers":[{"mediaType":"application/vnd.erofs","digest":"{DIGEST}","size":18446744073709551616}]}"#,
        ),
    ),
    fault(
        "size 1.5",
        Registry,
        Manifest(
            r#"{"layers":[{"mediaType":"application/vnd.erofs","digest":"{DIGEST}","size":1.5}]}"#,
        ),
    ),
    fault(
        "size is text",
        Registry,
        Manifest(
            r#"{"layers":[{"mediaType":"application/vnd.erofs","digest":"{DIGEST}","size":"4096"}]}"#,
        ),
    ),
    fault(
        "no size",
        Registry,
        Manifest(r#"{"layers":[{"mediaType":"application/vnd.erofs","digest":"{DIGEST}"}]}"#),
    ),
    fault(
        "no digest",
        Registry,
        Manifest(r#"{"layers":[{"mediaType":"application/vnd.erofs","size":{SIZE}}]}"#),
    ),
    fault(
        "short digest",
        Registry,
        Manifest(
            r#"{"layers":[{"mediaType":"application/vnd.erofs","digest":"sha256:00","size":{SIZE}}]}"#,
        ),
    ),
    fault(
        "digest of another kind",
        Registry,
        Manifest(
            r#"{"layers":[{"mediaType":"application/vnd.erofs","digest":"md5:{DIGEST}","size":{SIZE}}]}"#,
        ),
    ),
    fault(
        "digest with a path",
        Registry,
        Manifest(
            r#"{"layers":[{"mediaType":"application/vnd.erofs","digest":"sha256:../../../../../etc/passwd","size":{SIZE}}]}"#,
        ),
    ),
    fault(
        "digest that no blob has",
        Registry,
        Manifest(
            r#"{"layers":[{"mediaType":"application/vnd.erofs","digest":"{OTHER}","size":{SIZE}}]}"#,
        ),
    ),
    fault(
        "media type of a tar",
        Registry,
        Manifest(
            r#"{"layers":[{"mediaType":"application/vnd.oci.image.layer.v1.tar","digest":"{DIGEST}","size":{SIZE}}]}"#,
        ),
    ),
    fault(
        "media type with escapes",
        Registry,
        Manifest(
            r#"{"layers":[{"mediaType":"\u001b[2J\u202e\u0000","digest":"{DIGEST}","size":{SIZE}}]}"#,
        ),
    ),
    fault(
        "media type is a number",
        Registry,
        Manifest(r#"{"layers":[{"mediaType":7,"digest":"{DIGEST}","size":{SIZE}}]}"#),
    ),
    fault(
        "compressed layer",
        Registry,
        Manifest(
            r#"{"layers":[{"mediaType":"application/vnd.erofs+zstd","digest":"{DIGEST}","size":{SIZE}}]}"#,
        ),
    ),
    fault(
        "two images",
        Registry,
        Manifest(
            r#"{"layers":[{LAYER},{"mediaType":"application/vnd.erofs","digest":"{OTHER}","size":4096}]}"#,
        ),
    ),
    fault(
        "device without an image",
        Registry,
        Manifest(
            r#"{"layers":[{LAYER},{"mediaType":"application/vnd.erofs","digest":"{OTHER}","size":4096,"annotations":{"org.erofs.role":"device"}}]}"#,
        ),
    ),
    fault(
        "image with a device that it lacks",
        Registry,
        Manifest(
            r#"{"layers":[{"mediaType":"application/vnd.erofs","digest":"{OTHER}","size":4096,"annotations":{"org.erofs.role":"device"}},{LAYER}]}"#,
        ),
    ),
    fault(
        "root hash of another image",
        Registry,
        Manifest(
            r#"{"layers":[{"mediaType":"application/vnd.erofs","digest":"{DIGEST}","size":{SIZE},"annotations":{"org.erofs.dmverity.root_digest":"sha256:0000000000000000000000000000000000000000000000000000000000000000"}}]}"#,
        ),
    ),
    fault(
        "root hash is no hash",
        Registry,
        Manifest(
            r#"{"layers":[{"mediaType":"application/vnd.erofs","digest":"{DIGEST}","size":{SIZE},"annotations":{"org.erofs.dmverity.root_digest":"sha256:zz"}}]}"#,
        ),
    ),
    fault(
        "chunk index before its blob",
        Registry,
        Manifest(
            r#"{"layers":[{"mediaType":"application/vnd.erofs","digest":"{DIGEST}","size":{SIZE},"annotations":{"org.erofs.chunk-index.range":"0","org.erofs.chunk-index.digest":"{OTHER}"}}]}"#,
        ),
    ),
    fault(
        "chunk index with a wrong digest",
        Registry,
        Manifest(
            r#"{"layers":[{"mediaType":"application/vnd.erofs","digest":"{DIGEST}","size":{SIZE},"annotations":{"org.erofs.chunk-index.range":"4096","org.erofs.chunk-index.digest":"{OTHER}"}}]}"#,
        ),
    ),
    right(
        "chunk index behind the blob",
        Registry,
        Manifest(
            r#"{"layers":[{"mediaType":"application/vnd.erofs","digest":"{DIGEST}","size":{SIZE},"annotations":{"org.erofs.chunk-index.range":"18446744073709551615:18446744073709551616","org.erofs.chunk-index.digest":"{OTHER}"}}]}"#,
        ),
    ),
    fault(
        "index of nothing",
        Registry,
        Manifest(r#"{"manifests":[]}"#),
    ),
    fault(
        "index for another machine",
        Registry,
        Manifest(
            r#"{"manifests":[{"digest":"{OTHER}","platform":{"os":"plan9","architecture":"vax"}},{"digest":"{DIGEST}"}]}"#,
        ),
    ),
    fault(
        "index of what is absent",
        Registry,
        Manifest(r#"{"manifests":[{"digest":"{OTHER}"}]}"#),
    ),
    fault(
        "index without digests",
        Registry,
        Manifest(r#"{"manifests":[{"platform":{}}]}"#),
    ),
    fault(
        "index of a blob that is none",
        Registry,
        Manifest(r#"{"manifests":[{"digest":"{DIGEST}","size":{SIZE}}]}"#),
    ),
    fault(
        "bad UTF-8",
        Registry,
        ManifestOf(|| b"{\"layers\":[{\"mediaType\":\"\xff\xfe\"}]}".to_vec()),
    ),
    fault("NUL bytes", Registry, ManifestOf(|| vec![0; 4096])),
    fault("deep JSON", Registry, ManifestOf(|| vec![b'['; 1 << 20])),
    fault(
        "deep JSON in a field",
        Registry,
        ManifestOf(|| {
            let (open, close) = ("[".repeat(100_000), "]".repeat(100_000));
            format!(r#"{{"layers":{open}{close}}}"#).into_bytes()
        }),
    ),
    fault(
        "a million layers",
        Registry,
        ManifestOf(|| format!(r#"{{"layers":[{}1]}}"#, "1,".repeat(1_000_000)).into_bytes()),
    ),
    fault(
        "30,000 images",
        Registry,
        ManifestOf(|| {
            let digest = "0".repeat(64);
            let layer = format!(
                r#"{{"mediaType":"application/vnd.erofs","digest":"sha256:{digest}","size":1}}"#
            );
            format!(r#"{{"layers":[{}]}}"#, vec![layer; 30_000].join(",")).into_bytes()
        }),
    ),
    fault(
        "long strings",
        Registry,
        ManifestOf(|| {
            format!(
                r#"{{"layers":[{{"mediaType":"{}"}}]}}"#,
                "m".repeat(3 << 20)
            )
            .into_bytes()
        }),
    ),
    fault("5 MiB", Registry, ManifestOf(|| vec![b' '; 5 << 20])),
    fault("endless manifest", Registry, Document(endless)),
    fault(
        "manifest without a length",
        Registry,
        Document(|reply| {
            reply.length = Some(String::new());
            reply.then.push(Step::Close);
            reply.status = 200;
        }),
    ),
    fault(
        "manifest longer than stated",
        Registry,
        Document(|reply| reply.length = Some("3".to_owned())),
    ),
    slow(
        "manifest shorter than stated",
        Registry,
        Document(|reply| {
            reply.length = Some((reply.body.len() + 1).to_string());
            reply.then.push(Step::Close);
        }),
    ),
    slow("manifest that stalls", Registry, Document(stall)),
    slow(
        "server that is overloaded",
        Registry,
        Document(|reply| reply.status = 503),
    ),
    fault(
        "pause of an hour",
        Registry,
        Document(|reply| {
            reply.status = 429;
            reply.set("Retry-After", "3600");
        }),
    ),
    fault(
        "pause of 2^64 seconds",
        Registry,
        Document(|reply| {
            reply.status = 503;
            reply.set("Retry-After", "18446744073709551616");
            reply.set("Retry-After", "99999999999999999");
        }),
    ),
    fault(
        "teapot with escapes",
        Registry,
        Document(|reply| {
            reply.status = 418;
            reply.body = br#"{"errors":[{"message":"\u001b[31m\n\n\u202e"}]}"#.to_vec();
        }),
    ),
    fault(
        "refusal with a long reason",
        Registry,
        Refusal(
            400,
            "{\"errors\":[{\"code\":\"MANIFEST_INVALID\",\"message\":\"mmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmmm\"}]}",
        ),
    ),
    fault("not found", Registry, Refusal(404, "")),
    fault("gone", Registry, Refusal(410, "<Error>")),
    fault(
        "informational answers",
        Registry,
        Document(|reply| {
            let one = b"HTTP/1.1 103 Early Hints\r\nLink: </x>\r\n\r\n".to_vec();
            reply.before.push(Step::Repeat(one, 10_000));
        }),
    ),
    // Authentication.
    right(
        "honest challenge",
        Registry,
        Challenge(r#"Bearer realm="http://{A}/token",service="s",scope="repository:app:pull""#),
    ),
    right(
        "service on another port",
        Registry,
        Challenge(r#"Bearer realm="http://{C}/token""#),
    ),
    right(
        "several challenges",
        Registry,
        Challenge(r#"Negotiate, Basic realm="x", bearer Realm=http://{A}/token"#),
    ),
    fault(
        "realm on another host",
        Registry,
        Challenge(r#"Bearer realm="http://{B}/token""#),
    ),
    fault(
        "realm with a password",
        Registry,
        Challenge(r#"Bearer realm="http://u:p@{A}/token""#),
    ),
    fault(
        "realm with the host as a user",
        Registry,
        Challenge(r#"Bearer realm="http://{A}@{B}/token""#),
    ),
    fault(
        "realm by a name",
        Registry,
        Challenge(r#"Bearer realm="http://token.invalid/""#),
    ),
    fault(
        "realm that is link-local",
        Registry,
        Challenge(r#"Bearer realm="http://169.254.169.254/latest/api/token""#),
    ),
    fault(
        "realm that is a file",
        Registry,
        Challenge(r#"Bearer realm="file:///etc/passwd""#),
    ),
    fault(
        "realm that is relative",
        Registry,
        Challenge(r#"Bearer realm="/token""#),
    ),
    fault(
        "realm that is empty",
        Registry,
        Challenge(r#"Bearer realm="""#),
    ),
    fault("no realm", Registry, Challenge(r#"Bearer service="s""#)),
    fault(
        "unknown scheme",
        Registry,
        Challenge("Digest realm=x, qop=auth"),
    ),
    fault("empty challenge", Registry, Challenge("")),
    fault(
        "quotes without an end",
        Registry,
        Challenge(r#"Bearer realm="http://{A}/token"#),
    ),
    fault("commas", Registry, Challenge(",,,,,,,,=,=,=\"\\\",")),
    right(
        "long service and scope",
        Registry,
        Challenge(
            "Bearer realm=\"http://{A}/token\",service=\"ssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssssss\",scope=\"a b c d e f g h i j k l m n o p q r s t u v w x y z\"",
        ),
    ),
    fault("401 for ever", Registry, Refusal(401, "{}")),
    fault(
        "403 for ever",
        Registry,
        Refusal(
            403,
            r#"{"errors":[{"code":"DENIED","message":"Your authorization token has expired. Reauthenticate and try again."}]}"#,
        ),
    ),
    right(
        "both names of a token",
        Registry,
        Token(200, r#"{"token":"","access_token":"{ACCESS}"}"#),
    ),
    fault("no token", Registry, Token(200, "{}")),
    fault("empty token", Registry, Token(200, r#"{"token":""}"#)),
    fault(
        "token that is a number",
        Registry,
        Token(200, r#"{"token":7}"#),
    ),
    fault(
        "token with line breaks",
        Registry,
        Token(200, r#"{"token":"x\r\nX-Evil: 1\r\n\r\n"}"#),
    ),
    fault(
        "token that is wrong",
        Registry,
        Token(200, r#"{"token":"wrong"}"#),
    ),
    fault(
        "token service that is not JSON",
        Registry,
        Token(200, "<html>"),
    ),
    fault("token service that refuses", Registry, Token(401, "{}")),
    fault("token service that forbids", Registry, Token(403, "{}")),
    fault(
        "token service that echoes",
        Registry,
        Token(400, r#"{"errors":[{"message":"{PASSWORD} {REFRESH}"}]}"#),
    ),
    slow("token service that is down", Registry, Token(500, "")),
    fault(
        "token of 1 MiB",
        Registry,
        TokenOf(|reply| {
            reply.body = format!(r#"{{"token":"{}"}}"#, "t".repeat(900_000)).into_bytes();
        }),
    ),
    fault(
        "token of 100 KiB",
        Registry,
        TokenOf(|reply| {
            reply.body = format!(r#"{{"token":"{}"}}"#, "t".repeat(100_000)).into_bytes();
        }),
    ),
    fault("endless token", Registry, TokenOf(endless)),
    right(
        "token after a second",
        Registry,
        TokenOf(|reply| reply.before.push(Step::Wait(SECOND))),
    ),
    slow("token that never comes", Registry, TokenOf(stall)),
    fault(
        "token redirected to another host, 302",
        Registry,
        Redirect(Place::Token, 302, "http://{B}/token"),
    ),
    fault(
        "token redirected to another host, 303",
        Registry,
        Redirect(Place::Token, 303, "http://{B}/token"),
    ),
    fault(
        "token redirected to another host, 307",
        Registry,
        Redirect(Place::Token, 307, "http://{B}/token"),
    ),
    fault(
        "token redirected to another host, 308",
        Registry,
        Redirect(Place::Token, 308, "//{B}/token"),
    ),
    fault(
        "token redirected to another port",
        Registry,
        Redirect(Place::Token, 307, "http://{C}/token"),
    ),
    // Redirects.
    right(
        "blob on another host",
        Registry,
        Redirect(Place::Object, 307, "http://{B}/cdn/i?sig=1"),
    ),
    right(
        "blob on another host, 302",
        Registry,
        Redirect(Place::Object, 302, "//{B}/cdn/i"),
    ),
    right(
        "blob at a relative place",
        Registry,
        Redirect(Place::Object, 308, "../../../cdn/i"),
    ),
    right(
        "blob at an absolute path",
        Registry,
        Redirect(Place::Object, 301, "/cdn/i"),
    ),
    fault(
        "blob at a file",
        Registry,
        Redirect(Place::Object, 307, "file:///etc/passwd"),
    ),
    fault(
        "blob by another scheme",
        Registry,
        Redirect(Place::Object, 307, "gopher://{B}/cdn/i"),
    ),
    fault(
        "blob at a link-local address",
        Registry,
        Redirect(
            Place::Object,
            307,
            "http://169.254.169.254/latest/meta-data/",
        ),
    ),
    fault(
        "blob with a user name",
        Registry,
        Redirect(Place::Object, 307, "http://user:pass@{B}/cdn/i"),
    ),
    fault(
        "blob in a loop",
        Registry,
        Redirect(Place::Object, 307, "?again"),
    ),
    fault("blob nowhere", Registry, Redirect(Place::Object, 307, "")),
    fault(
        "blob at what is no URL",
        Registry,
        Redirect(Place::Object, 307, "http://["),
    ),
    fault(
        "blob with several choices",
        Registry,
        Redirect(Place::Object, 300, "http://{B}/cdn/i"),
    ),
    fault(
        "blob by a proxy",
        Registry,
        Redirect(Place::Object, 305, "http://{B}/cdn/i"),
    ),
    fault(
        "blob not modified",
        Registry,
        Redirect(Place::Object, 304, "http://{B}/cdn/i"),
    ),
    fault(
        "blob that is denied elsewhere",
        Registry,
        Redirect(Place::Object, 307, "http://{B}/denied"),
    ),
    fault(
        "blob that is denied at a path",
        Registry,
        Redirect(Place::Object, 307, "/denied"),
    ),
    fault(
        "manifest denied by another registry",
        Registry,
        Redirect(Place::Manifest, 307, "http://{B}/v2/denied"),
    ),
    fault(
        "manifest in a loop",
        Registry,
        Redirect(Place::Manifest, 302, "http://{A}/v2/app/manifests/v1"),
    ),
    right(
        "object on another host",
        Web,
        Redirect(Place::Object, 302, "http://{B}/cdn/i"),
    ),
    right(
        "object on another port",
        Web,
        Redirect(Place::Object, 303, "http://{C}/cdn/i"),
    ),
    fault(
        "object with the query of the first host",
        Web,
        Redirect(Place::Object, 302, "http://{B}/cdn/i?token={QUERY}"),
    ),
    slow(
        "object behind TLS that is none",
        Web,
        Redirect(Place::Object, 302, "https://{A}/cdn/i"),
    ),
    fault(
        "object in a loop",
        Web,
        Redirect(Place::Object, 302, "/i.erofs?x"),
    ),
    fault(
        "object at a file",
        Web,
        Redirect(Place::Object, 302, "file:///proc/self/environ"),
    ),
    fault(
        "object at data",
        Web,
        Redirect(Place::Object, 302, "data:,x"),
    ),
    fault(
        "object denied elsewhere",
        Web,
        Redirect(Place::Object, 302, "http://{B}/denied"),
    ),
    fault(
        "signed object on another host with its signature",
        Bucket,
        Redirect(Place::Object, 307, "http://{B}{PATH}"),
    ),
    right(
        "signed object on another host",
        Bucket,
        Redirect(Place::Object, 307, "http://{B}/cdn/i"),
    ),
    fault(
        "bucket in another region",
        Bucket,
        Object(|reply| {
            reply.status = 301;
            reply.set("x-amz-bucket-region", "eu-north-1");
        }),
    ),
    fault(
        "bucket region with escapes",
        Bucket,
        Object(|reply| {
            reply.status = 301;
            reply.set("x-amz-bucket-region", "\u{1b}[2J");
        }),
    ),
    fault(
        "expired session",
        Bucket,
        Refusal(
            400,
            "<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message></Error>",
        ),
    ),
    fault(
        "unknown key",
        Bucket,
        Refusal(
            403,
            "<Error><Code>InvalidAccessKeyId</Code><AWSAccessKeyId>{SESSION}</AWSAccessKeyId><Message>{SESSION}</Message></Error>",
        ),
    ),
    // Sizes and ranges.
    right("honest object", Web, Object(|_| ())),
    right(
        "size unknown in the range",
        Web,
        Object(|reply| {
            let stated = reply.header("Content-Range").unwrap_or_default();
            if let Some((range, _)) = stated.clone().split_once('/') {
                reply.set("Content-Range", &format!("{range}/*"));
            }
        }),
    ),
    right(
        "a part of the range",
        Web,
        Object(|reply| reply.shorten(50_000)),
    ),
    fault(
        "one byte of the range",
        Registry,
        Object(|reply| reply.shorten(1)),
    ),
    right(
        "unit in capitals",
        Web,
        Object(|reply| reply.change_range(|r| r.replace("bytes", "Bytes"))),
    ),
    fault(
        "no range",
        Web,
        Object(|reply| reply.remove("Content-Range")),
    ),
    fault(
        "range of another place",
        Web,
        Object(|reply| reply.change_range(|r| r.replace("bytes 0-", "bytes 1-"))),
    ),
    fault(
        "range that ends before it begins",
        Web,
        Object(|reply| reply.set("Content-Range", "bytes 9-5/10")),
    ),
    fault(
        "range beyond the size",
        Web,
        Object(|reply| reply.set("Content-Range", "bytes 0-9/5")),
    ),
    fault(
        "range to 2^64",
        Web,
        Object(|reply| reply.set("Content-Range", "bytes 0-18446744073709551615/*")),
    ),
    fault(
        "range beyond 2^64",
        Web,
        Object(|reply| {
            reply.set(
                "Content-Range",
                "bytes 0-99999999999999999999/99999999999999999999",
            )
        }),
    ),
    fault(
        "size 2^50 in the range",
        Web,
        Object(|reply| reply.change_size(1 << 50)),
    ),
    fault(
        "size 2^63 in the range",
        Web,
        Object(|reply| reply.change_size(1 << 63)),
    ),
    fault(
        "size 2^64-1 in the range",
        Web,
        Object(|reply| reply.change_size(u64::MAX)),
    ),
    fault(
        "size that is too small",
        Web,
        Object(|reply| reply.change_size(4096)),
    ),
    fault(
        "size of nothing in the range",
        Web,
        Object(|reply| reply.set("Content-Range", "bytes */0")),
    ),
    fault(
        "range in another unit",
        Web,
        Object(|reply| reply.change_range(|r| r.replace("bytes", "items"))),
    ),
    fault(
        "negative range",
        Web,
        Object(|reply| reply.set("Content-Range", "bytes -5-9/10")),
    ),
    fault(
        "several ranges",
        Web,
        Object(|reply| {
            reply.remove("Content-Range");
            reply.set("Content-Type", "multipart/byteranges; boundary=x");
            reply.body =
                b"--x\r\nContent-Range: bytes 0-9/10\r\n\r\n0123456789\r\n--x--\r\n".to_vec();
        }),
    ),
    fault(
        "everything instead of the range",
        Web,
        Object(|reply| {
            reply.status = 200;
            reply.body = vec![7; 8 << 20];
            reply.remove("Content-Range");
        }),
    ),
    fault(
        "200 with the range",
        Registry,
        Object(|reply| reply.status = 200),
    ),
    fault("206 of nothing", Web, Object(|reply| reply.body.clear())),
    fault("416", Web, Object(|reply| reply.status = 416)),
    fault("412", Web, Object(|reply| reply.status = 412)),
    fault("204", Web, Object(|reply| reply.status = 204)),
    fault("205", Web, Object(|reply| reply.status = 205)),
    fault("999", Web, Object(|reply| reply.status = 999)),
    fault(
        "compressed object",
        Web,
        Object(|reply| reply.set("Content-Encoding", "gzip")),
    ),
    fault("no version", Web, Object(|reply| reply.remove("ETag"))),
    right(
        "weak version",
        Web,
        Object(|reply| reply.set("ETag", "W/\"v1\"")),
    ),
    fault(
        "version that changes",
        Web,
        Object(|reply| {
            let stated = reply.header("Content-Range").unwrap_or_default();
            reply.set("ETag", &format!("\"{stated}\""));
        }),
    ),
    fault(
        "version with escapes",
        Web,
        Object(|reply| reply.set("ETag", "\"\u{1b}[2J\"")),
    ),
    fault(
        "long version",
        Web,
        Object(|reply| reply.set("ETag", &format!("\"{}\"", "v".repeat(20_000)))),
    ),
    fault(
        "object longer than stated",
        Web,
        Object(|reply| reply.body.extend([7; 5000])),
    ),
    slow(
        "length that is too long",
        Web,
        Object(|reply| {
            reply.length = Some((1u64 << 63).to_string());
            reply.then.push(Step::Close);
        }),
    ),
    fault(
        "length beyond 2^64",
        Web,
        Object(|reply| reply.length = Some("99999999999999999999".to_owned())),
    ),
    fault(
        "two lengths",
        Web,
        Object(|reply| reply.set("Content-Length", "1")),
    ),
    fault(
        "negative length",
        Web,
        Object(|reply| reply.length = Some("-1".to_owned())),
    ),
    fault(
        "wrong bytes",
        Web,
        Object(|reply| reply.body.iter_mut().for_each(|b| *b ^= 0x55)),
    ),
    fault(
        "wrong bytes of a layer",
        Registry,
        Object(|reply| reply.body.iter_mut().for_each(|b| *b ^= 0x55)),
    ),
    fault("zeros", Web, Object(|reply| reply.body.fill(0))),
    fault("endless object", Web, Object(endless)),
    fault(
        "endless chunks",
        Web,
        Object(|reply| {
            reply.length = Some(String::new());
            reply.set("Transfer-Encoding", "chunked");
            reply.body.clear();
            let chunk = [b"10000\r\n".to_vec(), vec![7; 65536], b"\r\n".to_vec()].concat();
            reply.then.push(Step::Repeat(chunk, ENDLESS));
        }),
    ),
    fault(
        "chunks without a length",
        Web,
        Object(|reply| {
            reply.length = Some(String::new());
            reply.set("Transfer-Encoding", "chunked");
            reply.body = b"zz\r\n".to_vec();
            reply.then.push(Step::Close);
        }),
    ),
    fault(
        "10,000 headers",
        Web,
        Object(|reply| {
            for number in 0..10_000 {
                reply.set(&format!("X-{number}"), "x");
            }
        }),
    ),
    fault(
        "header of 1 MiB",
        Web,
        Object(|reply| reply.set("X-Long", &"x".repeat(1 << 20))),
    ),
    fault(
        "headers without an end",
        Web,
        Object(|reply| {
            reply
                .before
                .push(Step::Send(b"HTTP/1.1 200 OK\r\n".to_vec()));
            reply.before.push(Step::Repeat(
                b"X: yyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyyy\r\n".repeat(1000),
                ENDLESS,
            ));
        }),
    ),
    fault(
        "not HTTP",
        Web,
        Object(|reply| {
            reply
                .before
                .push(Step::Send(b"SSH-2.0-OpenSSH_9.9\r\n".to_vec()));
            reply.before.push(Step::Close);
        }),
    ),
    fault("forbidden", Web, Refusal(403, "no")),
    fault(
        "denied with the query in the reason",
        Web,
        Refusal(400, r#"{"errors":[{"message":"GET /i?token={QUERY}"}]}"#),
    ),
    // Cuts.
    slow(
        "cut in the object",
        Web,
        Object(|reply| {
            reply.length = Some(reply.body.len().to_string());
            reply.body.truncate(reply.body.len() / 2);
            reply.then.push(Step::Close);
        }),
    ),
    slow(
        "reset in the object",
        Web,
        Object(|reply| {
            reply.length = Some(reply.body.len().to_string());
            reply.body.truncate(reply.body.len() / 2);
            reply.then.push(Step::Reset);
        }),
    ),
    slow(
        "closed without an answer",
        Web,
        Object(|reply| reply.before.push(Step::Close)),
    ),
    slow(
        "reset without an answer",
        Registry,
        Object(|reply| reply.before.push(Step::Reset)),
    ),
    slow(
        "stall before the answer",
        Web,
        Object(|reply| reply.before.push(Step::Wait(STALL))),
    ),
    slow("stall in the object", Web, Object(stall)),
    slow(
        "one byte a second",
        Web,
        Object(|reply| {
            reply.length = Some(reply.body.len().to_string());
            reply.body.clear();
            for _ in 0..600 {
                reply.then.extend([Step::Send(vec![0]), Step::Wait(SECOND)]);
            }
        }),
    ),
    right(
        "half a second before each answer",
        Web,
        Object(|reply| {
            reply.before.push(Step::Wait(SECOND / 2));
        }),
    ),
    // Uploads.
    right(
        "honest upload",
        Source::Upload,
        Upload(202, "/v2/app/blobs/uploads/1?_state=0123456789abcdef"),
    ),
    right(
        "upload to another host",
        Source::Upload,
        Upload(202, "http://{B}/v2/app/blobs/uploads/1"),
    ),
    fault(
        "upload to a file",
        Source::Upload,
        Upload(202, "file:///tmp/x"),
    ),
    fault(
        "upload with a password",
        Source::Upload,
        Upload(202, "http://u:p@{B}/v2/app/blobs/uploads/1"),
    ),
    fault(
        "upload to a link-local address",
        Source::Upload,
        Upload(202, "http://169.254.169.254/"),
    ),
    fault("upload nowhere", Source::Upload, Upload(202, "http://[")),
    fault(
        "upload denied by another host",
        Source::Upload,
        Upload(202, "http://{B}/denied"),
    ),
    right(
        "upload redirected",
        Source::Upload,
        Redirect(Place::Upload, 307, "http://{B}/v2/app/blobs/uploads/1"),
    ),
    fault(
        "upload redirected to a loop",
        Source::Upload,
        Redirect(Place::Upload, 307, "/v2/app/blobs/uploads/1"),
    ),
    fault(
        "upload refused",
        Source::Upload,
        Refusal(403, r#"{"errors":[{"message":"no \u001b[2J right"}]}"#),
    ),
    fault(
        "upload refused with a reason",
        Source::Upload,
        Refusal(400, r#"{"errors":[{"message":"{PASSWORD}"}]}"#),
    ),
    right("honest upload to a bucket", BucketUpload, Object(|_| ())),
    fault(
        "endless refusal of a bucket",
        BucketUpload,
        Object(|reply| {
            endless(reply);
            reply.status = 403;
        }),
    ),
    fault(
        "refusal of a bucket that claims a length",
        BucketUpload,
        Object(|reply| {
            reply.status = 403;
            claim(reply);
        }),
    ),
    fault(
        "answer of a bucket that claims a length",
        BucketUpload,
        Object(claim),
    ),
    fault(
        "error of a bucket that claims a length",
        BucketUpload,
        Object(|reply| {
            reply.status = 500;
            claim(reply);
        }),
    ),
    fault(
        "refusal of a bucket with a terminal sequence",
        BucketUpload,
        Refusal(403, "<Error><Code>\u{1b}[2J</Code></Error>"),
    ),
];

/// Claims more than any memory, and sends several parts.
fn claim(reply: &mut Reply) {
    reply.length = Some("10000000000000".to_owned());
    reply.then.push(Step::Repeat(vec![b' '; 65536], 4));
    reply.then.push(Step::Close);
}

fn endless(reply: &mut Reply) {
    reply.length = Some(String::new());
    reply.remove("Content-Range");
    reply.status = 200;
    reply.then.push(Step::Repeat(vec![b' '; 65536], ENDLESS));
    reply.then.push(Step::Close);
}

fn stall(reply: &mut Reply) {
    reply.length = Some(reply.body.len().to_string());
    reply.body.truncate(reply.body.len() / 2);
    reply.then.push(Step::Wait(STALL));
    reply.then.push(Step::Close);
}
