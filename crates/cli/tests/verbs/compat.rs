//! Command lines of real callers of mkfs.erofs and fsck.erofs, as verbs and as program names.

use crate::common::{Place, code, is_root, skipped, stderr, text, tool};
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::process::{Command, Output, Stdio};
use std::time::{Duration, SystemTime};
use tuff_testkit::content::noise;

/// Callers with a directory: systemd-repart, its derivatives, image builders, containers and microVM tools.
const DIRECTORIES: &[&str] = &[
    "-U 11111111-2222-3333-4444-555555555555 --quiet -zlz4hc,level=12 OUT SRC",
    "-U 11111111-2222-3333-4444-555555555555 --quiet OUT SRC -zlz4hc,12 -C65536 -Efragments,ztailpacking",
    "OUT SRC -zzstd,level=3 -C524288 -Efragments,ztailpacking",
    "-zlz4hc,12 -C65536 -Efragments,ztailpacking -U00000000-0000-0000-0000-000000000000 OUT SRC",
    "OUT SRC --quiet -z zstd,8 -E dedupe,all-fragments -C 65536 --exclude-regex nothing-of-this",
    "-zlzma,6 -Eall-fragments,fragdedupe=inode -C1048576 OUT SRC",
    "-zlzma,6 -Efragments -C1048576 OUT SRC",
    "-z zstd,8 -Ededupe,all-fragments -C 65536 OUT SRC",
    "-z lz4 --exclude-regex=no-image --exclude-regex=no-run/* -L LABEL OUT SRC",
    "-zlz4 OUT SRC",
    "-zlzma,6 -C 16384 OUT SRC",
    "OUT SRC",
    "-zlz4hc -Enoinline_data OUT SRC",
    "-zlz4hc --force-uid=0 --force-gid=0 -Eztailpacking -Efragments OUT SRC",
    "--quiet -Enoinline_data -b4096 -U 11111111-2222-3333-4444-555555555555 OUT SRC",
    "-z lz4 -x 1 -E legacy-compress OUT SRC",
    "-zdeflate,9 OUT SRC",
    "-z libdeflate,level=6:lz4 OUT SRC",
    "-z lz4hc,9 -b 4096 --mount-point / --product-out DIR -C 65536 --block-list-file LIST OUT SRC",
    "-b 4096 --mount-point / --chunksize 4096 OUT SRC",
    "-T0 --mkfs-time --sort=none OUT SRC",
    "-zlz4 -E48bit,dot-omitted OUT SRC",
    "-zlz4hc -m4096 --zD --max-extent-bytes 65536 OUT SRC",
    "-Eforce-inode-extended,^xattr-name-filter,nosbcrc --xattr-prefix=user.long. --workers=0 OUT SRC",
    "-b512 --preserve-mtime -d1 --async-queue-limit=64 OUT SRC",
];

fn tree(place: &Place) {
    let src = place.path("src");
    fs::create_dir_all(src.join("dir/deep")).unwrap();
    fs::write(src.join("dir/text"), text()).unwrap();
    fs::write(src.join("dir/deep/same"), text()).unwrap();
    fs::write(src.join("small"), "small\n").unwrap();
    fs::write(src.join("empty"), "").unwrap();
    let noise: Vec<u8> = (0..70_001u32)
        .map(|i| (i.wrapping_mul(2_654_435_761) >> 13) as u8 ^ (i / 251) as u8)
        .collect();
    fs::write(src.join("noise"), noise).unwrap();
    symlink("dir/text", src.join("link")).unwrap();
    fs::hard_link(src.join("small"), src.join("dir/again")).unwrap();
    fs::set_permissions(src.join("noise"), fs::Permissions::from_mode(0o4750)).unwrap();
    File::create(src.join("holes"))
        .unwrap()
        .set_len(300_000)
        .unwrap();
    for (i, name) in ["dir/text", "small", "noise", "dir/deep", "dir"]
        .iter()
        .enumerate()
    {
        let time = SystemTime::UNIX_EPOCH + Duration::new(1_500_000_000 + i as u64, 123_456_789);
        File::open(src.join(name))
            .unwrap()
            .set_modified(time)
            .unwrap();
    }
}

/// Lists a tree as far as images store it, by path; `with` formats the remaining properties.
fn listing(root: &Path, with: &dyn Fn(&fs::Metadata) -> String) -> BTreeMap<String, String> {
    let mut all = BTreeMap::new();
    let mut todo = vec![root.to_owned()];
    while let Some(path) = todo.pop() {
        let meta = fs::symlink_metadata(&path).unwrap();
        let mut line = format!("{:o} {}", meta.mode(), with(&meta));
        if meta.is_dir() {
            todo.extend(fs::read_dir(&path).unwrap().map(|e| e.unwrap().path()));
        } else if meta.is_symlink() {
            line += &fs::read_link(&path).unwrap().display().to_string();
        } else if meta.is_file() {
            let bytes = fs::read(&path).unwrap();
            let sum = bytes
                .iter()
                .fold(7u64, |s, b| s.wrapping_mul(31).wrapping_add((*b).into()));
            line += &format!("{} bytes, sum {sum:x}, {} names", meta.len(), meta.nlink());
        }
        let name = path.strip_prefix(root).unwrap().display().to_string();
        all.insert(name, line);
    }
    all
}

fn times(meta: &fs::Metadata) -> String {
    format!("{}.{} ", meta.mtime(), meta.mtime_nsec())
}

/// Command that runs the program under another name.
fn under(place: &Place, name: &str) -> Command {
    let link = place.path(name);
    if !link.is_symlink() {
        symlink(env!("CARGO_BIN_EXE_tuff"), &link).unwrap();
    }
    let mut command = Command::new(link);
    command
        .env_remove("SOURCE_DATE_EPOCH")
        .current_dir(&place.0);
    command
}

fn mkfs(place: &Place, line: &str) -> Output {
    under(place, "mkfs.erofs")
        .args(line.split_whitespace())
        .output()
        .unwrap()
}

