//! Manifests of other programs, manifests written by hand, and invalid ones.

use super::*;
use crate::source::Device;
use crate::source::error::SourceErrorKind;
use std::process::Command;

/// Stub: the size of a content file is the length of its path, and one file is missing.
fn stat(path: &Path) -> io::Result<u64> {
    match path.to_str() {
        Some(path) if path.ends_with("missing") => Err(io::ErrorKind::NotFound.into()),
        _ => Ok(path.as_os_str().len() as u64),
    }
}

fn reader(text: &[u8]) -> ManifestReader<&[u8]> {
    ManifestReader::new("test.mtree", text, Path::new("/m")).with_stat(stat)
}

fn read(text: &str) -> Vec<Entry> {
    reader(text.as_bytes())
        .collect::<Result<_, _>>()
        .unwrap_or_else(|e| panic!("{e}"))
}

fn one(text: &str) -> Entry {
    let mut entries = read(text);
    assert_eq!(entries.len(), 1);
    entries.remove(0)
}

fn fails(text: &str) -> String {
    let error = reader(text.as_bytes())
        .find_map(Result::err)
        .unwrap_or_else(|| panic!("{text} is accepted"));
    error.to_string()
}

fn paths(text: &str) -> Vec<String> {
    read(text)
        .into_iter()
        .map(|entry| String::from_utf8_lossy(&entry.path).into_owned())
        .collect()
}

#[test]
fn every_attribute_can_be_given() {
    assert_eq!(
        one(
            "./a/b type=file mode=4755 uid=70000 gid=4294967295 time=-5.000000007 \
             contents=files/b xattr.user.x=y xattr.security.capability=0sAQAAAg=="
        ),
        Entry {
            path: b"a/b".to_vec(),
            kind: Kind::File { size: 10 },
            meta: Meta {
                mode: 0o4755,
                uid: 70_000,
                gid: u32::MAX,
                mtime: -5,
                mtime_nsec: 7,
            },
            xattrs: vec![
                (b"security.capability".to_vec(), vec![1, 0, 0, 2]),
                (b"user.x".to_vec(), b"y".to_vec()),
            ],
            content: Content::Path("/m/files/b".into()),
        }
    );
}

#[test]
fn missing_attributes_have_defaults() {
    let entries =
        read("./d type=dir\n./f type=file\n./l type=link link=t\n./p type=fifo\n./s type=socket\n");
    let modes: Vec<_> = entries.iter().map(|entry| entry.meta.mode).collect();
    assert_eq!(modes, [0o755, 0o644, 0o777, 0o644, 0o644]);
    for entry in entries {
        let meta = entry.meta;
        assert_eq!((meta.uid, meta.gid), (0, 0));
        assert_eq!((meta.mtime, meta.mtime_nsec), (0, 0));
    }
}

#[test]
fn every_file_type_is_known() {
    let entries = read(
        "./d type=dir
         ./l type=link link=../a\\040b
         ./c type=char device=native,1,3
         ./b type=block device=0x811
         ./p type=fifo
         ./s type=socket
         ./h hardlink=./x//y
         ./h2 type=file hardlink=x",
    );
    let kinds: Vec<_> = entries.into_iter().map(|entry| entry.kind).collect();
    assert_eq!(
        kinds,
        [
            Kind::Dir,
            Kind::Symlink(b"../a b".to_vec()),
            Kind::Char(Device { major: 1, minor: 3 }),
            Kind::Block(Device {
                major: 8,
                minor: 17
            }),
            Kind::Fifo,
            Kind::Socket,
            Kind::Hardlink(b"x/y".to_vec()),
            Kind::Hardlink(b"x".to_vec()),
        ]
    );
}

