//! Commands in README.md and docs/guide run as they are written.
//!
//! Blocks marked `sh` of a page form one script, which runs in a directory with the trees that the guide names. A block that does
//! not work everywhere begins with `# needs ...`, and is left out, aloud, where the host lacks that.

use serde_json::json;
use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::fs;
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use tuff_mkfs::settings::{Form, SETTINGS};
use tuff_testkit::http::{Answer, Server};
use tuff_testkit::registry::Registry;
use tuff_testkit::schema::Schema;
use tuff_testkit::{note, program, skipped};

/// Server that pages name, which the tests replace by one of their own.
const EXAMPLE_SERVER: &str = "https://images.example.org";

/// Registry that pages name, which the tests replace by one of their own.
const EXAMPLE_REGISTRY: &str = "registry.example.org";

/// Root directory of the project.
fn project() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Temporary directory that a page's commands run in.
struct Playground(PathBuf);

impl Playground {
    /// Makes a directory with nothing but the commands.
    fn empty(name: &str) -> Self {
        let place = Self(tuff_testkit::unused_path(&format!("documents-{name}")));
        fs::create_dir_all(place.0.join("bin")).unwrap();
        symlink(env!("CARGO_BIN_EXE_tuff"), place.0.join("bin/tuff")).unwrap();
        // `cargo run --release -- VERB` in a clone runs the command that is under test here.
        let cargo = place.0.join("bin/cargo");
        program::script(cargo, "#!/bin/sh\nshift 3\nexec tuff \"$@\"\n");
        place
    }

    /// Makes a directory with the trees of the guide, by the commands of its first page.
    fn of_guide(name: &str) -> Self {
        let place = Self::empty(name);
        let guide = fs::read_to_string(project().join("docs/guide/README.md")).unwrap();
        let out = place.sh(&blocks(&guide).join("\n"));
        assert!(
            out.status.success(),
            "{}",
            String::from_utf8_lossy(&out.stderr)
        );
        place
    }

    /// Makes a directory with the trees `rootfs`, `new-rootfs`, `overlay` and `crates`.
    fn new(name: &str) -> Self {
        let place = Self::empty(name);
        let text = "The quick brown fox jumps over the lazy dog.\n".repeat(5000);
        for root in ["rootfs", "new-rootfs", "crates"] {
            place.write(&format!("{root}/etc/os-release"), "NAME=Test\n");
            place.write(&format!("{root}/usr/share/text"), &text);
            place.write(&format!("{root}/usr/bin/tool"), "#!/bin/sh\n");
            let tool = place.0.join(root).join("usr/bin/tool");
            fs::set_permissions(tool, fs::Permissions::from_mode(0o755)).unwrap();
        }
        symlink("tool", place.0.join("rootfs/usr/bin/alias")).unwrap();
        place.write("new-rootfs/usr/share/new", &text.replace("fox", "cat"));
        place.write("overlay/etc/motd", "Welcome\n");
        place
    }

