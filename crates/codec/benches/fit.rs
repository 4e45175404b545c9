//! How fast each encoder fills clusters, and how well.

fn main() {}
