//! Parses the options of `mkfs.erofs`.

use super::super::ere;
use super::super::getopt::Token;
use super::args::MkfsArgs;
use super::extended;
use crate::units::parse_size;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::str::FromStr;
use tuff_erofs::fingerprint;
use tuff_erofs::{Error, Result, THREADS_MAX};
use tuff_mkfs::settings::{mount_point, parse_uuid};
use tuff_mkfs::{Compression, Contexts, FsConfig, Metadata, Method, Paths};

impl MkfsArgs {
    /// Applies all parsed arguments.
    pub(super) fn read(tokens: &[Token]) -> Result<Self> {
        let mut args = Self::new();
        for token in tokens {
            match token {
                Token::Operand(operand) => args.operands.push(operand.clone()),
                Token::Option(name, None) => args.take(name, None)?,
                Token::Option(name, Some(value)) if is_path(name) => {
                    args.take_path(name, Path::new(value))?;
                }
                Token::Option(name, Some(value)) => {
                    let text = value.to_str().ok_or_else(|| {
                        Error::usage(format_args!("{name}: '{}' is not UTF-8", value.display()))
                    })?;
                    args.take(name, Some(text))?;
                }
            }
        }
        Ok(args)
    }

    fn take_path(&mut self, name: &str, path: &Path) -> Result<()> {
        let o = &mut self.options;
        match name {
            "--compress-hints" => self.hints = Some(path.to_owned()),
            "--file-contexts" => o.metadata.contexts = Some(Contexts::read(path)?),
            "--fs-config-file" => o.metadata.fs_config = Some(FsConfig::read(path)?),
            "--mount-point" => o.metadata.mount_point = mount_point(path.as_os_str().as_bytes()),
            "--product-out" => self.product_out = true,
            "--blobdev" => o.layout.blob = Some(path.to_owned()),
            "--vmdk-desc" => self.vmdk = Some(path.to_owned()),
            "--block-list-file" => self.block_list = Some(path.to_owned()),
            _ => {
                let bytes = path.as_os_str().as_bytes();
                let inside = bytes.strip_prefix(b"./").unwrap_or(bytes);
                let inside = inside.trim_ascii_start();
                let inside: &[u8] = inside.strip_prefix(b"/").unwrap_or(inside);
                let inside = inside.strip_suffix(b"/").unwrap_or(inside);
                o.sources.exclude_also.push(Paths::Exactly(inside.to_vec()));
            }
        }
        Ok(())
    }

