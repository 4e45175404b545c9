use super::*;
use crate::Error;
use crate::source::Entry;

fn meta() -> Meta {
    Meta {
        mode: 0o644,
        uid: 1,
        gid: 2,
        mtime: 3,
        mtime_nsec: 4,
    }
}

fn entry(path: &str, kind: Kind) -> Entry {
    Entry {
        path: path.into(),
        kind,
        meta: meta(),
        xattrs: Vec::new(),
        content: Content::None,
    }
}

fn file(path: &str) -> Entry {
    entry(path, Kind::File { size: 1 })
}

/// Adds files whose paths are separated by spaces.
fn add_files(tree: &mut Tree, paths: &str) {
    for path in paths.split(' ') {
        tree.add(file(path)).unwrap();
    }
}

/// Returns all paths, separated by spaces.
fn paths(mut tree: Tree) -> String {
    tree.finish();
    let mut out = Vec::new();
    tree.walk(|d| {
        let mut path = tree.path(d.parent);
        path.push(b'/');
        path.extend_from_slice(tree.name(d));
        out.push(String::from_utf8(path).unwrap());
    });
    out.join(" ")
}

#[test]
fn names_are_in_bytewise_order_with_children_together() {
    let mut tree = Tree::new(Whiteouts::Keep);
    add_files(&mut tree, "b/z b/a/x a b/- B c/d");
    assert_eq!(paths(tree), "/B /a /b /c b/- b/a b/z b/a/x c/d");
}

#[test]
fn a_later_source_wins_and_its_whiteouts_delete() {
    let mut tree = Tree::new(Whiteouts::Aufs);
    add_files(&mut tree, "keep gone dir/old opaque/old file");
    tree.next_layer().unwrap();
    add_files(
        &mut tree,
        ".wh.gone opaque/new opaque/.wh..wh..opq file/now-a-dir dir/.wh.mine dir/mine",
    );
    assert_eq!(
        paths(tree),
        "/dir /file /keep /opaque dir/mine dir/old file/now-a-dir opaque/new"
    );
}

#[test]
fn overlay_whiteouts_and_opaque_directories_are_understood() {
    let mut tree = Tree::new(Whiteouts::Overlay);
    add_files(&mut tree, "a d/x e/y");
    tree.next_layer().unwrap();
    tree.add(entry("a", Kind::Char(Device { major: 0, minor: 0 })))
        .unwrap();
    let mut opaque = entry("d", Kind::Dir);
    opaque
        .xattrs
        .push((b"trusted.overlay.opaque".to_vec(), b"y".to_vec()));
    tree.add(opaque).unwrap();
    assert_eq!(paths(tree), "/d /e e/y");
}

/// Regression: whiteouts of Docker and OCI layers were kept as files unless `--whiteouts` was
/// given.
#[test]
fn whiteouts_of_overlayfs_and_aufs_delete() {
    let mut tree = Tree::new(Whiteouts::Both);
    add_files(&mut tree, "a b d/x e/x keep");
    tree.next_layer().unwrap();
    tree.add(entry("a", Kind::Char(Device { major: 0, minor: 0 })))
        .unwrap();
    tree.add(file(".wh.b")).unwrap();
    tree.add(file("d/.wh..wh..opq")).unwrap();
    let opaque = with(entry("e", Kind::Dir), "trusted.overlay.opaque", "y");
    tree.add(opaque).unwrap();
    assert_eq!(paths(tree), "/d /e /keep");
}

/// Regression: an image of a single layer had no whiteouts, so that an overlay showed deleted
/// files.
#[test]
fn converted_whiteouts_are_those_of_overlayfs() {
    let mut tree = Tree::new(Whiteouts::Convert);
    add_files(
        &mut tree,
        "a here .wh.here .wh.gone .wh..wh.aufs d/.wh..wh..opq d/new both/x .wh.both lower/x",
    );
    tree.next_layer().unwrap();
    add_files(&mut tree, ".wh.a .wh.lower gone/again");
    let null = entry("null", Kind::Char(Device { major: 0, minor: 0 }));
    tree.add(null).unwrap();
    tree.add(entry("link", Kind::Hardlink(b"null".to_vec())))
        .unwrap();
    tree.add(entry("lower", Kind::Dir)).unwrap();
    tree.mark_opaque().unwrap();
    tree.finish();
    assert_eq!(
        with_kinds(&tree),
        "a null, both opaque, both/x file, d opaque, d/new file, gone opaque, gone/again file, here file, link null, lower opaque"
    );
}

