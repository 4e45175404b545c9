//! Cells of the fio matrix: one fio command each, and the figures of its JSON output.

use crate::measure::workspace::Work;
use crate::measure::{self, Job};
use crate::report::table::Figure;
use crate::verify::tree;
use crate::{At, Error, Result};
use std::ffi::OsString;
use std::fs::File;
use std::io::{BufReader, Read};
use std::path::{Path, PathBuf};

/// Name of the test file in every place.
pub(super) const FILE: &str = "file";
/// Maximum transfer of a random cell with 4 KiB requests. Unit: MiB.
const SMALL_TOTAL_MIB: u64 = 64;
/// Granularity of the comparison before and after a write. Unit: bytes.
const BLOCK: usize = 4096;

/// Order of the offsets of requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Order {
    /// Sequential: each request follows the previous one.
    Row,
    /// Random, each offset once.
    Random,
}

/// Direction of requests: reads, writes or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// All requests are reads.
    Read,
    /// All requests are writes. The time includes one fsync at the end.
    Write,
    /// 70 % of the requests are reads, 30 % are writes.
    Mixed,
}

/// Parameters of one run of fio.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cell {
    /// Direction of the requests.
    pub way: Way,
    /// Order of the offsets.
    pub order: Order,
    /// Size of each request. Unit: KiB.
    pub request_kib: u64,
    /// True if requests bypass the page cache (`O_DIRECT`).
    pub direct: bool,
}

/// Returns all cells in the order of a round. Reads come first, while the file is as it was laid out.
pub fn all() -> Vec<Cell> {
    let mut cells = Vec::new();
    for way in [Way::Read, Way::Write, Way::Mixed] {
        for order in [Order::Row, Order::Random] {
            for request_kib in [1024, 4] {
                for direct in [false, true] {
                    let mixed = way == Way::Mixed;
                    if mixed && (order == Order::Row || request_kib != 4) {
                        continue;
                    }
                    cells.push(Cell {
                        way,
                        order,
                        request_kib,
                        direct,
                    });
                }
            }
        }
    }
    cells
}

impl Cell {
    /// Name in tables, which `--only` matches.
    pub fn name(&self) -> String {
        let way = match self.way {
            Way::Read => "read",
            Way::Write => "write",
            Way::Mixed => "70:30 read/write",
        };
        let order = match self.order {
            Order::Row => "sequential",
            Order::Random => "random",
        };
        let size = match self.request_kib {
            1024 => "1 MiB".to_owned(),
            kib => format!("{kib} KiB"),
        };
        let direct = if self.direct { "direct" } else { "buffered" };
        format!("{order} {way}, {size}, {direct}")
    }

    /// True if the cell changes the file.
    pub fn writes(&self) -> bool {
        self.way != Way::Read
    }

    fn mode(&self) -> &'static str {
        match (self.way, self.order) {
            (Way::Read, Order::Row) => "read",
            (Way::Read, Order::Random) => "randread",
            (Way::Write, Order::Row) => "write",
            (Way::Write, Order::Random) => "randwrite",
            (Way::Mixed, Order::Row) => "rw",
            (Way::Mixed, Order::Random) => "randrw",
        }
    }
}

/// Bytes read and written in the time from the first request to the end of the last one, fsync included.
pub(super) const SPEED: Figure = Figure::new("bytes_s", "MB/s, higher is better", 1e6);
/// Median latency of requests; in mixed cells that of reads.
pub(super) const MEDIAN: Figure = Figure::new("median_ns", "median latency, us", 1e3);
/// 99th percentile of the same latency.
pub(super) const TAIL: Figure = Figure::new("tail_ns", "99th percentile latency, us", 1e3);
/// CPU time of the whole machine during the cell, including servers and kernel threads, without the start of fio.
pub(super) const CPU: Figure = Figure::new("cpu_us_mib", "CPU time, us per MiB", 1.0);

/// Measured figures of a cell.
pub(super) type Figures = [(Figure, f64); 4];

/// fio program and the settings that all runs share.
pub(super) struct Fio<'a> {
    program: &'a Path,
    folder: &'a Path,
    answer: PathBuf,
    file_mib: u64,
}

