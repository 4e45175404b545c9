//! Container archives as sources.

use crate::common::{Place, code, stderr, tool};
use crate::source_oci::{Layout, named};
use serde_json::{Value, json};
use std::fs;
use std::os::unix::fs::symlink;

/// Creates a tar of a directory with `tuff tar`.
fn archive(place: &Place, dir: &str, tar: &str) {
    let out = place.run(&["build", "-q", dir, "t"]);
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    let out = place.run(&["tar", "t"]);
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    fs::write(place.path(tar), out.stdout).unwrap();
}

/// Creates two layers: one file is deleted, and one spans many clusters.
fn layers(layout: &Layout) -> [Value; 2] {
    let large = "what a layer says ".repeat(20_000);
    [
        layout.layer(&[("a", "1"), ("b", &large), ("gone/d", "1")]),
        layout.layer(&[("b", "2"), (".wh.a", ""), ("gone/.wh..wh..opq", "")]),
    ]
}

/// Hexadecimal digest of a descriptor.
fn digits(blob: &Value) -> String {
    let digest = blob["digest"].as_str().unwrap();
    digest.strip_prefix("sha256:").unwrap().to_owned()
}

/// Builds an image of a source, with equal bytes on one and seven threads.
fn image(place: &Place, source: &str) -> Vec<u8> {
    let mut images = ["1", "7"].map(|threads| {
        place.text(&["build", "-q", "-z", "lz4", "-j", threads, source, "i"]);
        fs::read(place.path("i")).unwrap()
    });
    let image = std::mem::take(&mut images[0]);
    assert!(image == images[1], "{source}");
    image
}

fn fails(place: &Place, source: &str, expected: &str, exit: i32) {
    let out = place.run(&["build", "-q", source, "o"]);
    assert_eq!(code(&out), exit, "{source}: {expected}: {}", stderr(&out));
    assert!(
        stderr(&out).contains(expected),
        "{expected}: {}",
        stderr(&out)
    );
    assert_eq!(stderr(&out).lines().count(), 1, "{}", stderr(&out));
    assert!(!place.path("o").exists());
}

#[test]
fn a_tar_of_a_layout_gives_the_bytes_of_the_layout() {
    let Some(layout) = Layout::new("archive-oci") else {
        return;
    };
    let place = &layout.0;
    let [below, above] = layers(&layout);
    // One of them is compressed.
    let path = place.path("l/blobs/sha256").join(digits(&below));
    fs::copy(path, place.path("below")).unwrap();
    let Some(out) = tool(&place.0, "gzip", &["-nc", "below"]) else {
        return;
    };
    let below = layout.blob(&out.stdout, "application/vnd.oci.image.layer.v1.tar+gzip");
    let one = named(layout.manifest(&[below, above.clone()]), "one");
    let two = named(layout.manifest(&[above]), "two:2");
    layout.index(&[one, two]);
    archive(place, "l", "a.tar");
    let expected = image(place, "oci:l:one");
    assert!(image(place, "oci-archive:a.tar:one") == expected);
    assert_eq!(place.text(&["ls", "-R", "i"]), "/\nb\ngone\n");
    assert!(image(place, "oci-archive:a.tar:two:2") == image(place, "oci:l:two:2"));
    fails(
        place,
        "oci-archive:a.tar",
        "(oci-archive:FILE:NAME): one, two:2",
        2,
    );
    fails(place, "oci-archive:a.tar:none", "there are: one, two:2", 2);
    let out = place.run(&["build", "-q", "a.tar", "blobs"]);
    assert!(
        stderr(&out).contains("as oci-archive:FILE"),
        "{}",
        stderr(&out)
    );
}