    fn write(&self, path: &str, text: &str) {
        let path = self.0.join(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    fn sh(&self, script: &str) -> Output {
        let path = std::env::var("PATH").unwrap_or_default();
        let path = format!("{}:{path}", self.0.join("bin").display());
        let mut sh = Command::new("sh");
        sh.args(["-eux", "-c", script]).env("PATH", path);
        sh.env("XDG_CACHE_HOME", self.0.join("cache"));
        sh.current_dir(&self.0).output().unwrap()
    }

    /// Makes `debian`, an OCI layout with one layer. False: this host has no sha256sum.
    fn add_container(&self) -> bool {
        let blob = |path: &str, media: &str| {
            let script = format!(
                "sum=$(sha256sum < {path}); sum=${{sum%% *}}; mv {path} debian/blobs/sha256/$sum; printf %s $sum"
            );
            let size = fs::metadata(self.0.join(path)).unwrap().len();
            let out = self.sh(&script);
            let hex = String::from_utf8(out.stdout).unwrap();
            json!({"mediaType": media, "digest": format!("sha256:{hex}"), "size": size})
        };
        if !self.sh("sha256sum bin/cargo").status.success() {
            return false;
        }
        let media = |what: &str| format!("application/vnd.oci.image.{what}");
        self.write("debian/oci-layout", r#"{"imageLayoutVersion":"1.0.0"}"#);
        fs::create_dir_all(self.0.join("debian/blobs/sha256")).unwrap();
        assert!(self.sh("tar -cf layer -C rootfs .").status.success());
        let layer = blob("layer", &media("layer.v1.tar"));
        let diff_id = layer["digest"].clone();
        self.write(
            "config",
            &json!({"rootfs": {"type": "layers", "diff_ids": [diff_id]}}).to_string(),
        );
        let config = blob("config", &media("config.v1+json"));
        let manifest = json!({"schemaVersion": 2, "config": config, "layers": [layer]});
        self.write("manifest", &manifest.to_string());
        let manifest = blob("manifest", &media("manifest.v1+json"));
        let index = json!({"schemaVersion": 2, "manifests": [manifest]});
        self.write("debian/index.json", &index.to_string());
        true
    }
}

impl Drop for Playground {
    fn drop(&mut self) {
        let mounts = fs::read_to_string("/proc/self/mounts").unwrap_or_default();
        for line in mounts.lines() {
            let dir = line.split(' ').nth(1).unwrap_or_default();
            if Path::new(dir).starts_with(&self.0) {
                // A page that failed leaves its servers.
                let server = fs::read_to_string(Path::new(dir).join("pg/postmaster.pid"));
                if let Some(pid) = server.iter().flat_map(|text| text.lines()).next() {
                    let _ = Command::new("kill").args(["-QUIT", pid]).status();
                }
                let _ = Command::new("umount").args(["-l", dir]).status();
            }
        }
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Blocks of a page that are marked `sh`.
fn blocks(page: &str) -> Vec<&str> {
    page.split("\n```sh\n")
        .skip(1)
        .map(|rest| rest.split("\n```").next().unwrap_or_default())
        .collect()
}

/// Requirements of a block, from its first line: `# needs root and veritysetup`.
fn needs(block: &str) -> Vec<&str> {
    let first = block.lines().next().unwrap_or_default();
    first
        .strip_prefix("# needs ")
        .map(|needs| needs.split(" and ").collect())
        .unwrap_or_default()
}

/// Ability of a host to run a block.
#[derive(PartialEq, Eq, Debug)]
enum Ability {
    Runs,
    /// The host lacks something that tests expect.
    Lacks,
    /// No test has it: the network, a toolchain.
    Never,
}

/// Returns true if a script of sh succeeds.
fn succeeds(script: &str) -> bool {
    let out = Command::new("sh").args(["-c", script]).output();
    out.is_ok_and(|out| out.status.success())
}

fn ability(need: &str) -> Ability {
    let has = match need {
        "the network" | "the source tree" => return Ability::Never,
        "root" => Command::new("id")
            .arg("-u")
            .output()
            .is_ok_and(|o| o.stdout == b"0\n"),
        "/dev/fuse" => Path::new("/dev/fuse").exists(),
        "PostgreSQL" => succeeds("ls /usr/lib/postgresql/*/bin/postgres && id postgres"),
        "Linux 6.16" => succeeds("printf '6.16\\n%s\\n' \"$(uname -r)\" | sort -CV"),
        program => succeeds(&format!("command -v {program}")),
    };
    if has { Ability::Runs } else { Ability::Lacks }
}

/// Runs a page. Returns what its blocks lack on this host.
fn run(page: &str) -> Vec<String> {
    let text = fs::read_to_string(project().join(page)).unwrap();
    let name = page.replace(['/', '.'], "-");
    let place = match page.starts_with("docs/guide") {
        true => Playground::of_guide(&name),
        false => Playground::new(&name),
    };
    let mut lacks = Vec::new();
    if text.contains("oci:debian") && !place.add_container() {
        lacks.push("sha256sum".to_owned());
    }
    let mut script = String::new();
    for block in blocks(&text) {
        let mut runs = true;
        for need in needs(block) {
            match ability(need) {
                Ability::Runs => {}
                Ability::Lacks => {
                    runs = false;
                    lacks.push(need.to_owned());
                }
                Ability::Never => {
                    runs = false;
                    note(format!("{page}: a block that needs {need} does not run"));
                }
            }
        }
        if runs {
            let _ = writeln!(script, "{block}");
        }
    }
    assert!(
        !script.is_empty() || !lacks.is_empty(),
        "{page} has no commands"
    );
    // The server that a page names offers what its commands have made.
    let dir = place.0.clone();
    let server = Server::start(move |request| {
        let bytes = fs::read(dir.join(request.path.trim_start_matches('/')));
        bytes.map_or(Answer::status(404), |bytes| {
            Answer::object(request, &bytes, "\"v1\"")
        })
    });
    let images = Registry::default();
    let registry = Server::start(move |request| images.answer(request));
    let script = script.replace(EXAMPLE_SERVER, &server.url(""));
    let script = script.replace(EXAMPLE_REGISTRY, &registry.host());
    let out = place.sh(&script);
    assert!(
        out.status.success(),
        "{page}: {}\n{}",
        out.status,
        String::from_utf8_lossy(&out.stderr)
    );
    lacks
}

fn runs_as_written(page: &str) {
    let lacks = run(page);
    if !lacks.is_empty() {
        skipped(format!("blocks of {page} need {}", lacks.join(", ")));
    }
}

#[test]
fn commands_of_the_readme_run() {
    runs_as_written("README.md");
}

#[test]
fn each_page_of_the_guide_says_where_it_starts() {
    let start =
        "The commands start in an empty directory with the [trees](README.md#trees) of this guide.";
    for entry in fs::read_dir(project().join("docs/guide")).unwrap() {
        let path = entry.unwrap().path();
        let is_page = path.extension().is_some_and(|e| e == "md");
        if is_page && !path.ends_with("README.md") {
            let text = fs::read_to_string(&path).unwrap();
            assert!(text.contains(start), "{}", path.display());
        }
    }
}

#[test]
fn commands_of_the_guide_run() {
    let mut pages: Vec<String> = fs::read_dir(project().join("docs/guide"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .filter(|name| name.ends_with(".md") && name != "README.md")
        .map(|name| format!("docs/guide/{name}"))
        .collect();
    pages.sort();
    assert!(pages.len() >= 7, "{pages:?}");
    for page in &pages {
        runs_as_written(page);
    }
}

/// Reference of the command line, from the help of every verb.
fn cli_reference() -> String {
    let place = Playground::new("cli-reference");
    let tuff = |args: &[&str]| {
        let mut tuff = Command::new(env!("CARGO_BIN_EXE_tuff"));
        tuff.args(args).env_remove("COLUMNS");
        tuff.current_dir(&place.0).output().unwrap()
    };
    assert!(tuff(&["man", "man"]).status.success());
    let mut verbs: Vec<String> = fs::read_dir(place.0.join("man"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .map(|name| name.trim_end_matches(".1").replace('-', " "))
        .collect();
    verbs.sort();
    let mut text = String::from(
        "# Command line\n\nHelp of every verb, as `tuff VERB --help-all` prints it. Generated by `TUFF_WRITE_DOCS=1 cargo test -p tuff-cli --test documents`.\n",
    );
    for verb in &verbs {
        let mut args: Vec<&str> = verb.split(' ').skip(1).collect();
        args.push("--help-all");
        let mut out = tuff(&args);
        if !out.status.success() {
            args.pop();
            args.push("--help");
            out = tuff(&args);
        }
        assert!(out.status.success(), "{args:?}");
        let help = String::from_utf8(out.stdout).unwrap();
        let _ = write!(text, "\n## {verb}\n\n```text\n");
        for line in help.trim_end().lines() {
            let _ = writeln!(text, "{}", line.trim_end());
        }
        text.push_str("```\n");
    }
    text
}

#[test]
fn the_reference_of_the_command_line_is_complete() {
    is_generated("docs/reference/cli.md", &cli_reference());
}

/// Types of the options of a build in Python.
fn python_options() -> String {
    let mut text = String::from(
        "# Options of a build. Generated by `TUFF_WRITE_DOCS=1 cargo test -p tuff-cli --test documents`.\n\
        import os\nfrom collections.abc import Sequence\nfrom typing import Literal, Union\n\n\
        from typing_extensions import TypedDict\n\n\
        _Text = Union[str, int, float]\n_Path = Union[str, os.PathLike[str]]\n\n\
        class Options(TypedDict, total=False):\n",
    );
    for setting in SETTINGS {
        let mut kind = match (setting.form, setting.choices) {
            (Form::Flag, _) => "bool".to_owned(),
            (Form::File, _) => "_Path".to_owned(),
            (Form::Text, []) => "_Text".to_owned(),
            (Form::Text, choices) => format!("Literal[\"{}\"]", choices.join("\", \"")),
        };
        if setting.repeats {
            kind = format!("Union[{kind}, Sequence[{kind}]]");
        }
        let name = setting.name.replace('-', "_");
        let _ = writeln!(text, "    # {}\n    {name}: {kind}", setting.help());
    }
    text
}

/// Compares a file with what it is generated from, or writes it.
fn is_generated(path: &str, text: &str) {
    let path = project().join(path);
    if std::env::var_os("TUFF_WRITE_DOCS").is_some_and(|value| value == "1") {
        fs::write(&path, text).unwrap();
    }
    assert!(
        fs::read_to_string(&path).unwrap_or_default() == text,
        "{} is not up to date; write it by TUFF_WRITE_DOCS=1 cargo test -p tuff-cli --test documents",
        path.display()
    );
}

#[test]
fn types_in_python_are_those_of_the_settings() {
    is_generated("crates/python/python/tuff/_options.pyi", &python_options());
}

/// Verbs with `--json`, and commands that print all their objects. The name of a definition in the schema has underscores in
/// place of spaces.
const JSON_VERBS: &[(&str, &str)] = &[
    (
        "build",
        "tuff build --json --stats --verity rootfs i 2>/dev/null",
    ),
    (
        "build",
        "tuff build --json --auto size new-rootfs j 2>/dev/null",
    ),
    ("patch", "tuff patch --json new-rootfs i 2>/dev/null"),
    ("info", "tuff info --json i; tuff info -f --json i"),
    ("ls", "tuff ls -R --json i"),
    (
        "report",
        "printf 'tuff profile 1\\n0 1 0 4096 /usr/share/text\\n' > p; tuff report --json i; tuff report --json --profile p j i",
    ),
    (
        "stat",
        "tuff stat -e --json i /usr/share/text /usr; tuff build -q rootfs r; tuff stat --json r /usr/bin/alias",
    ),
    ("extract", "tuff extract --json i out"),
    ("check", "tuff check --json i"),
    ("verity add", "tuff verity add --replace --fec 2 --json i"),
    ("verity show", "tuff verity show --json i"),
    (
        "check",
        "printf x | dd of=i bs=1 seek=1200 conv=notrunc; ! tuff check --json i",
    ),
    (
        "verity check",
        "! tuff verity check --json i $(tuff verity show --json i | sed 's/.*root_hash\":\"//; s/\".*//')",
    ),
    (
        "verity repair",
        "tuff verity repair --json i $(tuff verity show --json i | sed 's/.*root_hash\":\"//; s/\".*//')",
    ),
    ("diff", "! tuff diff --json rootfs i"),
    (
        "diff",
        "chmod 700 rootfs/etc; mkdir rootfs/usr/share/new; ! tuff diff --json i rootfs",
    ),
    ("dump", "tuff dump --json i"),
    ("disk", "tuff disk --json rootfs d.raw 2>/dev/null"),
    ("check", "tuff check --json d.raw"),
    ("info", "tuff info --json d.raw"),
    (
        "sysext",
        "tuff sysext --json --release ID=_any rootfs e.raw 2>/dev/null",
    ),
    ("suggest", "tuff suggest --json rootfs 2>/dev/null"),
    ("doctor", "tuff doctor --json"),
    (
        "stats start",
        r#"printf '{"start_ms":0.1,"first_ms":1.0,"end_ms":2.0,"reason":"first","url":"http://h/i","digest":null,"range_start":0,"range_end":9,"status":206,"bytes":9,"used_bytes":4}\n{"requests":1,"bytes":9,"omitted_requests":0,"omitted_bytes":0}\n' > start.trace; tuff stats --start --json start.trace"#,
    ),
    ("volume create", "tuff volume create --json --size 1G v"),
    ("volume import", "tuff volume import --json v rootfs"),
    (
        "volume quota",
        "tuff volume snapshot create v s; tuff volume quota --user 1 --space 1G v; tuff volume quota --json v",
    ),
    ("volume stat", "tuff volume stat --json v"),
    (
        "volume check",
        "tuff volume check --json v; tuff volume check --repair --json v",
    ),
    ("volume trim", "tuff volume trim --json v"),
    ("volume snapshot list", "tuff volume snapshot list --json v"),
    (
        "volume branch list",
        "tuff volume fork v next; tuff volume branch list --json v",
    ),
    ("backup", "tuff backup --json rootfs backups"),
    ("store list", "tuff store list --json backups"),
    (
        "store diff",
        "echo x > rootfs/added; tuff backup -q rootfs backups; ! tuff store diff --json backups",
    ),
    (
        "store check",
        "tuff store check --json --read-data 100% backups",
    ),
    (
        "store restore",
        "tuff store restore --json backups restored",
    ),
    (
        "store forget",
        "tuff store forget --json --keep-last 1 backups",
    ),
    ("store prune", "tuff store prune --json backups"),
    ("store copy", "tuff store copy --json backups copies"),
    ("store repair", "tuff store repair --json backups"),
    (
        "store key list",
        "tuff backup -q --encrypt --key-file key rootfs secret 2>&-; tuff store key list --json secret",
    ),
    // Progress, of a build that waits for its input.
    (
        "progress",
        "tuff tar j t; (head -c 1000 t; sleep 1.5; tail -c +1001 t) | tuff build --json - k 2>&1 >/dev/null",
    ),
];

/// Further verbs, which need the cargo feature `remote`.
const JSON_REMOTE_VERBS: &[(&str, &str)] = &[
    (
        "push",
        "tuff push --json j oci://registry.example.org/a/b:1 2>/dev/null",
    ),
    (
        "pull",
        "tuff pull --json oci://registry.example.org/a/b:1 pulled",
    ),
    (
        "doctor image",
        "tuff doctor --json oci://registry.example.org/a/b:1",
    ),
];

/// Further verbs, which need a mount.
const JSON_MOUNT_VERBS: &[(&str, &str)] = &[(
    "stats",
    "mkdir m; tuff mount j m; cat m/etc/os-release >/dev/null; tuff stats --json m; tuff umount m",
)];

/// Objects whose keys are data: names of algorithms, stages, aims.
const OPEN_KEYS: [&str; 10] = [
    "algorithms",
    "by_extension",
    "by_type",
    "compression",
    "fields",
    "layouts",
    "recommended",
    "rows",
    "stage_seconds",
    "types",
];

fn keys_of(value: &serde_json::Value, is_open: bool, out: &mut BTreeSet<String>) {
    match value {
        serde_json::Value::Object(map) => {
            for (key, value) in map {
                if !is_open {
                    out.insert(key.clone());
                }
                keys_of(value, OPEN_KEYS.contains(&key.as_str()), out);
            }
        }
        serde_json::Value::Array(list) => list.iter().for_each(|v| keys_of(v, is_open, out)),
        _ => {}
    }
}

/// Objects that the verbs print, with the names of their definitions.
fn json_output() -> Vec<(&'static str, serde_json::Value)> {
    let place = Playground::new("json");
    let images = Registry::default();
    let registry = Server::start(move |request| images.answer(request));
    let mut verbs = JSON_VERBS.to_vec();
    if cfg!(feature = "remote") {
        verbs.extend(JSON_REMOTE_VERBS);
    }
    if place.sh("test -w /dev/fuse").status.success() {
        verbs.extend(JSON_MOUNT_VERBS);
    } else {
        skipped("the output of stats needs /dev/fuse");
    }
    let mut objects = Vec::new();
    for (verb, script) in verbs {
        let out = place.sh(&script.replace(EXAMPLE_REGISTRY, &registry.host()));
        let message = String::from_utf8_lossy(&out.stderr);
        assert!(out.status.success(), "{script}: {message}");
        let found = serde_json::Deserializer::from_slice(&out.stdout).into_iter();
        let found: Vec<_> = found.map(|object| (verb, object.unwrap())).collect();
        assert!(!found.is_empty(), "{script}: {message}");
        objects.extend(found);
    }
    objects
}

#[test]
fn the_reference_of_json_output_is_complete() {
    let objects = json_output();
    let mut keys = BTreeSet::new();
    for (verb, object) in &objects {
        // The names of counters are in another page.
        keys_of(object, *verb == "stats", &mut keys);
    }
    assert!(keys.len() > 150, "{keys:?}");
    let page = fs::read_to_string(project().join("docs/reference/json.md")).unwrap();
    let missing: Vec<_> = keys
        .iter()
        .filter(|key| !page.contains(&format!("`{key}`")))
        .collect();
    assert!(
        missing.is_empty(),
        "not in docs/reference/json.md: {missing:?}"
    );
    matches_the_schema(&objects);
}

/// Path of the schema of JSON output.
const SCHEMA: &str = "docs/reference/json.schema.json";

/// Checks that each object has exactly the fields of its definition, by the project's checker and by one of others.
fn matches_the_schema(objects: &[(&str, serde_json::Value)]) {
    let schema = Schema::parse(&fs::read_to_string(project().join(SCHEMA)).unwrap());
    let mut lines = String::new();
    for (verb, object) in objects {
        let name = verb.replace(' ', "_");
        let problems = schema.problems(&name, object);
        assert!(problems.is_empty(), "{problems:#?}\n{object}");
        let _ = writeln!(lines, "{}", json!([name, object]));
    }
    let place = Playground::new("json-referee");
    place.write("lines", &lines);
    let script = r"
import json, sys
from jsonschema import Draft202012Validator
schema = json.load(open(sys.argv[1]))
Draft202012Validator.check_schema(schema)
for line in open('lines'):
    name, value = json.loads(line)
    Draft202012Validator({**schema, '$ref': '#/$defs/' + name}).validate(value)
";
    place.write("referee.py", script);
    if !place.sh("python3 -c 'import jsonschema'").status.success() {
        return skipped("python3-jsonschema is not installed");
    }
    let path = project().join(SCHEMA).canonicalize().unwrap();
    let out = place.sh(&format!("python3 referee.py {}", path.display()));
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
}

#[test]
fn every_verb_with_json_is_in_the_schema_and_in_its_test() {
    let schema = Schema::parse(&fs::read_to_string(project().join(SCHEMA)).unwrap());
    let lists = [JSON_VERBS, JSON_REMOTE_VERBS, JSON_MOUNT_VERBS];
    let tested: BTreeSet<&str> = lists
        .iter()
        .flat_map(|list| list.iter().map(|(verb, _)| *verb))
        .collect();
    let names: BTreeSet<&str> = schema.names().collect();
    for section in cli_reference().split("\n## tuff ").skip(1) {
        let verb = section.lines().next().unwrap_or_default();
        if !section
            .lines()
            .any(|line| line.trim().starts_with("--json"))
        {
            continue;
        }
        let name = verb.replace(' ', "_");
        assert!(
            names.contains(&*name),
            "{verb}: no definition {name} in {SCHEMA}"
        );
        assert!(
            tested.contains(verb),
            "{verb}: its JSON output is in no test"
        );
    }
    assert_eq!(schema.undescribed(), Vec::<String>::new());
}

/// Commands in a page's code spans that state their image as IMAGE, such as those in tables.
fn inline_commands(page: &str) -> Vec<&str> {
    page.lines()
        .filter(|line| !line.starts_with("```"))
        .flat_map(|line| line.split('`').skip(1).step_by(2))
        .filter(|span| span.starts_with("tuff ") && span.split(' ').any(|word| word == "IMAGE"))
        .collect()
}

/// An inline command with its placeholders filled in, as a script.
fn filled_in(command: &str, number: usize) -> String {
    let verb = command.split(' ').nth(1).unwrap_or_default();
    let makes = verb == "build";
    let words: Vec<String> = command
        .split(' ')
        .map(|word| match word {
            "IMAGE" if makes => format!("new-{number}.erofs"),
            "IMAGE" => "image.erofs".to_owned(),
            "DIR" if makes || verb == "patch" => "rootfs".to_owned(),
            "DIR" if verb == "mount" => "mnt".to_owned(),
            "DIR" => format!("out-{number}"),
            "TAR" => "rootfs.tar".to_owned(),
            "PATH" => "etc".to_owned(),
            "FILE" => "etc/os-release".to_owned(),
            word => word.to_owned(),
        })
        .collect();
    let end = if verb == "mount" {
        "\ntuff umount mnt"
    } else {
        ""
    };
    format!("{} < rootfs.tar{end}\n", words.join(" "))
}

#[test]
fn commands_in_tables_of_the_guide_run() {
    let place = Playground::new("tables");
    let mut script = String::from(
        "mkdir mnt\ntar -cf rootfs.tar -C rootfs .\ntuff build -q rootfs image.erofs\n",
    );
    let mut commands = 0;
    for entry in fs::read_dir(project().join("docs/guide")).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_none_or(|extension| extension != "md") {
            continue;
        }
        let page = fs::read_to_string(path).unwrap();
        for command in inline_commands(&page) {
            if command.starts_with("tuff mount") && !Path::new("/dev/fuse").exists() {
                skipped("mounting needs /dev/fuse");
            } else {
                commands += 1;
                script.push_str(&filled_in(command, commands));
            }
        }
    }
    assert!(commands > 15, "{commands}");
    let out = place.sh(&script);
    let message = String::from_utf8_lossy(&out.stderr);
    assert!(out.status.success(), "{}\n{message}", out.status);
}

#[test]
fn blocks_state_what_they_need() {
    let page = "a\n```sh\n# needs root and jq\nb\n```\n```text\nc\n```\n\n```sh\nd\n```\n";
    assert_eq!(blocks(page), ["# needs root and jq\nb", "d"]);
    assert_eq!(needs(blocks(page)[0]), ["root", "jq"]);
    assert_eq!(needs("d"), [""; 0]);
    assert_eq!(ability("sh"), Ability::Runs);
    assert_eq!(ability("a-program-that-no-host-has"), Ability::Lacks);
}