impl<'a> Fio<'a> {
    pub(super) fn new(program: &'a Path, work: &'a Work, file_mib: u64) -> Self {
        Self {
            program,
            folder: work.folder(),
            answer: work.path("answer"),
            file_mib,
        }
    }

    /// Creates the test file and syncs it. The inner error is a failure of fio.
    pub(super) fn lay_out(&self, point: &Path) -> Result<Result<(), String>> {
        let how = ["--rw=write", "--bs=1M", "--do_verify=0", "--end_fsync=1"];
        Ok(self.run(point, &how, 0)?.map(|_| ()))
    }

    /// Reads the whole file and verifies the checksum of every block that fio wrote. The inner error is a
    /// mismatch or another failure of fio.
    pub(super) fn verify(&self, point: &Path) -> Result<Result<(), String>> {
        let how = ["--rw=read", "--bs=1M", "--readonly"];
        Ok(self.run(point, &how, 0)?.map(|_| ()))
    }

    /// Runs a cell. The inner error describes an unsupported request or wrong content.
    pub(super) fn measure(
        &self,
        cell: &Cell,
        point: &Path,
        seed: u64,
    ) -> Result<Result<Figures, String>> {
        let before = match cell.writes() {
            true => Some(self.blocks(point)?),
            false => None,
        };
        let size = format!("--bs={}k", cell.request_kib);
        let mode = format!("--rw={}", cell.mode());
        let direct = format!("--direct={}", u8::from(cell.direct));
        let total = format!("--io_size={}m", self.total_mib(cell));
        let mut how = vec![size.as_str(), &mode, &direct, &total];
        match cell.way {
            Way::Read => how.extend(["--verify=0", "--readonly"]),
            Way::Write => how.extend(["--do_verify=0", "--end_fsync=1"]),
            Way::Mixed => how.extend(["--do_verify=0", "--end_fsync=1", "--rwmixread=70"]),
        }
        let answer = match self.run(point, &how, seed)? {
            Ok(answer) => answer,
            Err(reason) => return Ok(Err(reason)),
        };
        let figures = answer.figures(cell)?;
        if let Some(before) = before {
            if let Err(reason) = self.verify(point)? {
                return Ok(Err(format!("afterwards: {reason}")));
            }
            let after = self.blocks(point)?;
            let fresh = before.iter().zip(&after).filter(|(b, a)| b != a).count();
            let written = answer.job_number("write", "io_bytes") / BLOCK as f64;
            if fresh as f64 != written || before.len() != after.len() {
                return Ok(Err(format!(
                    "{fresh} blocks differ afterwards, expected {written}"
                )));
            }
        }
        Ok(Ok(figures))
    }

    fn total_mib(&self, cell: &Cell) -> u64 {
        match (cell.order, cell.request_kib) {
            (Order::Random, 4) => SMALL_TOTAL_MIB.min(self.file_mib),
            _ => self.file_mib,
        }
    }

    fn run(&self, point: &Path, how: &[&str], seed: u64) -> Result<Result<Answer, String>> {
        let mut arguments: Vec<OsString> = [
            "--name=cell",
            "--ioengine=psync",
            "--output-format=json",
            // Half of each block is compressible, and no two blocks are equal.
            "--refill_buffers",
            "--buffer_compress_percentage=50",
            "--buffer_compress_chunk=4096",
            "--verify=crc32c",
            "--verify_interval=4096",
            "--verify_fatal=1",
            "--verify_state_save=0",
        ]
        .map(OsString::from)
        .to_vec();
        arguments.extend(how.iter().map(OsString::from));
        let mut option = |name: &str, value: &std::ffi::OsStr| {
            let mut text = OsString::from(format!("--{name}="));
            text.push(value);
            arguments.push(text);
        };
        option("size", format!("{}m", self.file_mib).as_ref());
        option("randseed", seed.to_string().as_ref());
        option("filename", point.join(FILE).as_os_str());
        option("output", self.answer.as_os_str());
        let job = Job {
            program: self.program,
            arguments: &arguments,
            folder: self.folder,
        };
        let outcome = measure::sample(&job)?;
        if outcome.usage.exit != Some(0) {
            // Records contain no paths of the machine.
            let message = outcome.message.replace(&*point.to_string_lossy(), "");
            return Ok(Err(format!("fio failed: {message}")));
        }
        let text = std::fs::read_to_string(&self.answer).at("read", &self.answer)?;
        let value = serde_json::from_str(text.get(text.find('{').unwrap_or(0)..).unwrap_or(""))
            .map_err(|e| Error::Command(format!("fio printed invalid JSON: {e}")))?;
        Ok(Ok(Answer {
            value,
            others_us: outcome
                .usage
                .foreign_us
                .saturating_sub(outcome.usage.steal_us),
        }))
    }

