//! Changes of the set of branches: refusals while a branch is mounted, and kills at any step.

use crate::branch_fixture::{
    Model, NOW, content, contents, copy, create, exact, files, mount, scratch, write,
};
use crate::flatten;
use std::path::Path;
use tuff_iplfs::backend::kill_after;
use tuff_iplfs::{
    Error, branches, delete_branch, fork, mount_snapshot, promote_branch, rollback_branch,
};

#[test]
fn t3_18_rollback_promote_and_delete_are_refused_while_mounted() {
    let path = create("refused");
    let mut v = mount(&path, "main");
    write(&mut v, "a", &[1; 9000]);
    v.snapshot("s", NOW).unwrap();
    write(&mut v, "a", &[2; 9000]);
    write(&mut v, "b", &[2; 9000]);
    v.unmount().unwrap();
    fork(&path, None, "x", None, NOW).unwrap();
    let main = mount(&path, "main");
    let x = mount(&path, "x");
    let infos = branches(&path).unwrap();
    assert!(infos.iter().all(|info| info.is_mounted), "{infos:?}");
    let busy = |result: Result<(), Error>, name: &str| {
        let text = result.unwrap_err().to_string();
        assert!(text.contains(&format!("'{name}'")), "{text}");
        assert!(text.contains("mounted"), "{text}");
    };
    busy(
        rollback_branch(&path, "main", "s", false, NOW).map(drop),
        "main",
    );
    busy(promote_branch(&path, "x").map(drop), "x");
    busy(delete_branch(&path, "x"), "x");
    busy(fork(&path, None, "y", None, NOW), "main");
    x.unmount().unwrap();
    busy(promote_branch(&path, "x").map(drop), "main");
    main.unmount().unwrap();
    // Nothing is renamed if the deletion would fail.
    let snapshot = mount_snapshot(&path, None, "s").unwrap();
    busy(
        rollback_branch(&path, "main", "s", true, NOW).map(drop),
        "main",
    );
    assert_eq!(branches(&path).unwrap().len(), infos.len());
    drop(snapshot);
    let kept = rollback_branch(&path, "main", "s", false, NOW).unwrap();
    assert_eq!(kept.as_deref(), Some("main-1"));
    let mut v = mount(&path, "main");
    assert_eq!(
        content(&mut v),
        Model::from([("a".to_owned(), vec![1; 9000])])
    );
    v.unmount().unwrap();
    let mut v = mount(&path, "main-1");
    assert_eq!(content(&mut v)["b"], [2; 9000]);
    assert_eq!(v.snapshots().len(), 1);
    v.unmount().unwrap();
    assert!(delete_branch(&path, "main").is_err());
    exact(&path);
    // Back again, without what is left.
    assert_eq!(
        rollback_branch(&path, "main-1", "s", true, NOW).unwrap(),
        None
    );
    delete_branch(&path, "x").unwrap();
    exact(&path);
}

#[test]
fn a_change_that_is_killed_at_any_step_can_be_repeated() {
    let template = create("killed-template");
    let mut v = mount(&template, "main");
    write(&mut v, "a", &[1; 9000]);
    v.snapshot("s", NOW).unwrap();
    write(&mut v, "a", &[2; 9000]);
    v.unmount().unwrap();
    let plain = scratch("killed-plain");
    copy(&template, &plain);
    fork(&template, None, "x", None, NOW).unwrap();
    let mut x = mount(&template, "x");
    write(&mut x, "x", &[3; 9000]);
    x.snapshot("t", NOW).unwrap();
    write(&mut x, "x", &[4; 9000]);
    x.unmount().unwrap();
    fork(&template, Some("x"), "y", Some("t"), NOW).unwrap();
    let mut v = mount(&template, "main");
    write(&mut v, "a", &[5; 9000]);
    v.unmount().unwrap();
    type Change = fn(&Path) -> Result<(), Error>;
    let changes: [(&str, &Path, Change); 9] = [
        ("first fork", &plain, |p| fork(p, None, "n", None, NOW)),
        ("first rollback", &plain, |p| {
            rollback_branch(p, "main", "s", false, NOW).map(drop)
        }),
        ("fork", &template, |p| {
            fork(p, Some("x"), "n", Some("t"), NOW)
        }),
        ("delete", &template, |p| delete_branch(p, "y")),
        ("delete parent", &template, |p| delete_branch(p, "x")),
        ("promote", &template, |p| promote_branch(p, "y").map(drop)),
        ("flatten", &template, |p| flatten(p, "y").map(drop)),
        ("rollback", &template, |p| {
            rollback_branch(p, "x", "t", false, NOW).map(drop)
        }),
        ("rollback, discard", &template, |p| {
            rollback_branch(p, "x", "t", true, NOW).map(drop)
        }),
    ];
    let path = scratch("killed");
    for (what, from, change) in changes {
        let before = contents(from);
        copy(from, &path);
        change(&path).unwrap();
        let after = contents(&path);
        let mut steps = 0;
        loop {
            copy(from, &path);
            kill_after(Some(steps));
            let result = change(&path);
            let left = kill_after(None);
            let shown = contents(&path);
            if left != Some(0) {
                result.unwrap();
                assert!(shown == after, "{what}");
                break;
            }
            // A rollback is done when the names are exchanged, and then deletes what it left.
            let kept = shown.iter().filter(|(name, _)| after.contains_key(*name));
            let between = kept.eq(after.iter()) && what == "rollback, discard";
            assert!(
                shown == before || shown == after || between,
                "{what}, {steps} steps: {:?}",
                shown.keys()
            );
            if shown == before {
                change(&path).unwrap_or_else(|e| panic!("{what}, {steps} steps: {e}"));
                assert!(contents(&path) == after, "{what}, {steps} steps");
            }
            // The next change removes what is left.
            fork(&path, None, "next", None, NOW).unwrap();
            delete_branch(&path, "next").unwrap();
            exact(&path);
            let unfinished = files(&path.join("branches")).into_iter().find(|file| {
                let name = file.file_name().unwrap().to_str().unwrap();
                [".new", ".dead", ".hiding", ".tmp", "renames"]
                    .iter()
                    .any(|end| name.ends_with(end))
            });
            assert_eq!(unfinished, None, "{what}, {steps} steps");
            steps += 1;
        }
        assert!(steps >= 4, "{what}: {steps} steps");
    }
}
