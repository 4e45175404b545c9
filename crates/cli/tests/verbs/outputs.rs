//! Outputs of verbs other than `build`: what they may replace.

use crate::common::{Place, code, stderr};
use std::fs;

#[test]
fn outputs_replace_only_their_own_kind_unless_forced() {
    let place = Place::with_image("outputs");
    fs::write(place.path("README"), "Read this before all else.\n").unwrap();
    fs::write(place.path("p"), "tuff profile 1\n").unwrap();
    for (args, forced) in [
        (&["tar", "i", "README"][..], true),
        (&["verity", "add", "-q", "--into=README", "i"], true),
        (&["profile", "merge", "-o", "README", "p"], false),
        (&["mount", "--record=README", "i", "."], false),
    ] {
        let before = fs::read(place.path("README")).unwrap();
        let out = place.run(args);
        let said = stderr(&out);
        assert_eq!(
            (code(&out), said.lines().count()),
            (2, 1),
            "{args:?}: {said}"
        );
        assert!(said.contains("README: is a text file"), "{args:?}: {said}");
        assert_eq!(fs::read(place.path("README")).unwrap(), before);
        assert_eq!(said.contains("--force"), forced, "{args:?}: {said}");
        if forced {
            place.text(&[args, &["--force"]].concat());
            assert_ne!(fs::read(place.path("README")).unwrap(), before);
            // Its own kind needs no force.
            place.text(args);
            fs::write(place.path("README"), before).unwrap();
        }
    }
    for _ in 0..2 {
        place.text(&["profile", "merge", "-o", "merged", "p"]);
    }
}
