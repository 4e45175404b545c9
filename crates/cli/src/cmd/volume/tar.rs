//! A volume's files as a tar stream.
//!
//! Source: POSIX.1-2017, pax, "ustar Interchange Format" and "pax Extended Header"; GNU tar manual, "PAX Format,
//! Version 1.0" for holes.

use std::collections::HashMap;
use std::io::{self, Write};
use std::ops::Range;
use tuff_iplfs::{Attr, Errno, Error, Nid, Volume, mode};

/// Everything in a tar comes in units of this. Unit: bytes.
const BLOCK: usize = 512;
/// Room for a name or a link's target. Unit: bytes.
const NAME_LEN: usize = 100;
/// Largest number in 7 octal digits.
const MAX_7: u64 = 0o777_7777;
/// Largest number in 11 octal digits.
const MAX_11: u64 = 0o777_7777_7777;
/// Bytes read from a file at once.
const STEP: u64 = 1 << 20;

/// Which side failed.
pub(super) enum Failed {
    Volume(Error),
    Out(io::Error),
}

impl From<Error> for Failed {
    fn from(e: Error) -> Self {
        Self::Volume(e)
    }
}

impl From<io::Error> for Failed {
    fn from(e: io::Error) -> Self {
        Self::Out(e)
    }
}

/// Writes members in the order of the directories' names.
pub(super) struct TarWriter<W: Write> {
    out: W,
    /// First name of every inode that has several.
    names: HashMap<Nid, Vec<u8>>,
    sockets: Vec<Vec<u8>>,
}

impl<W: Write> TarWriter<W> {
    pub(super) fn new(out: W) -> Self {
        Self {
            out,
            names: HashMap::new(),
            sockets: Vec::new(),
        }
    }

    /// Every file of a volume, the root first.
    pub(super) fn volume(&mut self, volume: &mut Volume) -> Result<(), Failed> {
        // Directories still to list, the next one last.
        let mut todo = vec![(Nid::ROOT, b".".to_vec())];
        self.member(volume, Nid::ROOT, b"./")?;
        while let Some((dir, path)) = todo.pop() {
            let mut entries = volume.read_dir(dir, 2, usize::MAX)?;
            entries.sort_by(|a, b| a.name.cmp(&b.name));
            let mut below = Vec::new();
            for entry in entries {
                let mut path = [&path[..], b"/", &entry.name].concat();
                let is_dir = u32::from(entry.kind) << 12 == mode::DIR;
                if is_dir {
                    below.push((entry.ino, path.clone()));
                    path.push(b'/');
                }
                self.member(volume, entry.ino, &path)?;
            }
            todo.extend(below.into_iter().rev());
        }
        Ok(())
    }

    /// The end of the stream. Returns the sockets, which are not in it.
    pub(super) fn finish(&mut self) -> Result<Vec<Vec<u8>>, Failed> {
        self.out.write_all(&[0; 2 * BLOCK])?;
        self.out.flush()?;
        Ok(std::mem::take(&mut self.sockets))
    }

    fn member(&mut self, volume: &mut Volume, ino: Nid, path: &[u8]) -> Result<(), Failed> {
        let attr = volume.attr(ino)?;
        let kind = attr.mode & mode::TYPE;
        if kind == mode::SOCKET {
            self.sockets.push(path.to_vec());
            return Ok(());
        }
        if kind != mode::DIR && attr.nlink > 1 {
            if let Some(first) = self.names.get(&ino).cloned() {
                return self.head(&attr, b'1', path, &first, 0, Vec::new());
            }
            self.names.insert(ino, path.to_vec());
        }
        let mut records = Vec::new();
        for (name, value) in volume.xattrs(ino)? {
            let mut key = b"SCHILY.xattr.".to_vec();
            for byte in name {
                // A key ends at its first equals sign: written as GNU tar writes it.
                match byte {
                    b'=' => key.extend_from_slice(b"%3D"),
                    b'%' => key.extend_from_slice(b"%25"),
                    byte => key.push(byte),
                }
            }
            record(&key, &value, &mut records);
        }
        match kind {
            mode::FILE => self.file(volume, &attr, path, records),
            mode::LINK => {
                let target = volume.read_link(ino)?;
                self.head(&attr, b'2', path, &target, 0, records)
            }
            mode::CHAR => self.head(&attr, b'3', path, b"", 0, records),
            mode::BLOCK => self.head(&attr, b'4', path, b"", 0, records),
            mode::DIR => self.head(&attr, b'5', path, b"", 0, records),
            _ => self.head(&attr, b'6', path, b"", 0, records),
        }
    }