    /// Returns a digest of each block of the file.
    fn blocks(&self, point: &Path) -> Result<Vec<u64>> {
        let path = point.join(FILE);
        let file = File::open(&path).at("read", &path)?;
        let mut bytes = vec![0; BLOCK];
        let mut digests = Vec::new();
        let length = file.metadata().at("read", &path)?.len();
        let mut file = BufReader::with_capacity(1 << 20, file);
        for _ in 0..length / BLOCK as u64 {
            file.read_exact(&mut bytes).at("read", &path)?;
            digests.push(tree::digest(&bytes));
        }
        Ok(digests)
    }
}

/// JSON output of fio, and the CPU time of all other processes during the run in microseconds.
struct Answer {
    value: serde_json::Value,
    others_us: u64,
}

impl Answer {
    /// Returns a number of the only job, or 0 if it is absent.
    fn job_number(&self, way: &str, name: &str) -> f64 {
        self.value["jobs"][0][way][name].as_f64().unwrap_or(0.0)
    }

    fn figures(&self, cell: &Cell) -> Result<Figures> {
        let job = &self.value["jobs"][0];
        let way = match cell.way {
            Way::Read | Way::Mixed => "read",
            Way::Write => "write",
        };
        let time = |share: &str| job[way]["clat_ns"]["percentile"][share].as_f64();
        let number = |name: &str| job[name].as_f64();
        let ms = number("job_runtime");
        let (Some(median_ns), Some(tail_ns), Some(ms), Some(user), Some(system)) = (
            time("50.000000"),
            time("99.000000"),
            ms.filter(|ms| *ms > 0.0),
            number("usr_cpu"),
            number("sys_cpu"),
        ) else {
            return Err(Error::Command("fio's JSON output lacks figures".to_owned()));
        };
        // fio reports CPU usage in percent of the run time.
        let own_us = (user + system) / 100.0 * ms * 1000.0;
        // Microseconds are exact in this type.
        let cpu_us = self.others_us as f64 + own_us;
        let bytes = self.job_number("read", "io_bytes") + self.job_number("write", "io_bytes");
        Ok([
            (SPEED, bytes / ms * 1e3),
            (MEDIAN, median_ns),
            (TAIL, tail_ns),
            (CPU, cpu_us / (bytes / 1_048_576.0)),
        ])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cell_names_are_unique() {
        let names: std::collections::HashSet<_> = all().iter().map(Cell::name).collect();
        assert_eq!(names.len(), 18);
        assert!(names.contains("random write, 4 KiB, direct"));
        assert!(names.contains("random 70:30 read/write, 4 KiB, buffered"));
    }

    #[test]
    fn figures_are_read_from_the_json_output() {
        let value = serde_json::json!({ "jobs": [{
            "job_runtime": 200, "usr_cpu": 10.0, "sys_cpu": 40.0,
            "read": { "io_bytes": 7 << 20, "clat_ns": { "percentile": { "50.000000": 5, "99.000000": 9 } } },
            "write": { "io_bytes": 3 << 20, "clat_ns": {} },
        }] });
        let answer = Answer {
            value,
            others_us: 1000,
        };
        let cell = |way| Cell {
            way,
            order: Order::Random,
            request_kib: 4,
            direct: true,
        };
        let expected = [52_428_800.0, 5.0, 9.0, 10_100.0];
        let figures = answer.figures(&cell(Way::Mixed)).unwrap();
        assert_eq!(figures.map(|(_, value)| value), expected);
        assert!(answer.figures(&cell(Way::Write)).is_err());
    }
}
