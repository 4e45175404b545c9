//! An inode that decodes survives encoding, and has a type and a length.

#![no_main]

use libfuzzer_sys::fuzz_target;
use tuff_format::inode::Inode;

fuzz_target!(|data: &[u8]| {
    if let Ok(inode) = Inode::decode(data) {
        assert!(inode.len() <= data.len() && inode.size >> 63 == 0);
        let mut out = Vec::new();
        inode.encode(&mut out);
        assert_eq!(out.len(), inode.len());
        assert_eq!(Inode::decode(&out), Ok(inode));
        let _ = (inode.xattr_len(), inode.file_type(), inode.dot_omitted());
    }
});
