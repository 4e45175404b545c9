"""Tests of images in disks, behind URLs and with extra devices, verified by root hashes and certificates."""

import http.server
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

import tuff

TUFF = os.environ.get("TUFF")

if TUFF is None and os.environ.get("TUFF_REQUIRE_ALL") == "1":
    raise RuntimeError("TUFF names no program, and TUFF_REQUIRE_ALL is set")

pytestmark = pytest.mark.skipif(TUFF is None, reason="SKIPPED: TUFF names no program that makes disks and hash trees")

TEXT = "".join(f"line {n}\n" for n in range(60_000)).encode()


def run(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True, timeout=120).stdout


def root_of(image):
    return json.loads(run(TUFF, "verity", "show", "--json", image))["root_hash"]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Directory with a tree, a verified image, a signed disk, and an image over another, each with its root hash."""
    place = tmp_path_factory.mktemp("open")
    (place / "tree").mkdir()
    (place / "tree" / "text").write_bytes(TEXT)
    run(TUFF, "build", "-q", "--verity", place / "tree", place / "image")
    for name in ("key", "other"):
        run("openssl", "req", "-x509", "-nodes", "-days", "2", "-subj", f"/CN={name}", "-newkey", "ec", "-pkeyopt",
            "ec_paramgen_curve:P-256", "-keyout", place / f"{name}.key", "-out", place / f"{name}.pem")
    sign = f"{place / 'key.key'},{place / 'key.pem'}"
    run(TUFF, "disk", "-q", "--arch", "x86-64", "--sign", sign, place / "tree", place / "disk.raw")
    run(TUFF, "build", "-q", "-z", "none", "--verity", place / "tree", place / "base")
    run(TUFF, "build", "-q", "-z", "none", "--verity", "--base", place / "base", place / "tree", place / "over")
    return place


class Handler(http.server.BaseHTTPRequestHandler):
    """Serves ranges of the objects of its server. The object `silent` is never answered, `slow` after half a second."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        name = self.path.lstrip("/")
        if name == "silent":
            self.server.stop.wait(60)
            return
        if name == "slow":
            time.sleep(0.5)
        data = self.server.objects[name]
        wanted = re.match(r"bytes=(\d+)-(\d*)$", self.headers.get("Range", ""))
        start, end = (int(wanted[1]), int(wanted[2] or len(data) - 1) + 1) if wanted else (0, len(data))
        end = min(end, len(data))
        self.send_response(206 if wanted else 200)
        if wanted:
            self.send_header("Content-Range", f"bytes {start}-{end - 1}/{len(data)}")
        self.send_header("Content-Length", str(end - start))
        self.send_header("ETag", f'"{hash(data)}"')
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data[start:end])

    do_HEAD = do_GET

    def log_message(self, *_):
        pass


@pytest.fixture
def server(place):
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.stop = threading.Event()
    server.objects = {"image": (place / "image").read_bytes()}
    server.objects["slow"] = server.objects["image"]
    server.url = f"http://127.0.0.1:{server.server_address[1]}"
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield server
    server.stop.set()
    server.shutdown()


def test_the_image_in_a_disk_is_opened(place):
    with tuff.Image.open(place / "disk.raw") as image:
        assert image.read("text") == TEXT


def test_a_disk_is_trusted_by_its_certificate_only(place):
    with tuff.Image.open(place / "disk.raw", trust=place / "key.pem") as image:
        assert image.read("text") == TEXT
    with pytest.raises(tuff.UntrustedError):
        tuff.Image.open(place / "disk.raw", trust=place / "other.pem")
    with pytest.raises(tuff.UntrustedError):
        tuff.Image.open(place / "image", trust=place / "key.pem")


def test_an_image_behind_a_url_is_verified(place, server, tmp_path):
    root = root_of(place / "image")
    with tuff.Image.open(f"{server.url}/image", root_hash=root, cache_dir=tmp_path / "a") as image:
        assert image.read("text") == TEXT
    with pytest.raises(tuff.CorruptError):
        tuff.Image.open(f"{server.url}/image", root_hash="0" * 64, cache_dir=tmp_path / "b")
    damaged = bytearray(server.objects["image"])
    damaged[8192] ^= 1
    server.objects["image"] = bytes(damaged)
    with pytest.raises(tuff.CorruptError):
        tuff.Image.open(f"{server.url}/image", root_hash=root, cache_dir=tmp_path / "c").read("text")


def test_devices_of_a_verified_image_are_verified(place):
    root, base = root_of(place / "over"), root_of(place / "base")
    with tuff.Image.open(place / "over", [(place / "base", base)], root_hash=root) as image:
        assert image.read("text") == TEXT
    with pytest.raises(ValueError, match="root hash of each"):
        tuff.Image.open(place / "over", [place / "base"], root_hash=root)
    with pytest.raises(tuff.CorruptError):
        tuff.Image.open(place / "over", [(place / "base", root)], root_hash=root).read("text")


FORKED = """
import os, sys, tuff
url, cache = sys.argv[1:]
image = tuff.Image.open(url, cache_dir=cache)
child = os.fork()
if child == 0:
    status = 1
    try:
        image.read("text")
    except OSError as e:
        status = 0 if "fork" in str(e) else 2
    if tuff.Image.open(url, cache_dir=cache + "-child").read("text") != tuff.Image.open(url, cache_dir=cache).read("text"):
        status = 3
    os._exit(status)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
print(len(image.read("text")))
"""


def test_a_child_of_a_fork_opens_an_image_behind_a_url_again(server, tmp_path):
    assert run(sys.executable, "-c", FORKED, f"{server.url}/image", tmp_path / "cache") == f"{len(TEXT)}\n"


WAITING = """
import sys, tuff
print("waits", flush=True)
tuff.Image.open(sys.argv[1], cache_dir=sys.argv[2])
"""


def test_an_interrupt_ends_a_wait_for_a_server(server, tmp_path):
    command = [sys.executable, "-c", WAITING, f"{server.url}/silent", tmp_path / "cache"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, preexec_fn=handles_interrupts) as child:
        assert child.stdout.readline() == b"waits\n"
        time.sleep(0.5)
        child.send_signal(signal.SIGINT)
        start = time.monotonic()
        _, errors = child.communicate(timeout=60)
        assert b"KeyboardInterrupt" in errors
        # The interpreter ends at once; machines that are busy get ten times as long as people wait.
        assert time.monotonic() - start < 10


def handles_interrupts():
    # Shells start background jobs with interrupts ignored.
    signal.signal(signal.SIGINT, signal.default_int_handler)


def test_other_threads_run_while_an_image_is_fetched(server, tmp_path):
    ended = threading.Event()

    def fetch():
        tuff.Image.open(f"{server.url}/slow", cache_dir=tmp_path / "cache").read("text")
        ended.set()

    thread = threading.Thread(target=fetch)
    thread.start()
    steps = 0
    while not ended.wait(0.01):
        steps += 1
    thread.join()
    # The server waits for half a second at least once.
    assert steps >= 5