fn done(out: &Output, line: &str) {
    assert_eq!(code(out), 0, "{line}: {}", stderr(out));
    if line.contains("--quiet") {
        assert_eq!((stderr(out).as_str(), out.stdout.len()), ("", 0), "{line}");
    }
}

/// Mounts an image in the kernel and inspects it. Returns false, with a note, if that is not possible.
fn mounted(place: &Place, image: &str, inspect: &dyn Fn(&Path)) -> bool {
    if !is_root() {
        skipped("no mount by the kernel: not root");
        return false;
    }
    let at = place.path("mnt");
    fs::create_dir_all(&at).unwrap();
    let out = tool(
        &place.0,
        "mount",
        &["-t", "erofs", "-o", "loop,ro", image, "mnt"],
    )
    .unwrap();
    if !out.status.success() {
        skipped(format_args!(
            "the kernel does not mount {image}: {}",
            stderr(&out).trim()
        ));
        return false;
    }
    let looked = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| inspect(&at)));
    // A concurrent test inherits our files until its child executes a command.
    let gone = tool(&place.0, "umount", &["-l", "mnt"]).unwrap();
    assert!(gone.status.success(), "{}", stderr(&gone));
    if let Err(panic) = looked {
        std::panic::resume_unwind(panic);
    }
    true
}

#[test]
fn callers_with_a_directory_get_their_tree() {
    let place = Place::new("compat-dirs");
    tree(&place);
    let expected = listing(&place.path("src"), &times);
    for (i, line) in DIRECTORIES.iter().enumerate() {
        let line = line.replace("OUT", "o").replace("SRC", "src");
        let _ = fs::remove_file(place.path("o"));
        let out = if i % 2 == 0 {
            mkfs(&place, &line)
        } else {
            let words: Vec<&str> = ["mkfs.erofs"].into_iter().chain(line.split(' ')).collect();
            place.run(&words)
        };
        done(&out, &line);
        let diff = place.run(&["diff", "o", "src"]);
        let message = String::from_utf8_lossy(&diff.stdout).into_owned() + &stderr(&diff);
        assert_eq!(code(&diff), 0, "{line}: {message}");
        assert_eq!(code(&place.run(&["check", "-q", "o"])), 0, "{line}");
        let fsck = under(&place, "fsck.erofs")
            .args(["--extract", "o"])
            .output()
            .unwrap();
        assert_eq!((code(&fsck), stderr(&fsck).as_str()), (0, ""), "{line}");
        mounted(&place, "o", &|at| {
            assert_eq!(listing(at, &times), expected, "{line}")
        });
    }
}

#[test]
fn owners_times_labels_and_uuids_are_those_of_the_options() {
    let place = Place::new("compat-meta");
    tree(&place);
    fs::write(place.path("contexts"), "/p(/.*)? u:object_r:p:s0\n").unwrap();
    let config: String = listing(&place.path("src"), &times)
        .keys()
        .map(|name| match name.as_str() {
            "" => "p 0 0 0755\n".to_owned(),
            name => format!("p/{name} 7 8 0644\n"),
        })
        .collect();
    fs::write(place.path("config"), config).unwrap();
    let line = "-zlz4hc,9 -T 1230768000 --mount-point=/p --fs-config-file=config --file-contexts=contexts \
        -U 11111111-2222-3333-4444-555555555555 -L label o src";
    done(&mkfs(&place, line), line);
    let stat = &place.json(&["stat", "--json", "o", "noise"])[0].to_string();
    for part in ["\"uid\":7", "\"gid\":8", "1230768000", "security.selinux"] {
        assert!(stat.contains(part), "{part}: {stat}");
    }
    let info = place.text(&["info", "--json", "o"]);
    assert!(
        info.contains("11111111-2222-3333-4444-555555555555") && info.contains("\"label\""),
        "{info}"
    );
    mounted(&place, "o", &|at| {
        let meta = fs::metadata(at.join("noise")).unwrap();
        assert_eq!(
            (meta.uid(), meta.gid(), meta.mtime()),
            (7, 8, 1_230_768_000)
        );
    });
    let line = "--all-root --uid-offset=100 -T5 -Eforce-inode-compact o src";
    done(&mkfs(&place, line), line);
    mounted(&place, "o", &|at| {
        let meta = fs::metadata(at.join("dir")).unwrap();
        assert_eq!((meta.uid(), meta.gid(), meta.mtime()), (100, 0, 5));
    });
    // SOURCE_DATE_EPOCH bounds unchanged times, and earlier ones are kept even with another `-T`.
    for (epoch, line, expected) in [
        (1_000_000_000, "o src", 1_000_000_000),
        (1_000_000_000, "-T5 --mkfs-time o src", 1_000_000_000),
        (1_000_000_000, "-T5 o src", 1_000_000_000),
        (1_600_000_000, "-T5 o src", 1_500_000_001),
        (1_600_000_000, "-T5 --ignore-mtime o src", 1_600_000_000),
    ] {
        let mut command = under(&place, "mkfs.erofs");
        command.env("SOURCE_DATE_EPOCH", epoch.to_string());
        done(&command.args(line.split(' ')).output().unwrap(), line);
        mounted(&place, "o", &|at| {
            let meta = fs::metadata(at.join("small")).unwrap();
            assert_eq!(meta.mtime(), expected, "{epoch} {line}");
        });
    }
}

