//! Operations on files and directories: the interface of a virtual filesystem switch.

pub mod acl;
pub(crate) mod attr;
pub(crate) mod dir;
pub(crate) mod file;
mod map;
pub(crate) mod namei;
mod quota;
