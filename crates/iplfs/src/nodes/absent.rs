//! Memory of a search that found nothing.

use crate::disk::address::Nid;

/// Name that the last search of a directory of blocks did not find. Only an insertion makes it wrong.
#[derive(Default)]
pub(crate) struct AbsentName {
    dir: Option<Nid>,
    name: Vec<u8>,
}

impl AbsentName {
    pub(crate) fn is(&self, dir: Nid, name: &[u8]) -> bool {
        self.dir == Some(dir) && self.name == name
    }

    pub(crate) fn set(&mut self, dir: Nid, name: &[u8]) {
        self.dir = Some(dir);
        self.name.clear();
        self.name.extend_from_slice(name);
    }
}
