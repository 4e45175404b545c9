//! Choices of a build: methods by content, presets for a size budget, and data order.

use crate::common::{Place, code, run, sixteen_letters, tuff};

#[test]
fn compressible_by_entropy_coding_alone_is_compressed() {
    let place = Place::new("letters");
    let len = 9 << 20;
    std::fs::write(place.0.join("tree/letters"), sixteen_letters(len)).unwrap();
    for method in ["zstd", "deflate", "lzma:1"] {
        let out = tuff()
            .current_dir(&place.0)
            .args([
                "build", "-q", "-z", method, "--kernel", "6.18", "tree", "image",
            ])
            .output()
            .unwrap();
        assert_eq!(code(&out), (0, String::new()), "{method}");
        let size = std::fs::metadata(place.0.join("image")).unwrap().len();
        assert!(size < len as u64 * 6 / 10, "{method}: {size}");
    }
}

#[test]
fn auto_stores_incompressible_files_and_is_deterministic() {
    let place = Place::new("auto");
    let mut seed = 5u64;
    let noise: Vec<u8> = (0..300_000)
        .map(|_| {
            seed = (seed.wrapping_mul(6364136223846793005)).wrapping_add(1442695040888963407);
            (seed >> 56) as u8
        })
        .collect();
    let letters: Vec<u8> = noise.iter().map(|b| b"acgt"[usize::from(b & 3)]).collect();
    for (name, bytes) in [
        ("noise", &noise[..]),
        ("noise-again", &noise[..]),
        ("letters", &letters[..]),
        ("repeated", &noise[..20_000].repeat(15)[..]),
    ] {
        std::fs::write(place.0.join("tree").join(name), bytes).unwrap();
    }
    for aim in ["size", "balanced", "speed"] {
        let mut images = Vec::new();
        for threads in ["1", "2", "7"] {
            let image = format!("{aim}-{threads}");
            let args = [
                "build", "--json", "--verify", "--kernel", "6.12", "--auto", aim,
            ];
            let out = run(
                &[&args[..], &["-j", threads, "tree", &image]].concat(),
                &place.0,
            );
            assert_eq!(code(&out).0, 0, "{}", code(&out).1);
            let done: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
            assert_eq!(done["auto"]["stored"]["files"], 2, "{done}");
            let fast = u64::from(aim == "balanced");
            assert_eq!(done["auto"]["fast"]["files"], fast, "{done}");
            images.push(std::fs::read(place.0.join(&image)).unwrap());
        }
        assert!(images[0] == images[1] && images[0] == images[2], "{aim}");
        let out = run(&["diff", &format!("{aim}-1"), "tree"], &place.0);
        assert_eq!(code(&out).0, 0, "{}", String::from_utf8_lossy(&out.stdout));
    }
}

/// Creates a tree whose image shrinks from preset to preset.
fn letters(place: &Place) {
    let mut seed = 5u64;
    let letters: Vec<u8> = (0..600_000)
        .map(|_| {
            seed = (seed.wrapping_mul(6364136223846793005)).wrapping_add(1442695040888963407);
            b"acgt"[(seed >> 62) as usize]
        })
        .collect();
    std::fs::write(place.0.join("tree/letters"), letters).unwrap();
}

#[test]
fn a_size_budget_is_met_by_the_first_preset_that_can() {
    let place = Place::new("size-budget");
    letters(&place);
    let build = |budget: &str| {
        let args = [
            "build",
            "--json",
            "--kernel",
            "6.12",
            "--size-budget",
            budget,
        ];
        run(&[&args[..], &["tree", "i"]].concat(), &place.0)
    };
    let settings = |budget: &str, most: u64| {
        let out = build(budget);
        assert_eq!(code(&out).0, 0, "{}", code(&out).1);
        let done: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        let image = std::fs::metadata(place.0.join("i")).unwrap().len();
        assert!(image <= most, "{image}");
        done["settings"].as_str().unwrap().to_owned()
    };
    assert_eq!(settings("64M", 64 << 20), "-z lz4 -C 64K");
    // Two bits per letter, which LZ4 cannot reach.
    assert_eq!(settings("220K", 220 << 10), "--auto balanced");
    std::fs::remove_file(place.0.join("i")).unwrap();
    let (exit, says) = code(&build("20K"));
    assert_eq!(exit, 4, "{says}");
    assert!(says.contains("as small as 20480 bytes"), "{says}");
    assert_eq!(place.names(), ["tree"], "nothing is left");
    let out = run(&["build", "--size-budget", "1M", "-", "i"], &place.0);
    assert!(code(&out).1.contains("standard input"), "{}", code(&out).1);
}

#[test]
fn suggested_commands_run() {
    let place = Place::new("suggest");
    letters(&place);
    let args = [
        "suggest",
        "--json",
        "--kernel=6.12",
        "--sample=300K",
        "tree",
    ];
    let out = run(&args, &place.0);
    assert_eq!(code(&out).0, 0, "{}", code(&out).1);
    let message: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert!(
        message["estimates"].as_array().unwrap().len() >= 8,
        "{message}"
    );
    let smallest = message["recommended"]["smallest"].as_str().unwrap();
    let args: Vec<&str> = smallest
        .split(' ')
        .skip(1)
        .map(|a| if a == "IMAGE" { "i" } else { a })
        .collect();
    assert_eq!(code(&run(&args, &place.0)).0, 0, "{smallest}");
    let text = run(
        &["suggest", "--quiet", "--sample", "300K", "tree"],
        &place.0,
    );
    assert!(String::from_utf8_lossy(&text.stdout).contains("-z lz4hc -C 64K"));
    let (exit, says) = code(&run(&["suggest", "missing"], &place.0));
    assert_eq!(exit, 5, "{says}");
    assert!(says.contains("missing"), "{says}");
}

