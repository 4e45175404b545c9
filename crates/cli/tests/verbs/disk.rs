//! Sealed disks: written, read by the verbs, verified as a whole, and read by sfdisk, veritysetup, systemd-dissect and the kernel.

use crate::common::{Place, code, is_root, skipped, stderr, tool};
use serde_json::Value;
use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use tuff_disk::discoverable::Purpose;
use tuff_testkit::openssl::{P256, RSA, certificate, openssl};

/// Options that make the disk of a tree independent of the host.
const ARCH: [&str; 2] = ["--arch", "x86-64"];

/// Directory with a source tree `src`, which an operating system would be, and an extension `ext`.
fn stage(name: &str) -> Place {
    let place = Place::new(name);
    for (path, text) in [
        (
            "src/etc/os-release",
            "ID=test\nVERSION_ID=1\nNAME=Test\n".to_owned(),
        ),
        (
            "src/usr/lib/os-release",
            "ID=test\nVERSION_ID=1\nNAME=Test\n".to_owned(),
        ),
        ("src/usr/bin/tool", "#!/bin/sh\n".to_owned()),
        ("src/usr/share/text", crate::common::text()),
        ("ext/usr/bin/more", "#!/bin/sh\n".to_owned()),
        ("ext/usr/share/text", crate::common::text()),
    ] {
        let path = place.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }
    for dir in ["dev", "proc", "run", "sys", "tmp", "var"] {
        fs::create_dir(place.path("src").join(dir)).unwrap();
    }
    place
}

/// Writes the disk `out.raw` of `src`. Returns the object `disk` of the summary, and the root hash.
fn disk(place: &Place, options: &[&str]) -> (Value, String) {
    let args = [&["disk", "--json"], &ARCH[..], options, &["src", "out.raw"]].concat();
    summary(place, &args)
}

fn summary(place: &Place, args: &[&str]) -> (Value, String) {
    let out = place.run(args);
    assert_eq!(code(&out), 0, "{args:?}: {}", stderr(&out));
    let object: Value = serde_json::from_slice(&out.stdout).unwrap();
    let root = object["verity"]["root_hash"].as_str().unwrap().to_owned();
    (object["disk"].clone(), root)
}

/// Offset and length of a partition.
fn range(disk: &Value, index: usize) -> (u64, u64) {
    let part = &disk["partitions"][index];
    (
        part["offset"].as_u64().unwrap(),
        part["length"].as_u64().unwrap(),
    )
}

/// Copies a partition to a file.
fn cut(place: &Place, disk: &Value, index: usize, name: &str) {
    let (at, len) = range(disk, index);
    let mut bytes = vec![0; len as usize];
    let file = File::open(place.path("out.raw")).unwrap();
    file.read_exact_at(&mut bytes, at).unwrap();
    fs::write(place.path(name), bytes).unwrap();
}

fn change(path: &Path, at: u64, change: impl FnOnce(u8) -> u8) {
    let file = File::options().read(true).write(true).open(path).unwrap();
    let mut byte = [0];
    file.read_exact_at(&mut byte, at).unwrap();
    file.write_all_at(&[change(byte[0])], at).unwrap();
}

