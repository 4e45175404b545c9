//! Programs in C that use the library: as they are, under AddressSanitizer and under valgrind.

use std::path::{Path, PathBuf};
use std::process::Command;
use tuff_mkfs::{MemoryTree, Options, Progress, Source};
use tuff_store::Target;

/// Directory of the library that cargo built for this test.
fn library_dir() -> PathBuf {
    let here = std::env::current_exe().unwrap();
    let found = here.ancestors().skip(1).take(2);
    let mut found = found.filter(|dir| dir.join("libtuff_capi.so").exists());
    found.next().expect("cargo builds the library").to_owned()
}

/// Compiles `interface.c` into `dir` with extra flags. The result is an error message if the compiler fails.
fn compile(dir: &Path, flags: &[&str]) -> Result<PathBuf, String> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let program = dir.join("interface");
    let library = library_dir();
    let out = Command::new("cc")
        .args(["-std=c11", "-Wall", "-Wextra", "-Werror", "-g", "-pthread"])
        .args(flags)
        .arg("-I")
        .arg(root.join("include"))
        .arg(root.join("tests/c/interface.c"))
        .arg("-o")
        .arg(&program)
        .arg("-L")
        .arg(&library)
        .arg("-ltuff_capi")
        .output()
        .map_err(|e| e.to_string())?;
    match out.status.success() {
        true => Ok(program),
        false => Err(String::from_utf8_lossy(&out.stderr).into_owned()),
    }
}

/// Runs a program in `dir`, with the library found under the name in its ELF header.
fn run(dir: &Path, command: &[&std::ffi::OsStr]) {
    let name = dir.join("libtuff.so.0");
    if !name.exists() {
        std::os::unix::fs::symlink(library_dir().join("libtuff_capi.so"), name).unwrap();
    }
    let work = dir.join("work");
    std::fs::create_dir(&work).unwrap();
    let image = dir.join("verified.erofs");
    let root = build_verified(&image);
    let out = Command::new(command[0])
        .args(&command[1..])
        .arg(&work)
        .arg(&image)
        .arg(root)
        .env("LD_LIBRARY_PATH", dir)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{}: {text}", out.status);
    assert_eq!(String::from_utf8_lossy(&out.stdout), "ok\n", "{text}");
}

/// Builds an image of the file `name` with a hash tree. Returns its root hash.
fn build_verified(image: &Path) -> String {
    let mut tree = MemoryTree::new();
    tree.add_file("name", *b"box\n").unwrap();
    let options = Options::from_settings([("verity", "on")]).unwrap();
    let target = Target::Path(image.to_owned());
    let sources = [Source::Memory(tree)];
    let built = tuff_mkfs::build(&sources, &options, &target, &Progress::default()).unwrap();
    let root = built.verity.unwrap().root;
    root.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn has(tool: &str) -> bool {
    let found = Command::new(tool).arg("--version").output();
    if !found.is_ok_and(|out| out.status.success()) {
        tuff_testkit::skipped(format!("{tool} is not installed"));
        return false;
    }
    true
}

#[test]
fn a_c_program_builds_and_reads_an_image() {
    if !has("cc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), &[]).unwrap();
    run(dir.path(), &[program.as_os_str()]);
}

#[test]
fn address_sanitizer_finds_nothing() {
    if !has("cc") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), &["-fsanitize=address,undefined"]).unwrap();
    run(dir.path(), &[program.as_os_str()]);
}

#[test]
fn valgrind_finds_nothing() {
    if !has("cc") || !has("valgrind") {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let program = compile(dir.path(), &[]).unwrap();
    let flags = [
        "-q",
        "--error-exitcode=9",
        "--leak-check=full",
        "--errors-for-leak-kinds=definite",
    ];
    let mut command = vec![std::ffi::OsStr::new("valgrind")];
    command.extend(flags.map(std::ffi::OsStr::new));
    command.push(program.as_os_str());
    run(dir.path(), &command);
}