#[test]
fn relative_lines_open_directories_and_two_dots_close_them() {
    let text = "\
#mtree
/set type=file mode=0600
.               type=dir
    etc         type=dir mode=0755
        passwd
        ssl     type=dir
            key
        # ./etc/ssl
        ..
        shadow
    ..
    ./full/path type=dir
    top
..
";
    assert_eq!(
        paths(text),
        [
            "",
            "etc",
            "etc/passwd",
            "etc/ssl",
            "etc/ssl/key",
            "etc/shadow",
            "full/path",
            "top"
        ]
    );
    let entries = read(text);
    assert_eq!(entries[1].meta.mode, 0o755);
    assert_eq!(entries[2].meta.mode, 0o600);
    assert_eq!(entries[3].meta.mode, 0o600);
}

#[test]
fn full_paths_always_begin_at_the_root() {
    let text = ". type=dir\nusr type=dir\n./etc/x type=fifo\nbin/y type=fifo\nlocal type=fifo\n";
    assert_eq!(paths(text), ["", "usr", "etc/x", "bin/y", "usr/local"]);
}

#[test]
fn a_dot_names_the_current_directory() {
    let text = "a type=dir\n. type=dir mode=0700\nb type=fifo\n..\n..\nc type=fifo\n";
    assert_eq!(paths(text), ["a", "a", "a/b", "c"]);
}

#[test]
fn set_holds_until_unset() {
    let text = "\
/set type=fifo uid=5 gid=6 mode=0640 xattr.user.a=1 xattr.user.b=2
./a
/unset uid xattr.user.a nlink
./b mode=0600
/set uid=7
./c
/unset all
./d type=fifo
";
    let entries = read(text);
    let seen: Vec<_> = entries
        .iter()
        .map(|entry| {
            let meta = entry.meta;
            (meta.uid, meta.gid, meta.mode, entry.xattrs.len())
        })
        .collect();
    assert_eq!(
        seen,
        [
            (5, 6, 0o640, 2),
            (0, 6, 0o600, 1),
            (7, 6, 0o640, 1),
            (0, 0, 0o644, 0)
        ]
    );
}

#[test]
fn names_and_values_are_unescaped() {
    assert_eq!(
        paths("./a\\040b\\#c\\\\d\\M-C\\M-) type=fifo\n\\#x type=fifo\n"),
        ["a b#c\\d\u{e9}", "#x"]
    );
    let entry =
        one("./a type=fifo xattr.user.a\\075b=\\000\\tx= xattr.user.c=0x00ff xattr.user.d=");
    assert_eq!(
        entry.xattrs,
        [
            (b"user.a=b".to_vec(), b"\0\tx=".to_vec()),
            (b"user.c".to_vec(), vec![0, 0xff]),
            (b"user.d".to_vec(), vec![]),
        ]
    );
    let literal = one("./a type=fifo xattr.user.a=\\060x00 xattr.user.b=\"0s\"");
    assert_eq!(literal.xattrs[0].1, b"0x00");
    assert_eq!(literal.xattrs[1].1, b"\"0s\"");
}

#[test]
fn lines_continue_after_a_backslash() {
    assert_eq!(one("./a \\\n    type=fifo \\\n\\\n  uid=5").meta.uid, 5);
    assert_eq!(paths("./a\\\\ type=fifo"), ["a\\"]);
    assert_eq!(paths("# comment \\\n./a type=fifo\r\n"), ["a"]);
    assert_eq!(
        fails("\n./a type=fifo \\"),
        "test.mtree: line 3: line ends in a backslash, expected another line after it"
    );
}

#[test]
fn keywords_of_other_programs_are_ignored() {
    let text = "./a type=fifo nlink=2 flags=none uname=root gname=wheel optional nochange ignore \
                cksum=1 md5digest=2 sha1=3 sha256digest=4 sha512=5 rmd160=6 tags=x inode=7 \
                resdevice=linux,8,1";
    assert_eq!(one(text).kind, Kind::Fifo);
}

