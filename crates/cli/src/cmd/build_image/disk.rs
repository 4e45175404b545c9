//! `tuff disk`: an image with its hash tree and a signature, as partitions of a disk.

use super::args::Args;
use super::{Built, options, paths, report, temporary_failed};
use crate::advice::not_an_archive;
use crate::disk::DiskSummary;
use crate::overwrite::{self, Format};
use crate::signing::KeyPair;
use crate::sink::keep;
use crate::units::parse_size;
use std::ffi::OsStr;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileTypeExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::atomic::Ordering;
use tuff_disk::discoverable::{Architecture, Role};
use tuff_disk::{SECTORS, Seal, SignatureRecord, seal};
use tuff_erofs::verity::HashTree;
use tuff_erofs::{Error, Place, Result};
use tuff_mkfs::settings::parse_verity_block;
use tuff_mkfs::{Options, Progress, Source};
use tuff_open::FlatFiles;
use tuff_signature::Signer;
use tuff_store::{Output, Target, TemporaryDir};

/// Build an image with its hash tree and signature, as one disk
///
/// OUT.raw is a GPT disk: a partition with an EROFS image, one with its dm-verity hash tree and, with --sign, one with a
/// signature of the root hash. Virtual machines boot it, and systemd finds and verifies the partitions by their types and UUIDs, as
/// the Discoverable Partitions Specification says. The same SOURCE and options give the same disk; a signature by an ECDSA key
/// differs each time.
///
/// SOURCE and the options are those of tuff build. The verbs that read an image read a disk as well, and tuff check verifies
/// all of it. An existing OUT.raw is replaced if it is such a disk or empty.
#[derive(clap::Args)]
#[command(
    override_usage = "tuff disk [OPTIONS] <SOURCE>... <OUT.raw>\n       tuff disk [OPTIONS] -o <OUT.raw> <SOURCE>..."
)]
pub(crate) struct DiskArgs {
    /// The image is the tree below /usr: give its partition that type
    #[arg(long, help_heading = "Disk")]
    usr: bool,
    #[command(flatten)]
    seal: SealArgs,
    #[command(flatten)]
    build: Args,
}

/// Options of a disk, beside those of its image.
#[derive(clap::Args)]
pub(super) struct SealArgs {
    /// Sign the root hash: private key in PEM and its certificate
    #[arg(long, value_name = "KEY,CERT", value_parser = KeyPair::parse, help_heading = "Disk")]
    sign: Option<KeyPair>,
    /// Architecture in the types of the partitions, such as x86-64 or arm64 (default: that of --platform, or of this machine)
    #[arg(long, value_name = "ARCH", value_parser = parse_architecture, help_heading = "Disk")]
    arch: Option<Architecture>,
    /// Size of a sector: 512 or 4096
    #[arg(long, default_value = "512", value_name = "BYTES", value_parser = parse_sector, help_heading = "Disk")]
    sector_size: u32,
    /// Write no partition table, but four files: the image, OUT.verity (hash tree), OUT.roothash and, with --sign,
    /// OUT.roothash.p7s
    #[arg(long, conflicts_with_all = ["arch", "sector_size"], help_heading = "Disk")]
    flat: bool,
    /// Replace OUT.raw whatever it contains, and write to a terminal
    #[arg(long, help_heading = "Disk")]
    force: bool,
}

fn parse_architecture(text: &str) -> Result<Architecture, String> {
    Architecture::from_name(text).ok_or_else(|| {
        let names: Vec<_> = Architecture::all().map(Architecture::name).collect();
        format!("known are {}", names.join(", "))
    })
}

fn parse_sector(text: &str) -> Result<u32, String> {
    let size = parse_size(text)?;
    let sector = SECTORS
        .into_iter()
        .find(|sector| u64::from(*sector) == size);
    sector.ok_or_else(|| "sectors have 512 or 4096 bytes".to_owned())
}

pub(crate) fn run(args: DiskArgs) -> Result<ExitCode> {
    let role = if args.usr { Role::Usr } else { Role::Root };
    let content = Content {
        role,
        lowest: None,
        check: &|_| Ok(Vec::new()),
    };
    write(args.build, &args.seal, &content)
}

/// Content of a disk, beyond the sources.
pub(super) struct Content<'a> {
    pub(super) role: Role,
    /// Source below all others.
    pub(super) lowest: Option<Source>,
    /// Check of the finished image. Returns warnings.
    pub(super) check: &'a dyn Fn(&Path) -> Result<Vec<String>>,
}

/// Path of the output.
pub(super) fn output_path(build: &Args) -> Result<&Path> {
    Ok(paths::split(build)?.0)
}