    fn file(
        &mut self,
        volume: &mut Volume,
        attr: &Attr,
        path: &[u8],
        mut records: Vec<u8>,
    ) -> Result<(), Failed> {
        let runs = data_runs(volume, attr)?;
        let stored: u64 = runs.iter().map(|run| run.end - run.start).sum();
        if stored == attr.size {
            self.head(attr, b'0', path, b"", attr.size, records)?;
            return self.data(volume, attr.ino, runs);
        }
        // The last run says where the file ends, as GNU tar writes it.
        let ends = runs.last().is_none_or(|run| run.end < attr.size);
        let end = ends.then_some(attr.size..attr.size);
        let mut map = format!("{}\n", runs.len() + usize::from(ends));
        for run in runs.iter().chain(&end) {
            map.push_str(&format!("{}\n{}\n", run.start, run.end - run.start));
        }
        let mut map = map.into_bytes();
        map.resize(map.len().next_multiple_of(BLOCK), 0);
        record(b"GNU.sparse.major", b"1", &mut records);
        record(b"GNU.sparse.minor", b"0", &mut records);
        record(b"GNU.sparse.name", path, &mut records);
        record(
            b"GNU.sparse.realsize",
            attr.size.to_string().as_bytes(),
            &mut records,
        );
        // A reader that does not know the form finds map and data under this name.
        let name = path.rsplit(|b| *b == b'/').next().unwrap_or(path);
        let mut stand_in = [b"GNUSparseFile.0/", name].concat();
        stand_in.truncate(NAME_LEN);
        let len = map.len() as u64 + stored;
        self.head(attr, b'0', &stand_in, b"", len, records)?;
        self.out.write_all(&map)?;
        self.data(volume, attr.ino, runs)
    }

    fn data(&mut self, volume: &mut Volume, ino: Nid, runs: Vec<Range<u64>>) -> Result<(), Failed> {
        let mut total = 0;
        for run in runs {
            let mut at = run.start;
            while at < run.end {
                let bytes = volume.read(ino, at, (run.end - at).min(STEP) as usize)?;
                if bytes.is_empty() {
                    let what = format!(
                        "inode {ino}: the data ends at byte {at}, expected {}",
                        run.end
                    );
                    return Err(Error::Corrupt(what).into());
                }
                self.out.write_all(&bytes)?;
                at += bytes.len() as u64;
            }
            total += run.end - run.start;
        }
        self.pad(total)
    }

    fn pad(&mut self, len: u64) -> Result<(), Failed> {
        let over = (len % BLOCK as u64) as usize;
        if over > 0 {
            self.out.write_all(&[0; BLOCK][over..])?;
        }
        Ok(())
    }

    /// A header, and in front of it records for what does not fit.
    fn head(
        &mut self,
        attr: &Attr,
        kind: u8,
        path: &[u8],
        link: &[u8],
        len: u64,
        more: Vec<u8>,
    ) -> Result<(), Failed> {
        let mut records = Vec::new();
        if path.len() > NAME_LEN {
            record(b"path", path, &mut records);
        }
        if link.len() > NAME_LEN {
            record(b"linkpath", link, &mut records);
        }
        for (key, value, max) in [
            (&b"size"[..], len, MAX_11),
            (b"uid", attr.uid.into(), MAX_7),
            (b"gid", attr.gid.into(), MAX_7),
        ] {
            if value > max {
                record(key, value.to_string().as_bytes(), &mut records);
            }
        }
        if attr.mtime.nsec != 0 || !(0..=MAX_11 as i64).contains(&attr.mtime.sec) {
            let time = decimal(attr.mtime.sec, attr.mtime.nsec);
            record(b"mtime", time.as_bytes(), &mut records);
        }
        records.extend_from_slice(&more);
        if !records.is_empty() {
            let name = b"PaxHeaders/records";
            let front = header(name, b'x', 0o644, (0, 0), records.len() as u64, 0, b"", 0);
            self.out.write_all(&front)?;
            self.out.write_all(&records)?;
            self.pad(records.len() as u64)?;
        }
        let owner = (attr.uid, attr.gid);
        let block = header(
            path,
            kind,
            attr.mode,
            owner,
            len,
            attr.mtime.sec,
            link,
            attr.rdev,
        );
        self.out.write_all(&block)?;
        Ok(())
    }
}