#[test]
fn contents_come_from_the_manifests_directory_or_the_content_root() {
    let text = b"./a/b type=file\n./c type=file contents=x\n./d type=file content=/abs\n";
    let content = |reader: ManifestReader<&[u8]>| -> Vec<PathBuf> {
        reader
            .map(|entry| match entry.unwrap().content {
                Content::Path(path) => path,
                other => panic!("{other:?}"),
            })
            .collect()
    };
    assert_eq!(
        content(reader(text)),
        [Path::new("/m/a/b"), Path::new("/m/x"), Path::new("/abs")]
    );
    assert_eq!(
        content(reader(text).with_content_root(Path::new("/root"))),
        [Path::new("/root/a/b"), Path::new("/m/x"), Path::new("/abs")]
    );
}

#[test]
fn sizes_are_those_of_the_contents() {
    assert_eq!(one("./a type=file").kind, Kind::File { size: 4 });
    assert_eq!(one("./a type=file size=4").kind, Kind::File { size: 4 });
    assert_eq!(
        fails("./a type=file size=5"),
        "test.mtree: line 1: member \"./a\": size: expected 5 bytes, found 4 in /m/a"
    );
    let empty = one("./missing type=file size=0");
    assert_eq!(empty.kind, Kind::File { size: 0 });
    assert_eq!(empty.content, Content::None);
    let message = fails("./missing type=file");
    assert!(
        message.starts_with(
            "test.mtree: line 1: member \"./missing\": cannot take contents from /m/missing: "
        ),
        "{message}"
    );
}

#[test]
fn files_are_measured_and_other_types_rejected() {
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("full"), "12345").unwrap();
    fs::write(dir.path().join("empty"), "").unwrap();
    let manifest = dir.path().join("x.mtree");
    fs::write(
        &manifest,
        "./full type=file\n./empty type=file\n./dir type=file contents=.\n",
    )
    .unwrap();
    let mut reader = ManifestReader::open(&manifest).unwrap();
    let full = reader.next_entry().unwrap().unwrap();
    assert_eq!(full.kind, Kind::File { size: 5 });
    assert_eq!(full.content, Content::Path(dir.path().join("full")));
    let empty = reader.next_entry().unwrap().unwrap();
    assert_eq!(empty.content, Content::None);
    let error = reader.next_entry().unwrap_err();
    assert_eq!(error.kind(), SourceErrorKind::Io);
    assert!(error.to_string().ends_with("not a regular file"), "{error}");
    let error = reader.next_entry().unwrap_err();
    assert_eq!(error.kind(), SourceErrorKind::Usage);

    let error = ManifestReader::open(&dir.path().join("none"))
        .err()
        .unwrap();
    assert!(error.to_string().contains("none: cannot open: "), "{error}");
}

