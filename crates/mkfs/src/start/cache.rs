//! `/etc/ld.so.cache`: paths of libraries by name.
//!
//! ```text
//! header of 48 bytes   magic, number of entries, length of strings
//! entries of 24 bytes  flags, offset of the name, offset of the path, unused, processor features
//! strings
//! ```
//!
//! Offsets count from the header. An older format may come before it. Source: ldconfig(8) and the files that it writes.

/// First bytes of the header.
const MAGIC: &[u8] = b"glibc-ld.so.cache1.1";
/// Length of the header. Unit: bytes.
const HEADER_LEN: usize = 48;
/// Length of an entry. Unit: bytes.
const ENTRY_LEN: usize = 24;
/// Longest file that is read. Unit: bytes.
pub(super) const FILE_MAX: usize = 4 << 20;
/// Longest string. Unit: bytes.
const STRING_MAX: usize = 1024;

/// Cache of library paths.
pub(super) struct Cache {
    /// The file from the header on.
    bytes: Vec<u8>,
    /// Entries in the order of their names.
    entries: Vec<CacheEntry>,
}

#[derive(Clone, Copy)]
struct CacheEntry {
    name: u32,
    path: u32,
    /// The library is for processors with some feature.
    is_variant: bool,
}

impl Cache {
    /// Reads a cache. `None` for another file.
    pub(super) fn parse(file: &[u8], is_little: bool) -> Option<Self> {
        let start = file.windows(MAGIC.len()).position(|part| part == MAGIC)?;
        let bytes = file.get(start..)?.to_vec();
        let number = |at: usize| {
            let field: [u8; 4] = bytes.get(at..at.checked_add(4)?)?.try_into().ok()?;
            Some(match is_little {
                true => u32::from_le_bytes(field),
                false => u32::from_be_bytes(field),
            })
        };
        let count = number(20)? as usize;
        let most = bytes.len().checked_sub(HEADER_LEN)? / ENTRY_LEN;
        let mut entries = Vec::new();
        for i in 0..count.min(most) {
            let at = HEADER_LEN + i * ENTRY_LEN;
            entries.push(CacheEntry {
                name: number(at + 4)?,
                path: number(at + 8)?,
                is_variant: number(at + 16)? != 0 || number(at + 20)? != 0,
            });
        }
        entries.sort_by(|a, b| string(&bytes, a.name).cmp(string(&bytes, b.name)));
        Some(Self { bytes, entries })
    }

    /// Lists the paths of a library, and whether they are for processors with some feature.
    pub(super) fn paths(&self, name: &[u8]) -> impl Iterator<Item = (&[u8], bool)> {
        let start = (self.entries).partition_point(|entry| string(&self.bytes, entry.name) < name);
        let rest = self.entries.get(start..).unwrap_or_default();
        rest.iter()
            .take_while(move |entry| string(&self.bytes, entry.name) == name)
            .map(|entry| (string(&self.bytes, entry.path), entry.is_variant))
    }
}

/// String at an offset; empty if there is none or if it is too long.
fn string(bytes: &[u8], at: u32) -> &[u8] {
    let rest = bytes.get(at as usize..).unwrap_or_default();
    let rest = rest.get(..STRING_MAX.min(rest.len())).unwrap_or_default();
    let end = rest.iter().position(|byte| *byte == 0);
    rest.get(..end.unwrap_or(0)).unwrap_or_default()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;

    /// Returns a cache with these names and paths.
    pub(in super::super) fn cache(entries: &[(&str, &str, u64)], is_little: bool) -> Vec<u8> {
        let put = |value: u64, len: usize| {
            let bytes = value.to_le_bytes();
            let mut bytes = bytes[..len].to_vec();
            if !is_little {
                bytes.reverse();
            }
            bytes
        };
        let mut strings = Vec::new();
        let start = HEADER_LEN + entries.len() * ENTRY_LEN;
        let mut out = MAGIC.to_vec();
        out.extend(put(entries.len() as u64, 4));
        out.resize(HEADER_LEN, 0);
        for (name, path, features) in entries {
            out.extend(put(0x0303, 4));
            for text in [name, path] {
                out.extend(put((start + strings.len()) as u64, 4));
                strings.extend(text.as_bytes());
                strings.push(0);
            }
            out.extend(put(0, 4));
            out.extend(put(*features, 8));
        }
        out.extend(strings);
        out
    }

    #[test]
    fn paths_are_found_by_name() {
        for is_little in [true, false] {
            let entries = [
                ("libz.so.1", "/usr/lib/libz.so.1", 0),
                ("liba.so", "/opt/v3/liba.so", 1 << 62),
                ("liba.so", "/opt/liba.so", 0),
            ];
            // An older cache before it has no effect.
            let file = [b"ld.so-1.7.0\0\0\0\0\0", &cache(&entries, is_little)[..]].concat();
            let cache = Cache::parse(&file, is_little).unwrap();
            let paths = |name: &str| -> Vec<(Vec<u8>, bool)> {
                let paths = cache.paths(name.as_bytes());
                paths.map(|(path, is)| (path.to_vec(), is)).collect()
            };
            assert_eq!(
                paths("libz.so.1"),
                [(b"/usr/lib/libz.so.1".to_vec(), false)]
            );
            let both = [
                (b"/opt/v3/liba.so".to_vec(), true),
                (b"/opt/liba.so".to_vec(), false),
            ];
            assert_eq!(paths("liba.so"), both);
            assert!(paths("libb.so").is_empty());
        }
    }

    #[test]
    fn changed_and_cut_caches_are_read_without_a_panic() {
        let file = cache(&[("liba.so", "/a", 0), ("libb.so", "/b", 1)], true);
        let parse_and_find = |file: &[u8]| {
            if let Some(cache) = Cache::parse(file, true) {
                let _ = cache.paths(b"liba.so").count();
            }
        };
        let mut random = tuff_testkit::Rng::new(7);
        for len in 0..file.len() {
            parse_and_find(&file[..len]);
        }
        for _ in 0..5000 {
            let mut file = file.clone();
            let at = random.below(file.len());
            file[at] = random.below(256) as u8;
            parse_and_find(&file);
        }
    }
}
