//! Properties of the machine that affect results, without identifying its owner.

use crate::{At, Error, Result};
use serde::{Deserialize, Serialize};
use std::ffi::OsStr;
use std::path::Path;
use std::process::Command;

/// Machine on which a record was measured.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Model of the first CPU.
    pub cpu: String,
    /// Number of online CPUs.
    pub cpus: u32,
    /// Number of CPUs in the affinity mask of this process.
    pub cpus_allowed: u32,
    /// True if a hypervisor is present.
    pub virtual_machine: bool,
    /// Frequency governor of the first CPU. `None` if it has none.
    pub governor: Option<String>,
    /// Kernel name, release and architecture.
    pub kernel: String,
    /// Size of the main memory in bytes.
    pub memory_bytes: u64,
    /// Name of the distribution, from os-release.
    pub system: String,
}

impl Machine {
    /// Reads the properties of the running system.
    pub fn inspect() -> Result<Machine> {
        let read = |path: &str| std::fs::read_to_string(path).at("read", Path::new(path));
        let cpuinfo = read("/proc/cpuinfo")?;
        let uname = rustix::system::uname();
        let allowed = std::thread::available_parallelism().map_or(1, |n| n.get());
        let release = std::fs::read_to_string("/etc/os-release").unwrap_or_default();
        let governor = "/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor";
        Ok(Machine {
            cpu: cpu_field(&cpuinfo, "model name")
                .unwrap_or("unknown")
                .to_owned(),
            cpus: online_cpus()?,
            cpus_allowed: u32::try_from(allowed).unwrap_or(u32::MAX),
            virtual_machine: cpu_field(&cpuinfo, "flags")
                .is_some_and(|f| f.split(' ').any(|f| f == "hypervisor")),
            governor: std::fs::read_to_string(governor)
                .ok()
                .map(|g| g.trim().to_owned()),
            kernel: format!(
                "{} {} {}",
                uname.sysname().to_string_lossy(),
                uname.release().to_string_lossy(),
                uname.machine().to_string_lossy()
            ),
            memory_bytes: memory_field(&read("/proc/meminfo")?, "MemTotal").unwrap_or(0),
            system: pretty_name(&release).unwrap_or("unknown").to_owned(),
        })
    }
}

/// Returns the memory available without swapping, in bytes. `None` if the kernel does not report
/// it.
pub fn memory_available() -> Option<u64> {
    memory_field(
        &std::fs::read_to_string("/proc/meminfo").ok()?,
        "MemAvailable",
    )
}

/// Returns the number of bytes of the given files in the page cache.
pub fn cached_bytes<P: AsRef<OsStr>>(files: impl IntoIterator<Item = P>) -> Result<u64> {
    let output = Command::new("fincore")
        .args(["--bytes", "--noheadings", "--output", "RES", "--"])
        .args(files)
        .output()
        .at("run", Path::new("fincore"))?;
    let text = String::from_utf8_lossy(&output.stdout);
    let sizes: Option<Vec<u64>> = text.lines().map(|line| line.trim().parse().ok()).collect();
    match sizes {
        Some(sizes) if output.status.success() => Ok(sizes.iter().sum()),
        _ => Err(Error::Command(format!(
            "fincore: {}",
            String::from_utf8_lossy(&output.stderr).trim()
        ))),
    }
}

/// Returns the number of online CPUs.
pub fn online_cpus() -> Result<u32> {
    let path = Path::new("/proc/stat");
    let stat = std::fs::read_to_string(path).at("read", path)?;
    let is_cpu = |l: &&str| l.starts_with("cpu") && !l.starts_with("cpu ");
    Ok(u32::try_from(stat.lines().filter(is_cpu).count())
        .unwrap_or(u32::MAX)
        .max(1))
}

/// Returns the host name, for the folder of a record.
pub fn host_name() -> String {
    rustix::system::uname()
        .nodename()
        .to_string_lossy()
        .into_owned()
}

fn cpu_field<'a>(cpuinfo: &'a str, name: &str) -> Option<&'a str> {
    let line = cpuinfo
        .lines()
        .find(|l| l.split(':').next().is_some_and(|k| k.trim() == name))?;
    Some(line.split_once(':')?.1.trim())
}

/// Returns the number in the line `name number` or `name: number` of a text.
pub(crate) fn field(text: &str, name: &str) -> Option<u64> {
    let number = |line: &str| {
        let rest = line.strip_prefix(name)?.strip_prefix([':', ' '])?;
        rest.split_whitespace().next()?.parse().ok()
    };
    text.lines().find_map(number)
}

/// Returns the bytes of a line of /proc/meminfo, which is in KiB.
fn memory_field(meminfo: &str, name: &str) -> Option<u64> {
    field(meminfo, name)?.checked_mul(1024)
}

fn pretty_name(release: &str) -> Option<&str> {
    let value = release
        .lines()
        .find_map(|l| l.strip_prefix("PRETTY_NAME="))?;
    Some(value.trim_matches('"'))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_parsed_from_proc_and_os_release() {
        let cpu = "processor\t: 0\nmodel name\t: Some CPU: fast\nflags\t\t: fpu hypervisor\n";
        assert_eq!(cpu_field(cpu, "model name"), Some("Some CPU: fast"));
        assert_eq!(
            memory_field("MemTotal:       2048 kB\n", "MemTotal"),
            Some(2_097_152)
        );
        assert_eq!(field("MemTotal: x kB\n", "MemTotal"), None);
        assert_eq!(field("filemapped 7\nfile 8\n", "file"), Some(8));
        assert_eq!(pretty_name("A=1\nPRETTY_NAME=\"Debian\"\n"), Some("Debian"));
    }
}
