//! Tables of labels and owners, as Android uses them.

use crate::common::{Place, code, manifests, run};

/// No host has the labels of another system, so they come from tables.
#[test]
fn labels_and_owners_come_from_tables() {
    let place = Place::new("tables");
    manifests(
        &place,
        &[(
            "t.mtree",
            ". type=dir\n./bin type=dir xattr.security.selinux=host\n./bin/run type=file size=0 uid=1000\n./none type=file size=0",
        )],
    );
    let write = |name: &str, text: &str| std::fs::write(place.0.join(name), text).unwrap();
    write(
        "contexts",
        "/system(/.*)? u:object_r:system_file:s0\n/system/bin/run -- u:object_r:run_exec:s0\n/system/none <<none>>\n",
    );
    write(
        "owners",
        "system 0 0 0755\nsystem/bin 0 2000 0751\nsystem/bin/run 0 2000 0750 capabilities=0x40\nsystem/none 1 2 0600\n",
    );
    let build = |more: &[&str]| {
        let mut args = vec!["build", "-q", "--file-contexts", "contexts", "t.mtree", "a"];
        args.extend_from_slice(more);
        code(&run(&args, &place.0))
    };
    let tables = ["--fs-config", "owners", "--mount-point", "/system/"];
    assert_eq!(
        build(&tables),
        (
            0,
            "tuff: warning: \"none\": no label: no line of the file_contexts file matches\n"
                .to_owned()
        )
    );
    let out = run(
        &["stat", "--json", "a", "/", "bin", "bin/run", "none"],
        &place.0,
    );
    let found: Vec<String> = String::from_utf8(out.stdout)
        .unwrap()
        .lines()
        .map(|line| {
            let stat: serde_json::Value = serde_json::from_str(line).unwrap();
            let names = stat["xattrs"].as_array().unwrap().iter();
            let names: Vec<String> = names.map(|x| x["name"].to_string()).collect();
            format!(
                "{} {} {} {}",
                stat["mode"],
                stat["uid"],
                stat["gid"],
                names.join(" ")
            )
        })
        .collect();
    assert_eq!(
        found,
        [
            "\"0755\" 0 0 \"security.selinux\"",
            "\"0751\" 0 2000 \"security.selinux\"",
            "\"0750\" 0 2000 \"security.capability\" \"security.selinux\"",
            "\"0600\" 1 2 "
        ]
    );
    assert_eq!(
        code(&run(&["check", "-q", "a"], &place.0)),
        (0, String::new())
    );
    // A path without an owner is an error, as for the tools of Android.
    write("owners", "system 0 0 0755\nsystem/bin 0 2000 0751\n");
    assert_eq!(
        build(&tables),
        (
            3,
            "tuff: \"none\", \"bin/run\": not in the fs_config table\n".to_owned()
        )
    );
    write("contexts", "/a\n");
    let (code, message) = build(&[]);
    assert_eq!(code, 3);
    assert!(message.contains("contexts: line 1: expected"), "{message}");
}