/// Regression: an overlay showed what lies below a layer with an opaque root, because overlayfs
/// ignores the attribute on a root.
#[test]
fn an_opaque_root_makes_its_entries_opaque() {
    let mut tree = Tree::new(Whiteouts::Convert);
    add_files(&mut tree, "a dir/x again .wh.below dirs/x");
    tree.next_layer().unwrap();
    add_files(&mut tree, "early/x .wh..wh..opq again dirs/y new/z");
    tree.next_layer().unwrap();
    tree.add(file("top/x")).unwrap();
    assert_eq!(tree.opaque_roots, [1]);
    tree.mark_opaque().unwrap();
    tree.finish();
    assert_eq!(
        with_kinds(&tree),
        "a null, again file, below null, dir null, dirs opaque, dirs/y file, early opaque, early/x file, new opaque, new/z file, top opaque, top/x file"
    );
}

/// Paths with their overlayfs types.
fn with_kinds(tree: &Tree) -> String {
    let mut found = Vec::new();
    for inode in tree.inode_order().into_iter().filter(|i| *i != ROOT) {
        let mut set = tree.xattr_sets()[tree.xattrs(inode) as usize].iter();
        let opaque = set.any(|(n, v)| &n[..] == b"trusted.overlay.opaque" && &v[..] == b"y");
        let kind = match tree.file_type(inode) {
            FileType::Char => "null",
            FileType::Dir if opaque => "opaque",
            FileType::Dir => "dir",
            _ => "file",
        };
        let path = String::from_utf8(tree.path(inode)).unwrap();
        found.push(format!("{path} {kind}"));
    }
    found.sort();
    found.join(", ")
}

fn with(mut entry: Entry, name: &str, value: &str) -> Entry {
    entry.xattrs.push((name.into(), value.into()));
    entry
}

#[test]
fn overlay_whiteouts_may_be_files_and_a_root_is_never_opaque() {
    for prefix in ["trusted", "user"] {
        let mut tree = Tree::new(Whiteouts::Overlay);
        tree.leave_xattrs_out();
        add_files(&mut tree, "a d/x d/y");
        tree.next_layer().unwrap();
        let named = |name: &str| format!("{prefix}.overlay.{name}");
        tree.add(with(entry("", Kind::Dir), &named("opaque"), "y"))
            .unwrap();
        tree.add(with(entry("d", Kind::Dir), &named("opaque"), "x"))
            .unwrap();
        let whiteout = entry("d/x", Kind::File { size: 0 });
        tree.add(with(whiteout, &named("whiteout"), "")).unwrap();
        assert_eq!(paths(tree), "/a /d d/y");
    }
}

#[test]
fn a_file_with_entries_below_becomes_a_directory_with_a_warning() {
    let mut tree = Tree::new(Whiteouts::Keep);
    add_files(&mut tree, "d x/s d/f");
    tree.add(file("x/s/f/g")).unwrap();
    // A described entry replaces silently.
    tree.add(file("e")).unwrap();
    tree.add(entry("e", Kind::Dir)).unwrap();
    tree.add(file("e/f")).unwrap();
    let warning = tree.replaced.warning("").unwrap();
    assert_eq!(warning, "\"d\", \"x/s\": ");
    assert_eq!(paths(tree), "/d /e /x d/f e/f x/s x/s/f x/s/f/g");
}

