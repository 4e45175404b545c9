//! SipHash-2-4, the keyed hash that places directory entries. Without the key, colliding names cannot be constructed.

use siphasher::sip::SipHasher24;

/// Computes SipHash-2-4 of `data` under `key`.
pub(crate) fn siphash(key: &[u8; 16], data: &[u8]) -> u64 {
    SipHasher24::new_with_key(key).hash(data)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Vectors of the paper's reference implementation: bytes 0, 1, 2, ... of length 0 to 8, then 15.
    #[test]
    fn hashes_equal_the_published_vectors() {
        const VECTORS: [(u8, u64); 10] = [
            (0, 0x726f_db47_dd0e_0e31),
            (1, 0x74f8_39c5_93dc_67fd),
            (2, 0x0d6c_8009_d9a9_4f5a),
            (3, 0x8567_6696_d7fb_7e2d),
            (4, 0xcf27_94e0_2771_87b7),
            (5, 0x1876_5564_cd99_a68d),
            (6, 0xcbc9_466e_58fe_e3ce),
            (7, 0xab02_00f5_8b01_d137),
            (8, 0x93f5_f579_9a93_2462),
            (15, 0xa129_ca61_49be_45e5),
        ];
        let key: [u8; 16] = std::array::from_fn(|i| i as u8);
        for (len, expected) in VECTORS {
            let data: Vec<u8> = (0..len).collect();
            assert_eq!(siphash(&key, &data), expected, "length {len}");
        }
    }
}