#[test]
fn a_disk_is_the_image_its_tree_and_a_table_that_sfdisk_reads() {
    let place = stage("disk-layout");
    place.text(&["build", "-q", "--verity", "src", "plain"]);
    let (disk, root) = disk(&place, &[]);
    let parts = disk["partitions"].as_array().unwrap();
    let names: Vec<_> = parts
        .iter()
        .map(|part| part["name"].as_str().unwrap())
        .collect();
    assert_eq!(names, ["root-x86-64", "root-x86-64-verity"]);
    let halves = [&root[..32], &root[32..]];
    for (part, half) in parts.iter().zip(halves) {
        assert_eq!(part["uuid"].as_str().unwrap().replace('-', ""), half);
        assert_eq!(part["offset"].as_u64().unwrap() % (1 << 20), 0);
    }
    cut(&place, &disk, 0, "data");
    cut(&place, &disk, 1, "tree");
    let both = [
        fs::read(place.path("data")).unwrap(),
        fs::read(place.path("tree")).unwrap(),
    ];
    assert!(both.concat() == fs::read(place.path("plain")).unwrap());

    let Some(out) = tool(&place.0, "sfdisk", &["--verify", "out.raw"]) else {
        return;
    };
    assert!(out.status.success(), "{}", stderr(&out));
    assert_eq!(stderr(&out), "");
    let out = tool(&place.0, "sfdisk", &["--json", "out.raw"]).unwrap();
    let message: Value = serde_json::from_slice(&out.stdout).unwrap();
    let message = &message["partitiontable"];
    assert_eq!(message["label"], "gpt");
    let uuid = |value: &Value| value.as_str().unwrap().to_lowercase();
    assert_eq!(uuid(&message["id"]), uuid(&disk["uuid"]));
    for (part, message) in parts.iter().zip(message["partitions"].as_array().unwrap()) {
        assert_eq!(uuid(&part["type"]), uuid(&message["type"]));
        assert_eq!(uuid(&part["uuid"]), uuid(&message["uuid"]));
        assert_eq!(part["name"], message["name"]);
        assert_eq!(
            part["offset"].as_u64().unwrap(),
            message["start"].as_u64().unwrap() * 512
        );
        assert_eq!(
            part["length"].as_u64().unwrap(),
            message["size"].as_u64().unwrap() * 512
        );
    }
}

#[test]
fn equal_sources_give_equal_disks() {
    let place = stage("disk-same");
    if certificate(&place.0, "rsa", RSA).is_none() {
        return;
    }
    let mut disks = Vec::new();
    for threads in ["1", "3"] {
        disk(&place, &["--sign", "rsa.key,rsa.pem", "-j", threads]);
        disks.push(fs::read(place.path("out.raw")).unwrap());
    }
    let out = place.run(
        &[
            &["disk", "-q"],
            &ARCH[..],
            &["--sign", "rsa.key,rsa.pem", "src", "-"],
        ]
        .concat(),
    );
    disks.push(out.stdout);
    assert!(disks[0] == disks[1] && disks[0] == disks[2]);
    let left = fs::read_dir(&place.0).unwrap().count();
    assert_eq!(left, ["src", "ext", "out.raw", "rsa.key", "rsa.pem"].len());
}

#[test]
fn types_of_partitions_are_those_of_systemd() {
    let place = Place::new("disk-types");
    let Some(out) = tool(&place.0, "systemd-id128", &["show", "-u"]) else {
        return;
    };
    let message = String::from_utf8(out.stdout).unwrap();
    let types: Vec<(&str, &str)> = message
        .lines()
        .filter_map(|line| line.split_once(char::is_whitespace))
        .map(|(name, guid)| (name, guid.trim()))
        .collect();
    for purpose in Purpose::all() {
        let (name, guid) = (purpose.name(), purpose.guid().to_string());
        let known = types.iter().find(|(known, _)| *known == name);
        assert_eq!(known, Some(&(&*name, &*guid)));
    }
}

#[test]
fn every_architecture_role_and_sector_size_is_found_again() {
    let place = stage("disk-forms");
    for (options, name) in [
        (&["--arch", "arm64"][..], "root-arm64"),
        (&["--arch", "riscv64", "--usr"], "usr-riscv64"),
        (&["--sector-size", "4096"], "root-x86-64"),
        (&["--verity-block", "1024"], "root-x86-64"),
        (&["-b", "512", "--verity-salt", "00ff"], "root-x86-64"),
    ] {
        let arch = if options.contains(&"--arch") {
            &[][..]
        } else {
            &ARCH
        };
        let args = [
            &["disk", "--json", "--force"],
            arch,
            options,
            &["src", "out.raw"],
        ]
        .concat();
        let (disk, _) = summary(&place, &args);
        assert_eq!(disk["partitions"][0]["name"], name);
        place.text(&["check", "-q", "out.raw"]);
        assert_eq!(
            place.text(&["cat", "out.raw", "/usr/bin/tool"]),
            "#!/bin/sh\n"
        );
    }
}