/// With every kind of source, even for a tar that is packed as it arrives.
#[test]
fn hard_links_become_separate_files() {
    let place = Place::new("compat-links");
    tree(&place);
    fs::hard_link(place.path("src/dir/text"), place.path("src/zz-text")).unwrap();
    fs::hard_link(place.path("src/link"), place.path("src/zz-link")).unwrap();
    let tar = tool(&place.0, "tar", &["-C", "src", "-cf", "t.tar", "."]);
    assert!(tar.is_some_and(|out| out.status.success()));
    done(&mkfs(&place, "i src"), "i src");
    for line in [
        "--hard-dereference o src",
        "--hard-dereference -zlz4hc -C16384 -Efragments,dedupe o src",
        "--hard-dereference --tar=f o t.tar",
        "--hard-dereference --tar=f -zlz4 -Eztailpacking o t.tar",
        "--hard-dereference --clean=data o i",
        "--hard-dereference --tar=i index t.tar",
        "--hard-dereference index i",
    ] {
        done(&mkfs(&place, line), line);
        if line.contains("index") {
            let device = line.rsplit(' ').next().unwrap();
            let parts = ["index", device].map(|part| fs::read(place.path(part)).unwrap());
            fs::write(place.path("o"), parts.concat()).unwrap();
        }
        assert_eq!(code(&place.run(&["check", "-q", "o"])), 0, "{line}");
        let links = place.text(&["info", "o"]);
        assert!(!links.contains("hard link"), "{line}: {links}");
        mounted(&place, "o", &|at| {
            for (name, content) in [("small", "small\n"), ("dir/again", "small\n")] {
                let path = at.join(name);
                assert_eq!(fs::metadata(&path).unwrap().nlink(), 1, "{line}");
                assert_eq!(fs::read_to_string(&path).unwrap(), content, "{line}");
            }
            for name in ["dir/text", "zz-text"] {
                assert_eq!(
                    fs::read(at.join(name)).unwrap(),
                    text().as_bytes(),
                    "{line}: {name}"
                );
            }
            assert_eq!(
                fs::read_link(at.join("zz-link")).unwrap(),
                Path::new("dir/text")
            );
        });
    }
    // The separate files share their data.
    let size = |options: &[&str]| {
        place.text(&[&["build", "-q"], options, &["src", "o"]].concat());
        fs::metadata(place.path("o")).unwrap().len()
    };
    assert!(size(&["--no-hard-links", "--verify"]) < size(&[]) + 4096);
}

#[test]
fn names_of_one_file_and_copies_of_it_give_the_same_image() {
    let place = Place::new("compat-dereference");
    for name in ["links", "copies"] {
        fs::create_dir_all(place.path(name).join("sub")).unwrap();
        let at = |file: &str| place.path(name).join(file);
        // Longer than what a stream keeps in memory, one with a tail, and one that fits behind its inode.
        for (file, bytes) in [
            ("long", noise(9 << 20, 1)),
            ("tail", text().into_bytes()),
            ("small", b"small".to_vec()),
        ] {
            fs::write(at(file), &bytes).unwrap();
            for other in [format!("sub/{file}"), format!("z-{file}")] {
                match name {
                    "links" => fs::hard_link(at(file), at(&other)).unwrap(),
                    _ => fs::write(at(&other), &bytes).unwrap(),
                }
            }
        }
        let tar = tool(
            &place.0,
            "tar",
            &[
                "--sort=name",
                "-C",
                name,
                "-cf",
                &format!("{name}.tar"),
                ".",
            ],
        );
        assert!(tar.is_some_and(|out| out.status.success()));
    }
    let common = "--quiet -T0 -Uclear --all-root --hard-dereference";
    for options in [
        "",
        "-zlz4",
        "-zlz4hc -C65536 -Efragments",
        "-zlz4 -Eztailpacking",
        "-zlz4hc -C16384 -Eall-fragments,dedupe",
        "-zzstd -C65536",
        "--chunksize=4096",
    ] {
        for source in ["dir", "tar", "pipe"] {
            let images = ["links", "copies"].map(|name| {
                let line = match source {
                    "dir" => format!("{common} {options} o {name}"),
                    "tar" => format!("{common} {options} --tar=f o {name}.tar"),
                    _ => format!("{common} {options} --tar=f o"),
                };
                let mut command = under(&place, "mkfs.erofs");
                command.args(line.split_whitespace()).stdin(Stdio::piped());
                command.stdout(Stdio::piped()).stderr(Stdio::piped());
                let mut child = command.spawn().unwrap();
                let mut pipe = child.stdin.take().unwrap();
                if source == "pipe" {
                    let mut tar = File::open(place.path(&format!("{name}.tar"))).unwrap();
                    std::io::copy(&mut tar, &mut pipe).unwrap();
                }
                drop(pipe);
                done(&child.wait_with_output().unwrap(), &line);
                fs::read(place.path("o")).unwrap()
            });
            assert!(images[0] == images[1], "{options}: {source}");
        }
    }
}

#[test]
fn exclusions_and_compression_hints_apply() {
    let place = Place::new("compat-exclude");
    tree(&place);
    let line = "--exclude-path=dir/deep --exclude-regex=^no.s --exclude-regex=y$ o src";
    done(&mkfs(&place, line), line);
    let paths = place.text(&["ls", "-R", "o"]);
    assert!(paths.contains("text") && paths.contains("small"), "{paths}");
    for gone in ["deep", "noise", "empty"] {
        assert!(!paths.contains(gone), "{gone}: {paths}");
    }
    fs::write(place.path("hints"), "5000 text\n0 text$\n16384 1 same$\n").unwrap();
    let line = "-zlz4hc:lzma,9 -C65536 --compress-hints=hints o src";
    let out = mkfs(&place, line);
    done(&out, line);
    assert!(
        stderr(&out).contains("line 1: 5000 is not a multiple"),
        "{}",
        stderr(&out)
    );
    let of = |path| format!("{:?}", place.extents("o", path));
    assert!(!of("dir/text").contains("lz"), "stored: {}", of("dir/text"));
    assert!(
        of("dir/deep/same").contains("lzma"),
        "{}",
        of("dir/deep/same")
    );
    fs::write(place.path("hints"), "0\n").unwrap();
    assert_eq!(code(&mkfs(&place, line)), 1);
}

