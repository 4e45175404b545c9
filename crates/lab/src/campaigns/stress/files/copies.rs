//! Copies of open files by other processes, and by the system calls that copy tools use.

use super::subject::{Subject, Tally, differs};
use rustix::fs::{SeekFrom, copy_file_range, seek};
use rustix::io::Errno;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Command, Stdio};

/// Number of writes by which a file grows while it is copied.
const GROWTH_STEPS: usize = 16;

/// Method to copy a file.
pub(super) enum Copier {
    /// Shell command that copies `$from` to `$to`.
    Shell(&'static str),
    /// Sparse tar archive with a map of the holes. If the file grows meanwhile, the archive is invalid on
    /// every filesystem.
    Tar,
    /// Repeated calls of `copy_file_range`.
    Range,
    /// Reads only the data between SEEK_DATA and SEEK_HOLE.
    Seek,
}

const TAR: &str =
    "tar -c -S -C \"$(dirname \"$from\")\" \"$(basename \"$from\")\" | tar -x -O > \"$to\"";

const SHELL: [&str; 5] = [
    "cp \"$from\" \"$to\"",
    "cp --sparse=always \"$from\" \"$to\"",
    "cp --sparse=never \"$from\" \"$to\"",
    "cp --reflink=auto \"$from\" \"$to\"",
    "rsync -S --inplace --whole-file \"$from\" \"$to\"",
];

/// Returns the copiers that the host provides.
pub(super) fn available() -> Vec<Copier> {
    let has = |command: &&str| {
        let program = if command.starts_with("rsync") {
            "rsync"
        } else {
            "cp"
        };
        let mut version = Command::new(program);
        let version = version.arg("--version").stdout(Stdio::null()).status();
        version.is_ok_and(|status| status.success())
    };
    let shell = SHELL.into_iter().filter(has).map(Copier::Shell);
    shell
        .chain([Copier::Tar, Copier::Range, Copier::Seek])
        .collect()
}

impl Copier {
    /// Shell command or system call.
    pub(super) fn name(&self) -> &str {
        match self {
            Self::Shell(command) => command,
            Self::Tar => TAR,
            Self::Range => "copy_file_range",
            Self::Seek => "SEEK_DATA and SEEK_HOLE",
        }
    }

    /// True if a copy of a growing file is a prefix of the file.
    pub(super) fn allows_growth(&self) -> bool {
        !matches!(self, Self::Tar)
    }

    fn copy(&self, from: &Path, to: &Path) -> io::Result<()> {
        match self {
            Self::Shell(_) | Self::Tar => {
                let command = self.name();
                let done = Command::new("sh")
                    .args(["-c", command])
                    .env("from", from)
                    .env("to", to)
                    .output()?;
                if !done.status.success() {
                    let message = String::from_utf8_lossy(&done.stderr).into_owned();
                    let failed = format!("{command}: {}: {message}", done.status);
                    return Err(io::Error::other(failed));
                }
            }
            Self::Range => {
                let (from, to) = (File::open(from)?, File::create(to)?);
                let (mut at, mut out) = (0, 0);
                loop {
                    match copy_file_range(&from, Some(&mut at), &to, Some(&mut out), 1 << 20) {
                        Ok(0) => break,
                        Ok(_) => {}
                        // Across filesystems a plain copy is used, as cp does.
                        Err(Errno::XDEV) => {
                            io::copy(&mut &from, &mut &to)?;
                            break;
                        }
                        Err(e) => return Err(e.into()),
                    }
                }
            }
            Self::Seek => {
                let (from, to) = (File::open(from)?, File::create(to)?);
                let size = from.metadata()?.len();
                to.set_len(size)?;
                let mut at = 0;
                while at < size {
                    let data = match seek(&from, SeekFrom::Data(at)) {
                        Ok(data) if data < size => data,
                        Ok(_) | Err(Errno::NXIO) => break,
                        Err(e) => return Err(e.into()),
                    };
                    at = seek(&from, SeekFrom::Hole(data))?.min(size);
                    let mut bytes = vec![0; (at - data) as usize];
                    from.read_exact_at(&mut bytes, data)?;
                    to.write_all_at(&bytes, data)?;
                }
            }
        }
        Ok(())
    }
}

/// Copies the file while `growth` is appended to it. The target is in the same folder if `beside` is set,
/// else in the temporary folder. The copy must contain the initial file and may contain a prefix of `growth`.
/// Returns a description of a difference.
pub(super) fn check(
    s: &mut Subject,
    copier: &Copier,
    growth: &[u8],
    beside: bool,
    tally: &mut Tally,
) -> io::Result<Option<String>> {
    let name = format!("tuff-lab-copy-{}", std::process::id());
    let to = match s.path.parent().filter(|_| beside) {
        Some(dir) => dir.join(name),
        None => std::env::temp_dir().join(name),
    };
    let before = s.want.len();
    let grow = |file: &File| {
        let mut at = before as u64;
        for piece in growth.chunks(growth.len().div_ceil(GROWTH_STEPS).max(1)) {
            file.write_all_at(piece, at)?;
            at += piece.len() as u64;
        }
        io::Result::Ok(())
    };
    std::thread::scope(|scope| {
        let growing = scope.spawn(|| grow(&s.file));
        let copied = copier.copy(&s.path, &to);
        growing
            .join()
            .map_err(|_| io::Error::other("a writer panicked"))??;
        copied
    })?;
    s.want.extend_from_slice(growth);
    tally.copies += 1;
    let found = fs::read(&to)?;
    fs::remove_file(&to)?;
    if found.len() < before || found.len() > s.want.len() {
        let most = s.want.len();
        return Ok(Some(format!(
            "{}: {} bytes, expected {before} to {most}",
            copier.name(),
            found.len()
        )));
    }
    let wrong = differs(&s.want, 0, &found, tally);
    Ok(wrong.map(|wrong| format!("{}: {wrong}", copier.name())))
}
