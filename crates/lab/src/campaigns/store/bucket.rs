//! Object store for the cells with a bucket: versitygw behind a link that counts requests and bytes.

use crate::measure::link::{Link, LinkConditions, Traffic};
use crate::measure::process::{Daemon, Place, free_address};
use crate::{At, Result};
use std::ffi::OsString;
use std::net::{SocketAddr, TcpStream};
use std::path::Path;

/// Name of the bucket, and of the folder of its objects.
const NAME: &str = "bucket";
/// Login as user and password.
const LOGIN: (&str, &str) = ("lab", "lab-lab-lab");

/// Bucket that is served until the value is dropped.
pub(super) struct Bucket {
    /// Dropped before the server, which waits for its connections.
    link: Link,
    _server: Daemon,
}

impl Bucket {
    /// Serves the bucket of a folder, which is created if it does not exist.
    pub(super) fn serve(place: &Place, folder: &Path) -> Result<Bucket> {
        let objects = folder.join(NAME);
        std::fs::create_dir_all(&objects).at("create", &objects)?;
        let address = free_address("versitygw")?;
        let mut command = place.command("versitygw");
        command
            .env("ROOT_ACCESS_KEY", LOGIN.0)
            .env("ROOT_SECRET_KEY", LOGIN.1)
            .args(["--port", &address.to_string(), "posix"])
            .arg(folder);
        let is_up = || TcpStream::connect(address).is_ok();
        let server = Daemon::start(command, &folder.with_extension("log"), is_up)?;
        let link = Link::open("127.0.0.1", address, LinkConditions::default())?;
        Ok(Bucket {
            link,
            _server: server,
        })
    }

    fn address(&self) -> SocketAddr {
        self.link.address()
    }

    /// Returns the URL of the store as Tuff names it.
    pub(super) fn url() -> String {
        format!("s3://{NAME}/store")
    }

    /// Returns the URL of the store with the server's address, as restic names it.
    pub(super) fn url_at_server(&self) -> OsString {
        format!("s3:http://{}/{NAME}/store", self.address()).into()
    }

    /// Returns the options of kopia that name the bucket.
    pub(super) fn options(&self) -> Vec<OsString> {
        let named = [
            format!("--bucket={NAME}"),
            format!("--endpoint={}", self.address()),
            format!("--access-key={}", LOGIN.0),
            format!("--secret-access-key={}", LOGIN.1),
        ];
        let mut options = vec!["s3".into(), "--disable-tls".into()];
        options.extend(named.map(OsString::from));
        options
    }

    /// Returns the variables with the server's address and the login.
    pub(super) fn environment(&self) -> [(&'static str, OsString); 4] {
        let endpoint = format!("http://{}", self.address());
        [
            ("AWS_ENDPOINT_URL", endpoint.into()),
            ("AWS_ACCESS_KEY_ID", LOGIN.0.into()),
            ("AWS_SECRET_ACCESS_KEY", LOGIN.1.into()),
            ("AWS_REGION", "us-east-1".into()),
        ]
    }

    /// Returns what passed since the last call, and counts from zero again.
    pub(super) fn take(&self) -> Traffic {
        self.link.take()
    }
}