#[test]
fn entries_that_no_image_can_hold_are_source_errors() {
    let mut tree = Tree::new(Whiteouts::Keep);
    let long = "n".repeat(256);
    let target = |len| Kind::Symlink(vec![b't'; len]);
    tree.add(entry("longest", target(4095))).unwrap();
    for (entry, says) in [
        (
            entry("d/l", target(4096)),
            "member \"d/l\": symbolic link target of 4096 bytes",
        ),
        (
            file(&format!("d/{long}")),
            "a name of 256 bytes; names have 1 to 255",
        ),
        (
            file(&format!("{long}/f")),
            "a name of 256 bytes; names have 1 to 255",
        ),
        (
            entry("d/h", Kind::Hardlink(b"gone".to_vec())),
            "member \"d/h\": hard link to \"gone\", which is not there",
        ),
        (
            entry("h", Kind::Hardlink(b"d".to_vec())),
            "member \"h\": hard link to \"d\", which is a directory",
        ),
    ] {
        let error = tree.add(entry).unwrap_err();
        assert!(matches!(error, Error::Source(_)), "{error}");
        assert!(error.to_string().contains(says), "{error}");
    }
}

/// Overlayfs hard-links one whiteout to every deleted name, and GNU tar writes all but the first as
/// hard links.
#[test]
fn a_hard_link_to_a_whiteout_is_a_whiteout() {
    let mut tree = Tree::new(Whiteouts::Overlay);
    add_files(&mut tree, "a b c d");
    tree.next_layer().unwrap();
    tree.add(entry("a", Kind::Char(Device { major: 0, minor: 0 })))
        .unwrap();
    for (link, target) in [("b", "a"), ("c", "b")] {
        let link = entry(link, Kind::Hardlink(target.into()));
        assert_eq!(tree.add(link).unwrap(), None);
    }
    tree.next_layer().unwrap();
    let link = entry("d", Kind::Hardlink(b"a".to_vec()));
    assert!(tree.add(link).is_err(), "not of this source");
    assert_eq!(paths(tree), "/d");
}

/// With `metacopy=on` a layer has files without content, and with `redirect_dir=on` directories
/// with another lower name. Merging would turn them into files of zeros and empty directories.
#[test]
fn metacopy_and_redirect_are_rejected_with_the_path() {
    let metacopy = with(file("d/f"), "trusted.overlay.metacopy", "");
    let redirect = with(entry("d/new", Kind::Dir), "user.overlay.redirect", "/old");
    for (entry, says) in [
        (
            metacopy,
            "member \"d/f\": overlay.metacopy: the file's content is in another layer",
        ),
        (
            redirect,
            "member \"d/new\": overlay.redirect: the directory's other half is elsewhere",
        ),
    ] {
        for whiteouts in [Whiteouts::Overlay, Whiteouts::Keep] {
            let mut tree = Tree::new(whiteouts);
            tree.next_layer().unwrap();
            let added = tree.add(entry.clone());
            match whiteouts {
                Whiteouts::Keep => assert!(added.is_ok()),
                _ => {
                    let error = added.unwrap_err();
                    assert!(matches!(error, Error::Source(_)));
                    let message = error.to_string();
                    assert!(message.starts_with(says), "{message}");
                    assert!(
                        message.ends_with("mount the overlay and build from that"),
                        "{message}"
                    );
                }
            }
        }
    }
    let mut tree = Tree::new(Whiteouts::Overlay);
    tree.next_layer().unwrap();
    let opaque = with(entry("d", Kind::Dir), "user.overlay.opaque", "y");
    tree.add(with(opaque, "user.overlay.redirect", "/old"))
        .unwrap();
}

#[test]
fn hard_links_can_be_split() {
    let mut tree = Tree::new(Whiteouts::Keep);
    let a = tree
        .add(entry("a", Kind::File { size: 5 }))
        .unwrap()
        .unwrap();
    for name in ["d/b", "c"] {
        tree.add(entry(name, Kind::Hardlink(b"a".to_vec())))
            .unwrap();
    }
    tree.finish();
    tree.split_hard_links().unwrap();
    assert_eq!(tree.nlink(a), 1);
    let order = tree.inode_order();
    let files = order
        .iter()
        .filter(|inode| tree.file_type(**inode) == FileType::File);
    let files: Vec<_> = files.map(|i| (tree.nlink(*i), tree.size(*i))).collect();
    assert_eq!(files, [(1, 5); 3]);
    let mut names: Vec<Vec<u8>> = order.iter().map(|inode| tree.path(*inode)).collect();
    names.sort_unstable();
    assert_eq!(names, [&b""[..], b"a", b"c", b"d", b"d/b"]);
}

