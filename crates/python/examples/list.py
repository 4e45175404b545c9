"""Lists the image at a path or URL: mode, size, hash of the content (FNV-1a) and path of every entry.

Arguments: the image, then options to open it with, as NAME=VALUE (root-hash, trust...).
"""

import sys

import tuff


def fnv(data: bytes) -> int:
    value = 0xCBF29CE484222325
    for byte in data:
        value = (value ^ byte) * 0x100000001B3 % 2**64
    return value


options = [option.split("=", 1) for option in sys.argv[2:]]
with tuff.Image.open(sys.argv[1], **{name.replace("-", "_"): value for name, value in options}) as image:
    for entry in image.walk():
        stat = entry.stat
        size, value = (stat.size, fnv(image.read(entry.path))) if stat.is_file else (0, 0)
        print(f"{stat.mode:06o} {size} {value:016x} {entry.path}")
