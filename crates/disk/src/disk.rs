//! Partitions of a disk: the image, its hash tree, and the signature of its root hash.

use crate::discoverable::{Architecture, Content, Purpose, Role};
use crate::error::{Error, Result};
use crate::gpt::{Partition, Table, TableOnDisk};
use crate::record::{RECORD_MAX, SignatureRecord};
use std::sync::Arc;
use tuff_store::{ReadAt, Window};
use tuff_verity::{Root, stated_root};

/// Disk with a partition for a root or `/usr` tree.
pub struct Disk {
    store: Arc<dyn ReadAt>,
    table: Table,
    damage: Vec<String>,
    architecture: Architecture,
    role: Role,
    data: Partition,
    tree: Option<Partition>,
    signature: Option<Partition>,
}

impl Disk {
    /// Opens a disk: the first root partition of the table, or the first one of `/usr`, and what belongs to it. `None` for a
    /// store without a partition table.
    ///
    /// # Errors
    /// `Corrupt` for a damaged table, `NoRoot` for a table without such a partition, and errors of reading.
    pub fn open(store: Arc<dyn ReadAt>) -> Result<Option<Self>> {
        let Some(TableOnDisk { table, damage }) = Table::read(&*store)? else {
            return Ok(None);
        };
        let data_of = |role: Role| {
            table.partitions.iter().find_map(|partition| {
                let purpose = Purpose::from_type(partition.kind)?;
                let is_data = purpose.role == role && purpose.content == Content::Data;
                is_data.then(|| (partition.clone(), purpose))
            })
        };
        let found = data_of(Role::Root).or_else(|| data_of(Role::Usr));
        let (data, purpose) = found.ok_or(Error::NoRoot)?;
        let mut disk = Self {
            store,
            damage,
            architecture: purpose.architecture,
            role: purpose.role,
            data,
            tree: None,
            signature: None,
            table,
        };
        let trees = disk.partitions_with(Content::HashTree);
        let signatures = disk.partitions_with(Content::Signature);
        // A disk with several versions has several trees. The GUIDs of partitions that belong together form the root hash.
        let belongs = |tree: &&Partition| {
            let (data, hashes) = (disk.part(&disk.data), disk.part(tree));
            let root = stated_root(&data, &hashes, 0).ok();
            root == Some(joined(&disk.data, tree))
        };
        let tree = chosen(&trees, belongs);
        let root = tree.as_ref().map(|tree| joined(&disk.data, tree));
        let signs = |signature: &&Partition| {
            let record = disk.record_in(signature).ok();
            record.is_some_and(|record| Some(record.root) == root)
        };
        let signature = chosen(&signatures, signs);
        (disk.tree, disk.signature) = (tree, signature);
        Ok(Some(disk))
    }

    fn partitions_with(&self, content: Content) -> Vec<Partition> {
        let kind = self.architecture.partition_type(self.role, content);
        let all = self.table.partitions.iter();
        all.filter(|p| p.kind == kind).cloned().collect()
    }

    fn part(&self, partition: &Partition) -> Window<Arc<dyn ReadAt>> {
        let range = &partition.range;
        Window::part(
            Arc::clone(&self.store),
            range.start,
            range.end - range.start,
        )
    }

    fn record_in(&self, partition: &Partition) -> Result<SignatureRecord> {
        let store = self.part(partition);
        if store.size() > RECORD_MAX {
            let what = "the signature partition is longer than 4 MiB";
            return Err(Error::Corrupt(what.to_owned()));
        }
        // Fits: at most `RECORD_MAX`.
        let mut bytes = vec![0; store.size() as usize];
        store.read_exact_at(&mut bytes, 0)?;
        SignatureRecord::decode(&bytes)
    }

    /// Partition table of the disk.
    pub fn table(&self) -> &Table {
        &self.table
    }

    /// Damage of one of the two copies of the table.
    pub fn damage(&self) -> &[String] {
        &self.damage
    }

    /// Partition of the image.
    pub fn data(&self) -> &Partition {
        &self.data
    }

    /// Partition of the hash tree.
    pub fn tree(&self) -> Option<&Partition> {
        self.tree.as_ref()
    }

    /// Partition of the signature.
    pub fn signature(&self) -> Option<&Partition> {
        self.signature.as_ref()
    }

    /// Store of the image.
    pub fn data_store(&self) -> Arc<dyn ReadAt> {
        Arc::new(self.part(&self.data))
    }

    /// Store of the hash tree, with the header at its start.
    pub fn tree_store(&self) -> Option<Arc<dyn ReadAt>> {
        let tree = self.tree.as_ref()?;
        Some(Arc::new(self.part(tree)))
    }

    /// Root hash that the GUIDs of the partitions state. `None` without a hash tree.
    pub fn root(&self) -> Option<Root> {
        self.tree.as_ref().map(|tree| joined(&self.data, tree))
    }

    /// Content of the signature partition. `None` without one.
    ///
    /// # Errors
    /// `Corrupt` for other content than a signature, and errors of reading.
    pub fn record(&self) -> Result<Option<SignatureRecord>> {
        let record = self.signature.as_ref().map(|p| self.record_in(p));
        record.transpose()
    }
}

/// First of the partitions that `fits`, or the first of all. A single one is not looked at.
fn chosen(partitions: &[Partition], fits: impl Fn(&&Partition) -> bool) -> Option<Partition> {
    match partitions {
        [only] => Some(only.clone()),
        all => all.iter().find(fits).or(all.first()).cloned(),
    }
}

/// Root hash from the GUIDs of data and tree, which are its halves.
fn joined(data: &Partition, tree: &Partition) -> Root {
    let mut root = Root::default();
    root[..16].copy_from_slice(&data.id.0);
    root[16..].copy_from_slice(&tree.id.0);
    root
}