#[test]
fn hard_links_share_an_inode_and_count() {
    let mut tree = Tree::new(Whiteouts::Keep);
    let a = tree.add(file("a")).unwrap().unwrap();
    let b = tree
        .add(entry("d/b", Kind::Hardlink(b"a".to_vec())))
        .unwrap()
        .unwrap();
    assert_eq!(a, b);
    assert_eq!(tree.nlink(a), 2);
    tree.add(file("a")).unwrap();
    assert_eq!(tree.nlink(a), 1);
    assert!(
        tree.add(entry("x", Kind::Hardlink(b"nothing".to_vec())))
            .is_err()
    );
    assert!(tree.add(entry("x", Kind::Hardlink(b"d".to_vec()))).is_err());
    assert_eq!(tree.nlink(ROOT), 3);
}

/// Calls `each` with every order of `items`.
fn orders<T: Clone>(items: &[T], each: &mut dyn FnMut(&[T])) {
    fn rest<T: Clone>(done: &mut Vec<T>, left: &[T], each: &mut dyn FnMut(&[T])) {
        if left.is_empty() {
            each(done);
        }
        for (n, item) in left.iter().enumerate() {
            done.push(item.clone());
            rest(done, &[&left[..n], &left[n + 1..]].concat(), each);
            done.pop();
        }
    }
    rest(&mut Vec::new(), items, each);
}

fn dir(path: &str) -> Entry {
    entry(path, Kind::Dir)
}

fn null(path: &str) -> Entry {
    entry(path, Kind::Char(Device { major: 0, minor: 0 }))
}

fn opaque_dir(path: &str) -> Entry {
    let mut dir = dir(path);
    dir.xattrs
        .push((b"trusted.overlay.opaque".to_vec(), b"y".to_vec()));
    dir
}

/// Paths of a tree; directories with their mode, opaque ones and whiteouts with a mark.
fn described_paths(mut tree: Tree) -> Vec<String> {
    tree.mark_opaque().unwrap();
    tree.finish();
    let mut out = Vec::new();
    tree.walk(|d| {
        let mut text = String::from_utf8(tree.path_of(d.parent, tree.name(d))).unwrap();
        match tree.kind(d.inode) {
            NodeKind::Dir => text += &format!("/ {:o}", tree.meta(d.inode).mode),
            NodeKind::Char(_) => text += " null",
            _ => {}
        }
        if tree.xattrs(d.inode) != 0 {
            text += " opaque";
        }
        out.push(text);
    });
    out.sort_unstable();
    out
}

/// Entry of a file, or of the kind before a colon.
fn parse_entry(text: &str) -> Entry {
    match text.split_once(':') {
        Some(("dir", path)) => dir(path),
        Some(("null", path)) => null(path),
        Some(("opaque", path)) => opaque_dir(path),
        _ => file(text),
    }
}

/// Adds a layer above `base` in every order of its entries. A line of `cases` has a description, the layer and the paths of
/// the tree.
fn check_layers(whiteouts: Whiteouts, base: &str, cases: &str) {
    for case in cases.lines() {
        let [what, layer, expected] = case.split(" | ").collect::<Vec<_>>()[..] else {
            panic!("{case}");
        };
        let layer: Vec<&str> = layer.split(' ').collect();
        orders(&layer, &mut |layer| {
            let mut tree = Tree::new(whiteouts);
            for entry in base.split(' ') {
                tree.add(parse_entry(entry)).unwrap();
            }
            tree.next_layer().unwrap();
            for entry in layer {
                tree.add(parse_entry(entry)).unwrap();
            }
            if whiteouts == Whiteouts::Convert {
                assert_eq!(tree.replaced.warning(""), None, "{what}");
            }
            let paths = described_paths(tree).join(", ");
            assert_eq!(paths, expected, "{}: {layer:?}", what.trim());
        });
    }
}

