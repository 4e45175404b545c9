//! Reads ranges, and compares them with their names.

use crate::digest::Digest;
use crate::encode::decode;
use crate::store::Store;
use tuff_codec::Decoder;
use tuff_mkfs::{Error, Place, Result};

/// Decoder with the group that it read last, whose members are often read one after the other.
#[derive(Default)]
pub(crate) struct RangeReader {
    decoder: Decoder,
    /// Pack and block of a group, and its content.
    group: Option<((u16, u32), Vec<u8>)>,
    /// Bytes that come from a bucket are kept on this host.
    keeps: bool,
}

impl RangeReader {
    /// Reader of trees: they are read again by each run.
    pub(crate) fn of_trees() -> Self {
        Self {
            keeps: true,
            ..Self::default()
        }
    }
}

impl Store {
    /// Reads a range and compares it with its name.
    pub(crate) fn read(
        &self,
        reader: &mut RangeReader,
        digest: Digest,
        alone: bool,
    ) -> Result<Vec<u8>> {
        let read = self.read_once(reader, digest, alone);
        if self.objects.is_none() || !matches!(read, Err(Error::Corrupt(_))) {
            return read;
        }
        // Bytes that this host has kept may be damaged, or of another directory.
        let found = self.find(digest, alone)?;
        let (start, len) = found.place();
        match self.packs[usize::from(found.pack)].forget(start, len) {
            true => {
                reader.group = None;
                self.read_once(reader, digest, alone)
            }
            false => read,
        }
    }

    fn read_once(&self, reader: &mut RangeReader, digest: Digest, alone: bool) -> Result<Vec<u8>> {
        let found = self.find(digest, alone)?;
        let pack = &self.packs[usize::from(found.pack)];
        let named = |e: Error| e.within(Place::file(pack.path.display()));
        let damaged = || {
            let what = format_args!("the range {digest} is damaged");
            named(Error::corrupt(Place::image(), what))
        };
        let key = (found.pack, found.block);
        let is_cached = matches!(&reader.group, Some((group, _)) if *group == key);
        if !is_cached || found.part.is_none() {
            let (start, len) = found.place();
            let bytes = pack.read(start, len)?;
            if reader.keeps {
                pack.keep(&bytes, start);
            }
            let mut content = Vec::new();
            let algorithm = self.compression.algorithm();
            let clusters = &found.clusters;
            let decoded = decode(
                &mut reader.decoder,
                algorithm,
                clusters,
                &bytes,
                &mut content,
            );
            decoded.map_err(|_| damaged())?;
            if found.part.is_none() {
                let is_same = Digest::of_bytes(&content) == digest;
                return if is_same { Ok(content) } else { Err(damaged()) };
            }
            reader.group = Some((key, content));
        }
        let group = reader.group.as_ref().map_or(&[][..], |(_, group)| group);
        let (offset, len) = found.part.unwrap_or_default();
        let end = (offset as usize).saturating_add(len as usize);
        let content = group.get(offset as usize..end).unwrap_or_default();
        let is_same = Digest::of_bytes(content) == digest;
        if is_same {
            Ok(content.to_vec())
        } else {
            Err(damaged())
        }
    }
}
