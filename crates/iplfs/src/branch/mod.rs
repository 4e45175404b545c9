//! Branches of a volume in a directory of zone files: forks of mounted and unmounted volumes, and changes of the set.

mod flatten;
mod fork;
mod set;
mod snapshot;

pub use flatten::flatten_branch;
pub use fork::Fork;
pub use set::{
    BranchInfo, branches, delete_branch, fork, forks_left, promote_branch, rollback_branch,
};
pub use snapshot::{is_snapshot_mounted, mount_snapshot};