/// Regression: a whiteout after entries of its own layer deleted them.
#[test]
fn a_whiteout_hides_lower_layers_only_in_any_order() {
    let cases = "\
        of a directory | .wh.d d/new | d/ 755, d/new, f
        of a directory that the layer describes | .wh.d dir:d d/new | d/ 644, d/new, f
        of a directory, with a nested one | .wh.d d/sub/new d/x/y | d/ 755, d/sub/ 755, d/sub/new, d/x/ 755, d/x/y, f
        of a directory, twice | .wh.d .wh.d d/sub/new | d/ 755, d/sub/ 755, d/sub/new, f
        in a directory that is hidden, too | .wh.d d/.wh.sub d/sub/new | d/ 755, d/sub/ 755, d/sub/new, f
        of a file | .wh.f f | d/ 644, d/old, d/sub/ 644, d/sub/old, f
        of a file that becomes a directory | .wh.f f/new | d/ 644, d/old, d/sub/ 644, d/sub/old, f/ 755, f/new
        in a nested directory | d/.wh.sub d/sub/new | d/ 644, d/old, d/sub/ 755, d/sub/new, f
        an opaque marker | d/.wh..wh..opq d/new | d/ 644, d/new, f
        an opaque marker above | d/.wh..wh..opq d/sub/new | d/ 644, d/sub/ 755, d/sub/new, f
        an opaque marker with a file of an old name | d/.wh..wh..opq d/old dir:d/sub | d/ 644, d/old, d/sub/ 644, f
        an opaque marker at the root | .wh..wh..opq d/sub/new f | d/ 755, d/sub/ 755, d/sub/new, f
        an overlay whiteout | null:d d/new | d/ 755, d/new, f
        an overlay opaque directory | opaque:d d/sub/new | d/ 644, d/sub/ 755, d/sub/new, f";
    check_layers(Whiteouts::Both, "dir:d dir:d/sub d/sub/old d/old f", cases);
}

/// Regression: as above, for images that are layers themselves.
#[test]
fn a_converted_whiteout_leaves_entries_of_its_own_layer_in_any_order() {
    let cases = "\
        of a directory | .wh.d d/new | d/ 755 opaque, d/new, f
        nested | d/.wh.sub d/sub/new | d/ 644, d/sub/ 755 opaque, d/sub/new, f
        of a file and a directory | .wh.f .wh.d | d null, f null
        an opaque marker | d/.wh..wh..opq d/sub/new | d/ 644 opaque, d/sub/ 755, d/sub/new, f
        an opaque root | .wh..wh..opq d/sub/new | d/ 755 opaque, d/sub/ 755, d/sub/new, f null";
    check_layers(Whiteouts::Convert, "dir:d dir:d/sub d/sub/old f", cases);
}

#[test]
fn a_whiteout_leaves_hard_links_that_its_layer_makes() {
    let layer = [
        entry("b", Kind::Hardlink(b"a".to_vec())),
        entry("new", Kind::Hardlink(b"a".to_vec())),
        file(".wh.a"),
        file(".wh.b"),
    ];
    let mut tree = Tree::new(Whiteouts::Aufs);
    tree.add(file("a")).unwrap();
    tree.add(entry("b", Kind::Hardlink(b"a".to_vec()))).unwrap();
    tree.next_layer().unwrap();
    for entry in layer {
        tree.add(entry).unwrap();
    }
    assert_eq!(paths(tree), "/b /new");
}

#[test]
fn directories_of_aufs_are_left_out_but_not_the_links_to_their_files() {
    let mut tree = Tree::new(Whiteouts::Both);
    tree.add(file(".wh..wh.plnk/1.2")).unwrap();
    let link = entry("a", Kind::Hardlink(b".wh..wh.plnk/1.2".to_vec()));
    tree.add(link).unwrap();
    tree.mark_opaque().unwrap();
    assert_eq!(paths(tree), "/a");
}

fn symlink(path: &str, target: &str) -> Entry {
    entry(path, Kind::Symlink(target.as_bytes().to_vec()))
}