/// Builds the image, and writes it as a disk.
pub(super) fn write(mut build: Args, args: &SealArgs, content: &Content<'_>) -> Result<ExitCode> {
    refuse_other_files(&build)?;
    build.settings.set("verity", "on")?;
    let block = build.settings.get("verity-block").and_then(OsStr::to_str);
    let block = block.and_then(|block| parse_verity_block(block).ok());
    if block.is_some_and(|block| block < args.sector_size) {
        let sector = args.sector_size;
        return Err(Error::usage(format_args!(
            "--verity-block: dm-verity needs blocks of at least a sector, {sector} bytes"
        )));
    }
    let (out, given) = paths::split(&build)?;
    let out = out.clone();
    let read: Vec<&Path> = given.iter().map(PathBuf::as_path).collect();
    keep(&out, &read)?;
    let job = Job {
        role: content.role,
        architecture: architecture(args, &build)?,
        args,
        signer: args.sign.as_ref().map(KeyPair::signer).transpose()?,
        flat: match args.flat {
            false => None,
            true => Some(
                FlatFiles::beside(&out)
                    .ok_or_else(|| Error::usage("--flat writes several files: name OUT.raw"))?,
            ),
        },
        sync: build.settings.has("sync"),
    };
    job.check_outputs(&out)?;
    let (sources, mut options) = sources_and_options(&build, content)?;
    options.output.sync = false;
    let archives = paths::archives(build.source_type, &sources);
    let target = match out == Path::new("-") {
        true => Target::Stdout,
        false => Target::Path(out.clone()),
    };
    let left_out = options.sources.keep_going.as_ref();
    report(
        &build,
        target == Target::Stdout,
        None,
        left_out,
        |progress| {
            let name = out.display();
            let output = Output::create(&target)
                .map_err(|e| Error::io(Place::file(&name), "cannot create", e))?;
            let (scratch, place) = (output.scratch(), name.to_string());
            let dir = TemporaryDir::create(&scratch).map_err(|e| {
                let e = Error::io("", "cannot create", e);
                temporary_failed(e, Path::new(""), &scratch, &place)
            })?;
            let image = dir.path().join("image");
            let built =
                tuff_mkfs::build(&sources, &options, &Target::Path(image.clone()), progress);
            let built = built.map_err(|e| temporary_failed(e, &image, &scratch, &place));
            let mut summary =
                built.map_err(|e| archives.iter().fold(e, |e, path| not_an_archive(e, path)))?;
            let warnings = (content.check)(&image)?;
            summary.stats.warnings.extend(warnings);
            progress.stage("seal");
            let tree = summary.verity.as_mut();
            let tree = tree.ok_or_else(|| Error::usage("the image has no hash tree"))?;
            let disk = job.seal(&image, tree, output, &out, progress)?;
            Ok(Built {
                summary,
                disk: Some(disk),
            })
        },
    )
}

fn sources_and_options(build: &Args, content: &Content<'_>) -> Result<(Vec<Source>, Options)> {
    let mut sources = paths::resolve(build)?.sources;
    let mut options = options::options(build)?;
    if let Some(lowest) = &content.lowest {
        // Whiteouts of a single source have no lower layer that they could hide. Those of container images are dropped.
        let is_layer = matches!(sources[..], [Source::TarWithin { .. }]);
        if sources.len() == 1 && !is_layer && options.sources.whiteouts.is_none() {
            options.sources.whiteouts = Some(tuff_mkfs::Whiteouts::Keep);
        }
        sources.insert(0, lowest.clone());
    }
    Ok((sources, options))
}

/// Fails for options that leave data of the image in other files.
fn refuse_other_files(build: &Args) -> Result<()> {
    let names = ["base", "blob", "image-index", "tar-index"];
    match names.iter().find(|name| build.settings.has(name)) {
        Some(name) => Err(Error::usage(format_args!(
            "--{name}: the image of a disk has no data in other files"
        ))),
        None => Ok(()),
    }
}

fn architecture(args: &SealArgs, build: &Args) -> Result<Architecture> {
    if let Some(architecture) = args.arch {
        return Ok(architecture);
    }
    let named = build.platform.as_deref().and_then(|p| p.split('/').nth(1));
    let found = match named {
        Some(name) => Architecture::from_name(name),
        None => Architecture::of_host(),
    };
    found.ok_or_else(|| {
        Error::usage("no partition types are known for this architecture: give --arch")
    })
}

/// Disk to write, and the properties that the arguments give it.
struct Job<'a> {
    role: Role,
    architecture: Architecture,
    args: &'a SealArgs,
    signer: Option<Signer>,
    flat: Option<FlatFiles>,
    sync: bool,
}