    fn take(&mut self, name: &str, value: Option<&str>) -> Result<()> {
        let o = &mut self.options;
        // Options that require a value have one.
        let text = value.unwrap_or_default();
        match name {
            "-h" | "--help" => self.help = true,
            "-V" | "--version" => self.version = true,
            "--quiet" => self.quiet = true,
            "--force" => self.force = true,
            "-d" => at_most(name, number(name, text)?, 9)?,
            "--async-queue-limit" => _ = number::<u64>(name, text)?,
            "--workers" => {
                o.resources.threads =
                    Some(number::<usize>(name, text)?.clamp(1, THREADS_MAX.into()))
            }
            "-b" => self.block = Some(size(name, text)?),
            "-L" => o.metadata.label = text.into(),
            "-U" if text == "random" => o.metadata.uuid = Some(random()?),
            "-U" => o.metadata.uuid = parse_uuid(text).map_err(|e| invalid(name, e.what()))?,
            "-T" => self.time = Some(number(name, text)?),
            "--all-time" => self.mkfs_time = false,
            "--mkfs-time" => self.mkfs_time = true,
            "--ignore-mtime" => self.ignore_mtime = true,
            "--preserve-mtime" => self.ignore_mtime = false,
            "--offset" => self.offset = size(name, text)?,
            "--fsalignblks" => {
                self.align_blocks = number(name, text)?;
                at_most(name, self.align_blocks, 1 << 31)?;
            }
            // Scripts pass an empty variable for an image without compression.
            "-z" if text.is_empty() => self.algorithms.clear(),
            "-z" => self.algorithms = text.split(':').map(algorithm).collect::<Result<_>>()?,
            "-C" => self.cluster = Some(size(name, text)?),
            "-E" => extended::list(self, text)?,
            "--zfeature-bits" => extended::bits(self, number(name, text)?)?,
            "-m" => self.metadata(text)?,
            "--zD" => match text {
                "" | "1" => o.metadata.form = Metadata::Compressed,
                "0" => {}
                _ => return Err(invalid(name, "0 or 1")),
            },
            "--max-extent-bytes" => self.window(text)?,
            "--chunksize" => o.layout.chunk = Some(to_usize(name, size(name, text)?)?),
            "--all-root" => (o.metadata.uid, o.metadata.gid) = (Some(0), Some(0)),
            "--force-uid" => o.metadata.uid = Some(number(name, text)?),
            "--force-gid" => o.metadata.gid = Some(number(name, text)?),
            "--uid-offset" => o.metadata.uid_offset = number(name, text)?,
            "--gid-offset" => o.metadata.gid_offset = number(name, text)?,
            "-x" => {
                let share: i64 = number(name, text)?;
                o.metadata.xattrs = share >= 0;
                o.metadata.xattr_share = u32::try_from(share.max(0)).unwrap_or(u32::MAX);
            }
            "--xattr-prefix" => o.metadata.xattr_prefixes.push(text.into()),
            "--hard-dereference" => o.sources.hard_links = false,
            "--exclude-regex" => o.sources.exclude_also.push(ere::paths(name, text)?),
            "--tar" if matches!(text, "" | "f" | "i") => {
                (self.tar, self.index) = (true, text == "i");
            }
            "--aufs" => self.aufs = true,
            "--ovlfs-strip" => match text {
                "" | "1" => self.strip_overlay = true,
                "0" => self.strip_overlay = false,
                _ => return Err(invalid(name, "0 or 1")),
            },
            // Files of a tar always keep its order, because a stream is written as it is read.
            "--sort" if matches!(text, "none" | "path") => {}
            "--sort" => return Err(invalid(name, &format!("'{text}' is neither none nor path"))),
            // The compression of a tar is detected from its first bytes.
            "--ungzip" | "--gzip" | "--unxz" | "--unlzma" if value.is_none() => {}
            "--clean" if matches!(text, "" | "data") => self.data = true,
            "--dsunit" if number::<u64>(name, text)? <= 1 => {}
            "--MZ" if text == "0" => {}
            "--xattr-inode-digest" => {
                o.metadata.fingerprints = Some(match text {
                    "" => fingerprint::NAME.into(),
                    name => name.into(),
                });
            }
            "--tar" | "--clean" | "--ungzip" | "--gzip" | "--unxz" | "--unlzma" => {
                return Err(refused(&format!("{name}={text}"), alternative(name)));
            }
            _ => return Err(refused(name, alternative(name))),
        }
        Ok(())
    }

    fn metadata(&mut self, text: &str) -> Result<()> {
        let (cluster, algorithm) = text.split_once(':').unwrap_or((text, "0"));
        // A separate algorithm would be a second one.
        if algorithm != "0" {
            return Err(refused(
                "-m with an algorithm of its own",
                "use -m#: metadata has the first of -z",
            ));
        }
        self.options.metadata.form = Metadata::Compressed;
        self.options.metadata.cluster = to_usize("-m", size("-m", cluster)?)?;
        Ok(())
    }

    fn window(&mut self, text: &str) -> Result<()> {
        if text.starts_with('-') {
            return Err(refused(
                "--max-extent-bytes below 0",
                "give a size, or leave it out",
            ));
        }
        let bytes = to_usize("--max-extent-bytes", size("--max-extent-bytes", text)?)?;
        if bytes > 0 {
            self.options.compression.window = self.options.compression.window.min(bytes);
        }
        Ok(())
    }
}

fn is_path(name: &str) -> bool {
    matches!(
        name,
        "--compress-hints"
            | "--file-contexts"
            | "--fs-config-file"
            | "--mount-point"
            | "--product-out"
            | "--blobdev"
            | "--block-list-file"
            | "--vmdk-desc"
            | "--exclude-path"
    )
}

/// Advice for an unsupported option.
fn alternative(name: &str) -> &'static str {
    match name {
        "--tar" => {
            "use --tar=f, which copies the data into the image, or --tar=i, which leaves it in the tar"
        }
        "--ungzip" | "--gzip" | "--unxz" | "--unlzma" => {
            "use it without a file, and tee for the stream"
        }
        "--clean" => "use --clean=data, with all data in the image",
        "--incremental" => "use 'tuff patch', which updates an image",
        "--dsunit" => "leave it out: files begin at any block",
        "--MZ" => "use -m#, which compresses inodes and directories",
        "--root-xattr-isize" => "leave it out: images are not changed in place",
        "--gzinfo" => "use --tar=f, which copies the data into the image",
        "--s3" | "--oci" => {
            "fetch the image first (skopeo copy), and give it to tuff build as oci:DIR, oci-archive:FILE or docker-archive:FILE"
        }
        _ => "leave it out",
    }
}

