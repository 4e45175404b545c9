//! Remote images against a server in this process: every byte equals the local image, or there is an error.

mod ahead;
mod common;
mod credentials;
mod http;
mod poisoned;
mod process;
mod push;
mod registry;
mod s3;
mod shared;
mod signed;
mod stated;
mod tls;
mod verified;