#[test]
fn callers_with_a_tar_get_its_tree() {
    let place = Place::new("compat-tars");
    tree(&place);
    fs::write(place.path("src/.wh.gone"), "").unwrap();
    let Some(tar) = tool(
        &place.0,
        "tar",
        &["--format=pax", "-C", "src", "-cf", "-", "."],
    ) else {
        return;
    };
    fs::write(place.path("t.tar"), &tar.stdout).unwrap();
    for (line, whiteout) in [
        (
            "--tar=f --aufs --quiet -Enoinline_data -b4096 -T0 --mkfs-time --sort=none -U 11111111-2222-3333-4444-555555555555 o",
            "gone",
        ),
        (
            "--tar=f --aufs --quiet -Enoinline_data o /dev/stdin",
            "gone",
        ),
        ("--tar=f --aufs --quiet o /proc/self/fd/0", "gone"),
        (
            "--tar=f -zlz4hc -C4096 -U 11111111-2222-3333-4444-555555555555 o",
            ".wh.gone",
        ),
        ("--tar -zlz4hc o t.tar --ungzip", ".wh.gone"),
        ("--tar=f --aufs --ovlfs-strip=1 o t.tar", ""),
    ] {
        let mut child = under(&place, "mkfs.erofs")
            .args(line.split(' '))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut stdin = child.stdin.take().unwrap();
        // Bytes after the archive are accepted and ignored. A tar given as a file is not read to its end.
        let written = stdin
            .write_all(&tar.stdout)
            .and_then(|()| stdin.write_all(&[7; 100_000]));
        assert!(written.is_ok() || line.contains("t.tar"), "{line}");
        drop(stdin);
        let out = child.wait_with_output().unwrap();
        done(&out, line);
        let root = place.text(&["ls", "o"]);
        let gone: Vec<&str> = root.lines().filter(|l| l.contains("gone")).collect();
        assert_eq!(
            gone.len(),
            usize::from(!whiteout.is_empty()),
            "{line}: {root}"
        );
        assert!(gone.iter().all(|l| l.ends_with(whiteout)), "{line}: {root}");
        mounted(&place, "o", &|at| {
            let of = |root: &Path| {
                let mut all = listing(root, &times);
                // The root has a newer time, and the kernel presents devices as devices.
                all.retain(|name, _| !name.is_empty() && !name.contains("gone"));
                all
            };
            if whiteout != "gone" {
                assert_eq!(of(at), of(&place.path("src")), "{line}");
            }
        });
    }
}

/// containerd and Kata: an index from a pipe that is copied meanwhile; the copy is appended, and both are mounted as
/// one file.
#[test]
fn an_index_followed_by_its_tar_is_the_tree() {
    let place = Place::new("compat-index");
    tree(&place);
    fs::write(place.path("src/.wh.gone"), "").unwrap();
    fs::write(place.path("src/dir/.wh..wh..opq"), "").unwrap();
    let Some(tar) = tool(
        &place.0,
        "tar",
        &["--format=pax", "-S", "-C", "src", "-cf", "-", "."],
    ) else {
        return;
    };
    let mut bytes = tar.stdout;
    // Bytes after the archive are accepted and ignored. A tar given as a file is not read to its end.
    bytes.resize(bytes.len() + 300_000, 7);
    fs::write(place.path("t.tar"), &bytes).unwrap();
    let mut images = Vec::new();
    for line in [
        "--tar=i --aufs --quiet -U 11111111-2222-3333-4444-555555555555 o",
        "--tar=i --aufs --quiet --sort=none -Enoinline_data -U 11111111-2222-3333-4444-555555555555 o /dev/stdin",
        "--tar=i --aufs --quiet -b4096 -zlz4hc -U 11111111-2222-3333-4444-555555555555 o",
        "--tar=i --aufs -U 11111111-2222-3333-4444-555555555555 --workers=7 o t.tar",
        "--tar=i --aufs --fsalignblks=64 -E48bit -T0 --mkfs-time o",
    ] {
        let mut child = under(&place, "mkfs.erofs")
            .args(line.split(' '))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let written = child.stdin.take().unwrap().write_all(&bytes);
        assert!(written.is_ok() || line.contains("t.tar"), "{line}");
        let out = child.wait_with_output().unwrap();
        done(&out, line);
        let index = fs::read(place.path("o")).unwrap();
        assert!(index.len() < 64 << 10, "{line}: {}", index.len());
        assert_eq!(
            code(&place.run(&["check", "-q", "--device", "t.tar", "o"])),
            0
        );
        // Without the tar the index still names the addresses.
        let dump = place.text(&["dump", "o"]);
        assert!(
            dump.contains("device=\"not given\"") && !dump.contains("broken"),
            "{dump}"
        );
        fs::write(place.path("both"), [&index[..], &bytes].concat()).unwrap();
        let fsck = under(&place, "fsck.erofs")
            .args(["--extract", "both"])
            .output()
            .unwrap();
        assert_eq!((code(&fsck), stderr(&fsck).as_str()), (0, ""), "{line}");
        let ls = place.text(&["ls", "-l", "both"]);
        assert!(
            ls.lines()
                .any(|l| l.starts_with('c') && l.ends_with(" gone")),
            "{ls}"
        );
        for image in [&["both"][..], &["--device", "t.tar", "o"]] {
            let text = place.text(
                &[
                    &["cat"],
                    &image[..image.len() - 1],
                    &[image[image.len() - 1], "dir/text"],
                ]
                .concat(),
            );
            assert_eq!(text, crate::common::text(), "{line}");
        }
        mounted(&place, "both", &|at| {
            let of = |root: &Path| {
                let mut all = listing(root, &times);
                let is = |name: &str, what: &str| name.ends_with(what);
                all.retain(|name, _| {
                    !["gone", ".wh..wh..opq"].iter().any(|what| is(name, what))
                        && !["", "dir"].contains(&&**name)
                });
                all
            };
            assert_eq!(of(at), of(&place.path("src")), "{line}");
        });
        images.push(index);
    }
    assert!(images[..4].iter().all(|image| *image == images[0]));
    assert_eq!(images[4].len() % (64 * 512), 0);
}

