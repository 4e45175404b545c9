//! The header that is checked in.

use std::path::Path;

/// Sources in the order of the header.
const FILES: [&str; 9] = [
    "lib.rs",
    "error.rs",
    "open.rs",
    "image.rs",
    "entries.rs",
    "ranges.rs",
    "tools.rs",
    "builder.rs",
    "allocation.rs",
];

#[test]
fn the_header_is_the_one_that_cbindgen_generates() {
    let dir = Path::new(env!("CARGO_MANIFEST_DIR"));
    let config = cbindgen::Config::from_file(dir.join("cbindgen.toml")).unwrap();
    let mut bindings = cbindgen::Builder::new().with_config(config);
    for file in FILES {
        bindings = bindings.with_src(dir.join("src").join(file));
    }
    let mut text = Vec::new();
    bindings.generate().unwrap().write(&mut text);
    let header = dir.join("include/tuff.h");
    if std::env::var_os("TUFF_WRITE_DOCS").is_some() {
        std::fs::write(&header, &text).unwrap();
    }
    let found = std::fs::read(&header).unwrap_or_default();
    assert!(
        found == text,
        "{} differs; run TUFF_WRITE_DOCS=1 cargo test -p tuff-capi --test header",
        header.display()
    );
}
