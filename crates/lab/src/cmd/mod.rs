//! Commands of `tuff-lab` and their options.

pub(crate) mod agent;
pub(crate) mod backup;
pub(crate) mod corpus;
pub(crate) mod experiment;
pub(crate) mod fio;
pub(crate) mod guest;
pub(crate) mod inside;
pub(crate) mod one;
pub(crate) mod options;
pub(crate) mod page;
pub(crate) mod paper;
pub(crate) mod paper_erofs;
pub(crate) mod power_loss;
pub(crate) mod record;
pub(crate) mod report;
pub(crate) mod run;
pub(crate) mod sample;
pub(crate) mod serve;
pub(crate) mod soak;
pub(crate) mod start;
pub(crate) mod stress;
pub(crate) mod volumes;
