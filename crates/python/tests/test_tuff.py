"""Tests of the package, on images that it builds itself."""

import io
import os
import subprocess
import sys
import tarfile
import threading

import fsspec
import pytest

import tuff

NUMBERS = "".join(f"{n}\n" for n in range(300_000)).encode()

TREE = {
    "etc": {
        "hostname": "box\n",
        "shadow": tuff.File(b"root", mode=0o640, gid=42, mtime_ns=1_700_000_000_000_000_005),
    },
    "data/numbers": tuff.File(NUMBERS, xattrs={"user.key": b"value"}),
    "data/again": tuff.HardLink("data/numbers"),
    "link": tuff.Symlink("etc/hostname"),
    "tmp": tuff.Dir(mode=0o1777),
    "dev/null": tuff.Device("char", 1, 3, mode=0o666),
    b"name-\xff": b"",
}
PATHS = [
    "", "data", "data/again", "data/numbers", "dev", "dev/null", "etc", "etc/hostname", "etc/shadow",
    "link", os.fsdecode(b"name-\xff"), "tmp",
]


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    path = tmp_path_factory.mktemp("images") / "image.erofs"
    assert tuff.build(TREE, path, compress="zstd") is None
    return path


@pytest.fixture(params=["path", "bytes", "file"])
def image(request, path):
    if request.param == "path":
        return tuff.Image.open(path)
    if request.param == "bytes":
        return tuff.Image.from_bytes(path.read_bytes())
    return tuff.Image.from_file(open(path, "rb"))


def test_a_walk_visits_every_path_in_order(image):
    entries = list(image.walk())
    assert sorted(e.path for e in entries) == sorted(PATHS)
    assert [e.path for e in image.walk("/etc/")] == ["etc", "etc/hostname", "etc/shadow"]
    assert sorted(image.listdir("etc")) == ["hostname", "shadow"]
    assert [e.name for e in image.scandir("dev")] == ["null"]


def test_attributes_are_those_of_the_tree(image):
    stat = image.stat("etc/shadow")
    assert (oct(stat.mode), stat.uid, stat.gid) == ("0o100640", 0, 42)
    assert stat.mtime_ns == 1_700_000_000_000_000_005
    assert image.stat("tmp").mode == 0o041777
    assert image.stat("dev/null").device == (1, 3)
    assert image.stat("data/again") == image.stat("data/numbers")
    assert image.stat("data/again").nlink == 2
    assert image.xattrs("data/numbers") == {"user.key": b"value"}
    assert image.readlink("link") == "etc/hostname"
    assert image.stat("link").size == 4
    assert image.stat("link", follow_symlinks=False).is_symlink
    assert image.exists(b"name-\xff") and not image.exists("none")


def test_files_are_file_objects(image):
    assert image.read("data/numbers") == NUMBERS
    assert image.read("data/numbers", 2, 6) == NUMBERS[2:8]
    with image.open_file("data/numbers") as file:
        assert file.read(4) == b"0\n1\n"
        assert file.seek(-7, io.SEEK_END) == len(NUMBERS) - 7
        assert file.read() == b"299999\n"
        assert file.read() == b""
        assert file.seek(1_000_000) == 1_000_000
        assert file.read(1000) == NUMBERS[1_000_000:1_001_000]
    with image.open_file("link", "r") as file:
        assert file.readlines() == ["box\n"]
    with pytest.raises(ValueError):
        image.open_file("link", "w")


def test_errors_have_the_usual_types(image, tmp_path):
    with pytest.raises(FileNotFoundError):
        image.stat("none")
    with pytest.raises(FileNotFoundError):
        tuff.Image.open(tmp_path / "none")
    with pytest.raises(IsADirectoryError):
        image.read("etc")
    with pytest.raises(ValueError):
        image.listdir("etc/hostname")
    with pytest.raises(ValueError):
        tuff.build({}, compress="zip")
    with pytest.raises(tuff.SourceError):
        tuff.build({"a/../b": ""})
    (tmp_path / "zeros").write_bytes(bytes(8192))
    with pytest.raises(tuff.Error):
        tuff.Image.open(tmp_path / "zeros")


def test_a_build_has_every_option_of_the_command(tmp_path):
    (tmp_path / "order").write_text("b\n")
    tree = {"a": "", "b": b"b" * 5000, "skip.o": "", "also.tmp": ""}
    built = tuff.build(
        tree, all_root=True, exclude=["*.o", "*.tmp"], order=tmp_path / "order", inodes="extended", block_size=1024,
        no_xattrs=True, verity=True, verity_salt="00ff", timestamp=5, verify=True,
    )
    image = tuff.Image.from_bytes(built)
    assert sorted(image.listdir("")) == ["a", "b"]
    assert image.read("b") == b"b" * 5000 and image.stat("b").mtime_ns == 5_000_000_000
    assert tuff.build(tree, no_xattrs=False) == tuff.build(tree)
    for options, message in [
        ({"all_root": True, "uid": 5}, "all-root: cannot be used with uid"),
        ({"colour": "blue"}, "colour is not an option"),
        ({"dedupe": "some"}, "dedupe: some: "),
    ]:
        with pytest.raises(ValueError, match=message):
            tuff.build(tree, **options)


def test_content_of_other_types_is_a_type_error():
    for tree in [{"a": 5}, {"a": None}, {"a": [1]}, {"a": tuff.File(b"", xattrs={"user.a": 3})}]:
        with pytest.raises(TypeError):
            tuff.build(tree)
    with pytest.raises(TypeError):
        tuff.build([5])
    image = tuff.Image.from_bytes(tuff.build({"a": bytearray(b"12"), "b": memoryview(b"3")}))
    assert (image.read("a"), image.read("b")) == (b"12", b"3")