#[test]
fn verbs_read_the_image_in_a_disk() {
    let place = stage("disk-verbs");
    let (_, root) = disk(&place, &["--verity-fec", "2"]);
    place.text(&["build", "-q", "src", "plain"]);
    let tar = |image: &str| place.run(&["tar", image, "-"]).stdout;
    assert!(!tar("plain").is_empty() && tar("plain") == tar("out.raw"));
    assert_eq!(
        place.text(&["ls", "-R", "plain"]),
        place.text(&["ls", "-R", "out.raw"])
    );
    for verb in [
        &["extract", "-q", "--verity", &root, "out.raw", "tree"][..],
        &["info", "out.raw"],
        &["stat", "out.raw", "/usr"],
    ] {
        place.text(verb);
    }
    assert_eq!(place.text(&["diff", "out.raw", "plain"]), "");
    place.text(&["verity", "check", "-q", "out.raw", &root]);
    let message = place.text(&["verity", "show", "out.raw"]);
    assert!(
        message.contains(&root) && message.contains("p1 NAME"),
        "{message}"
    );
    assert_eq!(
        place.text(&["verity", "repair", "-q", "out.raw", &root]),
        ""
    );
    // The whole disk stays as it was.
    place.text(&["check", "-q", "out.raw"]);
}

#[test]
fn a_damaged_disk_is_repaired_in_its_partitions() {
    let place = stage("disk-repair");
    let (disk, root) = disk(&place, &["--verity-fec", "4"]);
    let whole = fs::read(place.path("out.raw")).unwrap();
    change(&place.path("out.raw"), range(&disk, 0).0 + 5000, |b| !b);
    change(&place.path("out.raw"), range(&disk, 1).0 + 4100, |b| !b);
    assert_eq!(code(&place.run(&["check", "-q", "out.raw"])), 1);
    place.text(&["verity", "repair", "-q", "out.raw", &root]);
    assert!(whole == fs::read(place.path("out.raw")).unwrap());
}

#[test]
fn veritysetup_verifies_the_partitions() {
    let place = stage("disk-veritysetup");
    let (disk, root) = disk(&place, &[]);
    cut(&place, &disk, 0, "data");
    let offset = format!("--hash-offset={}", range(&disk, 1).0);
    let args = ["verify", "data", "out.raw", &root, &offset];
    let Some(out) = tool(&place.0, "veritysetup", &args) else {
        return;
    };
    assert!(out.status.success(), "{}", stderr(&out));
    change(&place.path("data"), 9000, |b| !b);
    let out = tool(&place.0, "veritysetup", &args).unwrap();
    assert!(!out.status.success(), "a changed byte is noticed");
}

#[test]
fn check_finds_damage_in_every_part_of_a_disk() {
    let place = stage("disk-check");
    for name in ["rsa", "other"] {
        if certificate(&place.0, name, if name == "rsa" { RSA } else { P256 }).is_none() {
            return;
        }
    }
    let (disk, root) = disk(&place, &["--sign", "rsa.key,rsa.pem"]);
    let message = place.text(&["check", "--trust", "rsa.pem", "out.raw"]);
    assert!(
        message.contains("signed by the certificate") && message.contains(&root),
        "{message}"
    );
    let whole = fs::read(place.path("out.raw")).unwrap();
    let last = whole.len() as u64 - 512;
    let at = |part: usize, byte: u64| range(&disk, part).0 + byte;
    let flip = |byte: u64| vec![(byte, 0x01)];
    // First digit of the root hash in the signature partition.
    let key = b"\"rootHash\":\"";
    let found = whole.windows(key.len()).position(|bytes| bytes == key);
    let digit = (found.unwrap() + key.len()) as u64;
    for (bytes, expected) in [
        (
            flip(512 + 56),
            "error[partition-table]: partition table: first table",
        ),
        (
            flip(last + 56),
            "error[partition-table]: partition table: backup",
        ),
        (
            flip(at(0, 70_000)),
            "error[hash-tree]: image: 4096 bytes at 69632",
        ),
        (
            flip(at(1, 4100)),
            "do not state the root hash of the hash tree",
        ),
        (flip(at(1, 0)), "error[hash-tree]: hash tree"),
        (flip(digit), "error[signature]"),
    ] {
        fs::write(place.path("out.raw"), &whole).unwrap();
        for (byte, mask) in bytes {
            change(&place.path("out.raw"), byte, |b| b ^ mask);
        }
        let out = place.run(&["check", "--trust", "rsa.pem", "out.raw"]);
        let message = String::from_utf8_lossy(&out.stdout);
        let status = if expected == "error[signature]" { 6 } else { 1 };
        assert_eq!(code(&out), status, "{expected}: {message}{}", stderr(&out));
        assert!(message.contains(expected), "{expected}: {message}");
    }
    fs::write(place.path("out.raw"), &whole).unwrap();
    let out = place.run(&["check", "--json", "--trust", "other.pem", "out.raw"]);
    let object: Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(
        (code(&out), &object["disk"]["signature"]),
        (6, &"refused".into())
    );
    assert_eq!(object["findings"][0]["rule"], "signature");
    assert!(stderr(&out).starts_with("tuff: untrusted image: out.raw: "));
}

