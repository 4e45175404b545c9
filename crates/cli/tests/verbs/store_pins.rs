//! Pins of `tuff store mount`: what is mounted stays, although its snapshot is forgotten and the store is pruned.

use crate::common::{Place, code, stderr};
use crate::mount::can_mount;
use std::fs;
use tuff_testkit::content::noise;

/// A store `backups` with two snapshots; the file of the first one is not in the second.
fn two_snapshots(name: &str) -> (Place, Vec<u8>) {
    let place = Place::new(name);
    let bytes = noise(2_000_000, 5);
    fs::create_dir(place.path("source")).unwrap();
    fs::create_dir(place.path("mnt")).unwrap();
    fs::write(place.path("source/old"), &bytes).unwrap();
    place.text(&["backup", "-q", "source", "backups"]);
    fs::remove_file(place.path("source/old")).unwrap();
    fs::write(place.path("source/new"), noise(2_000_000, 6)).unwrap();
    place.text(&["backup", "-q", "source", "backups"]);
    (place, bytes)
}

fn prune(place: &Place) -> (u64, usize) {
    let report = place
        .json(&["store", "prune", "--json", "backups"])
        .remove(0);
    let pins = report["pins"].as_array().unwrap().len();
    (report["freed_bytes"].as_u64().unwrap(), pins)
}

#[test]
fn a_mount_keeps_its_snapshot_until_it_ends() {
    if !can_mount() {
        return;
    }
    let (place, bytes) = two_snapshots("store-pins");
    let mount = ["store", "mount", "--snapshot", "1", "backups", "mnt"];
    let out = place.run(&mount);
    assert_eq!(code(&out), 0, "{}", stderr(&out));
    place.text(&["store", "forget", "backups", "1"]);
    assert_eq!(prune(&place), (0, 1));
    let real = fs::canonicalize(&place.0).unwrap();
    let file = place
        .path("mnt")
        .join(real.strip_prefix("/").unwrap())
        .join("source/old");
    assert!(fs::read(file).unwrap() == bytes);
    place.unmount("mnt");
    // The server may end a moment after the mount.
    let mut pruned = prune(&place);
    for _ in 0..200 {
        if pruned.1 == 0 {
            break;
        }
        std::thread::sleep(std::time::Duration::from_millis(50));
        pruned = prune(&place);
    }
    assert!(pruned.0 >= 2_000_000 && pruned.1 == 0, "{pruned:?}");
    place.text(&["store", "check", "--read-data", "100%", "backups"]);
}

#[test]
fn the_pin_of_printed_commands_stays_until_it_is_removed() {
    let (place, _) = two_snapshots("store-pins-printed");
    let printed = place.text(&[
        "store",
        "mount",
        "--snapshot",
        "1",
        "--print",
        "i",
        "backups",
        "mnt",
    ]);
    let unpin = printed
        .lines()
        .find(|line| line.contains("tuff store unpin backups "));
    let pin = unpin.unwrap().rsplit(' ').next().unwrap();
    place.text(&["store", "forget", "backups", "1"]);
    assert_eq!(prune(&place), (0, 1));
    assert!(place.text(&["store", "list", "backups"]).contains(pin));
    place.text(&["store", "unpin", "backups", pin]);
    assert!(prune(&place).0 >= 2_000_000);
    let out = place.run(&["store", "unpin", "backups", pin]);
    assert_eq!(code(&out), 2, "{}", stderr(&out));
}
