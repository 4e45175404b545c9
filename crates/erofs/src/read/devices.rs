//! Device tables: which image belongs into which slot.

use super::fetch::{TAG, tagged};
use crate::{Error, Place, Result};
use tuff_format::BlockBits;
use tuff_format::device::{SLOT_LEN, Slot};
use tuff_format::features::incompat;
use tuff_format::superblock::{self, Superblock};
use tuff_store::ReadAt;

/// Device table of an image that may not be open.
#[derive(Clone, Debug)]
pub struct DeviceTable {
    /// Slots in order.
    pub slots: Vec<Slot>,
    /// Block size of the image.
    pub block_bits: BlockBits,
}

impl DeviceTable {
    /// Reads the device table of the image in `store`. It is empty for an image without extra devices.
    ///
    /// # Errors
    /// `Corrupt` or `Unsupported` for a superblock or a table that cannot be decoded. `Io` if the store fails.
    pub fn read(store: &dyn ReadAt) -> Result<Self> {
        let head = read_some(store, superblock::OFFSET, 4096 - 1024)?;
        let sb =
            Superblock::decode(&head).map_err(|e| Error::format("superblock (byte 1024)", e))?;
        Ok(Self {
            slots: read_slots(store, &sb)?,
            block_bits: sb.block_bits,
        })
    }

    /// Returns true if the data of all slots follows the image in a store of `size` bytes.
    pub fn is_inside(&self, size: u64) -> bool {
        self.slots.iter().all(|slot| {
            let start = slot.uniaddr.position(self.block_bits);
            let len = self.block_bits.len_of(slot.blocks);
            let end = start
                .zip(len)
                .and_then(|(start, len)| start.checked_add(len.0));
            slot.uniaddr.0 > 0 && end.is_some_and(|end| end <= size)
        })
    }
}

/// Returns the tag that a slot for the image in `store` has. `None` if there is no image.
pub fn tag_of(store: &dyn ReadAt) -> Option<[u8; 64]> {
    let head = read_some(store, superblock::OFFSET, 4096 - 1024).ok()?;
    let sb = Superblock::decode(&head).ok()?;
    Some(device_tag(&sb.uuid))
}

/// Returns true if the tag of a slot names an image by its UUID.
pub fn names_image(slot: &Slot) -> bool {
    slot.tag.starts_with(TAG)
}

/// Assigns devices to slots: first each slot that names an image takes the first device with its tag that no other slot has,
/// then the remaining devices go to the remaining slots, in order. Returns a device for each slot, as far as there are
/// devices, and those that no slot takes. `tag` returns the tag of the image that a device holds.
pub fn assign<D>(
    slots: &[Slot],
    devices: Vec<D>,
    tag: impl Fn(&D) -> Option<[u8; 64]>,
) -> (Vec<Option<D>>, Vec<D>) {
    let mut rest: Vec<(Option<[u8; 64]>, D)> = devices
        .into_iter()
        .map(|device| (tag(&device), device))
        .collect();
    let mut found: Vec<Option<D>> = Vec::with_capacity(slots.len());
    for slot in slots {
        let requested = |(tag, _): &(Option<[u8; 64]>, D)| tag.as_ref() == Some(&slot.tag);
        let at = rest
            .iter()
            .position(requested)
            .filter(|_| names_image(slot));
        found.push(at.map(|at| rest.remove(at).1));
    }
    let mut rest = rest.into_iter().map(|(_, device)| device);
    for place in &mut found {
        if place.is_none() {
            *place = rest.next();
        }
    }
    (found, rest.collect())
}

/// Returns the device tag of a device that holds the image with this UUID: `erofs:` and the UUID in hexadecimal.
pub fn device_tag(uuid: &[u8; 16]) -> [u8; 64] {
    let mut tag = [0; 64];
    let hex = uuid.iter().flat_map(|b| [b >> 4, b & 15]);
    let hex = hex.map(|digit| b"0123456789abcdef"[usize::from(digit)]);
    let text = TAG.iter().copied().chain(hex);
    tag.iter_mut().zip(text).for_each(|(to, byte)| *to = byte);
    tag
}

