//! Nodes in memory: the node address table, cached nodes and pages, the shape of node trees.

pub(crate) mod absent;
pub(crate) mod cache;
pub(crate) mod nat;
pub(crate) mod pages;
pub(crate) mod tree;