impl Job<'_> {
    /// Fails if the outputs would overwrite anything but a disk.
    fn check_outputs(&self, out: &Path) -> Result<()> {
        let is_device = std::fs::metadata(out).is_ok_and(|m| m.file_type().is_block_device());
        if is_device {
            return Err(Error::usage(format_args!(
                "{}: is a block device: write a file, and copy it with dd",
                out.display()
            )));
        }
        if self.args.force {
            return Ok(());
        }
        let Some(flat) = &self.flat else {
            return overwrite::check(out, Format::Disk);
        };
        overwrite::check(out, Format::Image)?;
        // They belong to the image that is replaced.
        let is_new = !out.exists();
        match flat.all().into_iter().find(|path| is_new && path.exists()) {
            Some(path) => Err(Error::usage(format_args!(
                "{}: exists without its image: name another output, or replace it with --force",
                path.display()
            ))),
            None => Ok(()),
        }
    }

    /// Writes the image in the file `image`, to which its hash tree is appended, as a disk. Then `tree` has its position there.
    fn seal(
        &self,
        image: &Path,
        tree: &mut HashTree,
        output: Output,
        out: &Path,
        progress: &Progress,
    ) -> Result<DiskSummary> {
        let failed = |e| Error::io(out.display(), "cannot write", e);
        let record = self.signer.as_ref().map(|signer| {
            let signature = signer.sign(&tree.root);
            Ok::<_, Error>(SignatureRecord {
                root: tree.root,
                signature: signature.ok_or_else(|| Error::usage("--sign: cannot sign"))?,
                fingerprint: Some(signer.certificate().fingerprint()),
            })
        });
        let record = record.transpose()?;
        let file = File::open(image).map_err(|e| Error::io(image.display(), "cannot open", e))?;
        let (data, hashes) = (0..tree.hash_offset, tree.hash_offset..tree.end);
        let stop = progress.stop_flag();
        let step = |_| match stop.load(Ordering::Relaxed) {
            true => Err(io::ErrorKind::Interrupted.into()),
            false => Ok(()),
        };
        let fingerprint = record.as_ref().and_then(|record| record.fingerprint);
        let mut summary = DiskSummary {
            out: out.to_owned(),
            len: tree.hash_offset,
            table: None,
            files: Vec::new(),
            fingerprint,
        };
        if let Some(flat) = &self.flat {
            let tree_len = tree.end - tree.hash_offset;
            self.write_file(&flat.tree, |output| {
                tuff_disk::copy(&file, hashes, output, 0, &step)?;
                Ok(tree_len)
            })?;
            self.write_text(
                &flat.root,
                format!("{}\n", hex::encode(tree.root)).as_bytes(),
            )?;
            match record {
                Some(record) => self.write_text(&flat.signature, &record.signature)?,
                // A signature of another image.
                None => drop(std::fs::remove_file(&flat.signature)),
            }
            tuff_disk::copy(&file, data, &output, 0, &step).map_err(failed)?;
            let signed = usize::from(self.signer.is_some());
            summary.files = flat.all()[..2 + signed]
                .iter()
                .map(|p| p.to_path_buf())
                .collect();
            (tree.hash_offset, tree.end) = (0, tree_len);
        } else {
            let requested = Seal {
                architecture: self.architecture,
                role: self.role,
                sector: self.args.sector_size,
                root: tree.root,
                record,
            };
            let sealed = seal(&requested, &file, data, hashes, &output, &step);
            let (table, len) = sealed.map_err(failed)?;
            let tree_len = tree.end - tree.hash_offset;
            tree.hash_offset = table.partitions[1].range.start;
            tree.end = tree.hash_offset + tree_len;
            summary.len = len;
            summary.table = Some(table);
        }
        output
            .finish(summary.len, self.sync)
            .map_err(|e| Error::io(out.display(), "cannot finish", e))?;
        Ok(summary)
    }

    fn write_text(&self, path: &Path, bytes: &[u8]) -> Result<()> {
        self.write_file(path, |output| {
            output.write_at(bytes, 0)?;
            Ok(bytes.len() as u64)
        })
    }

    fn write_file(
        &self,
        path: &Path,
        write: impl FnOnce(&Output) -> io::Result<u64>,
    ) -> Result<()> {
        let written = Output::create(&Target::Path(path.to_owned())).and_then(|output| {
            let len = write(&output)?;
            output.finish(len, self.sync)
        });
        written.map_err(|e| Error::io(path.display(), "cannot write", e))
    }
}