#[test]
fn data_can_lie_on_a_second_device() {
    let place = Place::new("compat-blob");
    tree(&place);
    let expected = listing(&place.path("src"), &times);
    for line in [
        "--quiet --blobdev=b --chunksize=4096 o src",
        "--blobdev b --chunksize 65536 -zlz4hc --fsalignblks=16 o src",
        "--blobdev=b --chunksize=4096 -b512 --offset=512 o src",
    ] {
        fs::write(place.path("b"), "what was there before").unwrap();
        done(&mkfs(&place, line), line);
        let at = if line.contains("--offset") {
            "512"
        } else {
            "0"
        };
        for verb in [&["check", "-q"][..], &["diff"]] {
            let mut words = [verb, &["--offset", at, "--device", "b", "o"]].concat();
            words.extend((verb[0] == "diff").then_some("src"));
            let out = place.run(&words);
            assert_eq!(code(&out), 0, "{line}: {verb:?}: {}", stderr(&out));
        }
        let both = [
            fs::read(place.path("o")).unwrap(),
            fs::read(place.path("b")).unwrap(),
        ]
        .concat();
        fs::write(place.path("both"), &both[at.parse().unwrap()..]).unwrap();
        mounted(&place, "both", &|at| {
            assert_eq!(listing(at, &times), expected, "{line}")
        });
    }
    fs::remove_file(place.path("b")).unwrap();
    assert_eq!(
        code(&mkfs(&place, "--blobdev=b --chunksize=4096 o nothing")),
        1
    );
    assert!(!place.path("b").exists());
}

/// Merging of layers as in containerd: their data stays in them. Compressed layers, which mkfs.erofs rejects, are
/// merged too.
#[test]
fn layers_are_merged_without_copying_their_data() {
    let place = Place::new("compat-merge");
    tree(&place);
    fs::create_dir(place.path("top")).unwrap();
    fs::write(place.path("top/small"), "another").unwrap();
    fs::write(place.path("top/.wh.noise"), "").unwrap();
    for (below, above) in [
        ("-Enoinline_data", "-Enoinline_data"),
        ("", "-b4096"),
        ("-zlz4hc -C16384 -Efragments,dedupe", "-zlz4"),
        ("-b512 --chunksize=4096", "-b512"),
    ] {
        for (options, image, source) in [(below, "l0", "src"), (above, "l1", "top")] {
            let line = format!("--quiet {options} {image} {source}");
            done(&mkfs(&place, &line), &line);
        }
        let line = "--aufs --ovlfs-strip=1 --quiet --vmdk-desc=disk o l0 l1";
        done(&mkfs(&place, line), line);
        let line = "--aufs --ovlfs-strip=1 --quiet --clean=data whole l0 l1";
        done(&mkfs(&place, line), line);
        let out = place.run(&["check", "-q", "--device", "l0", "--device", "l1", "o"]);
        assert_eq!(code(&out), 0, "{below}: {}", stderr(&out));
        let size = |name: &str| fs::metadata(place.path(name)).unwrap().len();
        assert!(size("o") < size("whole") / 2, "{below}");
        // The described disk is the concatenation of all files.
        let text = fs::read_to_string(place.path("disk")).unwrap();
        let mut disk = Vec::new();
        for line in text.lines().filter(|line| line.starts_with("RW ")) {
            let words: Vec<&str> = line.split(' ').collect();
            let [_, sectors, "FLAT", name, "0"] = words[..] else {
                panic!("{line}")
            };
            let bytes = fs::read(place.path(name.trim_matches('"'))).unwrap();
            assert_eq!(bytes.len() as u64, sectors.parse::<u64>().unwrap() * 512);
            disk.extend(bytes);
        }
        fs::write(place.path("disk.raw"), disk).unwrap();
        let same = place.run(&["diff", "disk.raw", "whole"]);
        assert_eq!(code(&same), 0, "{below}: {}", stderr(&same));
        mounted(&place, "disk.raw", &|at| {
            assert_eq!(fs::read(at.join("small")).unwrap(), b"another");
            assert!(!at.join("noise").exists());
        });
    }
}

/// Parses a block list: paths below `/system`, and the blocks of each.
fn block_list(place: &Place) -> BTreeMap<String, Vec<usize>> {
    let list = fs::read_to_string(place.path("list")).unwrap();
    let line = |line: &str| {
        let mut words = line.split(' ');
        let path = words.next().and_then(|path| path.strip_prefix("/system/"));
        let blocks = words.flat_map(|run| {
            let (first, last) = run.split_once('-').unwrap_or((run, run));
            first.parse::<usize>().unwrap()..=last.parse().unwrap()
        });
        (path.unwrap().to_owned(), blocks.collect())
    };
    list.lines().map(line).collect()
}

#[test]
fn blocks_of_files_are_listed_below_the_mount_point() {
    let place = Place::new("compat-blocks");
    tree(&place);
    fs::write(place.path("src/two words"), text()).unwrap();
    let android = "--mount-point=/system -b4096 --block-list-file=list o src";
    let line = format!("--offset=8192 -Enoinline_data {android}");
    let out = mkfs(&place, &line);
    done(&out, &line);
    assert!(stderr(&out).contains("1 left out"), "{}", stderr(&out));
    let image = fs::read(place.path("o")).unwrap();
    let list = block_list(&place);
    for path in ["dir/text", "dir/deep/same", "noise"] {
        let content = fs::read(place.path("src").join(path)).unwrap();
        let blocks = list[path].iter().flat_map(|block| {
            let at = 8192 + block * 4096;
            &image[at..at + 4096]
        });
        assert!(blocks.take(content.len()).eq(&content), "{path}");
        assert_eq!(list[path].len(), content.len().div_ceil(4096), "{path}");
    }
    let names = ["small", "dir/again"].map(|path| list.contains_key(path));
    assert!(names[0] != names[1], "one of two names: {names:?}");
    assert!(!list.contains_key("empty") && !list.contains_key("two words"));

    let line = format!("-zlz4hc,9 -C16384 {android}");
    done(&mkfs(&place, &line), &line);
    let list = block_list(&place);
    let mut all: Vec<usize> = list.values().flatten().copied().collect();
    let text_blocks = list["dir/text"].len();
    assert!(0 < text_blocks && text_blocks < text().len().div_ceil(4096));
    let len = all.len();
    all.sort_unstable();
    all.dedup();
    assert_eq!(all.len(), len, "no block is two files'");
    let blocks = fs::metadata(place.path("o")).unwrap().len() / 4096;
    assert!(
        all.iter()
            .all(|&block| block > 0 && (block as u64) < blocks)
    );

    let line = "--block-list-file=o o src";
    let out = mkfs(&place, line);
    assert_eq!(code(&out), 1);
    assert!(stderr(&out).contains("another output"), "{}", stderr(&out));
}