/// Where a file has data.
fn data_runs(volume: &mut Volume, attr: &Attr) -> Result<Vec<Range<u64>>, Error> {
    let mut runs = Vec::new();
    let mut at = 0;
    while at < attr.size {
        let data = match volume.seek_data(attr.ino, at) {
            Ok(data) => data,
            Err(Error::Posix(Errno::NoSuchOffset)) => break,
            Err(e) => return Err(e),
        };
        let hole = volume.seek_hole(attr.ino, data)?;
        runs.push(data..hole);
        at = hole;
    }
    Ok(runs)
}

#[expect(
    clippy::too_many_arguments,
    reason = "the fields of a header, in their order"
)]
fn header(
    name: &[u8],
    kind: u8,
    mode: u32,
    owner: (u32, u32),
    size: u64,
    mtime: i64,
    link: &[u8],
    rdev: u32,
) -> [u8; BLOCK] {
    let mut out = [0; BLOCK];
    text(&mut out[..NAME_LEN], name);
    octal(&mut out[100..108], u64::from(mode & 0o7777), MAX_7);
    octal(&mut out[108..116], owner.0.into(), MAX_7);
    octal(&mut out[116..124], owner.1.into(), MAX_7);
    octal(&mut out[124..136], size, MAX_11);
    octal(
        &mut out[136..148],
        u64::try_from(mtime).unwrap_or(0),
        MAX_11,
    );
    out[156] = kind;
    text(&mut out[157..257], link);
    out[257..265].copy_from_slice(b"ustar\x0000");
    // As Linux packs device numbers in 32 bits: minor 8, major 12, minor 12.
    let (major, minor) = (rdev >> 8 & 0xfff, rdev & 0xff | rdev >> 12 & 0xf_ff00);
    octal(&mut out[329..337], major.into(), MAX_7);
    octal(&mut out[337..345], minor.into(), MAX_7);
    // The sum counts its own field as spaces.
    out[148..156].fill(b' ');
    let sum = out.iter().map(|b| u64::from(*b)).sum();
    octal(&mut out[148..155], sum, 0o77_7777);
    out
}

fn text(field: &mut [u8], value: &[u8]) {
    let n = value.len().min(field.len());
    field[..n].copy_from_slice(&value[..n]);
}

/// Octal digits and a NUL. A number above `max` is written as 0: a record says it.
fn octal(field: &mut [u8], value: u64, max: u64) {
    let mut value = if value > max { 0 } else { value };
    let digits = field.len() - 1;
    for digit in field[..digits].iter_mut().rev() {
        *digit = b'0' + (value & 7) as u8;
        value >>= 3;
    }
}

/// Appends a record: its length in decimal, which counts itself, a space, key, "=", value, newline.
fn record(key: &[u8], value: &[u8], out: &mut Vec<u8>) {
    let rest = key.len() + value.len() + 3;
    let mut len = rest + 1;
    while rest + len.to_string().len() != len {
        len = rest + len.to_string().len();
    }
    out.extend_from_slice(len.to_string().as_bytes());
    out.push(b' ');
    out.extend_from_slice(key);
    out.push(b'=');
    out.extend_from_slice(value);
    out.push(b'\n');
}

/// A time as a decimal fraction. Nanoseconds count upwards from the second, the fraction of a negative number away from zero.
fn decimal(sec: i64, nsec: u32) -> String {
    let (sign, whole, fraction) = match (sec < 0, nsec) {
        (false, n) => ("", sec.unsigned_abs(), n),
        (true, 0) => ("-", sec.unsigned_abs(), 0),
        (true, n) => (
            "-",
            sec.unsigned_abs() - 1,
            1_000_000_000u32.saturating_sub(n),
        ),
    };
    format!("{sign}{whole}.{fraction:09}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_counts_its_own_length() {
        for (value_len, expected) in [(1, 8), (2, 9), (3, 11), (91, 99), (92, 101), (93, 102)] {
            let mut out = Vec::new();
            record(b"abc", &vec![b'v'; value_len], &mut out);
            assert_eq!(out.len(), expected, "value of {value_len} bytes");
            assert!(out.starts_with(format!("{expected} abc=").as_bytes()));
        }
    }

    #[test]
    fn times_are_exact_on_both_sides_of_1970() {
        assert_eq!(decimal(5, 120_000_000), "5.120000000");
        assert_eq!(decimal(-5, 999_999_999), "-4.000000001");
        assert_eq!(decimal(-5, 0), "-5.000000000");
    }
}