class Short(io.BytesIO):
    """File object that states more bytes than it has, and returns few at once."""

    claimed = 0

    def seek(self, offset, whence=io.SEEK_SET):
        position = super().seek(offset, whence)
        return position + self.claimed if whence == io.SEEK_END else position

    def read(self, size=-1):
        return super().read(min(size, 5000) if size >= 0 else size)


def test_a_file_shorter_than_it_states_is_an_error_and_short_reads_are_none(path):
    data = path.read_bytes()
    assert tuff.Image.from_file(Short(data)).read("data/numbers") == NUMBERS
    for end in (0, 100, 1200, 4096, len(data) // 2):
        file = Short(data[:end])
        file.claimed = len(data) - end
        with pytest.raises((EOFError, tuff.Error)):
            tuff.Image.from_file(file).read("data/numbers")


def test_a_closed_image_says_so(path):
    for image in (tuff.Image.open(path), tuff.Image.from_file(open(path, "rb"))):
        assert not image.closed and "closed" not in repr(image)
        image.close()
        image.close()
        assert image.closed and repr(image).endswith("(closed)>")
        for use in (lambda: image.read("etc/hostname"), lambda: list(image.walk()), image.check):
            with pytest.raises(ValueError):
                use()
    assert str(path) in repr(tuff.Image.open(path))
    assert tuff.__version__.count(".") == 2


def test_patterns_match_names_and_directories(image):
    assert image.glob("etc/*") == ["etc/hostname", "etc/shadow"]
    assert image.glob("**/h?st*") == ["etc/hostname"]
    assert image.glob("/*/n*") == ["data/numbers", "dev/null"]
    assert image.glob("data/**") == ["data", "data/again", "data/numbers"]
    assert image.glob("none") == []


INTERRUPTED = """
import os, signal, sys, threading, time, tuff
data = os.urandom(1 << 20) + b"".join(b"%d\\n" % n for n in range(10_000_000))
# A shell starts background processes with the signal ignored.
signal.signal(signal.SIGINT, signal.default_int_handler)
threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
try:
    tuff.build({"data": data}, sys.argv[1], compress="lzma:9")
    print("built")
except KeyboardInterrupt:
    print("interrupted")
"""


def test_an_interrupt_ends_a_build_and_leaves_nothing(tmp_path):
    command = [sys.executable, "-c", INTERRUPTED, str(tmp_path / "image")]
    out = subprocess.run(command, capture_output=True, text=True, timeout=120, check=True)
    assert out.stdout == "interrupted\n", out.stderr
    assert list(tmp_path.iterdir()) == []


def test_damage_is_found(path):
    image = tuff.Image.open(path)
    assert image.check() == []
    damaged = bytearray(path.read_bytes())
    at = len(damaged) // 2
    damaged[at : at + 4096] = os.urandom(4096)
    with tuff.Image.from_bytes(bytes(damaged)) as image:
        assert any(f.severity == "error" for f in image.check())
        with pytest.raises(tuff.CorruptError):
            image.read("data/numbers")


def test_threads_share_an_image(path):
    image, read = tuff.Image.open(path), []
    threads = [threading.Thread(target=lambda: read.append(image.read("data/numbers"))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert read == [NUMBERS] * 4


def test_directories_and_tars_become_images(path, tmp_path):
    image = tuff.Image.open(path)
    assert image.extract(tmp_path / "out", "etc") == 2
    assert (tmp_path / "out/etc/hostname").read_text() == "box\n"
    with pytest.raises(ValueError):
        image.extract(tmp_path / "out", "etc")
    tar = io.BytesIO()
    with tarfile.open(fileobj=tar, mode="w:gz") as out:
        out.add(tmp_path / "out/etc/hostname", "name")
    (tmp_path / "layer.tar.gz").write_bytes(tar.getvalue())
    layers = [tmp_path / "out", tmp_path / "layer.tar.gz", {"last": "one"}]
    merged = tuff.Image.from_bytes(tuff.build(layers, timestamp=0))
    assert merged.read("name") == merged.read("etc/hostname") == b"box\n"
    assert merged.read("last") == b"one"


def test_a_tree_gives_the_same_bytes_again():
    assert tuff.build(TREE) == tuff.build(dict(reversed(TREE.items())), threads=1)


def test_fsspec_lists_and_reads(path):
    fs = fsspec.filesystem("erofs", fo=str(path))
    assert fs.ls("/etc", detail=False) == ["etc/hostname", "etc/shadow"]
    assert fs.info("etc")["type"] == "directory"
    assert fs.modified("etc/shadow").isoformat() == "2023-11-14T22:13:20+00:00"
    assert fs.info("link")["destination"] == "etc/hostname"
    assert fs.cat("data/numbers") == NUMBERS
    assert fs.cat_file("data/numbers", 2, 8) == NUMBERS[2:8]
    assert fs.find("data") == ["data/again", "data/numbers"]
    assert fs.exists("tmp") and not fs.exists("none")
    with fsspec.open(f"erofs://etc/hostname::file://{path}", "r") as file:
        assert file.read() == "box\n"
    memory = fsspec.filesystem("memory")
    memory.pipe("/image.erofs", path.read_bytes())
    fs = fsspec.filesystem("erofs", fo="memory://image.erofs")
    assert fs.cat("data/numbers") == NUMBERS
    assert fs.glob("etc/*") == ["etc/hostname", "etc/shadow"]
