//! Operations on files and directories, as a virtual filesystem switch calls them.

pub mod acl;
pub(crate) mod attr;
pub(crate) mod dir;
pub(crate) mod file;
mod map;
pub(crate) mod namei;
mod quota;