#[test]
fn a_disk_is_read_by_the_certificate_that_signed_it_only() {
    let place = stage("disk-trust");
    for (name, kind) in [("rsa", RSA), ("ec", P256)] {
        if certificate(&place.0, name, kind).is_none() {
            return;
        }
    }
    for (name, other) in [("rsa", "ec.pem"), ("ec", "rsa.pem")] {
        let (disk, root) = disk(&place, &["--sign", &format!("{name}.key,{name}.pem")]);
        let pem = format!("{name}.pem");
        assert_eq!(
            place.text(&["cat", "--trust", &pem, "out.raw", "/usr/bin/tool"]),
            "#!/bin/sh\n"
        );
        let out = place.run(&["ls", "--trust", other, "out.raw"]);
        let message = stderr(&out);
        assert_eq!(code(&out), 6, "{message}");
        assert!(
            message.starts_with("tuff: untrusted image: out.raw: "),
            "{message}"
        );
        assert!(message.contains("is not trusted by"), "{message}");

        // The partition has the form that openssl and systemd verify.
        cut(&place, &disk, 2, "record");
        let bytes = fs::read(place.path("record")).unwrap();
        assert_eq!(bytes.len() % 4096, 0);
        let len = bytes.iter().position(|b| *b == 0).unwrap();
        let record: Value = serde_json::from_slice(&bytes[..len]).unwrap();
        assert_eq!(record["rootHash"], *root);
        fs::write(place.path("content"), &root).unwrap();
        fs::write(place.path("b64"), record["signature"].as_str().unwrap()).unwrap();
        let run = |args: &[&str]| {
            let out = openssl(&place.0, args).unwrap();
            assert!(out.status.success(), "{args:?}: {}", stderr(&out));
            String::from_utf8(out.stdout).unwrap()
        };
        run(&["base64", "-d", "-A", "-in", "b64", "-out", "p7s"]);
        let input = [
            "smime", "-verify", "-binary", "-inform", "der", "-in", "p7s", "-content", "content",
        ];
        run(&[&input[..], &["-certfile", &pem, "-nointern", "-noverify"]].concat());
        let message = run(&["x509", "-in", &pem, "-noout", "-fingerprint", "-sha256"]);
        let digest = message
            .trim()
            .split('=')
            .next_back()
            .unwrap()
            .replace(':', "")
            .to_lowercase();
        assert_eq!(record["certificateFingerprint"], *digest);
    }
}

#[test]
fn the_kernel_mounts_the_partition_at_its_offset() {
    let place = stage("disk-kernel");
    let (disk, _) = disk(&place, &[]);
    if !is_root() {
        return skipped("mounting needs root");
    }
    fs::create_dir(place.path("mnt")).unwrap();
    let options = format!("ro,loop,offset={}", range(&disk, 0).0);
    let mounted = tool(
        &place.0,
        "mount",
        &["-t", "erofs", "-o", &options, "out.raw", "mnt"],
    );
    match mounted {
        Some(out) if out.status.success() => {
            let text = fs::read(place.path("mnt/usr/share/text")).unwrap();
            tool(&place.0, "umount", &["mnt"]);
            assert!(text == crate::common::text().as_bytes());
        }
        Some(out) => skipped(format_args!("mount: {}", stderr(&out).trim())),
        None => {}
    }
    // By the verb, which knows the offset.
    let out = place.run(&["mount", "--kernel", "-v", "out.raw", "mnt"]);
    if !stderr(&out).contains("mounted by the kernel") || code(&out) != 0 {
        tool(&place.0, "umount", &["mnt"]);
        return skipped(format_args!("tuff mount --kernel: {}", stderr(&out).trim()));
    }
    let text = fs::read(place.path("mnt/usr/share/text")).unwrap();
    place.unmount("mnt");
    assert!(text == crate::common::text().as_bytes());
}