#[test]
fn an_image_can_begin_inside_a_file_and_end_at_a_multiple() {
    let place = Place::new("compat-offset");
    tree(&place);
    let line = "--offset=8192 --fsalignblks=15 -zlz4 o src";
    done(&mkfs(&place, line), line);
    assert_eq!(
        (fs::metadata(place.path("o")).unwrap().len() - 8192) % 65536,
        0
    );
    assert_eq!(
        code(&place.run(&["diff", "--offset", "8192", "o", "src"])),
        0
    );
    let fsck = under(&place, "fsck.erofs")
        .args(["--offset=8192", "-p", "o"])
        .output()
        .unwrap();
    assert_eq!(code(&fsck), 0, "{}", stderr(&fsck));
    let hidden = |e: &fs::DirEntry| e.file_name().to_string_lossy().starts_with('.');
    let left = fs::read_dir(&place.0)
        .unwrap()
        .filter(|e| hidden(e.as_ref().unwrap()));
    assert_eq!(left.count(), 0, "nothing else stays");
}

#[test]
fn a_full_disk_behind_an_offset_leaves_what_was_there() {
    let place = Place::new("compat-full");
    let Some(small) = crate::faults::Small::new(&place, "small") else {
        return;
    };
    fs::create_dir(place.path("src")).unwrap();
    // The image fits, but not a second copy of it.
    fs::write(place.path("src/f"), vec![7; 140 << 10]).unwrap();
    fs::write(small.0.join("o"), "what was there").unwrap();
    let out = mkfs(&place, "--quiet --offset=4096 small/o src");
    assert_eq!(code(&out), 1);
    let message = stderr(&out);
    assert!(message.contains("small/o: cannot write"), "{message}");
    assert_eq!(fs::read(small.0.join("o")).unwrap(), b"what was there");
    assert_eq!(fs::read_dir(&small.0).unwrap().count(), 1);
}

#[test]
fn unsupported_options_are_rejected_by_name() {
    let place = Place::new("compat-refused");
    tree(&place);
    for (line, says) in [
        (
            "--tar=i -zlz4 -m4096 o",
            "-m, and --zD, with --tar=i is not supported",
        ),
        (
            "--tar=i o src",
            "src: cannot open the source: Is a directory",
        ),
        ("--tar=bogus o", "--tar=bogus is not supported"),
        (
            "--sort=bogus o src",
            "--sort: 'bogus' is neither none nor path",
        ),
        ("--clean=7 o src", "--clean=7 is not supported"),
        (
            "--incremental o src",
            "--incremental is not supported: use 'tuff patch'",
        ),
        ("--blobdev=b o src", "--blobdev: it needs --chunksize"),
        (
            "--blobdev=o --chunksize=4096 o src",
            "--blobdev o: it is FILE",
        ),
        (
            "--blobdev=b --chunksize=4096 --tar=i o",
            "--blobdev with --tar=i is not supported",
        ),
        ("--chunksize=512 o src", "chunk size 512"),
        ("-Ebogus o src", "-E bogus is not a known feature"),
        (
            "-Eforce-inode-blockmap --chunksize=4096 --blobdev=b o src",
            "-E force-inode-blockmap with --blobdev",
        ),
        (
            "-zdeflate,dictsize=300 o src",
            "a power of two from 256 to 32768",
        ),
        ("-zlz5 o src", "-z lz5: 'lz5' is not an algorithm"),
        ("-zlzma,lc=4 o src", "-z lzma,lc= is not supported"),
        ("-zlz4 -C5000 o src", "cluster size 5000"),
        (
            "-b131072 o src",
            "-b 131072: a power of two from 512 to 65536",
        ),
        ("-m4096 o src", "without -z is not supported"),
        (
            "--exclude-regex=a( o src",
            "--exclude-regex: expression 'a('",
        ),
        ("--frobnicate o src", "--frobnicate is not a known option"),
        ("-L sixteen-bytes-is o src", "label of 16 bytes"),
        (
            "o src src",
            "src: with several sources each must be an image",
        ),
        (
            "o src/small",
            "src/small: this source is neither a directory",
        ),
        (
            "--offset=4096 --vmdk-desc=v o src",
            "--vmdk-desc with --offset is not supported",
        ),
        ("o", "SOURCE"),
        ("", "FILE"),
    ] {
        let out = mkfs(&place, line);
        let message = stderr(&out);
        assert_eq!(
            (code(&out), message.lines().count()),
            (1, 1),
            "{line}: {message}"
        );
        assert!(
            message.starts_with("mkfs.erofs: ") && message.contains(says),
            "{line}: {message}"
        );
        assert!(out.stdout.is_empty() && !place.path("o").exists(), "{line}");
    }
}