/// Regression: the symbolic link became a directory.
#[test]
fn a_path_through_a_symbolic_link_leads_to_its_target_within_the_root() {
    for target in [
        "usr/lib",
        "/usr/lib",
        "../../usr/lib",
        "./usr//x/../lib/",
        "/../usr/lib",
    ] {
        let mut tree = Tree::new(Whiteouts::Aufs);
        for entry in [
            dir("usr"),
            dir("usr/lib"),
            dir("usr/x"),
            symlink("lib", target),
        ] {
            tree.add(entry).unwrap();
        }
        for entry in [
            file("lib/foo"),
            file("usr/bin"),
            file("lib/sub/a"),
            file("lib/sub/b"),
            entry("y", Kind::Hardlink(b"lib/foo".to_vec())),
        ] {
            tree.add(entry).unwrap();
        }
        tree.next_layer().unwrap();
        for entry in [file("lib/.wh.foo"), file("lib/new")] {
            tree.add(entry).unwrap();
        }
        assert_eq!(
            paths(tree),
            "/lib /usr /y usr/bin usr/lib usr/x usr/lib/new usr/lib/sub usr/lib/sub/a usr/lib/sub/b",
            "{target}"
        );
    }
}

#[test]
fn a_symbolic_link_to_nothing_makes_directories_and_one_to_a_file_is_refused() {
    let mut tree = Tree::new(Whiteouts::Keep);
    for entry in [
        symlink("a", "b/c"),
        symlink("b", "d"),
        file("a/x"),
        file("f"),
        symlink("l", "f"),
    ] {
        tree.add(entry).unwrap();
    }
    let error = tree.add(file("l/x")).unwrap_err().to_string();
    assert!(
        error.contains(
            "member \"l\": a symbolic link on the way leads to \"f\", which is no directory"
        ),
        "{error}"
    );
    assert_eq!(paths(tree), "/a /b /d /f /l d/c d/c/x");
}

#[test]
fn circles_of_symbolic_links_are_refused_by_name() {
    let mut tree = Tree::new(Whiteouts::Keep);
    for entry in [
        symlink("a", "b"),
        symlink("b", "a"),
        symlink("self", "self/x"),
    ] {
        tree.add(entry).unwrap();
    }
    for entry in [
        file("a/foo"),
        file("self/foo"),
        entry("l", Kind::Hardlink(b"a/foo".to_vec())),
    ] {
        let error = tree.add(entry).unwrap_err();
        assert!(matches!(&error, Error::Source(_)), "{error:?}");
        let error = error.to_string();
        assert!(
            error.contains("more than 40 symbolic links, or a circle of them"),
            "{error}"
        );
    }
    // A directory replaces a link, as in GNU tar.
    tree.add(dir("a")).unwrap();
    tree.add(file("a/foo")).unwrap();
    assert_eq!(paths(tree), "/a /b /self a/foo");
}

#[test]
fn a_directory_that_a_later_entry_of_its_source_replaces_is_reported() {
    let mut tree = Tree::new(Whiteouts::Both);
    for entry in [
        file("d/x"),
        symlink("d", "e"),
        dir("empty"),
        file("empty"),
        file("low/x"),
    ] {
        tree.add(entry).unwrap();
    }
    tree.next_layer().unwrap();
    tree.add(file("low")).unwrap();
    assert_eq!(tree.dropped.warning("gone").as_deref(), Some("\"d\": gone"));
    assert_eq!(paths(tree), "/d /empty /low");
}

#[test]
fn a_subtree_becomes_the_root_with_hard_links_from_elsewhere() {
    let mut tree = Tree::new(Whiteouts::Keep);
    for entry in [
        file("out/first"),
        dir("a/b"),
        file("a/b/x"),
        dir("a/b/d"),
        file("a/b/d/y"),
        entry("a/b/link", Kind::Hardlink(b"out/first".to_vec())),
        file("a/other"),
        symlink("s", "a/b"),
    ] {
        tree.add(entry).unwrap();
    }
    assert!(tree.take_subtree(b"a/none").is_err());
    assert!(tree.take_subtree(b"a/other").is_err());
    tree.take_subtree(b"/a/b/").unwrap();
    assert_eq!(tree.nlink(ROOT), 3);
    assert_eq!(tree.meta(ROOT).mode, 0o644);
    tree.add(file("d/new")).unwrap();
    let mut links = 0;
    tree.finish();
    tree.walk(|d| links += u32::from(tree.nlink(d.inode) == 1));
    assert_eq!(links, 4);
    assert_eq!(paths(tree), "/d /link /x d/new d/y");
}
