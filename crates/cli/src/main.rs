//! The `tuff` command.
fn main() {}