/// Runs systemd-dissect. `None`, with a note, if it cannot work on this host.
fn dissect(place: &Place, args: &[&str]) -> Option<String> {
    if !is_root() {
        skipped("systemd-dissect needs root");
        return None;
    }
    let out = tool(&place.0, "systemd-dissect", args)?;
    if !out.status.success() {
        skipped(format_args!("systemd-dissect: {}", stderr(&out).trim()));
        return None;
    }
    Some(String::from_utf8(out.stdout).unwrap())
}

/// Adds the architecture of this machine, which systemd-dissect expects.
fn of_host<'a>(verb: &'a str, options: &[&'a str]) -> Vec<&'a str> {
    let arch = ["--json", "--arch", std::env::consts::ARCH];
    [&[verb][..], &arch, options].concat()
}

#[test]
fn systemd_finds_a_signed_root_partition() {
    let place = stage("disk-dissect");
    if certificate(&place.0, "rsa", RSA).is_none() {
        return;
    }
    let signed = ["--sign", "rsa.key,rsa.pem", "src", "out.raw"];
    summary(&place, &of_host("disk", &signed));
    let Some(message) = dissect(&place, &["--json=short", "out.raw"]) else {
        return;
    };
    let message: Value = serde_json::from_str(&message).unwrap();
    let mounts = message["mounts"].as_array().unwrap();
    let of = |key: &str| mounts.iter().map(|m| m[key].clone()).collect::<Vec<_>>();
    assert_eq!(of("designator"), ["root", "root-verity", "root-verity-sig"]);
    assert_eq!(mounts[0]["verity"], "signed");
    assert_eq!(mounts[0]["fstype"], "erofs");
    let kinds = of("fstype");
    assert_eq!(kinds[1..], ["DM_verity_hash", "verity_hash_signature"]);
    assert_eq!(of("rw"), ["ro"; 3]);
}

#[test]
fn systemd_copies_a_file_out_of_a_disk_and_accepts_an_extension() {
    let place = stage("disk-copy");
    summary(&place, &of_host("disk", &["src", "out.raw"]));
    let from = ["--copy-from", "out.raw", "/usr/share/text", "-"];
    if let Some(message) = dissect(&place, &from) {
        assert!(message == crate::common::text());
    }
    let options = ["--release", "ID=_any", "ext", "more.raw"];
    summary(&place, &of_host("sysext", &options));
    if let Some(message) = dissect(&place, &["--json=short", "more.raw"]) {
        let message: Value = serde_json::from_str(&message).unwrap();
        assert_eq!(message["useSystemExtension"], true);
        assert_eq!(message["extensionRelease"], serde_json::json!(["ID=_any"]));
    }
}

#[test]
fn a_flat_disk_has_its_tree_and_signature_beside_it() {
    let place = stage("disk-flat");
    if certificate(&place.0, "rsa", RSA).is_none() {
        return;
    }
    let (disk, root) = disk_flat(&place, &["--sign", "rsa.key,rsa.pem"]);
    assert_eq!(disk["partitions"], Value::Null);
    assert_eq!(disk["companion_files"].as_array().unwrap().len(), 3);
    assert_eq!(
        fs::read_to_string(place.path("out.roothash")).unwrap(),
        format!("{root}\n")
    );
    let verity = ["--verity", &root, "--verity-tree", "out.verity"];
    place.text(&[&["check", "-q"], &verity[..], &["out.raw"]].concat());
    if let Some(out) = tool(
        &place.0,
        "veritysetup",
        &["verify", "out.raw", "out.verity", &root],
    ) {
        assert!(out.status.success(), "{}", stderr(&out));
    }
    let trusted = place.text(&["cat", "--trust", "rsa.pem", "out.raw", "/usr/bin/tool"]);
    assert_eq!(trusted, "#!/bin/sh\n");
    // A signature of another image does not stay.
    fs::write(place.path("src/usr/bin/tool"), "changed\n").unwrap();
    disk_flat(&place, &[]);
    assert!(!place.path("out.roothash.p7s").exists());
}

fn disk_flat(place: &Place, options: &[&str]) -> (Value, String) {
    summary(
        place,
        &[&["disk", "--json", "--flat"], options, &["src", "out.raw"]].concat(),
    )
}

#[test]
fn outputs_that_are_no_disks_stay() {
    let place = stage("disk-outputs");
    fs::write(place.path("notes"), "precious\n").unwrap();
    // A disk of another tool: its first partition has another type.
    disk(&place, &[]);
    let mut other = fs::read(place.path("out.raw")).unwrap();
    other[1024] ^= 1;
    fs::write(place.path("other.raw"), &other).unwrap();
    for name in ["notes", "other.raw"] {
        let before = fs::read(place.path(name)).unwrap();
        let out = place.run(&["disk", "-q", "src", name]);
        assert_eq!(code(&out), 2, "{name}");
        assert!(stderr(&out).contains("--force"), "{}", stderr(&out));
        assert!(before == fs::read(place.path(name)).unwrap());
    }
    place.text(&["disk", "-q", "--force", "src", "notes"]);
    place.text(&["disk", "-q", "src", "notes"]);
    for (args, expected) in [
        (
            &["disk", "--base", "out.raw", "src", "new.raw"][..],
            "--base",
        ),
        (&["disk", "src", "src/new.raw"], "cannot replace"),
        (&["disk", "--flat", "src", "-"], "OUT.raw"),
        (
            &[
                "disk",
                "--sector-size",
                "4096",
                "--verity-block",
                "1024",
                "src",
                "new.raw",
            ],
            "at least a sector",
        ),
        (&["disk", "--arch", "pdp11", "src", "new.raw"], "x86-64"),
        (&["disk", "--sign", "none,none", "src", "new.raw"], "none"),
    ] {
        let out = place.run(args);
        assert!(matches!(code(&out), 2 | 5), "{args:?}: {}", stderr(&out));
        assert!(
            stderr(&out).contains(expected),
            "{args:?}: {}",
            stderr(&out)
        );
        assert!(!place.path("new.raw").exists());
    }
}

#[test]
fn an_extension_states_the_system_that_it_is_for() {
    let place = stage("sysext");
    let sysext = |options: &[&str], out: &str| {
        let args = [&["sysext", "-q"], &ARCH[..], options, &["ext", out]].concat();
        place.run(&args)
    };
    let file = "/usr/lib/extension-release.d/extension-release.more";
    let out = sysext(&[], "more.raw");
    assert_eq!(code(&out), 2);
    assert!(
        stderr(&out).contains("--release ID=_any"),
        "{}",
        stderr(&out)
    );
    assert!(!place.path("more.raw").exists());

    let release = ["--release", "ID=debian", "--release", "VERSION_ID=13"];
    assert_eq!(stderr(&sysext(&release, "more.raw")), "");
    assert_eq!(
        place.text(&["cat", "more.raw", file]),
        "ID=debian\nVERSION_ID=13\n"
    );
    place.text(&["check", "-q", "more.raw"]);

    // The file of the source, by its name.
    place.text(&["extract", "-q", "more.raw", "own"]);
    let own = |out: &str| place.run(&["sysext", "-q", "own", out]);
    assert_eq!(stderr(&own("more.raw")), "");
    let out = own("less.raw");
    assert_eq!(code(&out), 2);
    assert!(
        stderr(&out).contains("name the output more.raw"),
        "{}",
        stderr(&out)
    );
    let out = place.run(&["sysext", "-q", "--release", "ID=_any", "own", "more.raw"]);
    assert!(stderr(&out).contains("has its own"), "{}", stderr(&out));

    // Names with special characters, and configuration.
    assert_eq!(stderr(&sysext(&["--release", "ID=_any"], "a#b c.raw")), "");
    fs::create_dir_all(place.path("conf/etc/app")).unwrap();
    fs::write(place.path("conf/etc/app/config"), "on\n").unwrap();
    place.text(&[
        "sysext",
        "-q",
        "--confext",
        "--release",
        "ID=_any",
        "conf",
        "app.raw",
    ]);
    let text = place.text(&[
        "cat",
        "app.raw",
        "/etc/extension-release.d/extension-release.app",
    ]);
    assert_eq!(text, "ID=_any\n");
}

/// The rule of systemd-sysext for images whose names have versions.
#[test]
fn a_release_file_of_another_name_needs_the_attribute_that_systemd_asks_for() {
    let place = stage("sysext-strict");
    fs::write(place.path("release"), "ID=debian\nVERSION_ID=13\n").unwrap();
    let dir = "./usr/lib/extension-release.d";
    let mut manifest =
        String::from("#mtree\n./usr type=dir mode=0755\n./usr/lib type=dir mode=0755\n");
    manifest += &format!("{dir} type=dir mode=0755\n");
    let line = |name: &str, strict: &str| {
        format!("{dir}/extension-release.{name} type=file mode=0644 contents=release{strict}\n")
    };
    let strict = |value: &str| format!(" xattr.user.extension-release.strict={value}");
    let both = line("app", &strict("0")) + &line("other", &strict("false"));
    for (lines, expected) in [
        (line("app", &strict("0")), ""),
        (line("app", &strict("no")), ""),
        // One of several is the only one without the strict rule.
        (line("app", &strict("0")) + &line("other", ""), ""),
        (line("app", &strict("1")), "name the output app.raw"),
        (line("app", ""), "name the output app.raw"),
        (both, "not the only release file"),
    ] {
        fs::write(place.path("tree.mtree"), format!("{manifest}{lines}")).unwrap();
        let out = place.run(&["sysext", "-q", "tree.mtree", "app-1.2.raw"]);
        let message = stderr(&out);
        assert_eq!(
            code(&out),
            if expected.is_empty() { 0 } else { 2 },
            "{lines}: {message}"
        );
        assert!(
            message.contains(expected) && message.is_empty() == expected.is_empty(),
            "{lines}: {message}"
        );
        let _ = fs::remove_file(place.path("app-1.2.raw"));
    }
}

#[test]
fn an_extension_that_systems_would_ignore_or_suffer_from_is_named() {
    let place = stage("sysext-wrong");
    for (args, expected, status) in [
        (&["--release", "ID=_any", "ext", "name"][..], "NAME.raw", 2),
        (&["--release", "NAME=x", "ext", "a.raw"], "ID is missing", 2),
        (&["--release", "id", "ext", "a.raw"], "os-release", 2),
        (
            &["--release", "ID=_any", "src", "a.raw"],
            "--exclude /usr/lib/os-release",
            2,
        ),
        (
            &["--release", "ID=test", "ext", "a.raw"],
            "without SYSEXT_LEVEL",
            0,
        ),
        (
            &[
                "--release",
                "ID=_any",
                "--exclude",
                "/usr/lib/os-release",
                "src",
                "b.raw",
            ],
            "etc",
            0,
        ),
    ] {
        let out = place.run(&[&["sysext", "-q"], args].concat());
        assert_eq!(code(&out), status, "{args:?}: {}", stderr(&out));
        assert!(
            stderr(&out).contains(expected),
            "{args:?}: {}",
            stderr(&out)
        );
    }
}

#[test]
fn a_disk_whose_tree_covers_less_than_its_partition_is_refused() {
    let place = stage("disk-coverage");
    let (disk, root) = disk(&place, &[]);
    // The number of data blocks in the header, which no digest covers.
    let field = range(&disk, 1).0 + 72;
    change(&place.path("out.raw"), field, |b| b - 1);
    for args in [
        &["cat", "--root-hash", &root, "out.raw", "usr/bin/tool"][..],
        &["extract", "-q", "--root-hash", &root, "out.raw", "out"],
        &["cat", "out.raw", "usr/bin/tool"],
        &["verity", "check", "out.raw", &root],
        &["verity", "check", "out.raw"],
    ] {
        let out = place.run(args);
        assert_eq!(code(&out), 3, "{args:?}: {}", stderr(&out));
        assert!(stderr(&out).contains("digests cover"), "{}", stderr(&out));
    }
    for args in [
        &["check", "out.raw"][..],
        &["check", "--root-hash", &root, "out.raw"],
    ] {
        let out = place.run(args);
        let message = String::from_utf8_lossy(&out.stdout);
        assert_eq!(code(&out), 1, "{message}");
        assert!(message.contains("digests cover"), "{message}");
        assert!(
            message.contains("no usable hash tree for the root hash"),
            "{message}"
        );
        assert!(!message.contains(" match the root hash"), "{message}");
    }
}

#[test]
fn the_summary_of_a_damaged_disk_counts_what_does_not_match() {
    let place = stage("disk-summary");
    let (disk, root) = disk(&place, &[]);
    let message = place.text(&["check", "out.raw"]);
    assert!(
        message.contains(&format!(" match the root hash {root}; not signed")),
        "{message}"
    );
    change(&place.path("out.raw"), range(&disk, 0).0 + 70_000, |b| !b);
    let out = place.run(&["check", "out.raw"]);
    let message = String::from_utf8_lossy(&out.stdout);
    assert_eq!(code(&out), 1, "{message}");
    assert!(message.contains("disk: 4.0 KiB of "), "{message}");
    assert!(
        message.contains(&format!(" do not match the root hash {root}; not signed")),
        "{message}"
    );
    let message = place.run(&["check", "-m", "out.raw"]).stdout;
    let message = String::from_utf8_lossy(&message);
    assert!(
        message.contains(&format!("are not compared with the root hash {root}")),
        "{message}"
    );
}

#[test]
fn a_disk_is_a_source_and_a_base_that_its_signature_or_root_hash_verifies() {
    let place = stage("disk-source");
    for name in ["rsa", "other"] {
        if certificate(&place.0, name, RSA).is_none() {
            return;
        }
    }
    let (disk, root) = disk(&place, &["--sign", "rsa.key,rsa.pem"]);
    let verified = format!("out.raw,{root}");
    place.text(&["tar", "out.raw", "plain.tar"]);
    let wrong = format!("out.raw,{}", root.replace(['0', '1'], "2"));
    for source in [
        &["out.raw"][..],
        &["--trust", "rsa.pem", "out.raw"],
        &[&verified],
    ] {
        place.text(&[&["build", "-q"], source, &["copy"]].concat());
        assert_eq!(place.text(&["diff", "src", "copy"]), "", "{source:?}");
    }
    for base in [
        &["--base", "out.raw"][..],
        &["--trust", "rsa.pem", "--base", "out.raw"],
        &["--base", &verified],
    ] {
        let out = place.json(&[&["build", "--json"], base, &["src", "delta"]].concat());
        assert!(
            out[0]["base_files"].as_u64().unwrap() > 0,
            "{base:?}: {out:?}"
        );
    }
    for (args, status) in [
        (&["build", "--trust", "other.pem", "out.raw", "new"][..], 6),
        (
            &[
                "build",
                "--trust",
                "other.pem",
                "--base",
                "out.raw",
                "src",
                "new",
            ],
            6,
        ),
        (&["build", "--trust", "rsa.pem", "copy", "new"], 6),
        (&["build", "--trust", "rsa.pem", "plain.tar", "new"], 2),
        (&["build", &wrong, "new"], 3),
        (&["build", "--base", &wrong, "src", "new"], 3),
        (&["build", &format!("src,{root}"), "new"], 2),
        (&["patch", "src", "out.raw"], 2),
    ] {
        let out = place.run(args);
        assert_eq!(code(&out), status, "{args:?}: {}", stderr(&out));
        assert!(!place.path("new").exists(), "{args:?}");
    }
    // A change in a file of the disk is found when the build reads it.
    let (at, len) = range(&disk, 0);
    for position in (at + 4096..at + len.min(1 << 16)).step_by(4096) {
        change(&place.path("out.raw"), position, |byte| byte ^ 1);
    }
    let out = place.run(&["build", &verified, "new"]);
    assert_eq!(code(&out), 3, "{}", stderr(&out));
}
