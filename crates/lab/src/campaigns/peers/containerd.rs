//! containerd with a snapshotter: its own, that of stargz-snapshotter or that of soci-snapshotter.
//!
//! The daemons run before the measurement begins. A start is a pull and a view of the topmost snapshot.

use super::definition::{Kind, Way};
use super::origin::{LOGIN, Mounter, Origin, make};
use crate::measure::helper;
use crate::measure::process::{Daemon, Place, unmount_all};
use crate::{At, Error, Result};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Time limit of a command that mounts.
const TIME_LIMIT: Duration = Duration::from_secs(60);
/// Plugins that nothing here uses.
const DISABLED: &str = r#"["io.containerd.grpc.v1.cri", "io.containerd.cri.v1.images", "io.containerd.cri.v1.runtime"]"#;

/// A snapshotter behind containerd, and the images that it has.
pub(super) struct Containerd {
    kind: Kind,
    /// True to fetch the files of a recording in advance.
    recording: bool,
    place: Place,
    origin: Origin,
    folder: PathBuf,
    /// Number of views made, for their names.
    views: u32,
    /// Daemons, in the order of their end.
    daemons: Vec<Daemon>,
}

impl Containerd {
    pub(super) fn new(way: &Way, place: Place, origin: Origin, folder: PathBuf) -> Containerd {
        Containerd {
            kind: way.kind,
            recording: way.recording,
            place,
            origin,
            folder,
            views: 0,
            daemons: Vec::new(),
        }
    }

    fn snapshotter(&self) -> &'static str {
        match self.kind {
            Kind::Stargz => "stargz",
            Kind::Soci => "soci",
            _ => "overlayfs",
        }
    }

    fn socket(&self) -> PathBuf {
        self.folder.join("containerd.sock")
    }

    /// Returns the configuration of containerd.
    fn config(&self) -> String {
        let (folder, socket) = (self.folder.display(), self.socket());
        let mut text = format!(
            "version = 3\nroot = \"{folder}/root\"\nstate = \"{folder}/state\"\ndisabled_plugins = {DISABLED}\n\
             [grpc]\naddress = \"{}\"\n",
            socket.display()
        );
        let name = self.snapshotter();
        if self.kind != Kind::Pull {
            text += &format!(
                "[proxy_plugins.{name}]\ntype = \"snapshot\"\naddress = \"{folder}/snapshotter.sock\"\n\
                 [proxy_plugins.{name}.exports]\nenable_remote_snapshot_annotations = \"true\"\n"
            );
        }
        if self.kind == Kind::Soci {
            text += "[plugins.\"io.containerd.transfer.v1.local\"]\n\
                     [[plugins.\"io.containerd.transfer.v1.local\".unpack_config]]\nplatform = \"linux\"\nsnapshotter = \"soci\"\n";
        }
        text
    }

    /// Starts a daemon that listens at a socket.
    fn daemon(&mut self, name: &str, arguments: &[&Path], socket: &Path) -> Result<()> {
        let mut command = self.place.command(name);
        command.args(arguments);
        self.origin.authorize(&mut command, &self.place);
        let log = self.folder.join(format!("{name}.log"));
        let daemon = Daemon::start(command, &log, || UnixStream::connect(socket).is_ok())?;
        self.daemons.insert(0, daemon);
        Ok(())
    }

    fn client(&self, program: &str, arguments: &[&str]) -> Result<String> {
        let login = format!("{}:{}", LOGIN.0, LOGIN.1);
        self.place.output(program, |command| {
            command.arg("--address").arg(self.socket()).args(arguments);
            if arguments.first() == Some(&"image") {
                match self.origin.is_encrypted {
                    true => command.args(["--user", &login]),
                    false => command.arg("--plain-http"),
                };
                command.arg(self.origin.reference());
            }
            self.origin.authorize(command, &self.place);
        })
    }
}

impl Mounter for Containerd {
    fn prepare(&mut self) -> Result<()> {
        make(&self.folder)?;
        make(&self.folder.join("mount"))?;
        let (config, socket) = (self.folder.join("containerd.toml"), self.socket());
        std::fs::write(&config, self.config()).at("write", &config)?;
        let own = self.folder.join("snapshotter.toml");
        let text = match self.kind {
            Kind::Soci => format!(
                "[content_store]\ntype = \"soci\"\ncontainerd_address = \"{}\"\n[prefetch]\nenable = {}\n",
                socket.display(),
                self.recording
            ),
            _ => String::new(),
        };
        std::fs::write(&own, text).at("write", &own)?;
        let program = match self.kind {
            Kind::Stargz => Some("containerd-stargz-grpc"),
            Kind::Soci => Some("soci-snapshotter-grpc"),
            _ => None,
        };
        if let Some(program) = program {
            let listens = self.folder.join("snapshotter.sock");
            let root = self.folder.join("snapshots");
            let words = ["--address", "--root", "--config"].map(Path::new);
            let arguments = [words[0], &listens, words[1], &root, words[2], &own];
            self.daemon(program, &arguments, &listens)?;
        }
        let words = ["--config", "--log-level", "warn"].map(Path::new);
        self.daemon(
            "containerd",
            &[words[0], &config, words[1], words[2]],
            &socket,
        )
    }

    fn start(&mut self) -> Result<PathBuf> {
        let (pull, rpull) = (
            ["image", "pull", "--snapshotter"],
            ["image", "rpull", "--snapshotter"],
        );
        let name = self.snapshotter();
        match self.kind {
            Kind::Stargz => self.client("ctr-remote", &[&rpull[..], &[name]].concat())?,
            Kind::Soci => self.client("ctr", &[&pull[..], &[name]].concat())?,
            _ => self.client(
                "ctr",
                &[&["image", "pull", "--local", "--snapshotter"], &[name][..]].concat(),
            )?,
        };
        self.again()
    }

    fn again(&mut self) -> Result<PathBuf> {
        self.views += 1;
        let point = self.folder.join("mount");
        let (target, key) = (point.display().to_string(), format!("view{}", self.views));
        let words = [
            "snapshots",
            "--snapshotter",
            self.snapshotter(),
            "view",
            "--target",
            &target,
        ];
        let mounts = self.client("ctr", &[&words[..], &[&key, &self.origin.chain]].concat())?;
        for line in mounts.lines().filter(|line| !line.trim().is_empty()) {
            let mut command = Command::new("sh");
            helper::run(command.args(["-c", line]), 0, TIME_LIMIT).map_err(Error::Command)?;
        }
        Ok(point)
    }

    fn unmount(&mut self) {
        unmount_all(&self.folder.join("mount"));
    }

    fn processes(&self) -> Vec<u32> {
        // containerd ends first, its snapshotter serves.
        self.daemons.iter().map(Daemon::id).collect()
    }
}

impl Drop for Containerd {
    fn drop(&mut self) {
        self.unmount();
        self.daemons.clear();
        unmount_all(&self.folder);
    }
}