#[test]
fn every_invalid_line_has_its_message() {
    for (line, message) in [
        (
            "./a uid=5",
            "member \"./a\": type: expected type= on this line or in /set, found neither",
        ),
        (
            "./a type=door",
            "member \"./a\": type: expected file, dir, link, char, block, fifo or socket, found \"door\"",
        ),
        (
            "./a type=fifo mode=9",
            "member \"./a\": mode: expected octal digits, at most 7777, found \"9\"",
        ),
        (
            "./a type=fifo uid=-1",
            "member \"./a\": uid: expected a decimal number below 4294967296, found \"-1\"",
        ),
        (
            "./a type=fifo gid=4294967296",
            "member \"./a\": gid: expected a decimal number below 4294967296, found \"4294967296\"",
        ),
        (
            "./a type=fifo time=noon",
            "member \"./a\": time: expected SECONDS or SECONDS.NANOSECONDS, found \"noon\"",
        ),
        (
            "./a type=fifo mode",
            "member \"./a\": mode: expected a value after \"=\", found nothing",
        ),
        (
            "./a type=fifo mode=",
            "member \"./a\": mode: expected octal digits, at most 7777, found nothing",
        ),
        (
            "./a type=fifo colour=red",
            "member \"./a\": keyword \"colour\" is not known",
        ),
        (
            "./a type=char",
            "member \"./a\": device: expected with type=char, found nothing",
        ),
        (
            "./a type=char device=4096,0",
            "member \"./a\": device: expected a major number below 4096 and a minor below 1048576, found \"4096,0\"",
        ),
        (
            "./a type=block device=0,1048576",
            "member \"./a\": device: expected a major number below 4096 and a minor below 1048576, found \"0,1048576\"",
        ),
        (
            // Packed form of 0,1048576.
            "./a type=char device=4294967296",
            "member \"./a\": device: expected a major number below 4096 and a minor below 1048576, found \"4294967296\"",
        ),
        (
            "./a type=char device=x",
            "member \"./a\": device: expected MAJOR,MINOR or FORMAT,MAJOR,MINOR or one number, found \"x\"",
        ),
        (
            "./a type=link",
            "member \"./a\": link: expected with type=link, found nothing",
        ),
        (
            "./a type=link link=",
            "member \"./a\": link: expected a target without zero bytes, found \"\"",
        ),
        (
            "./a type=dir contents=x",
            "member \"./a\": contents: not expected with type=dir",
        ),
        (
            "./a type=file link=x",
            "member \"./a\": link: not expected with type=file",
        ),
        (
            "./a type=dir hardlink=x",
            "member \"./a\": hardlink: expected neither type=dir nor contents=",
        ),
        (
            "./a hardlink=../x",
            "member \"./a\": hardlink \"../x\" contains \"..\"",
        ),
        (
            "./a type=fifo xattr.user.x=0xabc",
            "member \"./a\": xattr.user.x: expected pairs of hexadecimal digits after 0x, found \"0xabc\"",
        ),
        (
            "./a type=fifo xattr.user.x=0s!",
            "member \"./a\": xattr.user.x: expected base64 after 0s, found \"0s!\"",
        ),
        (
            "./a type=fifo xattr.=x",
            "member \"./a\": xattr.: expected a name without zero bytes after \"xattr.\", found nothing",
        ),
        (
            "./a type=fifo xattr.user.x=a\\qb",
            "member \"./a\": xattr.user.x: expected an escape after the backslash, found \"\\\\qb\"",
        ),
        (
            "./a\\q type=fifo",
            "path: expected an escape after the backslash, found \"\\\\q\"",
        ),
        (
            "./a/../b type=fifo",
            "member \"./a/../b\": path \"./a/../b\" contains \"..\"",
        ),
        (
            ". type=fifo",
            "member \".\": type: expected dir for the root",
        ),
        (
            "/etc type=dir",
            "expected /set, /unset or a path that begins with \"./\", found \"/etc\"",
        ),
        ("..", "\"..\" closes a directory, but none is open"),
        (
            "a type=dir\n.. x",
            "\"..\" closes a directory, expected nothing after it, found \"x\"",
        ),
        (
            "/set contents=x",
            "/set gives contents to every path; it belongs on the line of one",
        ),
        ("/set colour=red", "keyword \"colour\" is not known"),
        ("/unset colour", "keyword \"colour\" is not known"),
    ] {
        let lines = line.lines().count();
        assert_eq!(
            fails(&format!("# a comment first\n{line}\n")),
            format!("test.mtree: line {}: {message}", lines + 1),
            "{line}"
        );
    }
}

#[test]
fn excessive_lengths_are_limit_errors() {
    let long = format!("./a type=fifo uname={}", "x".repeat(5 << 20));
    assert!(fails(&long).contains("line has more than 4194304 bytes"));
    let long = "x \\\n".repeat(3 << 20);
    assert!(fails(&long).contains("line has more than 4194304 bytes"));
    let deep = format!("{} type=dir\n", "d".repeat(100_000)).repeat(12);
    assert!(fails(&deep).contains("path has more than 1048576 bytes"));
    let set = format!("/set xattr.user.x={}", "x".repeat(70_000));
    assert!(fails(&set).contains("/set gives more than 65536 bytes"));
}