#[test]
fn suggestions_are_for_the_default_kernel_of_a_build() {
    let place = Place::new("suggest-kernel");
    letters(&place);
    let suggested = run(&["suggest", "-q", "--sample=300K", "tree"], &place.0);
    let built = run(&["build", "tree", "i"], &place.0);
    let message = String::from_utf8_lossy(&built.stdout).into_owned();
    let kernel = message.lines().find_map(|l| l.strip_prefix("kernel"));
    let kernel = kernel.and_then(|l| l.split_whitespace().nth(1)).unwrap();
    let suggested = String::from_utf8_lossy(&suggested.stdout).into_owned();
    assert!(
        suggested.contains(&format!("tuff build --kernel {kernel} ")),
        "{kernel}: {suggested}"
    );
}

#[test]
fn missing_names_of_an_order_are_reported() {
    let place = Place::new("order-names");
    std::fs::write(place.0.join("order"), "sub/same\ngone\n./gone/too\n").unwrap();
    let out = run(
        &["build", "--json", "--order", "order", "tree", "i"],
        &place.0,
    );
    let summary: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(
        summary["warnings"],
        serde_json::json!([
            "\"gone\", \"gone/too\": listed in the data order, but not in the tree"
        ])
    );
}

#[test]
fn a_start_with_a_program_that_is_not_there_is_reported() {
    let place = Place::new("start-names");
    for (path, warnings) in [
        (
            "/gone",
            serde_json::json!([
                "\"/gone\": the program of the start, but not in the tree: there is no start list; \
                 name a program with --start-with PATH, or none with --start-with none"
            ]),
        ),
        ("none", serde_json::json!([])),
    ] {
        let out = run(
            &["build", "--json", "--start-with", path, "tree", "i"],
            &place.0,
        );
        let summary: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        assert_eq!(summary["warnings"], warnings, "{path}");
    }
    let out = run(&["patch", "--start-with", "/x", "tree", "i"], &place.0);
    let (exit, message) = code(&out);
    assert_eq!(exit, 2);
    assert!(message.contains("no start list"), "{message}");
}

/// Regression: the sample consisted of a 1 TB `lastlog` with less than a megabyte of data.
#[test]
fn holes_are_not_sampled() {
    let place = Place::new("suggest-holes");
    letters(&place);
    let bytes = |sample| {
        let out = run(&["suggest", "--json", "--sample", sample, "tree"], &place.0);
        assert_eq!(code(&out).0, 0, "{}", code(&out).1);
        let message: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
        let of = |what: &str| message[what].as_u64().unwrap();
        (of("bytes"), of("sample_bytes"))
    };
    let (all, _) = bytes("1G");
    let file = std::fs::File::create(place.0.join("tree/lastlog")).unwrap();
    file.set_len(64 << 30).unwrap();
    assert_eq!(bytes("1G"), (all, all));
    std::os::unix::fs::FileExt::write_all_at(&file, &[7; 4096], 40 << 30).unwrap();
    let (more, sample) = bytes("1G");
    assert!((4096..=2 << 20).contains(&(more - all)), "{more} {all}");
    assert_eq!(sample, more);
}

#[test]
fn fingerprints_are_checked_kept_by_patches_and_in_the_form_of_mkfs_erofs() {
    let place = Place::new("fingerprints");
    std::fs::write(place.0.join("tree/one"), b"one".repeat(5000)).unwrap();
    let good = |args: &[&str]| {
        let out = run(args, &place.0);
        assert_eq!(code(&out).0, 0, "{args:?}: {}", code(&out).1);
        out.stdout
    };
    let shares = |image: &str| {
        let info = good(&["info", "--json", image]);
        String::from_utf8(info).unwrap().contains("ishare_xattrs")
    };
    good(&["build", "-q", "tree", "plain"]);
    assert!(!shares("plain"));
    good(&["build", "-q", "--fingerprints", "-j1", "tree", "image"]);
    good(&["build", "-q", "--fingerprints", "-j7", "tree", "again"]);
    let bytes = |name: &str| std::fs::read(place.0.join(name)).unwrap();
    assert!(bytes("image") == bytes("again"));
    std::fs::write(place.0.join("tree/two"), "two").unwrap();
    good(&["patch", "-q", "tree", "image"]);
    good(&[
        "mkfs.erofs",
        "-zlz4",
        "--xattr-inode-digest",
        "made",
        "tree",
    ]);
    for image in ["image", "made"] {
        assert!(shares(image), "{image}");
        good(&["check", "--fingerprints", image]);
        good(&["fsck.erofs", "--xattr-inode-digest", image]);
    }
    let own = ["build", "-q", "--fingerprints=own.name", "tree", "named"];
    good(&own);
    let info = String::from_utf8(good(&["info", "named"])).unwrap();
    assert!(info.contains(" own.name  digests of files"), "{info}");
    let none = run(
        &["build", "-q", "--fingerprints=", "tree", "none"],
        &place.0,
    );
    assert_eq!(code(&none).0, 2, "{}", code(&none).1);
    assert!(!place.0.join("none").exists());
}
