//! The verbs.

pub(crate) mod campaign;
pub(crate) mod corpus;
pub(crate) mod cuts;
pub(crate) mod experiment;
pub(crate) mod fio;
pub(crate) mod how;
pub(crate) mod inside;
pub(crate) mod one;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod sample;
pub(crate) mod serve;
pub(crate) mod soak;
pub(crate) mod start;
pub(crate) mod volumes;
