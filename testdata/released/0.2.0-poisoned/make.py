#!/usr/bin/env python3
"""Makes the files of this directory: make.py TUFF, with the program of version 0.2.0. Needs /dev/fuse."""

import hashlib
import http.server
import json
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time

TUFF = os.path.abspath(sys.argv[1])
OUT = os.path.dirname(os.path.abspath(__file__))


def run(*args):
    subprocess.run([TUFF, *args], check=True, stdout=subprocess.DEVNULL)


def build(text, name):
    os.makedirs("tree", exist_ok=True)
    with open("tree/text", "w") as file:
        file.write(text)
    run("build", "-q", "--all-root", "--timestamp", "1700000000", "tree", "-o", name)
    with open(name, "rb") as file:
        return file.read()


os.chdir(tempfile.mkdtemp())
right = build("right\n", "right.erofs")
wrong = build("wrong\n", "wrong.erofs")
digests = [hashlib.sha256(image).hexdigest() for image in (right, wrong)]
assert len(right) == len(wrong)
layer = {
    "mediaType": "application/vnd.erofs",
    "digest": "sha256:" + digests[0],
    "size": len(right),
}
manifest = json.dumps({"schemaVersion": 2, "layers": [layer]}).encode()


class Handler(http.server.BaseHTTPRequestHandler):
    """Registry and web server that give the wrong bytes under the digest of the right ones."""

    protocol_version = "HTTP/1.1"

    def do_GET(self):
        body = wrong
        if "/manifests/" in self.path:
            self.send_response(200)
            body = manifest
        else:
            first, last = self.headers["Range"].removeprefix("bytes=").split("-")
            last = min(int(last), len(wrong) - 1)
            body = wrong[int(first) : last + 1]
            self.send_response(206)
            self.send_header("ETag", '"v1"')
            self.send_header("Content-Range", f"bytes {first}-{last}/{len(wrong)}")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_):
        pass


server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
threading.Thread(target=server.serve_forever, daemon=True).start()
host = f"127.0.0.1:{server.server_port}"
run("cat", "--cache-dir", "cache", f"oci://{host}/team/app:v1", "text")
os.mkdir("into")
# The first name is that of the right image, the second one that of the wrong one, whose content both have.
urls = [f"http://{host}/{digest}.erofs" for digest in digests]
run("serve", *urls, "--into", "into", "--store", "store", "--cache-dir", "other")
paths = [f"store/sha256/{digest[:2]}/{digest}.erofs" for digest in digests]
while not all(os.path.exists(path) for path in paths):
    time.sleep(0.1)
run("umount", "into")
for name in ("cache", "store"):
    shutil.rmtree(os.path.join(OUT, name), ignore_errors=True)
    shutil.copytree(name, os.path.join(OUT, name))
for name in ("right.erofs", "wrong.erofs"):
    shutil.copy(name, OUT)
