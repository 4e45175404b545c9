//! Which attributes are shared, and the bytes behind each inode.

use super::options::Options;
use super::tree::{InodeId, Tree, XattrSet, lossy};
use crate::{Error, Result};
use hashbrown::HashMap;
use tuff_format::xattr::{self, Entry, LONG_PREFIX, LongPrefix};

/// Attributes, encoded.
pub(crate) struct Xattrs {
    /// Body per attribute set, indexed like [`Tree::xattr_sets`]. Empty: none.
    pub(crate) bodies: Vec<Vec<u8>>,
    /// The shared entries, for the block that `xattr_blkaddr` names.
    pub(crate) shared: Vec<u8>,
}

/// Checks and decodes the prefixes that were asked for.
pub(crate) fn prefixes(options: &Options) -> Result<Vec<LongPrefix>> {
    let mut out = Vec::new();
    for full in &options.xattr_prefixes {
        let bases = [1u8, 4, 6]
            .into_iter()
            .filter_map(|i| Some((i, xattr::prefix(i)?)));
        let found = bases
            .into_iter()
            .find_map(|(i, p)| Some((i, full.strip_prefix(p)?)));
        let (base, infix) = found.filter(|(_, infix)| (1..=255).contains(&infix.len())).ok_or_else(|| {
            let full = lossy(full);
            Error::usage(format_args!("attribute prefix {full}: it must begin with user., trusted. or security. and go on"))
        })?;
        out.push(LongPrefix {
            base,
            infix: infix.to_vec(),
        });
    }
    if out.len() > 128 {
        return Err(Error::usage(format_args!(
            "{} attribute prefixes: at most 128",
            out.len()
        )));
    }
    Ok(out)
}

/// An attribute split as it is stored.
struct Split<'a> {
    index: u8,
    name: &'a [u8],
    filter: u32,
}

fn split<'a>(name: &'a [u8], prefixes: &[LongPrefix]) -> Option<Split<'a>> {
    let (base, rest) = xattr::split(name)?;
    let filter = xattr::filter_bit(base, rest);
    let long = prefixes
        .iter()
        .enumerate()
        .filter(|(_, p)| p.base == base && rest.starts_with(&p.infix));
    match long.max_by_key(|(_, p)| p.infix.len()) {
        // Fits: at most 128 prefixes.
        Some((i, p)) => Some(Split {
            index: LONG_PREFIX | i as u8,
            name: &rest[p.infix.len()..],
            filter,
        }),
        None => Some(Split {
            index: base,
            name: rest,
            filter,
        }),
    }
}

impl Xattrs {
    /// Counts, shares and encodes. Attributes that the format has no place for are left out with a warning.
    pub(crate) fn plan(
        tree: &Tree,
        inodes: &[InodeId],
        options: &Options,
        prefixes: &[LongPrefix],
        warnings: &mut Vec<String>,
    ) -> Result<Self> {
        // Sets in the order of the image's inodes, so that the shared area does not depend on the order of sources.
        let sets = tree.xattr_sets();
        let mut users = vec![0u32; sets.len()];
        let mut order = Vec::new();
        for inode in inodes {
            let set = tree.xattrs(*inode);
            let n = &mut users[set as usize];
            if *n == 0 && set != 0 {
                order.push(set);
            }
            *n += 1;
        }
        let mut uses: HashMap<(&[u8], &[u8]), u32> = HashMap::new();
        for set in &order {
            for (n, v) in &*sets[*set as usize] {
                *uses.entry((n, v)).or_default() += users[*set as usize];
            }
        }
        let mut this = Self {
            bodies: vec![Vec::new(); sets.len()],
            shared: Vec::new(),
        };
        let mut ids: HashMap<(&[u8], &[u8]), u32> = HashMap::new();
        let mut skipped: HashMap<&[u8], u32> = HashMap::new();
        for set in &order {
            let body = this.body(
                &sets[*set as usize],
                options,
                prefixes,
                &uses,
                &mut ids,
                &mut skipped,
            )?;
            this.bodies[*set as usize] = body;
        }
        let mut skipped: Vec<_> = skipped.into_iter().collect();
        skipped.sort_unstable();
        for (name, _) in skipped {
            warnings.push(format!(
                "attribute {}: left out, EROFS has no place for its name or value",
                lossy(name)
            ));
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
        skipped: &mut HashMap<&'a [u8], u32>,
    ) -> Result<Vec<u8>> {
        let (mut filter, mut shared, mut inline) = (0, Vec::new(), Vec::new());
        for (name, value) in &**set {
            let stored = split(name, prefixes)
                .filter(|s| s.name.len() <= xattr::NAME_MAX && value.len() <= 0xFFFF);
            let Some(stored) = stored else {
                *skipped.entry(name).or_default() += 1;
                continue;
            };
            filter |= stored.filter;
            let entry = Entry {
                index: stored.index,
                name: stored.name,
                value,
            };
            if uses[&(&**name, &**value)] > options.xattr_share && shared.len() < 255 {
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
        let filter = if options.xattr_filter { !filter } else { 0 };
        let mut body = Vec::new();
        xattr::encode_body(filter, &shared, &inline, &mut body);
        if xattr::icount(body.len()).is_none() {
            return Err(Error::limit(
                "attributes",
                format_args!("{} bytes behind one inode, at most 262148", body.len()),
            ));
        }
        Ok(body)
    }
}

/// The table of long prefixes.
pub(crate) fn prefix_table(prefixes: &[LongPrefix]) -> Vec<u8> {
    let mut out = Vec::new();
    for p in prefixes {
        p.encode(&mut out);
    }
    out
}