/// Checks that a device holds the image named by the tag of its slot. Slots with other tags pass.
///
/// # Errors
/// `Usage` if the device holds another image or none.
pub(super) fn is_named(slot: &Slot, device: &dyn ReadAt, n: usize) -> Result<()> {
    if !slot.tag.starts_with(TAG) {
        return Ok(());
    }
    let head = read_some(device, superblock::OFFSET, 4096 - 1024)
        .map_err(|e| e.within(format_args!("device {n}")))?;
    let found = Superblock::decode(&head).map(|sb| device_tag(&sb.uuid));
    if found.as_ref().ok() == Some(&slot.tag) {
        return Ok(());
    }
    let found = found.map_or_else(
        |_| "no image".to_owned(),
        |tag| format!("UUID {}", tagged(&tag)),
    );
    Err(Error::usage(format_args!(
        "device {n} holds {found}, expected the image with UUID {}",
        tagged(&slot.tag)
    )))
}

/// Reads up to `len` bytes at `pos`; fewer if the store ends first.
pub(super) fn read_some(store: &dyn ReadAt, pos: u64, len: usize) -> Result<Vec<u8>> {
    let left = usize::try_from(store.size().saturating_sub(pos)).unwrap_or(usize::MAX);
    let mut buf = vec![0; len.min(left)];
    store
        .read_exact_at(&mut buf, pos)
        .map_err(|e| Error::read(Place::byte(pos), buf.len() as u64, e))?;
    Ok(buf)
}

/// Reads the slots of the device table of the image in `store`.
pub(super) fn read_slots(store: &dyn ReadAt, sb: &Superblock) -> Result<Vec<Slot>> {
    if !sb.has(incompat::DEVICE_TABLE) || sb.extra_devices == 0 {
        return Ok(Vec::new());
    }
    let pos = u64::from(sb.devt_slotoff) * SLOT_LEN as u64;
    let len = usize::from(sb.extra_devices) * SLOT_LEN;
    let place = format!("device table (byte {pos:#x})");
    if pos + len as u64 > store.size() {
        return Err(Error::corrupt(
            place,
            format_args!("{len} bytes reach past the end, byte {}", store.size()),
        ));
    }
    read_some(store, pos, len)?
        .chunks_exact(SLOT_LEN)
        .map(|slot| Slot::decode(slot, sb.has(incompat::BIT48)))
        .collect::<Result<_, _>>()
        .map_err(|e| Error::format(place, e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use tuff_format::BlockAddr;

    fn slot(tag: [u8; 64]) -> Slot {
        Slot {
            tag,
            blocks: 1,
            uniaddr: BlockAddr(1),
        }
    }

    #[test]
    fn devices_with_uuids_are_assigned_in_any_order() {
        let [a, b] = [1, 2].map(|n| device_tag(&[n; 16]));
        let slots = [slot(a), slot([0; 64]), slot(b)];
        let tags = |device: &&str| match *device {
            "a" => Some(a),
            "b" => Some(b),
            _ => None,
        };
        let given = |devices: &[&'static str]| assign(&slots, devices.to_vec(), tags);
        let expected = vec![Some("a"), Some("blob"), Some("b")];
        for order in [["a", "blob", "b"], ["b", "a", "blob"], ["blob", "b", "a"]] {
            assert_eq!(given(&order), (expected.clone(), vec![]));
        }
        assert_eq!(given(&["b"]), (vec![None, None, Some("b")], vec![]));
        // A wrong device takes the place that is left, where it is reported.
        let (found, rest) = given(&["b", "blob", "x", "y"]);
        assert_eq!(
            (found, rest),
            (vec![Some("blob"), Some("x"), Some("b")], vec!["y"])
        );
        // Equal images fill equal slots.
        let (found, _) = assign(&[slot(a), slot(a)], vec!["a", "a"], tags);
        assert_eq!(found, [Some("a"), Some("a")]);
    }
}
