//! Branches of a volume in a directory of zone files. Tests named T3-NN cover the trap of that number.

#[path = "../branch_fixture/mod.rs"]
mod branch_fixture;
mod changes;
mod damage;
mod flattened;
mod forks;
mod mounted;
mod power_cut;
mod random;
mod release;
mod space;

use branch_fixture::{CALLER, NOW};
use std::path::Path;
use tuff_iplfs::{Errno, Error, Nid, Volume, flatten_branch, mode};

fn flatten(path: &Path, branch: &str) -> Result<Option<u64>, Error> {
    flatten_branch(path, branch, &mut |_, _| {})
}

/// Writes a new file, or removes what a full volume left of it. Returns whether it was accepted.
fn accepts(v: &mut Volume, name: &str, bytes: &[u8]) -> bool {
    let done = match v.create(Nid::ROOT, name.as_bytes(), mode::FILE | 0o644, 0, &CALLER) {
        Ok(made) => v.write(made.ino, 0, bytes, NOW),
        Err(e) => Err(e),
    };
    match done {
        Ok(n) => {
            assert_eq!(n, bytes.len());
            true
        }
        Err(Error::Posix(Errno::NoSpace)) => {
            let _ = v.unlink(Nid::ROOT, name.as_bytes(), &CALLER);
            false
        }
        Err(e) => panic!("{e}"),
    }
}
