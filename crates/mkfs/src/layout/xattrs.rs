//! Extended attributes: selection of shared entries, and the body after each inode.

use crate::options::{Fragments, Metadata, Options};
use crate::source::error::Quoted;
use crate::source::tally::AffectedPaths;
use crate::tree::{InodeId, Tree, Xattr, XattrSet, lossy};
use crate::{Error, Result};
use hashbrown::{HashMap, HashSet};
use std::cmp::Reverse;
use std::collections::BTreeMap;
use tuff_format::xattr::{self, Entry, LONG_PREFIX, LongPrefix};

/// Maximum number of shared entries per inode.
const SHARED_MAX: usize = 255;

/// Encoded extended attributes of the image.
pub(crate) struct Xattrs {
    /// Body per attribute set, indexed like [`Tree::xattr_sets`]. Empty without attributes.
    pub(crate) bodies: Vec<Vec<u8>>,
    /// Shared entries, for the area at `xattr_blkaddr`.
    pub(crate) shared: Vec<u8>,
}

/// Long prefixes of attribute names.
pub(crate) struct PrefixTable {
    pub(crate) prefixes: Vec<LongPrefix>,
    /// Encoded table.
    pub(crate) bytes: Vec<u8>,
    /// The packed inode starts with the table. Otherwise it follows the shared attributes.
    pub(crate) in_packed: bool,
    /// Index of the prefix that is the name of fingerprints.
    pub(crate) fingerprints: Option<u8>,
}

impl PrefixTable {
    /// Creates the table that the options describe.
    pub(crate) fn new(options: &Options) -> Result<Self> {
        let prefixes = prefixes(options)?;
        let fingerprints = options.metadata.fingerprints.as_ref();
        let fingerprints = fingerprints.and_then(|name| long_prefix(name));
        let mut bytes = Vec::new();
        for prefix in &prefixes {
            prefix.encode(&mut bytes);
        }
        Ok(Self {
            bytes,
            // Kernels read the table from the metabox if there is one, else from the packed inode.
            in_packed: !prefixes.is_empty()
                && options.layout.fragments != Fragments::Off
                && options.metadata.form != Metadata::Compressed,
            // Fits: at most 128.
            fingerprints: fingerprints
                .and_then(|name| prefixes.iter().position(|p| *p == name))
                .map(|at| at as u8),
            prefixes,
        })
    }

    /// Returns the area of shared attributes, with the table if it belongs there.
    pub(crate) fn area(&self, xattrs: &Xattrs) -> Vec<u8> {
        let table: &[u8] = if self.in_packed { &[] } else { &self.bytes };
        [&xattrs.shared, table].concat()
    }
}

/// Validates and parses the configured long prefixes. The full name of the fingerprint attribute is
/// appended unless it is among them.
fn prefixes(options: &Options) -> Result<Vec<LongPrefix>> {
    let mut out = Vec::new();
    for full in &options.metadata.xattr_prefixes {
        out.push(long_prefix(full).filter(|p| p.base != 0).ok_or_else(|| {
            let full = lossy(full);
            Error::usage(format_args!(
                "attribute prefix {full}: it must be user., trusted. or security. with more characters after it"
            ))
        })?);
    }
    if let Some(name) = &options.metadata.fingerprints {
        let prefix = long_prefix(name).filter(|_| name.len() <= xattr::NAME_MAX);
        let prefix = prefix.ok_or_else(|| {
            let name = lossy(name);
            Error::usage(format_args!(
                "attribute {name} for fingerprints: 1 to 255 bytes"
            ))
        })?;
        if !out.contains(&prefix) {
            out.push(prefix);
        }
    }
    if out.len() > 128 {
        return Err(Error::usage(format_args!(
            "{} attribute prefixes: at most 128",
            out.len()
        )));
    }
    Ok(out)
}

/// Parses a name as a prefix. The base is 0 outside of the user, trusted and security namespaces.
fn long_prefix(full: &[u8]) -> Option<LongPrefix> {
    let bases = [1u8, 4, 6].into_iter();
    let found = bases
        .filter_map(|i| Some((i, full.strip_prefix(xattr::prefix(i)?)?)))
        .next();
    let (base, infix) = found.unwrap_or((0, full));
    (1..=255).contains(&infix.len()).then(|| LongPrefix {
        base,
        infix: infix.to_vec(),
    })
}

/// Attribute name split into prefix index and rest, as stored.
struct StoredName<'a> {
    index: u8,
    name: &'a [u8],
    filter: u32,
}

fn split_name<'a>(name: &'a [u8], prefixes: &[LongPrefix]) -> Option<StoredName<'a>> {
    let unseen = || {
        let whole = prefixes.iter().any(|p| p.base == 0 && p.infix == name);
        whole.then_some((0, name))
    };
    let (base, rest) = xattr::split(name).or_else(unseen)?;
    let filter = xattr::filter_bit(base, rest);
    let long = prefixes
        .iter()
        .enumerate()
        .filter(|(_, p)| p.base == base && rest.starts_with(&p.infix));
    match long.max_by_key(|(_, p)| p.infix.len()) {
        // Fits: at most 128 prefixes.
        Some((i, p)) => Some(StoredName {
            index: LONG_PREFIX | i as u8,
            name: &rest[p.infix.len()..],
            filter,
        }),
        None => Some(StoredName {
            index: base,
            name: rest,
            filter,
        }),
    }
}