/// Creates a directory `d` like docker save, of an image with the given layers.
fn saved(layout: &Layout, layers: &[Value]) -> (String, Value) {
    let place = &layout.0;
    let _ = fs::remove_dir_all(place.path("d"));
    fs::create_dir(place.path("d")).unwrap();
    let ids: Vec<&Value> = layers.iter().map(|layer| &layer["digest"]).collect();
    let config = json!({"os": "linux", "architecture": "amd64", "rootfs": {"type": "layers", "diff_ids": ids}});
    let blob = layout.blob(config.to_string().as_bytes(), "");
    let config_name = format!("{}.json", digits(&blob));
    let blobs = place.path("l/blobs/sha256");
    fs::copy(
        blobs.join(digits(&blob)),
        place.path("d").join(&config_name),
    )
    .unwrap();
    let mut names = Vec::new();
    for (n, layer) in layers.iter().enumerate() {
        let dir = place.path("d").join(format!("layer{n}"));
        fs::create_dir(&dir).unwrap();
        fs::copy(blobs.join(digits(layer)), dir.join("layer.tar")).unwrap();
        names.push(json!(format!("layer{n}/layer.tar")));
    }
    (config_name, json!(names))
}

fn write_manifest(place: &Place, images: &Value) {
    fs::write(place.path("d/manifest.json"), images.to_string()).unwrap();
    archive(place, "d", "d.tar");
}

#[test]
fn a_docker_archive_gives_the_bytes_of_its_layers() {
    let Some(layout) = Layout::new("archive-docker") else {
        return;
    };
    let place = &layout.0;
    let [below, above] = layers(&layout);
    layout.index(&[layout.manifest(&[below.clone(), above.clone()])]);
    let expected = image(place, "oci:l");
    let (config, names) = saved(&layout, &[below.clone(), above]);
    let one =
        json!({"Config": config, "RepoTags": ["docker.io/library/one:latest"], "Layers": names});
    write_manifest(place, &json!([one]));
    for source in [
        "docker-archive:d.tar",
        "docker-archive:d.tar:one",
        "docker-archive:d.tar:library/one:latest",
    ] {
        assert!(image(place, source) == expected, "{source}");
    }
    // As links to existing layers.
    fs::rename(place.path("d/layer0/layer.tar"), place.path("d/first.tar")).unwrap();
    symlink("../first.tar", place.path("d/layer0/layer.tar")).unwrap();
    let layer1 = place.path("d/layer1");
    fs::rename(layer1.join("layer.tar"), layer1.join("x")).unwrap();
    fs::hard_link(layer1.join("x"), layer1.join("layer.tar")).unwrap();
    let two = json!({"Config": config, "RepoTags": null, "Layers": names});
    write_manifest(place, &json!([one, two]));
    assert!(image(place, "docker-archive:d.tar:one:latest") == expected);
    fails(
        place,
        "docker-archive:d.tar",
        "2 images fit; name one (docker-archive:FILE:NAME)",
        2,
    );
    fails(
        place,
        "docker-archive:d.tar:three",
        "there are: docker.io/library/one:latest",
        2,
    );
    let out = place.run(&[
        "build",
        "-q",
        "--platform",
        "linux/arm64",
        "docker-archive:d.tar:one",
        "o",
    ]);
    assert_eq!(code(&out), 2);
    assert!(
        stderr(&out).contains("there are: linux/amd64"),
        "{}",
        stderr(&out)
    );
    // Layers may be compressed; digests refer to the uncompressed content.
    if tool(&place.0, "gzip", &["-n", "d/first.tar"]).is_some() {
        fs::rename(place.path("d/first.tar.gz"), place.path("d/first.tar")).unwrap();
        archive(place, "d", "d.tar");
        assert!(image(place, "docker-archive:d.tar:one") == expected);
    }
}

