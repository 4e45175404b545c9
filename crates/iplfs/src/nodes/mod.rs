//! Nodes in memory: the node address table, the shape of the node tree of a file, and cached pages.

pub(crate) mod cache;
pub(crate) mod nat;
pub(crate) mod pages;
pub(crate) mod tree;
