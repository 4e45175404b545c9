//! Lists of whole images.

use super::testing::Image;
use super::*;
use crate::Source;
use crate::emit::targets::Targets;
use crate::environment::Environment;
use crate::pack::policies::Policies;
use crate::progress::Progress;
use std::collections::BTreeSet;
use std::path::Path;
use tuff_testkit::elf::Sample;

fn run(words: &str) -> Start {
    Start::Command(Command {
        entrypoint: words.split(' ').map(|word| word.into()).collect(),
        ..Command::default()
    })
}

/// Returns the paths of a list, and the warnings.
fn listed_with(image: &Image, options: &Options) -> (Vec<String>, Vec<String>) {
    let (tree, contents) = image.load();
    let mut loaded = Loaded {
        tree,
        contents,
        packed: None,
        warnings: Vec::new(),
    };
    let list = files(&mut loaded, options).unwrap();
    let paths = list.into_iter().map(|file| String::from_utf8(file.path));
    (paths.map(Result::unwrap).collect(), loaded.warnings)
}

fn listed(image: &Image, start: Start) -> (Vec<String>, Vec<String>) {
    let mut options = Options::default();
    options.sources.start = start;
    listed_with(image, &options)
}

/// Program that needs libraries.
fn program(needed: &[&'static str]) -> Vec<u8> {
    let sample = Sample {
        interpreter: "/lib64/ld-linux-x86-64.so.2",
        needed: needed.to_vec(),
        ..Sample::default()
    };
    sample.bytes()
}

fn library(needed: &[&'static str]) -> Vec<u8> {
    let sample = Sample {
        needed: needed.to_vec(),
        ..Sample::default()
    };
    sample.bytes()
}

/// Image with a loader and a C library, as Debian has them.
fn debian() -> Image {
    let mut image = Image::default();
    image.link("lib", "usr/lib");
    image.link("lib64", "usr/lib64");
    image.link("bin", "usr/bin");
    let dir = "usr/lib/x86_64-linux-gnu";
    image.link(
        "usr/lib64/ld-linux-x86-64.so.2",
        "/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
    );
    image.file(&format!("{dir}/ld-linux-x86-64.so.2"), &library(&[]));
    image.file(
        &format!("{dir}/libc.so.6"),
        &library(&["ld-linux-x86-64.so.2"]),
    );
    image
}

/// Places at which `paths` are listed; fails unless they ascend.
fn assert_order(list: &[String], paths: &[&str]) {
    let at = |path: &&str| {
        let at = list.iter().position(|listed| listed == path);
        at.unwrap_or_else(|| panic!("{path} is not in {list:?}"))
    };
    assert!(paths.iter().map(at).is_sorted(), "{list:?}");
}

#[test]
fn ways_to_write_a_path_give_one_list_and_a_missing_path_is_a_warning() {
    let mut image = debian();
    image.file("a/b", &program(&["libc.so.6"]));
    let (list, warnings) = listed(&image, Start::with(b"/a/b"));
    assert_order(
        &list,
        &[
            "a/b",
            "usr/lib/x86_64-linux-gnu/ld-linux-x86-64.so.2",
            "usr/lib/x86_64-linux-gnu/libc.so.6",
        ],
    );
    assert!(warnings.is_empty(), "{warnings:?}");
    for path in ["a/b", "./a//b", "/a/./b", "//a/../a/b"] {
        assert_eq!(
            listed(&image, Start::with(path.as_bytes())).0,
            list,
            "{path}"
        );
    }
    for (start, expected) in [
        (
            Start::with(b"/a/c"),
            "\"/a/c\": the program of the start, but not in the tree: there is no start list",
        ),
        (Start::with(b"a"), "no executable file"),
        (run("nothing -x"), "\"nothing\": the command of the image"),
    ] {
        let (list, warnings) = listed(&image, start);
        assert!(list.is_empty());
        assert_eq!(warnings.len(), 1);
        assert!(warnings[0].contains(expected), "{warnings:?}");
    }
    let given = |path: &str| StartFile {
        path: path.into(),
        first: Vec::new(),
    };
    let start = Start::Files(vec![given("/a/b"), given("none"), given("bin/../lib/none")]);
    let (list, warnings) = listed(&image, start);
    assert_eq!(list, ["a/b"]);
    let expected =
        "\"none\", \"bin/../lib/none\": listed as files of the start, but not in the tree";
    assert_eq!(warnings, [expected]);
    assert!(listed(&image, Start::with(b"none")).0.is_empty());
}

/// The list does not depend on the processor of the builder: the baseline comes first, all variants follow.
#[test]
fn variants_for_processors_come_behind_the_baseline() {
    let mut image = debian();
    image.file("usr/bin/x", &program(&["liba.so.1", "libc.so.6"]));
    let dir = "usr/lib/x86_64-linux-gnu";
    image.file(&format!("{dir}/liba.so.1"), &library(&["libb.so.1"]));
    image.file(&format!("{dir}/libb.so.1"), &library(&[]));
    for level in ["v2", "v3"] {
        let path = format!("{dir}/glibc-hwcaps/x86-64-{level}/liba.so.1");
        image.file(&path, &library(&["libv.so.1"]));
    }
    image.file(&format!("{dir}/libv.so.1"), &library(&[]));
    let (list, _) = listed(&image, run("x"));
    let name = |name: &str| format!("{dir}/{name}");
    let paths = [
        name("liba.so.1"),
        name("libc.so.6"),
        name("libb.so.1"),
        name("glibc-hwcaps/x86-64-v2/liba.so.1"),
        name("libv.so.1"),
        name("glibc-hwcaps/x86-64-v3/liba.so.1"),
    ];
    let paths: Vec<&str> = paths.iter().map(String::as_str).collect();
    assert_order(&list, &paths);

    // A cache names both; the file of the cache comes first.
    let path = "/opt/liba.so.1";
    let variant = "/opt/v3/liba.so.1";
    image.file("opt/liba.so.1", &library(&[]));
    image.file("opt/v3/liba.so.1", &library(&[]));
    let entries = [("liba.so.1", variant, 1 << 62), ("liba.so.1", path, 0)];
    image.file("etc/ld.so.cache", &cache::tests::cache(&entries, true));
    let (list, _) = listed(&image, run("x"));
    assert_order(
        &list,
        &["etc/ld.so.cache", "usr/bin/x", &path[1..], &variant[1..]],
    );
}

#[test]
fn libraries_of_another_processor_are_passed_over() {
    let mut image = debian();
    image.file("usr/bin/x", &program(&["liba.so"]));
    let other = Sample {
        is_wide: false,
        machine: 3,
        ..Sample::default()
    };
    image.file("usr/lib/x86_64-linux-gnu/liba.so", &other.bytes());
    image.file("usr/lib/liba.so", &library(&[]));
    let (list, _) = listed(&image, run("x"));
    assert!(list.contains(&"usr/lib/liba.so".to_owned()), "{list:?}");
    assert!(!list.contains(&"usr/lib/x86_64-linux-gnu/liba.so".to_owned()));
}

#[test]
fn libraries_that_notes_and_name_services_name_are_listed() {
    let mut image = debian();
    let with_note = Sample {
        note: r#"[{"soname":["libnone.so","liblzma.so.5"]}]"#,
        ..Sample::default()
    };
    image.file("usr/bin/x", &program(&["liba.so", "libc.so.6"]));
    image.file("usr/lib/liba.so", &with_note.bytes());
    image.file("usr/lib/liblzma.so.5", &library(&[]));
    image.file("usr/lib/libnss_dns.so.2", &library(&["libresolv.so.2"]));
    image.file("usr/lib/libresolv.so.2", &library(&[]));
    image.file("etc/nsswitch.conf", b"# x\nhosts: files dns\n");
    let (list, _) = listed(&image, run("x"));
    assert_order(
        &list,
        &[
            "usr/lib/liba.so",
            "usr/lib/liblzma.so.5",
            "etc/nsswitch.conf",
            "usr/lib/libnss_dns.so.2",
            "usr/lib/libresolv.so.2",
        ],
    );
}

#[test]
fn a_program_for_musl_finds_its_libraries() {
    let mut image = Image::default();
    let program = Sample {
        interpreter: "/lib/ld-musl-x86_64.so.1",
        needed: vec!["libc.musl-x86_64.so.1", "libz.so.1", "libown.so"],
        rpath: "$ORIGIN/../own:$LIB",
        ..Sample::default()
    };
    image.file("usr/bin/x", &program.bytes());
    image.file("lib/ld-musl-x86_64.so.1", &library(&[]));
    image.link("lib/libc.musl-x86_64.so.1", "ld-musl-x86_64.so.1");
    image.file("usr/local/lib/libz.so.1", &library(&["libown2.so"]));
    image.file("lib/other/libz.so.1", &library(&[]));
    image.file("usr/own/libown.so", &library(&[]));
    image.file("usr/own/libown2.so", &library(&[]));
    let (list, _) = listed(&image, run("x"));
    let expected = [
        "usr/bin/x",
        "lib/ld-musl-x86_64.so.1",
        "usr/local/lib/libz.so.1",
    ];
    assert_eq!(list[..3], expected);
    // $LIB is no word of this loader, so it ignores the part.
    assert!(list.contains(&"usr/own/libown.so".to_owned()), "{list:?}");
    assert!(list.contains(&"usr/own/libown2.so".to_owned()), "{list:?}");
    image.file("etc/ld-musl-x86_64.path", b"/lib/other\n/lib");
    let (list, _) = listed(&image, run("x"));
    assert!(list.contains(&"lib/other/libz.so.1".to_owned()), "{list:?}");
}

/// Header of bytecode: flags, and time and size or a hash.
fn bytecode(flags: u32, time: u32, size: u32) -> Vec<u8> {
    let numbers = [0x0d0d_0a6f, flags, time, size];
    let mut bytes: Vec<u8> = numbers.into_iter().flat_map(u32::to_le_bytes).collect();
    bytes.extend([b'x'; 50]);
    bytes
}

fn python() -> Image {
    let mut image = debian();
    image.link("usr/bin/python3", "python3.11");
    image.file("usr/bin/python3.11", &program(&["libc.so.6"]));
    let lib = "usr/lib/python3.11";
    for (name, compiled) in [
        ("os", Some(bytecode(0, 1000, 6))),
        ("stale", Some(bytecode(0, 999, 6))),
        ("short", Some(bytecode(0, 1000, 7))),
        ("cut", Some(b"xx".to_vec())),
        ("checked", Some(bytecode(3, 0, 0))),
        ("unchecked", Some(bytecode(1, 0, 0))),
        ("bare", None),
    ] {
        image.file(&format!("{lib}/{name}.py"), b"pass\n\n");
        if let Some(compiled) = compiled {
            let path = format!("{lib}/__pycache__/{name}.cpython-311.pyc");
            image.file(&path, &compiled);
        }
    }
    image.file(
        &format!("{lib}/__pycache__/os.cpython-39.pyc"),
        &bytecode(0, 1000, 6),
    );
    image.file(&format!("{lib}/test/x.py"), b"pass\n");
    // A list of directories takes at most a third of the image.
    image.file("usr/share/rest", &[b'x'; 9000]);
    image
}

#[test]
fn a_source_is_listed_only_where_its_bytecode_does_not_fit() {
    let (list, warnings) = listed(&python(), run("python3 -c pass"));
    assert!(warnings.is_empty(), "{warnings:?}");
    let lib = "usr/lib/python3.11";
    let has = |path: &str| list.contains(&format!("{lib}/{path}"));
    for (name, reads_source) in [
        ("os", false),
        ("stale", true),
        ("short", true),
        ("cut", true),
        ("checked", true),
        ("unchecked", false),
    ] {
        assert!(
            has(&format!("__pycache__/{name}.cpython-311.pyc")),
            "{name}"
        );
        assert_eq!(has(&format!("{name}.py")), reads_source, "{name}");
    }
    assert!(has("bare.py") && !has("test/x.py"));
    assert!(!has("__pycache__/os.cpython-39.pyc"));
    assert_order(
        &list,
        &[
            "usr/bin/python3.11",
            "usr/lib/python3.11/__pycache__/os.cpython-311.pyc",
        ],
    );
}

#[test]
fn a_time_that_makes_bytecode_stale_is_a_warning() {
    let mut options = Options::default();
    options.sources.start = run("python3");
    options.metadata.timestamp = Some(7);
    let (list, warnings) = listed_with(&python(), &options);
    assert!(list.contains(&"usr/lib/python3.11/os.py".to_owned()));
    let expected =
        "\"usr/lib/python3.11/os.py\": the time that the options set makes bytecode stale";
    assert_eq!(warnings.len(), 1);
    assert!(warnings[0].starts_with(expected), "{warnings:?}");
    // A time that does not change the file's is no reason.
    options.metadata.timestamp = None;
    options.metadata.clamp = Some(1000);
    assert!(listed_with(&python(), &options).1.is_empty());
}

#[test]
fn the_script_of_an_interpreter_and_its_directory_are_listed() {
    let mut image = python();
    image.file("app/main.py", b"import own\n");
    image.file("app/own/__init__.py", b"x\n");
    image.file("app/data.bin", b"x\n");
    image.file("usr/local/bin/serve", b"#!/usr/bin/env -S python3 -u\n");
    image.file("usr/bin/env", &program(&["libc.so.6"]));
    for words in [
        "python3 -u /app/main.py x",
        "/usr/bin/env python3 app/main.py",
    ] {
        let (list, _) = listed(&image, run(words));
        let script = list.iter().position(|path| path == "app/main.py");
        assert!(script.is_some(), "{words}: {list:?}");
        assert!(list.contains(&"app/own/__init__.py".to_owned()), "{list:?}");
        assert!(!list.contains(&"app/data.bin".to_owned()));
    }
    let start = Start::Command(Command {
        entrypoint: vec![b"serve".to_vec()],
        directory: b"/app".to_vec(),
        ..Command::default()
    });
    let (list, _) = listed(&image, start);
    assert_order(
        &list,
        &[
            "usr/local/bin/serve",
            "usr/bin/env",
            "usr/bin/python3.11",
            "app/main.py",
        ],
    );
}

/// Image whose command starts through a shell script, as that of nginx does.
#[test]
fn a_script_lists_its_shell_its_programs_and_the_command_behind_it() {
    let mut image = debian();
    image.link("usr/bin/sh", "dash");
    for name in ["dash", "find", "sort", "nginx", "gosu", "unused", "id"] {
        image.file(&format!("usr/bin/{name}"), &program(&["libc.so.6"]));
    }
    let script = "#!/bin/sh\nset -e\nif [ \"$(id -u)\" = 0 ]; then\n find /docker-entrypoint.d/ | sort -V\nfi\nexec \"$@\"\n";
    image.file("docker-entrypoint.sh", script.as_bytes());
    image.file(
        "docker-entrypoint.d/10-x.sh",
        b"#!/bin/sh\n. /etc/own.conf\n",
    );
    image.file("etc/own.conf", b"A=1\n");
    image.file("etc/nginx/nginx.conf", b"x\n");
    image.file("etc/nginx/conf.d/a.conf", b"x\n");
    let start = Start::Command(Command {
        entrypoint: vec![b"/docker-entrypoint.sh".to_vec()],
        arguments: ["nginx", "-g", "daemon off;"].map(|w| w.into()).to_vec(),
        ..Command::default()
    });
    let (list, _) = listed(&image, start);
    assert_order(
        &list,
        &[
            "docker-entrypoint.sh",
            "usr/bin/dash",
            "usr/bin/nginx",
            "usr/bin/id",
            "usr/bin/find",
            "usr/bin/sort",
            "docker-entrypoint.d/10-x.sh",
        ],
    );
    for path in [
        "etc/own.conf",
        "etc/nginx/nginx.conf",
        "etc/nginx/conf.d/a.conf",
    ] {
        assert!(list.contains(&path.to_owned()), "{path}: {list:?}");
    }
    assert!(!list.contains(&"usr/bin/unused".to_owned()));

    // As that of PostgreSQL does: the script starts itself again as another user.
    let script = "#!/usr/bin/env bash\nset -Eeo pipefail\n_main() {\n if [ \"$1\" = postgres ]; then exec gosu postgres \"$BASH_SOURCE\" \"$@\"; fi\n exec \"$@\"\n}\n";
    image.file("usr/local/bin/docker-entrypoint.sh", script.as_bytes());
    image.file("usr/bin/bash", &program(&["libc.so.6"]));
    image.file("usr/bin/env", &program(&["libc.so.6"]));
    image.file(
        "usr/lib/postgresql/16/bin/postgres",
        &program(&["libc.so.6"]),
    );
    let start = Start::Command(Command {
        entrypoint: vec![b"docker-entrypoint.sh".to_vec()],
        arguments: vec![b"postgres".to_vec()],
        environment: vec![b"PATH=/usr/local/bin:/usr/bin:/usr/lib/postgresql/16/bin".to_vec()],
        ..Command::default()
    });
    let (list, _) = listed(&image, start);
    assert_order(
        &list,
        &[
            "usr/local/bin/docker-entrypoint.sh",
            "usr/bin/env",
            "usr/bin/bash",
            "usr/lib/postgresql/16/bin/postgres",
            "usr/bin/gosu",
        ],
    );
    // The command of a shell.
    let (list, _) = listed(
        &image,
        Start::Command(Command {
            arguments: ["/bin/sh", "-c", "nginx -t && exec nginx"]
                .map(|w| w.into())
                .to_vec(),
            ..Command::default()
        }),
    );
    assert_order(&list, &["usr/bin/dash", "usr/bin/nginx"]);
}

#[test]
fn what_an_author_states_is_bounded() {
    // Scripts that name each other, and more programs than are listed.
    let mut image = debian();
    image.file("usr/bin/sh", &program(&["libc.so.6"]));
    let mut names = String::new();
    for i in 0..200 {
        image.file(&format!("usr/bin/p{i}"), &program(&["libc.so.6"]));
        names += &format!("p{i} x\n");
    }
    image.file(
        "usr/bin/a",
        format!("#!/bin/sh\nb\n. /usr/bin/b\n{names}exec \"$@\"").as_bytes(),
    );
    image.file("usr/bin/b", b"#!/usr/bin/a\na b a\nexec \"$@\"");
    image.file("usr/bin/loop", b"#!/usr/bin/loop");
    image.file("usr/bin/long", &[b"#!/bin/", &[b'x'; 100_000][..]].concat());
    let (list, _) = listed(&image, run("a a b a b"));
    let programs = list.iter().filter(|path| path.starts_with("usr/bin/p"));
    assert!(programs.count() <= 64, "{list:?}");
    assert_eq!(listed(&image, run("loop")).0, ["usr/bin/loop"]);
    assert_eq!(listed(&image, run("long")).0, ["usr/bin/long"]);

    // A chain of libraries that is longer than one process may have, with directories that are inherited.
    let mut image = debian();
    let sample = |needed: String, rpath: &'static str| Sample {
        interpreter: "/lib64/ld-linux-x86-64.so.2",
        needed: vec![needed.leak()],
        rpath,
        ..Sample::default()
    };
    let rpath: &str = "/a/$ORIGIN:/b:/l:".repeat(50).leak();
    image.file("x", &sample("l0".to_owned(), rpath).bytes());
    for i in 0..1200 {
        let next = sample(format!("l{}", i + 1), rpath);
        image.file(&format!("l/l{i}"), &next.bytes());
    }
    let (list, _) = listed(&image, Start::with(b"x"));
    assert!(list.len() > 100 && list.len() <= 1100, "{}", list.len());
}

#[test]
fn directories_of_modules_take_a_part_of_the_image() {
    let mut image = debian();
    image.file("usr/bin/python3.11", &program(&["libc.so.6"]));
    for i in 0..300 {
        let path = format!("usr/lib/python3.11/m{i:03}.py");
        image.file(&path, &[b'#'; 1000]);
    }
    let (list, _) = listed(&image, run("python3.11"));
    let modules = list.iter().filter(|path| path.ends_with(".py")).count();
    assert!((90..=110).contains(&modules), "{modules}");
}

/// Loads sources as a build does.
fn load(sources: &[Source], options: &Options) -> Loaded {
    let output = tuff_store::Output::temporary().unwrap();
    let progress = Progress::default();
    let targets = Targets {
        image: &output,
        blob: None,
    };
    let environment = &Environment::new(options, targets, &progress);
    let policies = Policies::new(options);
    let packer = crate::pipeline::start_packer(options, &policies, None, environment);
    let mut packer = packer.unwrap();
    let loaded = crate::load::load(sources, options, &policies, false, environment, &mut packer);
    let mut loaded = loaded.unwrap();
    crate::load::complete::complete(&mut loaded, sources, options).unwrap();
    loaded
}

/// Program that traces what the loader loads with another one: its path, and variables of its environment.
const PROGRAM: &str = r#"#include <stdlib.h>
#include <unistd.h>
int main(int count, char **words) {
    for (int i = 2; i < count; i++)
        putenv(words[i]);
    putenv("LD_TRACE_LOADED_OBJECTS=1");
    return count < 2 ? 0 : execl(words[1], words[1], NULL);
}
"#;

/// Directory tree with programs that a compiler of the host made.
struct Compiled {
    root: tempfile::TempDir,
    /// Libraries for the linker.
    stubs: tempfile::TempDir,
}

impl Compiled {
    /// Runs the compiler. Returns false if there is none.
    fn cc(&self, output: &Path, arguments: &[&str]) -> bool {
        let source = self.stubs.path().join("x.c");
        let text = if arguments.contains(&"-shared") {
            ""
        } else {
            PROGRAM
        };
        std::fs::write(&source, text).unwrap();
        let mut command = std::process::Command::new("cc");
        command.arg("-o").arg(output).arg(&source);
        command.args(["-Wl,--no-as-needed", "-Wl,--unresolved-symbols=ignore-all"]);
        command.arg("-L").arg(self.stubs.path()).args(arguments);
        match command.output() {
            Ok(out) if out.status.success() => true,
            Ok(out) => panic!("{}", String::from_utf8_lossy(&out.stderr)),
            Err(_) => false,
        }
    }

    fn path(&self, path: &str) -> std::path::PathBuf {
        let path = self.root.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        path
    }

    /// Makes a library and a copy for the linker.
    fn library(&self, path: &str, arguments: &[&str]) {
        let arguments = [&["-shared", "-nostdlib", "-fPIC"], arguments].concat();
        let file = self.path(path);
        assert!(self.cc(&file, &arguments));
        let name = file.file_name().unwrap();
        std::fs::copy(&file, self.stubs.path().join(name)).unwrap();
    }

    fn program(&self, path: &str, arguments: &[&str]) {
        assert!(self.cc(&self.path(path), arguments));
    }

    fn link(&self, path: &str, target: &str) {
        std::os::unix::fs::symlink(target, self.path(path)).unwrap();
    }

    /// Compares the list of a program with what the loader of the tree loads.
    fn compare(&self, program: &str, environment: &[&str], expected: &[&str], absent: &[&str]) {
        let mut options = Options::default();
        options.sources.start = Start::Command(Command {
            entrypoint: vec![program.into()],
            environment: environment.iter().map(|pair| (*pair).into()).collect(),
            ..Command::default()
        });
        let mut loaded = load(&[Source::Dir(self.root.path().to_owned())], &options);
        let list = files(&mut loaded, &options).unwrap();
        let list: BTreeSet<Vec<u8>> = list.into_iter().map(|file| file.path).collect();
        // The loader reads $ORIGIN of a program from /proc.
        let script = r#"mount -t proc proc "$0/proc" && exec chroot "$0" /run "$@""#;
        let mut command = std::process::Command::new("unshare");
        command.args(["-m", "--", "sh", "-c", script]);
        command.arg(self.root.path()).arg(program).args(environment);
        let out = command.output().unwrap();
        let text = String::from_utf8_lossy(&out.stdout).into_owned();
        let lookup = Files::new(&loaded.tree, &loaded.contents);
        let mut opened: BTreeSet<Vec<u8>> = text
            .lines()
            .filter_map(|line| line.split_whitespace().find(|word| word.starts_with('/')))
            .map(|path| lookup.find(path.as_bytes()).expect(path).path)
            .collect();
        opened.insert(lookup.find(program.as_bytes()).unwrap().path);
        assert_eq!(
            list,
            opened,
            "{program}: {text} {}",
            String::from_utf8_lossy(&out.stderr)
        );
        for path in expected {
            assert!(list.contains(path.as_bytes()), "{program}: {path}");
        }
        for path in absent {
            assert!(!list.contains(path.as_bytes()), "{program}: {path}");
        }
    }
}

/// Runs of the loader itself, without running a program.
#[test]
fn the_list_equals_what_the_loader_of_the_image_opens() {
    let compiled = Compiled {
        root: tempfile::tempdir().unwrap(),
        stubs: tempfile::tempdir().unwrap(),
    };
    let probe = compiled.stubs.path().join("probe");
    std::fs::create_dir(compiled.root.path().join("proc")).unwrap();
    let namespaces = std::process::Command::new("unshare")
        .args(["-m", "--", "true"])
        .status();
    let has_namespaces = namespaces.is_ok_and(|status| status.success());
    if !tuff_testkit::is_root() || !has_namespaces || !compiled.cc(&probe, &[]) {
        return tuff_testkit::skipped("the loader of an image: needs root, unshare and cc");
    }
    let bytes = std::fs::read(&probe).unwrap();
    let read = |offset: u64, len: usize| {
        let from = (offset as usize).min(bytes.len());
        Ok(bytes[from..bytes.len().min(from + len)].to_vec())
    };
    let elf = elf::parse(&read, bytes.len() as u64, false)
        .unwrap()
        .unwrap();
    let interpreter = String::from_utf8(elf.interpreter.unwrap()).unwrap();
    let real = std::fs::canonicalize(&interpreter).unwrap();
    let real = real.to_str().unwrap();
    let dir = real[1..].rsplit_once('/').unwrap().0;
    std::fs::copy(real, compiled.path(&real[1..])).unwrap();
    if real != interpreter {
        compiled.link(&interpreter[1..], real);
    }
    let found = std::process::Command::new("cc")
        .arg("-print-file-name=libc.so.6")
        .output();
    let libc = String::from_utf8(found.unwrap().stdout).unwrap();
    if libc.trim().starts_with('/') {
        let libc = std::fs::canonicalize(libc.trim()).unwrap();
        std::fs::copy(libc, compiled.path(&format!("{dir}/libc.so.6"))).unwrap();
    } else {
        return tuff_testkit::skipped("the loader of an image: there is no glibc");
    }
    let lib = dir.strip_prefix("usr/").unwrap_or(dir);
    let old = "-Wl,--disable-new-dtags";
    let new = "-Wl,--enable-new-dtags";
    let c = &compiled;
    c.program("run", &[]);

    // RPATH is inherited, through libraries with one of their own.
    c.library("t1/b/libd.so", &[]);
    c.library("t1/a/libc1.so", &["-l:libd.so"]);
    c.library("t1/b/libb.so", &["-l:libc1.so"]);
    c.library("t1/a/liba.so", &[old, "-Wl,-rpath,/t1/b", "-l:libb.so"]);
    c.program("t1/x", &[old, "-Wl,-rpath,/t1/a", "-l:liba.so"]);
    c.compare("/t1/x", &[], &["t1/a/libc1.so", "t1/b/libd.so"], &[]);

    // RUNPATH is not.
    c.library("t2/a/libb.so", &[]);
    c.library("t2/a/liba.so", &["-l:libb.so"]);
    c.program("t2/x", &[new, "-Wl,-rpath,/t2/a", "-l:liba.so"]);
    c.compare("/t2/x", &[], &["t2/a/liba.so"], &["t2/a/libb.so"]);

    // RUNPATH of a library hides the RPATH of its program.
    c.library("t3/a/libb.so", &[]);
    c.library("t3/b/libb.so", &[]);
    c.library("t3/a/liba.so", &[new, "-Wl,-rpath,/t3/b", "-l:libb.so"]);
    c.program("t3/x", &[old, "-Wl,-rpath,/t3/a", "-l:liba.so"]);
    c.compare("/t3/x", &[], &["t3/b/libb.so"], &["t3/a/libb.so"]);

    // $ORIGIN of a library is the directory where it was found.
    c.library("t4/a/libb.so", &[]);
    c.library("t4/real/libb.so", &[]);
    c.library(
        "t4/real/liba.so",
        &[new, "-Wl,-rpath,$ORIGIN", "-l:libb.so"],
    );
    c.link("t4/a/liba.so", "../real/liba.so");
    c.program("t4/x", &[new, "-Wl,-rpath,/t4/a", "-l:liba.so"]);
    c.compare("/t4/x", &[], &["t4/a/libb.so"], &["t4/real/libb.so"]);

    // $ORIGIN of a program is the directory of the file.
    c.library("t5/app/lib/liba.so", &[]);
    c.library("t5/bin/lib/liba.so", &[]);
    c.program("t5/app/x", &[new, "-Wl,-rpath,${ORIGIN}/lib", "-l:liba.so"]);
    c.link("t5/bin/x", "../app/x");
    c.compare(
        "/t5/bin/x",
        &[],
        &["t5/app/lib/liba.so"],
        &["t5/bin/lib/liba.so"],
    );

    // $LIB.
    let path = format!("t6/{lib}/liba.so");
    c.library(&path, &[]);
    c.program(
        "t6/x",
        &[new, "-Wl,-rpath,/t6/$LIB:/t6/$LIBS", "-l:liba.so"],
    );
    c.compare("/t6/x", &[], &[&path], &[]);

    // A name with a slash is a path.
    c.library("t7/own/libpath.so", &[]);
    let own = c.path("t7/own/libpath.so");
    c.program("t7/x", &[own.to_str().unwrap()]);
    let copy = own.to_str().unwrap()[1..].to_owned();
    std::fs::copy(&own, c.path(&copy)).unwrap();
    c.compare("/t7/x", &[], &[&copy], &["t7/own/libpath.so"]);

    // A loaded library satisfies its other name.
    c.library("t8/a/libother.so", &["-Wl,-soname,libs.so.1"]);
    std::fs::copy(c.path("t8/a/libother.so"), c.path("t8/b/libs.so.1")).unwrap();
    c.library(
        "t8/a/libneeds.so",
        &[new, "-Wl,-rpath,/t8/b", "-l:libother.so"],
    );
    std::fs::remove_file(c.stubs.path().join("libother.so")).unwrap();
    c.library("t8/c/libother.so", &[]);
    c.library("t8/a/liba.so", &["-Wl,-soname,libs.so.1"]);
    c.program(
        "t8/x",
        &[
            old,
            "-Wl,-rpath,/t8/b:/t8/a",
            "-l:liba.so",
            "-l:libneeds.so",
        ],
    );
    c.compare(
        "/t8/x",
        &[],
        &["t8/b/libs.so.1", "t8/a/libneeds.so"],
        &["t8/a/libother.so"],
    );

    // The variable comes between RPATH and RUNPATH.
    for (dirs, from) in [(old, "a"), (new, "v")] {
        c.library("t9/a/libe.so", &[]);
        c.library("t9/v/libe.so", &[]);
        c.program("t9/x", &[dirs, "-Wl,-rpath,/t9/a", "-l:libe.so"]);
        let path = format!("t9/{from}/libe.so");
        c.compare("/t9/x", &["LD_LIBRARY_PATH=/t9/none:/t9/v"], &[&path], &[]);
    }

    // Libraries that are loaded before all others.
    c.library("t10/libp.so", &[]);
    c.program("t10/x", &[]);
    c.compare(
        "/t10/x",
        &["LD_PRELOAD=/t10/libp.so"],
        &["t10/libp.so"],
        &[],
    );
}

/// Prints the list of the tar or directory that TUFF_START_SOURCE names, for the command in TUFF_START.
#[test]
#[ignore = "prints the list of a given source"]
fn list_of_a_source() {
    let source = std::path::PathBuf::from(std::env::var("TUFF_START_SOURCE").unwrap());
    let mut options = Options::default();
    options.sources.start = run(&std::env::var("TUFF_START").unwrap());
    let source = match source.is_dir() {
        true => Source::Dir(source),
        false => Source::Tar(source),
    };
    let mut loaded = load(&[source], &options);
    let began = std::time::Instant::now();
    let list = files(&mut loaded, &options).unwrap();
    let took = began.elapsed();
    let lookup = Files::new(&loaded.tree, &loaded.contents);
    let (mut all, mut first) = (0, 0);
    for file in &list {
        let size = loaded.tree.size(lookup.find(&file.path).unwrap().inode);
        let part: u64 = file.first.iter().map(|r| r.end - r.start).sum();
        all += size;
        first += if file.first.is_empty() { size } else { part };
        let path = String::from_utf8_lossy(&file.path);
        println!("{size:>10} {part:>9}/{} {path}", file.first.len());
    }
    let warnings = loaded.warnings;
    println!(
        "{} files, {all} bytes, {first} first, {took:?}; {warnings:?}",
        list.len()
    );
}
