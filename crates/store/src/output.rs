//! Where a finished image goes.

#![allow(missing_docs)]
pub enum Target {}
pub struct Output {}
