//! Debian packages of the C library: `libtuff0` with the shared library, `libtuff-dev` with what programs are compiled with.
//!
//! They are made by dpkg-deb: packages of libraries need control files that cargo-deb does not write.

use super::build::Build;
use super::licenses;
use super::run::{Result, at, output, run};
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};

/// Name of the package with the shared library. The number is that of its SONAME.
const RUNTIME: &str = "libtuff0";
const DEVELOPMENT: &str = "libtuff-dev";

/// Compiles the library and makes its packages.
pub(super) fn run_all(build: &Build) -> Result<()> {
    let built = build.library()?;
    let debian = Debian::of_host(build)?;
    stage(build, &debian, &built)?;
    let object = libraries(build, RUNTIME, &debian).join(format!("libtuff.so.{}", build.version));
    let control = control_dir(build, RUNTIME)?;
    let depends = dependencies(build, &object)?;
    // Programs that are linked with the library depend on a version that has its functions.
    let shlibs = format!("libtuff 0 {RUNTIME} (>= {})\n", build.version);
    write(&control.join("shlibs"), &shlibs)?;
    write(&control.join("triggers"), "activate-noawait ldconfig\n")?;
    pack(build, RUNTIME, &debian, &depends)?;
    control_dir(build, DEVELOPMENT)?;
    pack(build, DEVELOPMENT, &debian, "")
}

/// Debian's names of the host.
struct Debian {
    /// Such as `amd64`.
    architecture: String,
    /// Such as `x86_64-linux-gnu`: folder of libraries below `/usr/lib`.
    multiarch: String,
}

impl Debian {
    fn of_host(build: &Build) -> Result<Self> {
        let of = |variable: &str| {
            let text = output(build.command("dpkg-architecture").args(["-q", variable]))?;
            Ok::<_, String>(text.trim().to_owned())
        };
        Ok(Self {
            architecture: of("DEB_HOST_ARCH")?,
            multiarch: of("DEB_HOST_MULTIARCH")?,
        })
    }
}

/// Files of one package, as they are installed.
fn tree(build: &Build, package: &str) -> PathBuf {
    build.stage().join(package)
}

/// Folder of the libraries in a package.
fn libraries(build: &Build, package: &str, debian: &Debian) -> PathBuf {
    tree(build, package).join("usr/lib").join(&debian.multiarch)
}

/// Lays out the files of both packages.
fn stage(build: &Build, debian: &Debian, built: &Path) -> Result<()> {
    for package in [RUNTIME, DEVELOPMENT] {
        let tree = tree(build, package);
        if tree.exists() {
            std::fs::remove_dir_all(&tree).map_err(at(&tree))?;
        }
    }
    let mut install = build.command("crates/capi/install");
    install.args(["/usr", "given"]).arg(built);
    install.env("DESTDIR", tree(build, DEVELOPMENT));
    install.env("LIBDIR", format!("lib/{}", debian.multiarch));
    run(&mut install)?;
    let from = libraries(build, DEVELOPMENT, debian);
    let to = libraries(build, RUNTIME, debian);
    std::fs::create_dir_all(&to).map_err(at(&to))?;
    let object = format!("libtuff.so.{}", build.version);
    for name in ["libtuff.so.0", &object] {
        let path = from.join(name);
        std::fs::rename(&path, to.join(name)).map_err(at(&path))?;
    }
    strip(build, "--strip-unneeded", &to.join(&object))?;
    strip(build, "--strip-debug", &from.join("libtuff.a"))?;
    documents(build)
}

fn strip(build: &Build, symbols: &str, file: &Path) -> Result<()> {
    let mut strip = build.command("strip");
    strip.args(["--enable-deterministic-archives", symbols]);
    run(strip.arg(file))?;
    run(build.command("chmod").arg("644").arg(file))
}

/// Adds the documents that every package of Debian has; those of the development package are the library's.
fn documents(build: &Build) -> Result<()> {
    let docs = tree(build, RUNTIME).join("usr/share/doc");
    let dir = docs.join(RUNTIME);
    std::fs::create_dir_all(&dir).map_err(at(&dir))?;
    let copyright = build.root.join("packaging/copyright");
    std::fs::copy(&copyright, dir.join("copyright")).map_err(at(&copyright))?;
    let changes = build.root.join("CHANGELOG.md");
    std::fs::copy(&changes, dir.join("changelog")).map_err(at(&changes))?;
    let entry = super::packages::entry(build)?;
    write(&dir.join("changelog.Debian"), &(entry + "\n"))?;
    let texts = licenses::of_dependencies(build, "tuff-capi")?;
    write(&dir.join("third-party-licenses"), &texts)?;
    let mut gzip = build.command("gzip");
    gzip.args(["-9", "-n"]).current_dir(&dir);
    run(gzip.args(["changelog", "changelog.Debian", "third-party-licenses"]))?;
    let docs = tree(build, DEVELOPMENT).join("usr/share/doc");
    std::fs::create_dir_all(&docs).map_err(at(&docs))?;
    let link = docs.join(DEVELOPMENT);
    symlink(RUNTIME, &link).map_err(at(&link))
}

