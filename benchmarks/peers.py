"""Layers and lists of files for benchmarks/peers.

push TAR LAYERS REGISTRY REPOSITORY               pushes a tar as a container image of so many layers, tag oci
lists TAR LAYERS REGISTRY REPOSITORY PROFILE DIR  writes the files of a profile as the other programs read them
"""
import gzip, hashlib, io, json, sys, tarfile, urllib.request

# Configuration of the images.
COMMANDS = {
    "python": {"Cmd": ["python3"]},
    "node": {"Cmd": ["node"]},
    "nginx": {"Cmd": ["nginx", "-c", "/etc/nginx/lab.conf"]},
    "perl": {"Cmd": ["perl"]},
    "shell": {"Entrypoint": ["/entrypoint.sh"], "Cmd": ["sqlite3", ":memory:", "select 1"]},
}


def plain(name):
    return name.removeprefix("./").rstrip("/")


def split(tar, count):
    """Returns the layers of a tar, and the layer of each path. Files of a directory stay together."""
    source = tarfile.open(tar)
    members = [member for member in source.getmembers() if plain(member.name)]
    # SOCI finds no listed file whose name begins with ./ in the layer.
    for member in members:
        member.name = plain(member.name)
        if member.islnk():
            member.linkname = plain(member.linkname)
    layer_of, size = {}, 0
    total = sum(m.size for m in members)
    folders = {}
    # Directories in the order of the tar fill one layer after another. Links are in the layer of their target.
    for member in members:
        path = member.name
        folder = "/".join(path.split("/")[:-1])
        if member.isdir():
            layer_of[path] = 0
        elif member.islnk():
            layer_of[path] = layer_of[member.linkname]
        else:
            layer = folders.setdefault(folder, min(count - 1, size * count // max(1, total)))
            layer_of[path] = layer
            size += member.size
    layers = []
    for number in range(count):
        data = io.BytesIO()
        out = tarfile.open(fileobj=data, mode="w", format=tarfile.PAX_FORMAT)
        for member in members:
            if layer_of[member.name] == number:
                out.addfile(member, source.extractfile(member) if member.isreg() else None)
        out.close()
        layers.append(data.getvalue())
    return layers, layer_of


def send(registry, repository, data):
    digest = "sha256:" + hashlib.sha256(data).hexdigest()
    request = urllib.request.Request(f"{registry}/v2/{repository}/blobs/uploads/", method="POST", data=b"")
    place = urllib.request.urlopen(request).headers["Location"]
    place = (registry + place if place.startswith("/") else place) + ("&" if "?" in place else "?") + "digest=" + digest
    headers = {"Content-Type": "application/octet-stream"}
    urllib.request.urlopen(urllib.request.Request(place, method="PUT", data=data, headers=headers))
    return {"digest": digest, "size": len(data)}


def push(tar, count, registry, repository):
    layers, _ = split(tar, count)
    oci = "application/vnd.oci.image."
    stored = [send(registry, repository, gzip.compress(layer, 6, mtime=0)) for layer in layers]
    config = {
        "architecture": "amd64",
        "os": "linux",
        "config": {"Env": ["PATH=/usr/sbin:/usr/bin:/sbin:/bin"], "WorkingDir": "/", **COMMANDS[repository.split("-")[0]]},
        "rootfs": {"type": "layers", "diff_ids": ["sha256:" + hashlib.sha256(layer).hexdigest() for layer in layers]},
        "history": [{"created_by": "mmdebstrap"} for _ in layers],
    }
    config = send(registry, repository, json.dumps(config).encode())
    manifest = {
        "schemaVersion": 2,
        "mediaType": oci + "manifest.v1+json",
        "config": {"mediaType": oci + "config.v1+json", **config},
        "layers": [{"mediaType": oci + "layer.v1.tar+gzip", **layer} for layer in stored],
    }
    headers = {"Content-Type": manifest["mediaType"]}
    data = json.dumps(manifest).encode()
    urllib.request.urlopen(
        urllib.request.Request(f"{registry}/v2/{repository}/manifests/oci", method="PUT", data=data, headers=headers)
    )


def lists(tar, count, registry, repository, profile, folder):
    """Files in the order of their first read, one per line, for nydus, SOCI and stargz-snapshotter."""
    _, layer_of = split(tar, count)
    accept = {"Accept": "application/vnd.oci.image.manifest.v1+json"}
    request = urllib.request.Request(f"{registry}/v2/{repository}/manifests/oci", headers=accept)
    digest = urllib.request.urlopen(request).headers["Docker-Content-Digest"]
    lines = [line.rstrip("\n").split(" ", 4) for line in open(profile)]
    paths = list(dict.fromkeys(line[4] for line in lines if len(line) == 5 and line[4].startswith("/")))
    paths = [path for path in paths if path.lstrip("/") in layer_of]
    with open(folder + "/files", "w") as out:
        out.writelines(path + "\n" for path in paths)
    with open(folder + "/soci.json", "w") as out:
        json.dump(paths, out)
    with open(folder + "/stargz.jsonl", "w") as out:
        for path in paths:
            entry = {"path": path.lstrip("/"), "manifestDigest": digest, "layerIndex": layer_of[path.lstrip("/")]}
            out.write(json.dumps(entry) + "\n")


if __name__ == "__main__":
    verb, tar, count, *rest = sys.argv[1:]
    {"push": push, "lists": lists}[verb](tar, int(count), *rest)
