//! Copies of the whole tree out of mounted images with rsync, compared with the source.

use super::{Session, Source, Subject, cell, show};
use crate::campaigns::commands::definition::Task;
use crate::campaigns::serve::server::{Served, Server};
use crate::engines::{Format, Tool};
use crate::measure::device::{Device, READ_ONLY};
use crate::measure::workspace;
use crate::record::Line;
use crate::verify::tree::Tree;
use crate::verify::{Judge, Verdict};
use crate::{Result, measure};
use std::ffi::OsString;
use std::path::Path;

/// Servers of an image, with their names in tables.
const SERVERS: [(Server, &str); 2] = [(Server::Kernel, "kernel"), (Server::Tuff, "tuff mount")];

impl Session<'_> {
    /// Copies the tree out of a new mount of the image, once for each server. The inner value is the reason for a
    /// failure.
    pub(super) fn copy(
        &mut self,
        task: &Task,
        source: &Source<'_>,
        subject: &Subject<'_>,
        round: u32,
    ) -> Result<Option<String>> {
        let format = subject.found.tool.format();
        for (server, name) in SERVERS.iter().filter(|(s, _)| s.serves(format.name())) {
            let label = format!("{}, {name}", subject.label);
            if let Some(reason) = self.copy_from(*server, &label, task, source, subject, round)? {
                return Ok(Some(format!("{name}: {reason}")));
            }
        }
        Ok(None)
    }

    fn copy_from(
        &mut self,
        server: Server,
        label: &str,
        task: &Task,
        source: &Source<'_>,
        subject: &Subject<'_>,
        round: u32,
    ) -> Result<Option<String>> {
        let Some(rsync) = self.conditions.options.program("rsync") else {
            return Ok(Some("rsync was not found".to_owned()));
        };
        let tuff = self.find(Tool::Tuff).map(|f| f.path);
        let program = tuff.as_deref().filter(|_| server != Server::Kernel);
        if program.is_none() && server != Server::Kernel {
            return Ok(Some("tuff was not found".to_owned()));
        }
        workspace::remove(self.work.target())?;
        let point = self.work.path("mount");
        let format: Format = subject.found.tool.format();
        // The kernel cannot mount EROFS from a file on tmpfs, so all its mounts have a loop device.
        let device = match server {
            Server::Kernel => Some(Device::attach(&subject.image, &[READ_ONLY])?),
            _ => None,
        };
        let image = device.as_ref().map_or(&*subject.image, Device::path);
        let image = (image, format.name());
        let served = match Served::start(server, program, &[], image, &point)? {
            Ok(served) => served,
            Err(reason) => return Ok(Some(reason)),
        };
        let slashed = |path: &Path| {
            let mut text = OsString::from(path);
            text.push("/");
            text
        };
        let target = self.work.target().to_owned();
        // Without the window, rsync keeps times that are equal in whole seconds.
        let arguments = [
            "-aHAX".into(),
            "--modify-window=-1".into(),
            slashed(served.point()),
            slashed(&target),
        ];
        let outcome = measure::sample(&self.job(&rsync, &arguments))?;
        if outcome.usage.exit != Some(0) {
            let message = self.scrub(&outcome.message, &subject.found, source);
            return Ok(Some(format!("rsync failed: {message}")));
        }
        let used = served.used();
        drop(served);
        let differ = source.tree.differences(&Tree::read(&target)?);
        let verdict = Verdict::on_tree(Judge::Walk, subject.found.tool, differ);
        workspace::remove(self.work.target())?;
        if round == 1 {
            self.verified(label, &verdict)?;
        }
        if let Some(wrong) = verdict.wrong {
            return Ok(Some(format!("wrong copy: {wrong}")));
        }
        let mut attempt = self.attempt(&outcome.usage, source.tree.size);
        if let Some(cpu) = used.get("daemon_cpu_us") {
            *attempt.values.entry("cpu_us".to_owned()).or_default() += cpu;
        }
        let mut cell = cell(task, source.name, label);
        cell.insert("action".to_owned(), "copy".to_owned());
        show(&cell, round, &attempt);
        (self.emit)(&Line::sample(cell, round, attempt.values))?;
        Ok(None)
    }
}