/// Returns the packages that the shared library needs.
fn dependencies(build: &Build, object: &Path) -> Result<String> {
    // dpkg-shlibdeps refuses to run without this file.
    let dir = build.stage().join("shlibdeps");
    std::fs::create_dir_all(dir.join("debian")).map_err(at(&dir))?;
    write(&dir.join("debian/control"), "")?;
    let mut list = build.command("dpkg-shlibdeps");
    let list = output(list.arg("-O").arg(object).current_dir(&dir))?;
    let depends = list
        .lines()
        .find_map(|line| line.strip_prefix("shlibs:Depends="));
    match depends {
        Some(depends) => Ok(depends.to_owned()),
        None => Err(format!("dpkg-shlibdeps found no dependencies: {list}")),
    }
}

fn control_dir(build: &Build, package: &str) -> Result<PathBuf> {
    let dir = tree(build, package).join("DEBIAN");
    std::fs::create_dir_all(&dir).map_err(at(&dir))?;
    Ok(dir)
}

/// Completes the control files of a package and packs it.
fn pack(build: &Build, package: &str, debian: &Debian, depends: &str) -> Result<()> {
    let tree = tree(build, package);
    let mut paths = Vec::new();
    let size = walk(&tree.join("usr"), &mut paths)?;
    paths.sort();
    let mut sums = build.command("md5sum");
    let below = paths.iter().map(|path| path.strip_prefix(&tree));
    let sums = output(sums.args(below.flatten()).current_dir(&tree))?;
    write(&tree.join("DEBIAN/md5sums"), &sums)?;
    let template = build.root.join(format!("packaging/{package}.control"));
    let control = std::fs::read_to_string(&template)
        .map_err(at(&template))?
        .replace("@VERSION@", &format!("{}-1", build.version))
        .replace("@ARCHITECTURE@", &debian.architecture)
        .replace("@SIZE@", &size.to_string())
        .replace("@DEPENDS@", depends);
    write(&tree.join("DEBIAN/control"), &control)?;
    // Modes do not depend on the umask of the caller.
    run(build
        .command("chmod")
        .args(["-R", "u=rwX,go=rX"])
        .arg(&tree))?;
    let mut deb = build.command("dpkg-deb");
    // More threads give other bytes.
    deb.args(["--root-owner-group", "--threads-max=1"]);
    deb.arg(match build.is_dev() {
        true => "-Znone",
        false => "-Zxz",
    });
    output(deb.arg("--build").args([&tree, &build.dist])).map(drop)
}

/// Collects the files below a directory, and returns the size of all entries in KiB as dpkg-gencontrol calculates it.
fn walk(dir: &Path, files: &mut Vec<PathBuf>) -> Result<u64> {
    let mut size = 1;
    for entry in std::fs::read_dir(dir).map_err(at(dir))?.flatten() {
        let (path, kind) = (entry.path(), entry.file_type().map_err(at(dir))?);
        if kind.is_dir() {
            size += walk(&path, files)?;
        } else if kind.is_file() {
            size += entry.metadata().map_err(at(&path))?.len().div_ceil(1024);
            files.push(path);
        } else {
            size += 1;
        }
    }
    Ok(size)
}

fn write(path: &Path, text: &str) -> Result<()> {
    std::fs::write(path, text).map_err(at(path))
}

#[cfg(test)]
mod tests {
    use super::{DEVELOPMENT, RUNTIME};
    use crate::tidy::root;

    #[test]
    fn the_package_has_the_number_of_the_soname() {
        let script = std::fs::read_to_string(root().join("crates/capi/build.rs")).unwrap();
        let number = RUNTIME.strip_prefix("libtuff").unwrap();
        assert!(script.contains(&format!("-soname,libtuff.so.{number}\"")));
    }

    #[test]
    fn control_files_name_their_package() {
        for package in [RUNTIME, DEVELOPMENT] {
            let path = root().join(format!("packaging/{package}.control"));
            let control = std::fs::read_to_string(path).unwrap();
            assert!(control.starts_with(&format!("Package: {package}\n")));
        }
    }
}
