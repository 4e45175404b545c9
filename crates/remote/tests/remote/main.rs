//! Remote images against a server in this process: every byte equals the local image, or there is an error.

mod ahead;
mod broken_connections;
mod cold_mirror;
mod common;
mod credentials;
mod first_reads;
mod http;
mod overtaking;
mod poisoned;
mod process;
mod push;
mod registry;
mod s3;
mod second_start;
mod session;
mod shared;
mod shared_login;
mod signed;
mod stated;
mod streamed;
mod tls;
mod verified;