#[test]
fn feature_probes_of_callers_succeed() {
    let place = Place::new("compat-probes");
    for (name, options) in [
        (
            "mkfs.erofs",
            &["--tar=", "-b#", "--xattr-prefix", "[,level=", "Tuff"][..],
        ),
        ("fsck.erofs", &["--extract", "--offset", "Tuff"]),
    ] {
        let out = under(&place, name).arg("--help").output().unwrap();
        let help = String::from_utf8(out.stdout.clone()).unwrap();
        assert_eq!((code(&out), stderr(&out).as_str()), (0, ""), "{name}");
        for option in options {
            assert!(help.contains(option), "{name}: {option}");
        }
        assert_eq!(place.run(&[name, "-h"]).stdout, out.stdout);
        let version = under(&place, name).arg("--version").output().unwrap();
        let version = String::from_utf8(version.stdout).unwrap();
        let lines: Vec<&str> = version.lines().collect();
        let number = lines[0]
            .strip_prefix(&format!("{name} (erofs-utils) "))
            .unwrap();
        let parts: Vec<u32> = number.split('.').map(|p| p.parse().unwrap()).collect();
        assert!(parts >= vec![1, 8, 2], "{number}");
        assert!(
            lines[1].starts_with("available ") && lines[1].contains("lz4"),
            "{version}"
        );
        assert!(lines[2].starts_with("this is Tuff "), "{version}");
    }
    // Some callers search the binary instead of running it.
    let program = fs::read(env!("CARGO_BIN_EXE_tuff")).unwrap();
    for name in [&b"\0mkfs-time\0"[..], b"\0sort\0"] {
        assert!(program.windows(name.len()).any(|w| w == name));
    }
}

#[test]
fn checks_and_extractions_of_callers_report_errors() {
    let place = Place::with_image("compat-fsck");
    let fsck = |line: &str| {
        let words = line.split_whitespace();
        under(&place, "fsck.erofs").args(words).output().unwrap()
    };
    for line in ["i", "-d1 i", "-a -y i", "--extract i", "--no-sbcrc i"] {
        let out = fsck(line);
        assert_eq!(
            (code(&out), stderr(&out).as_str(), out.stdout.len()),
            (0, "", 0),
            "{line}"
        );
    }
    let ratio = String::from_utf8(fsck("-p i").stdout).unwrap();
    assert!(ratio.starts_with("Compression ratio: "), "{ratio}");
    place.damage("bad", 1024 + 48, |b| b ^ 1);
    let out = fsck("bad");
    assert_eq!(code(&out), 1);
    assert!(stderr(&out).contains("checksum"), "{}", stderr(&out));
    assert_eq!(code(&fsck("--no-sbcrc bad")), 0);
    for (line, says) in [
        ("missing", "missing: cannot open"),
        ("--path=/nothing i", "does not exist"),
        ("--extract=/ i", "needs --force"),
        ("--nid=99999999 i", "no path leads there"),
        ("--nid=x i", "'x'"),
        ("i i", "one image at a time"),
        ("", "IMAGE is missing"),
    ] {
        let out = fsck(line);
        assert_eq!(code(&out), 1, "{line}");
        assert!(stderr(&out).contains(says), "{line}: {}", stderr(&out));
    }
    if !is_root() {
        return skipped("devices are extracted by root only");
    }
    for line in ["--extract=out --no-xattrs i", "--extract=out --overwrite i"] {
        let out = fsck(line);
        assert_eq!((code(&out), stderr(&out).as_str()), (0, ""), "{line}");
        assert_eq!(
            fs::read_to_string(place.path("out/dir/text")).unwrap(),
            text()
        );
    }
    assert_eq!(code(&fsck("--extract=out i")), 1, "what is there stays");
    assert_eq!(code(&fsck("--extract=part --path=/dir i")), 0);
    assert!(place.path("part/text").exists());
    let stat = place.run(&["stat", "--json", "i", "/dir"]);
    let stat: serde_json::Value = serde_json::from_slice(&stat.stdout).unwrap();
    let line = format!("--extract=numbered --nid={} i", stat["nid"]);
    assert_eq!(code(&fsck(&line)), 0, "{line}");
    assert!(place.path("numbered/text").exists());
}

#[test]
fn help_states_the_block_sizes_that_are_taken() {
    let place = Place::new("compat-help");
    let help = place.text(&["mkfs.erofs", "--help"]);
    assert!(help.contains("block size, 512 to 65536"), "{help}");
    fs::create_dir(place.path("src")).unwrap();
    for block in ["-b512", "-b65536"] {
        place.text(&["mkfs.erofs", "--quiet", block, "i", "src"]);
    }
    for block in ["-b256", "-b131072"] {
        assert_eq!(code(&place.run(&["mkfs.erofs", block, "i", "src"])), 1);
    }
}

/// Returns the chunk format of a file in an image, from its compact inode.
fn chunk_format(place: &Place, image: &str, path: &str) -> u16 {
    let stat = place.run(&["stat", "--json", image, path]);
    let stat: serde_json::Value = serde_json::from_slice(&stat.stdout).unwrap();
    assert_eq!(stat["extended"], false);
    let bytes = fs::read(place.path(image)).unwrap();
    let at = usize::try_from(stat["position"].as_u64().unwrap()).unwrap() + 16;
    u16::from_le_bytes(*bytes[at..].first_chunk().unwrap())
}

#[test]
fn chunk_tables_have_the_requested_form() {
    let place = Place::new("compat-chunk-tables");
    fs::create_dir(place.path("src")).unwrap();
    fs::write(place.path("src/noise"), noise(50_000, 3)).unwrap();
    const INDEXES: u16 = 1 << 5;
    for (options, form) in [
        ("--chunksize=4096", 0),
        ("--chunksize=4096 -E force-chunk-indexes", INDEXES),
        ("--chunksize=4096 -Eforce-inode-blockmap", 0),
        (
            "--chunksize=4096 -Eforce-chunk-indexes,force-inode-blockmap",
            0,
        ),
        (
            "--chunksize=4096 -Eforce-inode-blockmap,force-chunk-indexes",
            INDEXES,
        ),
        ("--chunksize=4096 --blobdev=b", INDEXES),
    ] {
        let line = format!("--quiet {options} o src");
        done(&mkfs(&place, &line), &line);
        assert_eq!(
            chunk_format(&place, "o", "/noise") & INDEXES,
            form,
            "{line}"
        );
        let device: &[&str] = match options.contains("blobdev") {
            true => &["--device", "b"],
            false => &[],
        };
        let out = place.run(&[&["diff"], device, &["o", "src"]].concat());
        assert_eq!(code(&out), 0, "{line}: {}", stderr(&out));
    }
    // Other files have no chunks, so both words change nothing.
    for options in ["-Eforce-chunk-indexes", "-zlz4 -Eforce-inode-blockmap"] {
        let line = format!("--quiet {options} o src");
        done(&mkfs(&place, &line), &line);
    }
}

