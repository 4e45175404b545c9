//! Ways to mount an image that is not there.

use super::containerd::Containerd;
use super::definition::{Kind, Prefetch, Way};
use super::origin::{LOGIN, LOGIN_BASE64, Mounter, Origin, make};
use super::registry::{Repository, text};
use crate::campaigns::serve::server::{Served, Server};
use crate::measure::process::Place;
use crate::measure::{helper, workspace};
use crate::{At, Error, Result};
use serde_json::{Value, json};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Time limit of a client.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// Returns the mounter of a way in an empty folder.
pub(super) fn mounter(
    way: &Way,
    place: &Place,
    tuff: &Path,
    origin: Origin,
    folder: PathBuf,
) -> Box<dyn Mounter> {
    let place = place.clone();
    match way.kind {
        Kind::Tuff => Box::new(Tuff {
            place,
            tuff: tuff.to_owned(),
            origin,
            folder,
            served: None,
        }),
        Kind::Download => Box::new(Download {
            place,
            origin,
            folder,
            served: None,
        }),
        Kind::Nydus => Box::new(Nydus {
            place,
            origin,
            folder,
            prefetch: way.prefetch,
            served: None,
        }),
        _ => Box::new(Containerd::new(way, place, origin, folder)),
    }
}

/// `tuff mount` with a cache of its own.
struct Tuff {
    place: Place,
    tuff: PathBuf,
    origin: Origin,
    folder: PathBuf,
    served: Option<Served>,
}

impl Mounter for Tuff {
    fn prepare(&mut self) -> Result<()> {
        make(&self.folder)
    }

    fn start(&mut self) -> Result<PathBuf> {
        let point = self.folder.join("mount");
        let mut command = Command::new(&self.tuff);
        command.args(["mount", "-f", "--cache-dir"]);
        command.arg(self.folder.join("cache"));
        command.arg(format!("oci://{}", self.origin.reference()));
        command.arg(&point);
        self.origin.authorize(&mut command, &self.place);
        serve(&mut self.served, command, &point)
    }

    fn again(&mut self) -> Result<PathBuf> {
        self.start()
    }

    fn unmount(&mut self) {
        self.served = None;
    }

    fn processes(&self) -> Vec<u32> {
        self.served
            .as_ref()
            .and_then(Served::process)
            .into_iter()
            .collect()
    }
}

/// Download by curl, then a mount by the kernel.
struct Download {
    place: Place,
    origin: Origin,
    folder: PathBuf,
    served: Option<Served>,
}

impl Mounter for Download {
    fn prepare(&mut self) -> Result<()> {
        make(&self.folder)
    }

    fn start(&mut self) -> Result<PathBuf> {
        let Origin {
            address,
            repository,
            chain,
            ..
        } = &self.origin;
        let scheme = if self.origin.is_encrypted {
            "https"
        } else {
            "http"
        };
        let mut command = Command::new("curl");
        command.args(["--silent", "--fail", "--retry", "9", "--output"]);
        command.arg(self.folder.join("image"));
        if self.origin.is_encrypted {
            command
                .arg("--cacert")
                .arg(self.place.dir.join("tls/cert.pem"));
            command.args(["--user", &format!("{}:{}", LOGIN.0, LOGIN.1)]);
        }
        command.arg(format!(
            "{scheme}://{address}/v2/{repository}/blobs/{chain}"
        ));
        helper::run(&mut command, 0, TIME_LIMIT).map_err(Error::Command)?;
        self.again()
    }

    fn again(&mut self) -> Result<PathBuf> {
        let point = self.folder.join("mount");
        let image = self.folder.join("image");
        let served = Served::start(Server::Kernel, None, &[], (&image, "erofs"), &point)?;
        self.served = Some(served.map_err(Error::Command)?);
        Ok(point)
    }

    fn unmount(&mut self) {
        self.served = None;
    }

    fn processes(&self) -> Vec<u32> {
        Vec::new()
    }
}

/// nydusd, and what nydus-snapshotter does before its start: manifest, configuration and the layer with the metadata.
struct Nydus {
    place: Place,
    origin: Origin,
    folder: PathBuf,
    prefetch: Prefetch,
    served: Option<Served>,
}