const RICH: &[u8] = b"#mtree\n/set type=file uid=0 mode=0644\n. type=dir time=1.000000000\n  \
    a\\040b xattr.user.x=0sAAEC xattr.user.y=0x00 size=6\n  d type=dir\n    \
    dev type=block device=native,8,1 \\\n    mode=0600\n  ..\n./x/y hardlink=d/dev\n\
    /unset uid\n./l type=link link=\\M-a\\^A\\001\n..\n";

/// Checks the invariants of every entry.
fn survive(text: &[u8]) -> bool {
    let mut reader = reader(text);
    loop {
        match reader.next_entry() {
            Ok(None) => return true,
            Ok(Some(entry)) => {
                let root = entry.path.is_empty();
                assert!(!root || entry.kind == Kind::Dir);
                for component in entry.path.split(|&c| c == b'/') {
                    assert!(root || !matches!(component, b"" | b"." | b".."));
                }
                assert!(entry.meta.mode <= 0o7777 && entry.meta.mtime_nsec < 1_000_000_000);
                assert!(entry.xattrs.is_sorted_by(|a, b| a.0 < b.0));
            }
            Err(error) => {
                assert!(error.line().is_some(), "{error}");
                return false;
            }
        }
    }
}

#[test]
fn every_truncation_ends_in_entries_or_an_error() {
    let text = RICH.to_vec();
    assert!(survive(&text), "{:?}", reader(&text).find_map(Result::err));
    for len in 0..text.len() {
        survive(&text[..len]);
    }
}

#[test]
fn every_flipped_bit_ends_in_entries_or_an_error() {
    let mut text = RICH.to_vec();
    for byte in 0..text.len() {
        for bit in 0..8 {
            text[byte] ^= 1 << bit;
            survive(&text);
            text[byte] ^= 1 << bit;
        }
    }
}

/// Compares with bsdtar's own listing of the tree.
#[test]
fn manifests_of_bsdtar_are_read() {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path().join("tree");
    fs::create_dir_all(root.join("sub dir")).unwrap();
    fs::write(root.join("sub dir/#file"), "12345").unwrap();
    std::os::unix::fs::symlink("sub dir/\u{e9}", root.join("link")).unwrap();
    let manifest = dir.path().join("m.mtree");
    let output = Command::new("bsdtar")
        .args([
            "--format=mtree",
            "--options=!all,type,mode,uid,gid,time,size,link,sha256",
        ])
        .arg("-C")
        .arg(&root)
        .arg("-cf")
        .arg(&manifest)
        .arg(".")
        .output();
    if !output.is_ok_and(|output| output.status.success()) {
        tuff_testkit::skipped("bsdtar is not installed");
        return;
    }
    let mut entries: Vec<Entry> = ManifestReader::open(&manifest)
        .unwrap()
        .with_content_root(&root)
        .collect::<Result<_, _>>()
        .unwrap();
    entries.sort_by(|a, b| a.path.cmp(&b.path));
    let seen: Vec<_> = entries.iter().map(|e| (&e.path[..], &e.kind)).collect();
    assert_eq!(
        seen,
        [
            (&b""[..], &Kind::Dir),
            (b"link", &Kind::Symlink("sub dir/\u{e9}".into())),
            (b"sub dir", &Kind::Dir),
            (b"sub dir/#file", &Kind::File { size: 5 }),
        ]
    );
    for entry in entries {
        use std::os::unix::fs::MetadataExt;
        let path = root.join(OsString::from_vec(entry.path));
        let meta = fs::symlink_metadata(path).unwrap();
        assert_eq!(u32::from(entry.meta.mode), meta.mode() & 0o7777);
        assert_eq!(entry.meta.uid, meta.uid());
        assert_eq!(
            (entry.meta.mtime, i64::from(entry.meta.mtime_nsec)),
            (meta.mtime(), meta.mtime_nsec())
        );
    }
}
