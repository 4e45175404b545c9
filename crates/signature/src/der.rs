//! Distinguished encoding rules of ASN.1, as far as signatures need them.

/// Tags of the values that signatures consist of.
pub(crate) mod tag {
    pub(crate) const INTEGER: u8 = 0x02;
    pub(crate) const OCTETS: u8 = 0x04;
    pub(crate) const NULL: u8 = 0x05;
    pub(crate) const OID: u8 = 0x06;
    pub(crate) const SEQUENCE: u8 = 0x30;
    pub(crate) const SET: u8 = 0x31;
    /// First field of a structure that has its own tag.
    pub(crate) const CONTEXT_0: u8 = 0xa0;
    /// Second field of a structure that has its own tag.
    pub(crate) const CONTEXT_1: u8 = 0xa1;
}

/// Encodes a value whose content is the concatenation of `parts`.
pub(crate) fn value(tag: u8, parts: &[&[u8]]) -> Vec<u8> {
    let content = parts.concat();
    let mut out = vec![tag];
    let len = content.len();
    match u8::try_from(len) {
        Ok(len) if len < 0x80 => out.push(len),
        _ => {
            let bytes = len.to_be_bytes();
            let skip = bytes.iter().take_while(|byte| **byte == 0).count();
            out.push(0x80 | (bytes.len() - skip) as u8); // fits: at most 8
            out.extend_from_slice(&bytes[skip..]);
        }
    }
    out.extend_from_slice(&content);
    out
}

/// Values that follow each other.
#[derive(Clone, Copy)]
pub(crate) struct Reader<'a>(pub(super) &'a [u8]);

impl<'a> Reader<'a> {
    /// Takes the next value: its tag and its content. `None` at the end, or if the value is malformed.
    pub(crate) fn next(&mut self) -> Option<(u8, &'a [u8])> {
        let (&tag, rest) = self.0.split_first()?;
        let (&first, mut rest) = rest.split_first()?;
        let len = match first {
            0..=0x7f => usize::from(first),
            0x81..=0x84 => {
                let (bytes, after) = rest.split_at_checked(usize::from(first & 0x7f))?;
                rest = after;
                bytes
                    .iter()
                    .fold(0, |len, byte| len << 8 | usize::from(*byte))
            }
            _ => return None,
        };
        let (content, rest) = rest.split_at_checked(len)?;
        self.0 = rest;
        Some((tag, content))
    }

    /// Takes the next value, which must have a tag.
    pub(crate) fn take(&mut self, requested: u8) -> Option<&'a [u8]> {
        let mut after = *self;
        let (tag, content) = after.next()?;
        (tag == requested).then(|| {
            *self = after;
            content
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_of_all_lengths_are_read_as_written() {
        for len in [0, 1, 127, 128, 255, 256, 70_000] {
            let content = vec![7; len];
            let encoded = value(tag::OCTETS, &[&content]);
            let mut reader = Reader(&encoded);
            assert_eq!(reader.take(tag::OCTETS), Some(&content[..]), "{len}");
            assert!(reader.next().is_none());
        }
        assert_eq!(value(tag::NULL, &[]), [5, 0]);
        assert_eq!(value(tag::OCTETS, &[&[0; 200]])[..3], [4, 0x81, 200]);
    }

    #[test]
    fn cut_values_are_no_values() {
        let encoded = value(tag::SEQUENCE, &[&[1; 300]]);
        for len in 0..encoded.len() {
            assert!(Reader(&encoded[..len]).next().is_none(), "{len}");
        }
        assert!(Reader(&[4, 0x80, 0, 0]).next().is_none());
        assert!(
            Reader(&[4, 0x88, 255, 255, 255, 255, 255, 255, 255, 255])
                .next()
                .is_none()
        );
        assert!(Reader(&encoded).take(tag::SET).is_none());
    }
}
