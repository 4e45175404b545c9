//! Merged layers, a layer of an overlay, and images over a base.

use crate::common::{Place, code, manifests, run, tuff};
use std::process::Command;

/// Without `--kernel` the image is for the kernels of its base. Regression: it was for 6.1, which lacks Zstandard, and
/// shared nothing.
#[test]
fn an_image_over_a_base_needs_the_kernel_of_the_base() {
    let place = Place::new("base-kernel");
    let build = |args: &[&str]| -> serde_json::Value {
        let out = run(&[&["build", "--json"], args].concat(), &place.0);
        serde_json::from_slice(&out.stdout).unwrap()
    };
    build(&["-z", "zstd", "--fragments", "off", "tree", "base"]);
    let over = build(&["--base", "base", "tree", "image"]);
    assert_eq!(over["kernel"], "6.10");
    assert!(over["base_files"].as_u64() > Some(0), "{over}");
    let old = build(&["--base", "base", "--kernel", "6.1", "tree", "image"]);
    assert_eq!(old["kernel"], "6.1");
    assert!(
        old["base_files"].as_u64() < over["base_files"].as_u64(),
        "{old}"
    );
}

/// Files of a tar on standard input are looked up in the base like any others.
#[test]
fn an_image_over_a_base_reports_a_missing_base() {
    let place = Place::new("base");
    let build = |args: &[&str]| {
        let out = run(&[&["build", "--json"][..], args].concat(), &place.0);
        assert_eq!(code(&out).0, 0, "{}", code(&out).1);
        serde_json::from_slice::<serde_json::Value>(&out.stdout).unwrap()
    };
    build(&["tree", "base"]);
    std::fs::write(
        place.0.join("tree/new"),
        "what the base has not\n".repeat(900),
    )
    .unwrap();
    let summary = build(&["--base", "base", "--verify", "tree", "image"]);
    assert_eq!(summary["base_files"], 1);
    assert_eq!(summary["base_bytes"], 13_000);
    let cat = |args: &[&str]| run(&[&["cat"][..], args].concat(), &place.0);
    for name in ["hello", "sub/same", "new"] {
        let out = cat(&["--device", "base", "image", name]);
        let expected = std::fs::read(place.0.join("tree").join(name)).unwrap();
        assert!(code(&out).0 == 0 && out.stdout == expected, "{name}");
    }
    let out = cat(&["--device", "image", "image", "hello"]);
    let (exit, message) = code(&out);
    assert!(
        exit == 2 && message.contains("expected the image with UUID"),
        "{message}"
    );
    std::fs::create_dir(place.0.join("away")).unwrap();
    std::fs::rename(place.0.join("base"), place.0.join("away/base")).unwrap();
    let (exit, message) = code(&cat(&["image", "hello"]));
    assert_eq!(exit, 2, "not without the base: {message}");
    assert!(message.contains("device 1, the image with UUID") && message.contains("--device"));
    std::fs::rename(place.0.join("away/base"), place.0.join("base")).unwrap();

    let tar = Command::new("tar")
        .args(["-C", "tree", "-cf", "-", "."])
        .current_dir(&place.0)
        .output();
    let Ok(tar) = tar else {
        tuff_testkit::skipped("no tar on PATH");
        return;
    };
    std::fs::write(place.0.join("tar"), tar.stdout).unwrap();
    let stdin = std::fs::File::open(place.0.join("tar")).unwrap();
    let out = tuff()
        .args(["build", "--json", "--base", "base", "-", "tarred"])
        .current_dir(&place.0)
        .stdin(stdin)
        .output()
        .unwrap();
    let summary: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(summary["base_files"], 1, "{}", code(&out).1);
}