/// Parses one algorithm of `-z`: `lz4hc`, `lzma,9`, `zstd,level=22,dictsize=1m`.
fn algorithm(text: &str) -> Result<Compression> {
    let wrong = |what: &str| Error::usage(format_args!("-z {text}: {what}"));
    let mut parts = text.split(',');
    let name = match parts.next().unwrap_or_default() {
        "libdeflate" => "deflate",
        name => name,
    };
    let (mut level, mut dict) = (None, None);
    for part in parts {
        let (key, value) = part.split_once('=').unwrap_or(("level", part));
        match key {
            "level" => {
                let number: i32 = value
                    .parse()
                    .map_err(|_| wrong(&format!("'{value}' is not a level")))?;
                level = Some(number);
            }
            "dictsize" => dict = Some(parse_size(value).map_err(|e| wrong(&e))?),
            "lc" | "lp" | "pb" => {
                return Err(refused(&format!("-z {name},{key}="), "leave it out"));
            }
            _ => return Err(wrong(&format!("'{key}' is not a setting of an algorithm"))),
        }
    }
    // Lowest levels of mkfs.erofs that do not exist here.
    let level = match (name, level) {
        ("lz4hc", Some(0 | 1)) => Some(2),
        ("deflate", Some(0)) => Some(1),
        ("zstd", Some(0)) => None,
        (_, level) => level,
    };
    let spec = match level {
        Some(level) => format!("{name}:{level}"),
        None => name.to_owned(),
    };
    let compression = Compression::parse(&spec).map_err(|e| wrong(e.what()))?;
    let mut compression = compression.ok_or_else(|| wrong("leave -z out to store everything"))?;
    compression.dict = match (compression.method, dict) {
        (_, None) => None,
        (Method::Lzma | Method::Zstd, Some(dict)) => Some(to_usize("-z dictsize", dict)?),
        // The encoder's window always has 32768 bytes, which every decoder has room for.
        (Method::Deflate, Some(256..=32768)) if dict.is_some_and(u64::is_power_of_two) => None,
        (Method::Deflate, Some(_)) => {
            return Err(wrong(
                "its dictionary has a power of two from 256 to 32768 bytes",
            ));
        }
        (Method::Lz4 | Method::Lz4hc, Some(_)) => return Err(wrong("it has no dictionary")),
    };
    Ok(compression)
}

fn random() -> Result<[u8; 16]> {
    use std::io::Read;
    let mut uuid = [0; 16];
    let source = "/dev/urandom";
    std::fs::File::open(source)
        .and_then(|mut f| f.read_exact(&mut uuid))
        .map_err(|e| Error::io(source, "cannot read", e))?;
    // Version 4, variant 1: a random UUID.
    uuid[6] = uuid[6] & 0x0f | 0x40;
    uuid[8] = uuid[8] & 0x3f | 0x80;
    Ok(uuid)
}

fn number<T: FromStr>(name: &str, text: &str) -> Result<T> {
    text.trim()
        .parse()
        .map_err(|_| invalid(name, &format!("'{text}' is not a valid number")))
}

fn at_most(name: &str, number: u64, max: u64) -> Result<()> {
    match number <= max {
        true => Ok(()),
        false => Err(invalid(name, &format!("{number} is more than {max}"))),
    }
}

fn size(name: &str, text: &str) -> Result<u64> {
    parse_size(text).map_err(|e| invalid(name, &e))
}

/// Converts a size to `usize`.
pub(super) fn to_usize(name: &str, size: u64) -> Result<usize> {
    usize::try_from(size).map_err(|_| invalid(name, &format!("{size} is too large")))
}

fn invalid(name: &str, what: &str) -> Error {
    Error::usage(format_args!("{name}: {what}"))
}

/// Returns the error for an unsupported option, with an alternative.
pub(super) fn refused(what: &str, instead: &str) -> Error {
    Error::usage(format_args!("{what} is not supported: {instead}"))
}