impl Xattrs {
    /// Selects shared entries and encodes all sets. Attributes that the format cannot hold are left
    /// out with a warning.
    pub(crate) fn plan(
        tree: &Tree,
        inodes: &[InodeId],
        options: &Options,
        prefixes: &[LongPrefix],
        warnings: &mut Vec<String>,
    ) -> Result<Self> {
        // Sets in the order of the image's inodes, so that the shared area does not depend on the
        // order of sources.
        let sets = tree.xattr_sets();
        let mut users = vec![0u32; sets.len()];
        // The first inode of each set represents it in messages.
        let mut order = Vec::new();
        for inode in inodes {
            let set = tree.xattrs(*inode);
            let n = &mut users[set as usize];
            if *n == 0 && set != 0 {
                order.push((set, *inode));
            }
            *n += 1;
        }
        let mut uses: HashMap<(&[u8], &[u8]), u32> = HashMap::new();
        for (set, _) in &order {
            for (n, v) in &*sets[*set as usize] {
                *uses.entry((n, v)).or_default() += users[*set as usize];
            }
        }
        let mut this = Self {
            bodies: vec![Vec::new(); sets.len()],
            shared: Vec::new(),
        };
        let mut ids: HashMap<(&[u8], &[u8]), u32> = HashMap::new();
        // Sets with skipped attributes, by attribute name.
        let mut skipped: BTreeMap<&[u8], HashSet<u32>> = BTreeMap::new();
        for (set, inode) in &order {
            let mut skip = |name| _ = skipped.entry(name).or_default().insert(*set);
            let body = this.body(
                &sets[*set as usize],
                options,
                prefixes,
                &uses,
                &mut ids,
                &mut skip,
            );
            this.bodies[*set as usize] = body.map_err(|e| e.within(Quoted(&tree.path(*inode))))?;
        }
        for (name, sets) in skipped {
            let mut paths = AffectedPaths::default();
            for inode in inodes.iter().filter(|i| sets.contains(&tree.xattrs(**i))) {
                paths.add(|| tree.path(*inode));
            }
            warnings.extend(paths.warning(format_args!(
                "attribute {}: left out, EROFS cannot hold its name or value",
                Quoted(name)
            )));
        }
        Ok(this)
    }

    fn body<'a>(
        &mut self,
        set: &'a XattrSet,
        options: &Options,
        prefixes: &[LongPrefix],
        uses: &HashMap<(&'a [u8], &'a [u8]), u32>,
        ids: &mut HashMap<(&'a [u8], &'a [u8]), u32>,
        skip: &mut dyn FnMut(&'a [u8]),
    ) -> Result<Vec<u8>> {
        let mut filter = 0;
        let mut entries: Vec<(&'a Xattr, Entry<'a>)> = Vec::new();
        let mut last: Option<&[u8]> = None;
        for attribute in &**set {
            let (name, value) = attribute;
            let stored = split_name(name, prefixes)
                .filter(|_| is_valid(name, value) && last.replace(name) != Some(&**name));
            let Some(stored) = stored else {
                skip(name);
                continue;
            };
            filter |= stored.filter;
            let entry = Entry {
                index: stored.index,
                name: stored.name,
                value,
            };
            entries.push((attribute, entry));
        }
        let is_frequent =
            |(name, value): &'a Xattr| uses[&(&**name, &**value)] > options.metadata.xattr_share;
        let is_frequent: Vec<bool> = entries.iter().map(|(a, _)| is_frequent(a)).collect();
        let lens: Vec<usize> = entries.iter().map(|(_, e)| e.encoded_len()).collect();
        let is_shared = choose_shared(is_frequent, &lens);
        let (mut shared, mut inline) = (Vec::new(), Vec::new());
        for (((name, value), entry), is_shared) in entries.into_iter().zip(is_shared) {
            if is_shared {
                let id = *ids.entry((name, value)).or_insert_with(|| {
                    let id = self.shared.len() / 4;
                    entry.encode(&mut self.shared);
                    id as u32
                });
                shared.push(id);
            } else {
                inline.push(entry);
            }
        }
        let filter = if options.metadata.xattr_filter {
            !filter
        } else {
            0
        };
        let mut body = Vec::new();
        xattr::encode_body(filter, &shared, &inline, &mut body);
        if xattr::icount(body.len()).is_none() {
            return Err(Error::limit(
                "attributes",
                format_args!("{} bytes in one inode, at most 262148", body.len()),
            ));
        }
        Ok(body)
    }
}

/// True for an attribute that an image can hold and readers accept.
fn is_valid(name: &[u8], value: &[u8]) -> bool {
    let is_acl = matches!(
        name,
        b"system.posix_acl_access" | b"system.posix_acl_default"
    );
    name.len() <= xattr::NAME_MAX
        && !name.contains(&0)
        && value.len() <= 0xFFFF
        && (!is_acl || xattr::check_acl(value).is_ok())
}

/// Selects the shared attributes of an inode: frequent ones, or the longest if the others do not
/// fit inline.
fn choose_shared(mut is_frequent: Vec<bool>, lens: &[usize]) -> Vec<bool> {
    let over = is_frequent.iter_mut().filter(|s| **s).skip(SHARED_MAX);
    over.for_each(|s| *s = false);
    let inline_len = is_frequent.iter().zip(lens);
    let inline_len: usize = inline_len.map(|(s, len)| if *s { 4 } else { *len }).sum();
    if xattr::icount(xattr::HEADER_LEN + inline_len).is_some() {
        return is_frequent;
    }
    let mut by_len: Vec<usize> = (0..lens.len()).collect();
    by_len.sort_by_key(|i| Reverse(lens[*i]));
    by_len.truncate(SHARED_MAX);
    let mut longest = vec![false; lens.len()];
    by_len.into_iter().for_each(|i| longest[i] = true);
    longest
}
