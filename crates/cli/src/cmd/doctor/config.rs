//! Configuration of the kernel, where the distribution publishes it.

use super::host::Host;
use std::io::Read;

/// Longest configuration that is read. Unit: bytes.
const TEXT_MAX: u64 = 4 << 20;

/// Settings of the kernel. Without a published configuration all are unknown.
pub(super) struct KernelConfig(Option<String>);

impl KernelConfig {
    pub(super) fn read(host: &Host) -> Self {
        let unpacked = |bytes: Vec<u8>| {
            let mut text = String::new();
            let mut unpacked = flate2::read::GzDecoder::new(&bytes[..]).take(TEXT_MAX);
            unpacked.read_to_string(&mut text).ok().map(|_| text)
        };
        let release = host.release();
        let plain = [
            format!("/boot/config-{release}"),
            format!("/lib/modules/{release}/config"),
            format!("/usr/lib/modules/{release}/config"),
        ];
        let packed = host.bytes("/proc/config.gz").and_then(unpacked);
        Self(packed.or_else(|| plain.iter().find_map(|path| host.text(path))))
    }

    /// Returns whether a setting is built in or a module. None: nothing is published.
    pub(super) fn has(&self, name: &str) -> Option<bool> {
        let text = self.0.as_ref()?;
        let mut lines = text.lines().filter_map(|line| line.split_once('='));
        Some(lines.any(|(key, value)| key == name && matches!(value, "y" | "m")))
    }
}
