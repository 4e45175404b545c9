//! Verification of the output of commands.

use super::{Made, Session, Source, Subject};
use crate::campaigns::commands::definition::Task;
use crate::campaigns::serve::server::{Served, Server};
use crate::engines::settings::{Action, Settings};
use crate::engines::{self, Format, Found, Tool};
use crate::measure::device::{Device, READ_ONLY};
use crate::measure::workspace;
use crate::verify::tree::Tree;
use crate::verify::{Judge, Verdict, damage};
use crate::{At, Error, Result};
use std::path::Path;
use std::time::Duration;

/// Time limit of a command that reads an image to verify it, possibly damaged.
const DAMAGE_LIMIT: Duration = Duration::from_secs(300);

impl Session<'_> {
    /// Returns a summary of the output of a successful command, and a verdict if the output was verified in
    /// full. The inner error is a failure without verdict.
    pub(super) fn examine(
        &mut self,
        task: &Task,
        source: &Source<'_>,
        subject: &Subject<'_>,
    ) -> Result<Result<(Made, Option<Verdict>), String>> {
        let tool = subject.found.tool;
        let first = subject.known.is_none();
        if !subject.image.exists() {
            return Ok(Err("no image was written".to_owned()));
        }
        let mut made = Made {
            image_bytes: workspace::length(&subject.image)?,
            image_digest: None,
        };
        let mut verdict = None;
        match task.action {
            Action::Build => {
                let digest = workspace::digest(&subject.image)?;
                if let Some(known) = &subject.known
                    && tool.is_deterministic()
                    && known.image_digest.as_ref() != Some(&digest)
                {
                    let text = "the image differs from that of the first round";
                    return Ok(Err(text.to_owned()));
                }
                made.image_digest = Some(digest);
                if first {
                    verdict = Some(self.judge_image(source, tool, &subject.image)?);
                }
            }
            Action::Extract => {
                let target = self.work.target();
                if !target.is_dir() {
                    return Ok(Err("nothing was extracted".to_owned()));
                }
                let differ = source.tree.differences(&Tree::read(target)?);
                verdict = Some(Verdict::on_tree(Judge::Walk, tool, differ));
            }
            // The image does not change, so one check is enough.
            Action::Check if first => verdict = Some(self.judge_check(source, subject)?),
            Action::Check => {}
        }
        Ok(Ok((made, verdict)))
    }

    /// Compares an image with its source through a kernel mount, or by extraction if it cannot be mounted.
    pub(super) fn judge_image(
        &self,
        source: &Source<'_>,
        maker: Tool,
        image: &Path,
    ) -> Result<Verdict> {
        let format = maker.format();
        let device = Device::attach(image, &[READ_ONLY]);
        let device = device.map_err(|e| e.to_string());
        let path = device.as_ref().map_or(image, Device::path);
        let point = self.work.path("mount");
        let served = Served::start(Server::Kernel, None, &[], (path, format.name()), &point)?;
        match device.as_ref().map_err(Clone::clone).and(served) {
            Ok(served) => {
                let differ = match Tree::read(served.point()) {
                    Ok(tree) => source.tree.differences(&tree),
                    // A read error of the kernel is a defect of the image, not of the host.
                    Err(e) => {
                        let why = self.without_paths(&e.to_string());
                        return Ok(unread(Judge::KernelMount, Some(why)));
                    }
                };
                Ok(Verdict::on_tree(Judge::KernelMount, maker, differ))
            }
            Err(reason) => {
                let reader = match format {
                    Format::Erofs => Tool::Tuff,
                    Format::Squashfs => Tool::Unsquashfs,
                    Format::Dwarfs => Tool::Dwarfsextract,
                };
                let judge = Judge::ExtractedBy(reader);
                let unread = |why: String| {
                    let why = format!("no mount ({reason}) and {why}");
                    unread(judge.clone(), Some(why))
                };
                let Some(found) = self.find(reader) else {
                    return Ok(unread(format!("{} was not found", reader.name())));
                };
                let plan = engines::plan(reader, Action::Extract, &Settings::default(), &[])
                    .map_err(Error::Usage)?;
                workspace::remove(self.work.target())?;
                self.prepare_target(reader, source)?;
                let arguments = plan.arguments(self.places(source, image));
                let verdict = match self.run_unmeasured(&found.path, &arguments, DAMAGE_LIMIT) {
                    Ok(_) => {
                        let tree = Tree::read(self.work.target())?;
                        Verdict::on_tree(judge, maker, source.tree.differences(&tree))
                    }
                    Err(message) => unread(self.scrub(&message, &found, source)),
                };
                workspace::remove(self.work.target())?;
                Ok(verdict)
            }
        }
    }

    /// Runs the check on a damaged copy of the image, which must be reported as damaged. The intact image has
    /// passed.
    fn judge_check(&self, source: &Source<'_>, subject: &Subject<'_>) -> Result<Verdict> {
        let copy = self.work.path("damaged");
        damage(&subject.image, &copy).at("write", &copy)?;
        let arguments = subject.plan.arguments(self.places(source, &copy));
        let done = self.run_unmeasured(&subject.found.path, &arguments, DAMAGE_LIMIT);
        workspace::remove(&copy)?;
        let wrong = match done {
            Ok(_) => Some("a damaged image was not detected".to_owned()),
            Err(message) if message.contains(" exited with code ") => None,
            Err(message) => Some(format!("on a damaged image, {message}")),
        };
        Ok(unread(Judge::Damage, wrong))
    }

    /// Creates the target directory if the tool is dwarfsextract, which requires one. It has the mode of the source, because
    /// dwarfsextract does not restore it.
    pub(super) fn prepare_target(&self, tool: Tool, source: &Source<'_>) -> Result<()> {
        if tool != Tool::Dwarfsextract {
            return Ok(());
        }
        let target = self.work.target();
        let root = source.path.metadata().at("stat", &source.path)?;
        std::fs::create_dir(target)
            .and_then(|()| std::fs::set_permissions(target, root.permissions()))
            .at("create", target)
    }

    /// Returns the message of a tool without local paths.
    pub(super) fn scrub(&self, message: &str, found: &Found, source: &Source<'_>) -> String {
        let text = message.replace(&*source.path.to_string_lossy(), "TREE");
        let text = text.replace(&*found.path.to_string_lossy(), found.tool.name());
        self.without_paths(&text)
    }

    fn without_paths(&self, text: &str) -> String {
        text.replace(&*self.work.folder().to_string_lossy(), "WORK")
    }
}

/// Returns a verdict without a comparison of trees.
fn unread(judge: Judge, wrong: Option<String>) -> Verdict {
    Verdict {
        judge,
        differ: Vec::new(),
        wrong,
    }
}
