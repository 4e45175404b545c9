//! What the caller chooses when a volume is made or mounted.

use crate::disk::address::Geometry;
use crate::disk::inode::Time;

/// Who does something, and when. Time is an argument so that the same calls give the same bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caller {
    /// The present.
    pub now: Time,
    /// User.
    pub uid: u32,
    /// Group.
    pub gid: u32,
}

/// How to make a volume.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Identity; must be unique, the caller has the randomness.
    pub uuid: [u8; 16],
    /// Key of the directory hash; must be secret to be of use.
    pub hash_key: [u8; 16],
    /// How addresses are cut.
    pub geometry: Geometry,
    /// Blocks that the volume may take on its device.
    pub quota_blocks: u64,
    /// Part of the quota that only deletes and checkpoints may use.
    pub reserve_blocks: u64,
    /// Free text, at most 64 bytes.
    pub label: String,
    /// Owner of the root directory, and the present.
    pub caller: Caller,
}

impl FormatOptions {
    /// Ordinary choices for a volume of `quota_blocks`.
    pub fn new(uuid: [u8; 16], hash_key: [u8; 16], quota_blocks: u64) -> Self {
        Self {
            uuid,
            hash_key,
            geometry: Geometry {
                area_bits: 48,
                section_bits: 18,
                zone_bits: 18,
                pack_blocks: 256,
            },
            quota_blocks,
            reserve_blocks: (quota_blocks / 100).max(8192).min(quota_blocks / 4),
            label: String::new(),
            caller: Caller::default(),
        }
    }
}

/// When discards go to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiscardMode {
    /// All of them, as soon as the rules allow, whatever else the device is doing.
    Eager,
    /// At most this many commands after each checkpoint.
    Polite(usize),
    /// Never: space comes back by `trim` only.
    Never,
}

/// How to mount a volume.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Write nothing, not even what a recovery would.
    pub read_only: bool,
    /// If the newest checkpoint is damaged, use the one before it. What was written since is lost.
    pub fallback: bool,
    /// When discards go to the device.
    pub discard: DiscardMode,
    /// How far a log may run ahead of its checkpoint. Unit: blocks.
    pub window_blocks: u64,
    /// Dirty data pages that force a checkpoint. Unit: pages of one block.
    pub dirty_pages_max: u64,
    /// Dirty data pages from which on they are appended to their logs, without a checkpoint: so that the host can begin to write. Unit: pages of one block.
    pub write_behind_pages: u64,
    /// Dirty nodes that force a checkpoint.
    pub dirty_nodes_max: u64,
    /// Changes of the node address table kept in the pack before the tree is written.
    pub journal_max: usize,
    /// Blocks of the metadata log that one checkpoint may use for what does not fit its pack.
    pub overflow_blocks_max: u64,
    /// Nodes that an fsync may leave to roll-forward before it makes a checkpoint instead.
    pub roll_forward_max: u64,
    /// Blocks that the device is asked to make ready for fsyncs to come, 0 for none. They are taken on the host until they are used, or until the volume is
    /// drained or unmounted.
    pub prepare_blocks: u64,
    /// Nodes kept in memory.
    pub node_cache_max: usize,
    /// Directory blocks kept in memory.
    pub page_cache_max: u64,
    /// Which safety rules are in force. Anything but the default destroys data; it exists to prove that the tests notice.
    #[doc(hidden)]
    pub rules: Rules,
}

impl Default for MountOptions {
    fn default() -> Self {
        Self {
            read_only: false,
            fallback: false,
            discard: DiscardMode::Eager,
            window_blocks: 1 << 18,
            dirty_pages_max: 16384,
            write_behind_pages: u64::MAX,
            dirty_nodes_max: 8192,
            journal_max: 504,
            overflow_blocks_max: 1 << 14,
            roll_forward_max: 1 << 15,
            prepare_blocks: 0,
            node_cache_max: 32768,
            page_cache_max: 16384,
            rules: Rules::default(),
        }
    }
}

/// The nine discard rules of docs/design/discard.md, each of which a test can switch off.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Rules {
    broken: u16,
}

impl Rules {
    /// All rules but one.
    pub fn without(rule: u8) -> Self {
        Self { broken: 1 << rule }
    }

    pub(crate) fn hold(self, rule: u8) -> bool {
        self.broken >> rule & 1 == 0
    }
}