impl Nydus {
    /// Fetches the metadata over one connection, or with TLS by curl over two.
    fn fetch(&self) -> Result<Vec<u8>> {
        let Origin {
            address,
            repository,
            tag,
            ..
        } = &self.origin;
        let bootstrap = |manifest: &Value| -> Result<String> {
            let layers = manifest["layers"].as_array().into_iter().flatten();
            let is_bootstrap = |layer: &&Value| {
                layer["annotations"]["containerd.io/snapshot/nydus-bootstrap"] == "true"
            };
            let layer = layers.clone().find(is_bootstrap);
            Ok(text(&layer.unwrap_or(&Value::Null)["digest"])?.to_owned())
        };
        if !self.origin.is_encrypted {
            let mut repository = Repository::open(*address, repository)?;
            let manifest = repository.manifest(tag)?;
            repository.get(&format!("blobs/{}", text(&manifest["config"]["digest"])?))?;
            return repository.get(&format!("blobs/{}", bootstrap(&manifest)?));
        }
        let curl = |paths: &[String]| -> Result<Vec<u8>> {
            let mut command = Command::new("curl");
            command.args([
                "--silent",
                "--fail",
                "--user",
                &format!("{}:{}", LOGIN.0, LOGIN.1),
            ]);
            command.args(["-H", "Accept: application/vnd.oci.image.manifest.v1+json"]);
            command
                .arg("--cacert")
                .arg(self.place.dir.join("tls/cert.pem"));
            for (number, path) in paths.iter().enumerate() {
                command.arg("-o").arg(self.folder.join(format!("{number}")));
                command.arg(format!("https://{address}/v2/{repository}/{path}"));
            }
            helper::run(&mut command, 0, TIME_LIMIT).map_err(Error::Command)?;
            let last = self.folder.join(format!("{}", paths.len() - 1));
            std::fs::read(&last).at("read", &last)
        };
        let manifest = curl(&[format!("manifests/{tag}")])?;
        let manifest: Value = serde_json::from_slice(&manifest)
            .map_err(|e| Error::Command(format!("the registry sends no JSON: {e}")))?;
        let config = text(&manifest["config"]["digest"])?;
        curl(&[
            format!("blobs/{config}"),
            format!("blobs/{}", bootstrap(&manifest)?),
        ])
    }

    fn config(&self) -> Value {
        let Origin {
            address,
            repository,
            ..
        } = &self.origin;
        let scheme = if self.origin.is_encrypted {
            "https"
        } else {
            "http"
        };
        let mut config = json!({
            "device": {
                "backend": {"type": "registry", "config": {
                    "scheme": scheme, "host": address.to_string(), "repo": repository,
                    "timeout": 5, "connect_timeout": 5, "retry_limit": 2,
                }},
                "cache": {"type": "blobcache", "config": {"work_dir": self.folder.join("cache")}},
            },
            "mode": "direct", "digest_validate": false, "iostats_files": false, "enable_xattr": true,
            "amplify_io": 1 << 20,
        });
        if self.origin.is_encrypted {
            let backend = &mut config["device"]["backend"]["config"];
            backend["auth"] = LOGIN_BASE64.into();
            backend["skip_verify"] = true.into();
        }
        if self.prefetch != Prefetch::None {
            config["fs_prefetch"] = json!({
                "enable": true, "threads_count": 8, "merging_size": 1 << 20,
                "prefetch_all": self.prefetch == Prefetch::All,
            });
        }
        config
    }
}

impl Mounter for Nydus {
    fn prepare(&mut self) -> Result<()> {
        make(&self.folder)?;
        make(&self.folder.join("cache"))?;
        make(&self.folder.join("metadata"))
    }

    fn start(&mut self) -> Result<PathBuf> {
        let layer = self.folder.join("layer");
        std::fs::write(&layer, self.fetch()?).at("write", &layer)?;
        let mut tar = Command::new("tar");
        tar.arg("-xzf")
            .arg(&layer)
            .arg("-C")
            .arg(self.folder.join("metadata"));
        helper::run(&mut tar, 0, TIME_LIMIT).map_err(Error::Command)?;
        let config = self.folder.join("config.json");
        std::fs::write(&config, self.config().to_string()).at("write", &config)?;
        self.again()
    }

    fn again(&mut self) -> Result<PathBuf> {
        let point = self.folder.join("mount");
        let bootstrap = self.folder.join("metadata/image/image.boot");
        let bootstrap = match bootstrap.exists() {
            true => bootstrap,
            false => self.folder.join("metadata/image.boot"),
        };
        let socket = self.folder.join("api.sock");
        workspace::remove(&socket)?;
        let mut command = self.place.command("nydusd");
        command
            .arg("fuse")
            .arg("--config")
            .arg(self.folder.join("config.json"));
        command.arg("--mountpoint").arg(&point);
        command.arg("--bootstrap").arg(bootstrap);
        command.arg("--apisock").arg(socket);
        command.args(["--log-level", "warn", "--rlimit-nofile", "0"]);
        serve(&mut self.served, command, &point)
    }

    fn unmount(&mut self) {
        self.served = None;
    }

    fn processes(&self) -> Vec<u32> {
        self.served
            .as_ref()
            .and_then(Served::process)
            .into_iter()
            .collect()
    }
}

/// Runs a server in the foreground, and keeps it.
fn serve(served: &mut Option<Served>, mut command: Command, point: &Path) -> Result<PathBuf> {
    // A ^C reaches only the lab.
    command.process_group(0);
    *served = Some(Served::run(command, point)?.map_err(Error::Command)?);
    Ok(point.to_owned())
}
