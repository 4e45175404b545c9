//! Pins: snapshots in use, which `prune` keeps although they may be forgotten.

use crate::bucket::Objects;
use crate::files::{self, TEXT_MAX};
use crate::snapshot::Snapshot;
use crate::store::Store;
use serde_json::{Value, json};
use std::fs::{self, File};
use std::io::ErrorKind;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use tuff_mkfs::{Error, Place, Result};

/// Pin of a store.
#[derive(Clone, Debug)]
pub struct Pin {
    /// Name of its file, by which it is removed.
    pub name: String,
    /// Snapshot in use. `None` if the pin is damaged: then nothing can be pruned.
    pub snapshot: Option<Snapshot>,
    /// Host that uses it.
    pub host: String,
    /// Time at which it was made. Unit: seconds since 1970.
    pub time: i64,
    /// True if it ends with the process that made it.
    pub is_of_process: bool,
}

/// Pin of this process, removed when the value is dropped.
#[derive(Debug)]
pub struct HeldPin {
    path: PathBuf,
    /// Object of the pin, in a bucket.
    object: Option<(Arc<Objects>, String)>,
    /// Locked as long as the process lives, or others that inherit it.
    file: File,
}

impl HeldPin {
    /// Leaves the pin to the programs that this process starts: it holds as long as one of them lives.
    ///
    /// # Errors
    /// `Io` of the host.
    pub fn leave_to_children(self) -> Result<()> {
        let left = rustix::io::fcntl_setfd(&self.file, rustix::io::FdFlags::empty());
        let place = Place::file(self.path.display());
        left.map_err(|e| Error::io(place, "cannot pass on", e.into()))?;
        std::mem::forget(self);
        Ok(())
    }
}

impl Drop for HeldPin {
    fn drop(&mut self) {
        if let Some((objects, name)) = &self.object {
            // If this fails, the pin stays until `unpin`.
            let _ = objects.remove(name);
        }
        // If this fails, `prune` finds its lock free, and removes it.
        let _ = fs::remove_file(&self.path);
    }
}

impl Store {
    /// Pins a snapshot as long as the value lives.
    ///
    /// # Errors
    /// `Io` if the store cannot be written; `Usage` if the snapshot was forgotten, or the store pruned, since it was opened.
    pub fn pin(&self, snapshot: &Snapshot) -> Result<HeldPin> {
        loop {
            let path = self.write_pin(snapshot, true)?;
            let failed = |e| Error::io(Place::file(path.display()), "cannot lock", e);
            let file = match files::open(&path) {
                Err(e) if e.kind() == ErrorKind::NotFound => continue,
                file => file.map_err(failed)?,
            };
            file.lock_shared().map_err(failed)?;
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            let object = self.objects.clone();
            let object = object.map(|objects| (objects, format!("pins/{name}")));
            let held = HeldPin { path, object, file };
            // `prune` may have taken it for one that is over, before it was locked.
            if held.path.try_exists().unwrap_or(true) {
                self.require(snapshot)?;
                return Ok(held);
            }
        }
    }

    /// Pins a snapshot until [`unpin`](Self::unpin), for a kernel that mounts it. Returns the name of the pin.
    ///
    /// # Errors
    /// As [`pin`](Self::pin).
    pub fn pin_for_kernel(&self, snapshot: &Snapshot) -> Result<String> {
        let path = self.write_pin(snapshot, false)?;
        if let Err(e) = self.require(snapshot) {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            self.remove(&format!("pins/{name}"))?;
            return Err(e);
        }
        let name = path.file_name().unwrap_or_default();
        Ok(name.to_string_lossy().into_owned())
    }

    /// Fails if a snapshot was forgotten before it had its pin, or if a run of `prune` has changed addresses.
    fn require(&self, snapshot: &Snapshot) -> Result<()> {
        self.snapshot(snapshot.number)?;
        match self.is_as_opened()? {
            true => Ok(()),
            false => Err(Error::usage(format_args!(
                "{}: the store was pruned at the same moment; run the command again",
                self.path.display()
            ))),
        }
    }

    fn write_pin(&self, snapshot: &Snapshot, is_of_process: bool) -> Result<PathBuf> {
        let manifest: Value = serde_json::from_str(&snapshot.text()).unwrap_or_default();
        let host = crate::run::host();
        let text = json!({
            "snapshot": snapshot.number,
            "host": host,
            "time": crate::run::seconds(std::time::SystemTime::now()),
            "process": is_of_process,
            "manifest": manifest,
        });
        let text = format!("{text:#}\n");
        for count in 0.. {
            let name = format!("pins/{:08}-{}-{count}", snapshot.number, std::process::id());
            if self.create_new(&name, text.as_bytes())? {
                return Ok(self.path.join(name));
            }
        }
        unreachable!("there are fewer pins than numbers")
    }

    /// All pins. Those of processes that have ended are removed.
    ///
    /// # Errors
    /// `Io` if they cannot be listed.
    pub fn pins(&self) -> Result<Vec<Pin>> {
        let dir = self.path.join("pins");
        let failed = |e| Error::io(Place::file(dir.display()), "cannot list", e);
        let mut pins = Vec::new();
        let paths = match files::list(&dir) {
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(pins),
            paths => paths.map_err(failed)?,
        };
        for path in paths {
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if name.ends_with(files::NEW) {
                continue;
            }
            let Some(pin) = read(&path, &name) else {
                continue;
            };
            let is_over = |file: File| pin.is_of_process && files::try_lock(&file).unwrap_or(false);
            // Processes of other hosts are unknown.
            if self.objects.is_none() && files::open(&path).is_ok_and(is_over) {
                let _ = fs::remove_file(&path);
                continue;
            }
            pins.push(pin);
        }
        pins.sort_by(|a, b| a.name.cmp(&b.name));
        Ok(pins)
    }

    /// Removes a pin.
    ///
    /// # Errors
    /// `Usage` if there is none of this name; `Io` of the host.
    pub fn unpin(&self, name: &str) -> Result<()> {
        let is_known = self.pins()?.iter().any(|pin| pin.name == name);
        match is_known {
            true => self.remove(&format!("pins/{name}")),
            false => Err(Error::usage(format_args!(
                "{}: no pin {name}; `tuff store list` shows the pins",
                self.path.display()
            ))),
        }
    }
}

/// Reads a pin. `None` if it is gone.
fn read(path: &Path, name: &str) -> Option<Pin> {
    let text = match files::read(path, TEXT_MAX) {
        Err(e) if e.kind() == ErrorKind::NotFound => return None,
        text => text.unwrap_or_default(),
    };
    let value: Value = serde_json::from_slice(&text).unwrap_or_default();
    let number = value["snapshot"]
        .as_u64()
        .and_then(|n| u32::try_from(n).ok());
    let manifest = value["manifest"].to_string();
    Some(Pin {
        name: name.to_owned(),
        snapshot: number.and_then(|number| Snapshot::parse(number, manifest.as_bytes())),
        host: value["host"].as_str().unwrap_or("unknown").to_owned(),
        time: value["time"].as_i64().unwrap_or_default(),
        is_of_process: value["process"].as_bool().unwrap_or_default(),
    })
}
