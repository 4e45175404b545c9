//! ACLs in the text form of SCHILY.acl records. GNU tar restores ACLs (`--acls`) only from these records.
//!
//! ```text
//! u32 version (2) | u16 tag, u16 permissions, u32 id | ...        user::rw-,user:1000:rwx,group::r--,mask::rwx,other::r--
//! ```

/// Returns the text form of an ACL, given its binary xattr value. `None` if the value is not an ACL.
pub(super) fn words(value: &[u8]) -> Option<String> {
    let (version, entries) = value.split_first_chunk::<4>()?;
    let (entries, rest) = entries.as_chunks::<8>();
    if u32::from_le_bytes(*version) != 2 || !rest.is_empty() || entries.is_empty() {
        return None;
    }
    let mut out = Vec::new();
    for &[t0, t1, p0, p1, i0, i1, i2, i3] in entries {
        let (tag, id) = (
            u16::from_le_bytes([t0, t1]),
            u32::from_le_bytes([i0, i1, i2, i3]),
        );
        let (name, id) = match tag {
            0x01 => ("user", String::new()),
            0x02 => ("user", id.to_string()),
            0x04 => ("group", String::new()),
            0x08 => ("group", id.to_string()),
            0x10 => ("mask", String::new()),
            0x20 => ("other", String::new()),
            _ => return None,
        };
        let permissions = u16::from_le_bytes([p0, p1]);
        let letter = |bit: u16, letter: char| if permissions & bit != 0 { letter } else { '-' };
        let (r, w, x) = (letter(4, 'r'), letter(2, 'w'), letter(1, 'x'));
        out.push(format!("{name}:{id}:{r}{w}{x}"));
    }
    Some(out.join(","))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn acls_are_said_in_words() {
        let mut value = vec![2, 0, 0, 0];
        for (tag, permissions, id) in [
            (1u16, 6u16, u32::MAX),
            (2, 7, 1000),
            (4, 4, u32::MAX),
            (16, 7, u32::MAX),
            (32, 0, u32::MAX),
        ] {
            value.extend_from_slice(&tag.to_le_bytes());
            value.extend_from_slice(&permissions.to_le_bytes());
            value.extend_from_slice(&id.to_le_bytes());
        }
        let expected = "user::rw-,user:1000:rwx,group::r--,mask::rwx,other::---";
        assert_eq!(words(&value).as_deref(), Some(expected));
        assert_eq!(words(&value[..value.len() - 1]), None);
        assert_eq!(words(b""), None);
        value[0] = 3;
        assert_eq!(words(&value), None);
    }
}
