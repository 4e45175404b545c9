//! Logins and cache of the verbs that read and write URLs. Files with logins are looked for and never opened.

use super::fact::Fact;
use super::host::Host;

#[cfg(not(feature = "remote"))]
pub(super) fn facts(_: &Host) -> Vec<Fact> {
    let fact = Fact::about("urls", "images behind URLs, tuff push, tuff pull");
    vec![fact.missing(
        "this tuff was built without the cargo feature 'remote'",
        "build it with default features",
    )]
}

#[cfg(feature = "remote")]
pub(super) fn facts(_: &Host) -> Vec<Fact> {
    vec![
        with_clients::registry(),
        with_clients::bucket(),
        with_clients::cache(),
    ]
}

#[cfg(feature = "remote")]
mod with_clients {
    use super::*;
    use crate::units::size;
    use std::path::Path;

    /// Space below which the cache is called small. Unit: bytes.
    const SPACE_MIN: u64 = 1 << 30;

    pub(super) fn registry() -> Fact {
        let fact = Fact::about(
            "registry-login",
            "private images of registries (oci://), tuff push",
        );
        let files = tuff_remote::registry_login_files();
        match files.iter().find(|path| path.is_file()) {
            Some(path) => fact.ok(format!("{} exists", path.display())),
            None => fact.limited(
                "none, so registries are read without a login",
                "docker login, podman login, or a file named by REGISTRY_AUTH_FILE",
            ),
        }
    }

    pub(super) fn bucket() -> Fact {
        let fact = Fact::about("bucket-login", "private buckets (s3://), tuff push");
        match tuff_remote::bucket_login() {
            Some(found) => fact.ok(found),
            None => fact.limited(
                "none",
                "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or AWS_SKIP_SIGNATURE=true for public buckets",
            ),
        }
    }

    pub(super) fn cache() -> Fact {
        let fact = Fact::about("cache", "parts of images behind URLs");
        let Some(dir) = tuff_remote::default_cache() else {
            return fact.missing(
                "there is no home directory",
                "give one with --cache-dir DIR",
            );
        };
        let name = dir.display();
        // The directory appears with its first image.
        let existing = dir.ancestors().find(|dir| dir.exists());
        let existing = existing.unwrap_or(Path::new("/"));
        if !existing.is_dir() {
            let found = format!("{} is not a directory", existing.display());
            return fact.missing(
                found,
                "remove it, or give another directory with --cache-dir DIR",
            );
        }
        let writes = rustix::fs::access(existing, rustix::fs::Access::WRITE_OK);
        let space = rustix::fs::statvfs(existing).map(|s| s.f_bavail.saturating_mul(s.f_frsize));
        match (writes, space) {
            (Err(e), _) | (_, Err(e)) => fact.missing(
                format!("{name}: {e}"),
                "give a directory that can be written with --cache-dir DIR",
            ),
            (Ok(()), Ok(space)) if space < SPACE_MIN => fact.limited(
                format!("{} free in {name}", size(space)),
                "free space, or give a larger disk with --cache-dir DIR",
            ),
            (Ok(()), Ok(space)) => fact.ok(format!("{} free in {name}", size(space))),
        }
    }
}