#[test]
fn scripts_may_pass_empty_settings() {
    let place = Place::new("compat-empty");
    tree(&place);
    let image = |line: &[&str]| {
        let mut command = under(&place, "mkfs.erofs");
        let out = command.env("SOURCE_DATE_EPOCH", "").args(line).output();
        done(&out.unwrap(), &line.join(" "));
        fs::read(place.path("o")).unwrap()
    };
    let plain = image(&["--quiet", "o", "src"]);
    assert!(plain == image(&["--quiet", "-z", "", "o", "src"]));
    let deflate = image(&["--quiet", "-zdeflate", "o", "src"]);
    assert!(deflate == image(&["--quiet", "-zdeflate,dictsize=16384", "o", "src"]));
}

#[test]
fn a_file_is_written_in_place() {
    let place = Place::new("compat-in-place");
    tree(&place);
    let file = place.path("o");
    for (line, output) in [
        ("--quiet o src", "o"),
        ("--quiet --offset=4096 o src", "o"),
        ("--quiet --chunksize=4096 --blobdev=b o src", "b"),
    ] {
        let file = place.path(output);
        fs::write(&file, vec![b'x'; 3 << 20]).unwrap();
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600)).unwrap();
        let _ = fs::remove_file(place.path("other"));
        fs::hard_link(&file, place.path("other")).unwrap();
        let open = fs::File::open(&file).unwrap();
        let before = fs::metadata(&file).unwrap();
        done(&mkfs(&place, line), line);
        let after = fs::metadata(&file).unwrap();
        assert_eq!(
            (after.ino(), after.mode(), after.nlink()),
            (before.ino(), before.mode(), 2),
            "{line}"
        );
        assert_eq!(open.metadata().unwrap().len(), after.len(), "{line}");
        assert_eq!(
            fs::read(place.path("other")).unwrap(),
            fs::read(&file).unwrap()
        );
        assert!(after.len() < 3 << 20, "{line}");
    }
    // A source that is the file itself cannot be read any more.
    done(&mkfs(&place, "--quiet o src"), "o src");
    let image = fs::read(&file).unwrap();
    let out = mkfs(&place, "--quiet --clean=data o o");
    assert_eq!(code(&out), 1);
    assert!(
        stderr(&out).contains("written in place"),
        "{}",
        stderr(&out)
    );
    assert!(fs::read(&file).unwrap() == image);
}

#[test]
fn modes_and_owners_are_restored_as_requested() {
    if !is_root() {
        return skipped("owners are restored by root only");
    }
    let place = Place::new("compat-preserve");
    fs::create_dir(place.path("src")).unwrap();
    let file = place.path("src/file");
    fs::write(&file, "content").unwrap();
    std::os::unix::fs::chown(&file, Some(12), Some(34)).unwrap();
    fs::set_permissions(&file, fs::Permissions::from_mode(0o666)).unwrap();
    done(&mkfs(&place, "--quiet i src"), "i src");
    let umask = fs::metadata(place.path("i")).unwrap().mode() & 0o666;
    for (options, owner, mode) in [
        ("", 12, 0o666),
        ("--preserve", 12, 0o666),
        ("--no-preserve", 0, umask),
        ("--no-preserve-owner", 0, 0o666),
        ("--no-preserve-perms", 12, umask),
        ("--no-preserve --preserve-perms", 0, 0o666),
    ] {
        let line = format!("--extract=out --overwrite {options} i");
        let out = under(&place, "fsck.erofs")
            .args(line.split_whitespace())
            .output();
        done(&out.unwrap(), &line);
        let found = fs::metadata(place.path("out/file")).unwrap();
        assert_eq!(
            (found.uid(), found.mode() & 0o7777),
            (owner, mode),
            "{line}"
        );
    }
}

#[test]
fn metadata_is_read_without_the_devices_that_hold_data() {
    let place = Place::new("compat-absent");
    fs::create_dir(place.path("src")).unwrap();
    fs::write(place.path("src/noise"), noise(50_000, 3)).unwrap();
    fs::write(place.path("src/inline"), "").unwrap();
    let line = "--quiet --chunksize=4096 --blobdev=b chunks src";
    done(&mkfs(&place, line), line);
    // Images beside a delta would be found.
    fs::create_dir(place.path("apart")).unwrap();
    place.text(&["build", "-q", "-z", "none", "src", "apart/base"]);
    place.text(&["build", "-q", "-z", "lz4", "src", "apart/packed"]);
    for (base, delta) in [("apart/base", "delta"), ("apart/packed", "delta-packed")] {
        place.text(&["build", "-q", "--base", base, "src", delta]);
        // Whatever follows the image is not the data of the base.
        let mut bytes = fs::read(place.path(delta)).unwrap();
        bytes.resize(bytes.len() + 8192, b'x');
        fs::write(place.path(&format!("{delta}-tail")), bytes).unwrap();
    }
    for image in [
        "chunks",
        "delta",
        "delta-packed",
        "delta-tail",
        "delta-packed-tail",
    ] {
        let fsck = under(&place, "fsck.erofs").arg(image).output().unwrap();
        assert_eq!(code(&fsck), 0, "{image}: {}", stderr(&fsck));
        for words in [
            &["check", "-m", image][..],
            &["ls", "-R", image],
            &["stat", image, "/noise"],
            &["info", image],
            &["cat", image, "/inline"],
        ] {
            let out = place.run(words);
            assert_eq!(code(&out), 0, "{words:?}: {}", stderr(&out));
        }
        for words in [&["cat", image, "/noise"][..], &["check", image]] {
            let out = place.run(words);
            let message = stderr(&out);
            assert_eq!(code(&out), 2, "{words:?}: {message}");
            assert!(
                message.contains("data is on device 1"),
                "{words:?}: {message}"
            );
            assert!(
                message.contains("not given") && out.stdout.is_empty(),
                "{words:?}: {message}"
            );
        }
    }
}