#[test]
fn a_hostile_archive_is_rejected_with_one_line() {
    let Some(layout) = Layout::new("archive-hostile") else {
        return;
    };
    let place = &layout.0;
    let [below, above] = layers(&layout);
    let (config, names) = saved(&layout, &[below, above]);
    let of =
        |config: &str, layers: Value| json!([{"Config": config, "RepoTags": [], "Layers": layers}]);
    let good = of(&config, names);
    write_manifest(place, &good);
    image(place, "docker-archive:d.tar");
    let source = "docker-archive:d.tar";
    for (layers, expected) in [
        (
            json!(["layer0/layer.tar", "none"]),
            "d.tar: member \"none\" is missing",
        ),
        (json!(["layer0/layer.tar", "../../x"]), "contains \"..\""),
        (
            json!(["layer0/layer.tar", "loop"]),
            "is the start of too long a chain of links",
        ),
        (
            json!(["layer0/layer.tar", "out"]),
            "is a link to a path outside of the archive",
        ),
        (
            json!(["layer0/layer.tar", "root"]),
            "is a link to a path outside of the archive",
        ),
        (
            json!(["layer0/layer.tar", "dangling"]),
            "leads to \"nothing\", which is missing",
        ),
        (json!(["layer0/layer.tar", 7]), "a layer without a name"),
        (json!(["layer0/layer.tar"]), "1 layers, with 2 digests"),
        (
            json!(["layer1/layer.tar", "layer0/layer.tar"]),
            "its digest differs from that in the config",
        ),
        (json!("x"), "an image without layers"),
    ] {
        for (link, target) in [
            ("loop", "loop"),
            ("out", "../x"),
            ("root", "/etc/passwd"),
            ("dangling", "nothing"),
        ] {
            let _ = fs::remove_file(place.path("d").join(link));
            symlink(target, place.path("d").join(link)).unwrap();
        }
        write_manifest(place, &of(&config, layers));
        fails(place, source, expected, 3);
    }
    for (manifest, expected, exit) in [
        ("{}".to_owned(), "no list of images", 3),
        ("[]".to_owned(), "an archive without images", 3),
        ("[{}]".to_owned(), "an image without config", 3),
        ("[".to_owned(), "EOF while parsing", 3),
        (" ".repeat((4 << 20) + 1), "longer than 4 MiB", 4),
    ] {
        fs::write(place.path("d/manifest.json"), manifest).unwrap();
        archive(place, "d", "d.tar");
        fails(place, source, expected, exit);
    }
    // A config that does not match its digest.
    fs::write(place.path("d").join(&config), "{}").unwrap();
    write_manifest(place, &good);
    fails(place, source, "its digest differs from its name", 3);
    fs::write(place.path("d/config"), "{}").unwrap();
    write_manifest(place, &of("config", json!([])));
    fails(place, source, "no digests of layers", 3);
    // Two members of one name are ambiguous.
    let tar = fs::read(place.path("d.tar")).unwrap();
    let end = tar.len() - tar.iter().rev().take_while(|b| **b == 0).count();
    let twice = [&tar[..end.next_multiple_of(512)], &tar[..]].concat();
    fs::write(place.path("twice.tar"), twice).unwrap();
    fails(
        place,
        "docker-archive:twice.tar",
        "member \"manifest.json\" occurs more than once",
        3,
    );
    // Cut off within the data of the last layer.
    fs::write(place.path("cut.tar"), &tar[..end / 2]).unwrap();
    fails(place, "docker-archive:cut.tar", "end early", 3);
    fs::write(place.path("empty.tar"), [0; 1024]).unwrap();
    fails(
        place,
        "docker-archive:empty.tar",
        "member \"manifest.json\" is missing",
        3,
    );
    fails(
        place,
        "oci-archive:empty.tar",
        "member \"index.json\" is missing",
        3,
    );
    fails(
        place,
        "oci-archive:nothing.tar",
        "nothing.tar: cannot open the source",
        5,
    );
    fails(place, "oci-archive:d", "must be a regular file", 2);
    if tool(&place.0, "gzip", &["-n", "empty.tar"]).is_some() {
        fails(
            place,
            "oci-archive:empty.tar.gz",
            "compressed with gzip, but layers are read in place",
            3,
        );
    }
}
