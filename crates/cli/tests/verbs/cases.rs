//! Inputs of `testdata/cases`, which earlier versions handled wrongly.

use crate::common::{Place, code, stderr};
use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, symlink};
use std::path::Path;
use tuff_testkit::content::noise;

fn case(name: &str) -> String {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../testdata/cases");
    folder.join(name).display().to_string()
}

/// Paths in an image, of which `ls` prints the ones of a directory together.
fn names(place: &Place, image: &str) -> Vec<String> {
    let text = place.text(&["ls", "-R", image]);
    text.lines().map(str::to_owned).collect()
}

#[test]
fn a_whiteout_hides_lower_layers_only() {
    let place = Place::new("cases-whiteout");
    let [base, after] = ["whiteout-base.tar", "whiteout-after-dir.tar"].map(case);
    place.text(&["build", "-q", &base, &after, "o"]);
    assert_eq!(names(&place, "o"), ["/", "d", "d/new", "f"]);
    let single = format!("oci-archive:{}", case("oci-one-layer-whiteout.tar"));
    place.text(&["build", "-q", &single, "single"]);
    assert_eq!(names(&place, "single"), ["/", "f"]);
}

#[test]
fn a_tar_that_ends_in_the_padding_of_a_member_is_refused() {
    let place = Place::new("cases-cut");
    let tar = case("tar-cut-in-padding.tar");
    let file = place.run(&["build", "-q", &tar, "o"]);
    let mut piped = place.command(&["build", "-q", "-", "o"]);
    let piped = piped.stdin(File::open(&tar).unwrap()).output().unwrap();
    for out in [file, piped] {
        let message = stderr(&out);
        assert_eq!((code(&out), message.lines().count()), (3, 1), "{message}");
        assert!(
            message.contains(r#"member "one""#) && message.contains("cut"),
            "{message}"
        );
        assert!(!place.path("o").exists());
    }
}

#[test]
fn what_an_image_cannot_hold_is_left_out_with_a_warning() {
    let place = Place::new("cases-warnings");
    for (tar, expected) in [
        ("xattr-name-256.tar", "left out"),
        ("xattr-esc.tar", r"\u{1b}]0;PWN\u{7}"),
        ("trailing.tgz", "what follows is ignored"),
    ] {
        let out = place.run(&["build", "-q", "--force", &case(tar), "o"]);
        let message = stderr(&out);
        assert_eq!(
            (code(&out), message.lines().count()),
            (0, 1),
            "{tar}: {message}"
        );
        assert!(message.contains(expected), "{tar}: {message}");
        let is_plain = |c: char| !c.is_control() || c == '\n';
        assert!(message.chars().all(is_plain), "{tar}: {message:?}");
        place.text(&["check", "-q", "o"]);
    }
}

#[test]
fn sources_of_callers_of_mkfs_erofs_are_taken() {
    let place = Place::new("cases-mkfs");
    place.text(&[
        "mkfs.erofs",
        "--quiet",
        "--tar=f",
        "--unlzma",
        "lzma",
        &case("f.tar.lzma"),
    ]);
    assert_eq!(names(&place, "lzma").len(), 2);
    place.text(&[
        "mkfs.erofs",
        "--quiet",
        "--tar=f",
        "sparse",
        &case("sparse-60g.tar"),
    ]);
    assert!(fs::metadata(place.path("sparse")).unwrap().blocks() * 512 < 1 << 20);
    let stat = place.text(&["ls", "-lR", "sparse"]);
    assert!(stat.contains(&(60u64 << 30).to_string()), "{stat}");
    let tree = place.path("v");
    fs::create_dir(&tree).unwrap();
    symlink("libx.so", tree.join("l")).unwrap();
    let table = format!("--fs-config-file={}", case("fs_config"));
    place.text(&[
        "mkfs.erofs",
        "--quiet",
        "--mount-point=/vendor",
        &table,
        "vendor",
        "v",
    ]);
    let root = &place.json(&["stat", "--json", "vendor", "/"])[0];
    assert_eq!(root["gid"], 2000, "{root}");
}

#[test]
fn an_lz4_image_of_incompressible_data_has_the_feature_0padding() {
    let place = Place::new("cases-lz4");
    fs::create_dir(place.path("v")).unwrap();
    fs::write(place.path("v/noise"), noise(100_000, 3)).unwrap();
    place.text(&["mkfs.erofs", "--quiet", "-zlz4", "o", "v"]);
    let info = place.text(&["info", "o"]);
    assert!(info.contains("0padding  "), "{info}");
}

#[test]
fn messages_name_the_kind_of_a_file_and_the_path_of_damage() {
    let place = Place::new("cases-messages");
    fs::write(place.path("a.zip"), b"PK\x03\x04 and more that is no zip").unwrap();
    let out = place.run(&["build", "a.zip", "o"]);
    let message = stderr(&out);
    assert_eq!(code(&out), 3, "{message}");
    assert!(
        message.contains("is a zip archive, which is no source"),
        "{message}"
    );
    // A pipe is no terminal: nothing is coloured, in messages of the parser too.
    let wrong = place.run(&["build", "--no-such-option"]);
    assert_eq!(code(&wrong), 2);
    assert!(!stderr(&wrong).contains('\u{1b}'), "{}", stderr(&wrong));
}
