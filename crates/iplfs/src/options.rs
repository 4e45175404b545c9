//! Options of formatting and mounting a volume.

use crate::disk::address::Geometry;
use crate::disk::inode::Time;

/// Identity and time of an operation. Time is an argument, so that the same calls produce the same bytes.
#[derive(Clone, Copy, Debug, Default)]
pub struct Caller {
    /// Current time, which becomes the timestamps.
    pub now: Time,
    /// User that performs the operation.
    pub uid: u32,
    /// Group that performs the operation.
    pub gid: u32,
}

/// Options of a new volume.
#[derive(Clone, Debug)]
pub struct FormatOptions {
    /// Identity of the volume. The caller provides a random one.
    pub uuid: [u8; 16],
    /// Key of the directory hash. It protects against chosen collisions only while it is secret.
    pub hash_key: [u8; 16],
    /// Division of the address space.
    pub geometry: Geometry,
    /// Maximum number of blocks that the volume takes on its device.
    pub quota_blocks: u64,
    /// Part of the quota that only deletes and checkpoints may use.
    pub reserve_blocks: u64,
    /// Label, at most 64 bytes.
    pub label: String,
    /// Owner of the root directory, and the current time.
    pub caller: Caller,
}

impl FormatOptions {
    /// Returns the default options of a volume of `quota_blocks` blocks.
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

/// Policy for issuing discards to the device.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum DiscardMode {
    /// Issue all discards as soon as the rules allow.
    Eager,
    /// Leave discards to the caller, except where a drain needs the space.
    Deferred,
    /// Issue none: only a trim reclaims space.
    Never,
}

/// Options of a mount.
#[derive(Clone, Debug)]
pub struct MountOptions {
    /// Write nothing, not even the result of a recovery.
    pub read_only: bool,
    /// If the newest checkpoint is damaged, use the one before it. Later changes are lost.
    pub fallback: bool,
    /// Policy for issuing discards to the device.
    pub discard: DiscardMode,
    /// Maximum distance of a log head from its checkpoint. Unit: blocks.
    pub window_blocks: u64,
    /// Number of dirty pages that forces a checkpoint.
    pub dirty_pages_max: u64,
    /// Number of dirty pages from which on pages are appended to their logs without a checkpoint, so that the host
    /// can start writing.
    pub write_behind_pages: u64,
    /// Number of dirty nodes that forces a checkpoint.
    pub dirty_nodes_max: u64,
    /// Maximum number of journal entries in the pack. Beyond it the tree of the node address table is written.
    pub journal_max: usize,
    /// Maximum number of metadata log blocks for the part of a checkpoint that does not fit its pack.
    pub overflow_blocks_max: u64,
    /// Maximum number of nodes that fsyncs leave to roll-forward between two checkpoints.
    pub roll_forward_max: u64,
    /// Number of blocks that the device prepares for future fsyncs, 0 for none. They take space on the host until
    /// they are used, or until the volume is drained or unmounted.
    pub prepare_blocks: u64,
    /// Maximum number of cached nodes.
    pub node_cache_max: usize,
    /// Maximum number of cached directory blocks.
    pub page_cache_max: u64,
    /// Rule that the volume breaks, which destroys data. Tests use it to prove that they detect the violation.
    #[cfg(feature = "broken-rules")]
    #[doc(hidden)]
    pub broken_rule: Option<DiscardRule>,
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
            #[cfg(feature = "broken-rules")]
            broken_rule: None,
        }
    }
}

/// Discard rule of docs/design/discard.md, which numbers them in this order.
#[doc(hidden)]
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DiscardRule {
    DurableCheckpoint,
    OlderCheckpoint,
    LogUntilFlush,
    NoReuse,
    Readers,
    EmptyZones,
    WholeGranules,
    LogOverflow,
    Trim,
}

impl DiscardRule {
    /// All rules.
    pub const ALL: [Self; 9] = [
        Self::DurableCheckpoint,
        Self::OlderCheckpoint,
        Self::LogUntilFlush,
        Self::NoReuse,
        Self::Readers,
        Self::EmptyZones,
        Self::WholeGranules,
        Self::LogOverflow,
        Self::Trim,
    ];
}

impl MountOptions {
    /// Returns true if the rule is in force.
    #[cfg(feature = "broken-rules")]
    pub(crate) fn holds(&self, rule: DiscardRule) -> bool {
        self.broken_rule != Some(rule)
    }

    /// Returns true: every rule is in force.
    #[cfg(not(feature = "broken-rules"))]
    pub(crate) fn holds(&self, _: DiscardRule) -> bool {
        true
    }
}
