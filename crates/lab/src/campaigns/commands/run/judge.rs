//! Verification of the output of commands.

use super::{Made, Session, Source, Subject};
use crate::campaigns::commands::definition::Task;
use crate::engines::settings::{Action, Settings};
use crate::engines::{self, Format, Found, Tool};
use crate::measure::workspace;
use crate::verify::mount::Mount;
use crate::verify::tree::Tree;
use crate::verify::{Judge, Verdict, damage};
use crate::{Error, Result, measure};
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
        round: u32,
    ) -> Result<Result<(Made, Option<Verdict>), String>> {
        let tool = subject.found.tool;
        let first = subject.known.is_none();
        let in_full = first || (self.conditions.verify_every_round && round > 1);
        if !subject.image.exists() {
            return Ok(Err("no image was written".to_owned()));
        }
        let mut made = Made {
            image_bytes: workspace::length(&subject.image)?,
            image_digest: None,
            tree: None,
        };
        let mut verdict = None;
        match task.action {
            Action::Build => {
                let digest = workspace::digest(&subject.image)?;
                if let Some(known) = &subject.known {
                    let same = known.image_digest.as_ref() == Some(&digest);
                    if tool.is_deterministic() && !same {
                        return Ok(Err(
                            "the image differs from that of the first round".to_owned()
                        ));
                    }
                }
                made.image_digest = Some(digest);
                if in_full {
                    verdict = Some(self.judge_image(source, tool, &subject.image)?);
                }
            }
            Action::Extract => {
                let target = self.work.target();
                if !target.is_dir() {
                    return Ok(Err("nothing was extracted".to_owned()));
                }
                if in_full {
                    let tree = Tree::read(target)?;
                    made.tree = Some(tree.size);
                    let differ = source.tree.differences(&tree);
                    verdict = Some(Verdict::on_tree(Judge::Walk, tool, differ));
                } else {
                    made.tree = Some(Tree::measure(target)?);
                }
                let known = subject.known.as_ref().and_then(|k| k.tree);
                if known.is_some_and(|k| Some(k) != made.tree) {
                    return Ok(Err(
                        "the tree differs from that of the first round".to_owned()
                    ));
                }
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
        match Mount::new(image, format, &self.work.path("mount")) {
            Ok(mount) => {
                let differ = match Tree::read(mount.point()) {
                    Ok(tree) => source.tree.differences(&tree),
                    // A read error of the kernel is a defect of the image, not of the host.
                    Err(e) => {
                        return Ok(unreadable(
                            Judge::KernelMount,
                            &self.without_paths(&e.to_string()),
                        ));
                    }
                };
                Ok(Verdict::on_tree(Judge::KernelMount, maker, differ))
            }
            Err(reason) => {
                let reader = match format {
                    Format::Erofs => Tool::Tuff,
                    Format::Squashfs => Tool::Unsquashfs,
                };
                let judge = Judge::ExtractedBy(reader);
                let unread = |why: String| {
                    unreadable(judge.clone(), &format!("no mount ({reason}) and {why}"))
                };
                let Some(found) = self.find(reader) else {
                    return Ok(unread(format!("{} was not found", reader.name())));
                };
                let plan = engines::plan(reader, Action::Extract, &Settings::default(), &[])
                    .map_err(Error::Usage)?;
                self.work.clear_results(Action::Extract)?;
                let arguments = plan.arguments(self.places(source, image));
                let done = measure::run_within(&self.job(&found.path, &arguments), DAMAGE_LIMIT)?;
                let verdict = match done {
                    Some((Some(0), _)) => {
                        let tree = Tree::read(self.work.target())?;
                        Verdict::on_tree(judge, maker, source.tree.differences(&tree))
                    }
                    Some((_, said)) => unread(format!(
                        "{} failed: {}",
                        reader.name(),
                        self.scrub(&said, &found, source)
                    )),
                    None => unread(format!("{} timed out", reader.name())),
                };
                self.work.clear_results(Action::Extract)?;
                Ok(verdict)
            }
        }
    }

    /// Runs the check on a damaged copy of the image, which must be reported as damaged. The intact image has
    /// passed.
    fn judge_check(&self, source: &Source<'_>, subject: &Subject<'_>) -> Result<Verdict> {
        let copy = self.work.path("damaged");
        damage(&subject.image, &copy).map_err(|e| Error::io("write", &copy, e))?;
        let arguments = subject.plan.arguments(self.places(source, &copy));
        let done = measure::run_within(&self.job(&subject.found.path, &arguments), DAMAGE_LIMIT)?;
        workspace::remove(&copy)?;
        let wrong = match done {
            Some((Some(0), _)) => Some("a damaged image was not detected".to_owned()),
            Some((Some(_), _)) => None,
            Some((None, _)) => Some("it crashed on a damaged image".to_owned()),
            None => Some("it timed out on a damaged image".to_owned()),
        };
        Ok(Verdict {
            judge: Judge::Damage,
            differ: Vec::new(),
            wrong,
        })
    }

    /// Returns the message of a tool without local paths.
    pub(super) fn scrub(&self, said: &str, found: &Found, source: &Source<'_>) -> String {
        let text = said.replace(&*source.path.to_string_lossy(), "TREE");
        let text = text.replace(&*found.path.to_string_lossy(), found.tool.name());
        self.without_paths(&text)
    }

    fn without_paths(&self, text: &str) -> String {
        text.replace(&*self.work.folder().to_string_lossy(), "WORK")
    }
}

fn unreadable(judge: Judge, why: &str) -> Verdict {
    Verdict {
        judge,
        differ: Vec::new(),
        wrong: Some(why.to_owned()),
    }
}