/// The first image supplies its own settings. Each layer is a device, in the order of the sources.
#[test]
fn layer_images_are_merged_without_copying_their_data() {
    let place = Place::new("image-index");
    let json = |args: &[&str]| -> serde_json::Value {
        let out = run(&[&["build", "--json"], args].concat(), &place.0);
        assert_eq!(code(&out).0, 0, "{}", code(&out).1);
        serde_json::from_slice(&out.stdout).unwrap()
    };
    std::fs::create_dir(place.0.join("more")).unwrap();
    let text = "what the other layer has not\n".repeat(900);
    std::fs::write(place.0.join("more/new"), &text).unwrap();
    json(&["-b", "1024", "-z", "zstd", "tree", "lower"]);
    json(&["-b", "1024", "-z", "lz4", "more", "upper"]);
    let merged = json(&["--image-index", "--verify", "lower", "upper", "merged"]);
    assert_eq!(merged["devices"], serde_json::json!(["lower", "upper"]));
    assert_eq!(merged["kernel"], "6.10");
    let (files, based) = (merged["files"].as_u64(), merged["base_files"].as_u64());
    assert!(files > Some(2) && based > Some(0), "{merged}");
    let devices = ["--device", "lower", "--device", "upper"];
    let cat = |name| {
        run(
            &[&["cat"], &devices[..], &["merged", name]].concat(),
            &place.0,
        )
    };
    assert_eq!(cat("new").stdout, text.as_bytes());
    let hello = std::fs::read(place.0.join("tree/hello")).unwrap();
    assert_eq!(cat("hello").stdout, hello);
    // The new data of an additional directory is stored, duplicates of the layers are not.
    let with = json(&["--image-index", "lower", "tree", "upper", "with"]);
    assert_eq!(with["devices"], merged["devices"]);
    assert!(with["image_bytes"].as_u64() < Some(13_000), "{with}");
    std::fs::create_dir(place.0.join("away")).unwrap();
    std::fs::copy(place.0.join("merged"), place.0.join("away/merged")).unwrap();
    for (args, what) in [
        (
            &["--image-index", "tree", "o"][..],
            "an image among its sources",
        ),
        (
            &["--image-index", "-b", "4096", "lower", "o"],
            "blocks of 1024 bytes",
        ),
        (
            &["--image-index", "lower", "lower"],
            "cannot take the place",
        ),
        (&["--image-index", "away/merged", "o"], "--source-device"),
        (&["--base", "away/merged", "tree", "o"], "--source-device"),
    ] {
        let out = run(&[&["build", "-q"], args].concat(), &place.0);
        let (exit, message) = code(&out);
        assert!(exit == 2 && message.contains(what), "{args:?}: {message}");
    }
    // Layers with bases of their own are given with their devices.
    let over = json(&[
        "--base",
        "away/merged",
        "--source-device",
        "upper",
        "--source-device",
        "lower",
        "tree",
        "over",
    ]);
    assert_eq!(
        over["devices"],
        serde_json::json!(["away/merged", "lower", "upper"])
    );
}

#[test]
fn a_metacopy_layer_is_rejected_and_whiteouts_apply() {
    let place = Place::new("metacopy");
    manifests(
        &place,
        &[
            (
                "lower.mtree",
                "./d type=dir\n./d/f type=file contents=tree/hello",
            ),
            (
                "upper.mtree",
                "./d type=dir\n./d/f type=file contents=tree/hello xattr.trusted.overlay.metacopy=",
            ),
            (
                "white.mtree",
                "./d type=dir xattr.user.overlay.opaque=x\n./d/f type=file size=0 xattr.user.overlay.whiteout=",
            ),
        ],
    );
    for options in [&["-q"][..], &["-q", "--no-xattrs"]] {
        let args = |upper, image| [&["build"], options, &["lower.mtree", upper, image]].concat();
        let out = run(&args("upper.mtree", "i"), &place.0);
        let (code, message) = code(&out);
        assert_eq!(code, 3, "{message}");
        assert!(
            message.starts_with("tuff: upper.mtree: line 3: member \"d/f\": overlay.metacopy: "),
            "{message}"
        );
        let out = run(&args("white.mtree", "w"), &place.0);
        assert!(out.status.success());
        let listed = run(&["ls", "w", "d"], &place.0);
        assert_eq!(String::from_utf8_lossy(&listed.stdout), "");
    }
    // A single source is not merged.
    let out = run(&["build", "-q", "upper.mtree", "i"], &place.0);
    assert!(out.status.success(), "{}", code(&out).1);
}

/// OCI layers merged by default, and converted to a layer of an overlay.
#[test]
fn oci_layers_delete_or_become_overlay_layers() {
    let place = Place::new("oci");
    for (dir, files) in [
        ("l1", &["a", "d/x"][..]),
        ("l2", &[".wh.a", "d/.wh..wh..opq", "d/y"]),
    ] {
        for file in files {
            let path = place.0.join(dir).join(file);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, "").unwrap();
        }
        let tar = Command::new("tar")
            .args(["-C", dir, "-cf", &format!("{dir}.tar"), "."])
            .current_dir(&place.0)
            .status();
        assert!(tar.unwrap().success());
    }
    let list = |image: &str| {
        let out = run(&["ls", "-R", image], &place.0);
        String::from_utf8(out.stdout).unwrap()
    };
    let built = run(&["build", "-q", "l1.tar", "l2.tar", "both"], &place.0);
    assert_eq!(code(&built), (0, String::new()));
    assert_eq!(list("both"), "/\nd\nd/y\n");
    let convert = ["build", "-q", "--whiteouts", "convert", "l2.tar", "layer"];
    assert_eq!(code(&run(&convert, &place.0)), (0, String::new()));
    let out = run(&["ls", "-lR", "layer"], &place.0);
    let long = String::from_utf8(out.stdout).unwrap();
    let null = long.lines().find(|l| l.ends_with(" a")).unwrap();
    assert!(
        null.starts_with("c---------") && null.contains("0, 0"),
        "{long}"
    );
    let out = run(&["stat", "layer", "d"], &place.0);
    let stat = String::from_utf8(out.stdout).unwrap();
    assert!(stat.contains("trusted.overlay.opaque=y"), "{stat}");
    let (code, message) = code(&run(&[&convert[..], &["--no-xattrs"]].concat(), &place.0));
    assert_eq!(code, 2, "{message}");
}
