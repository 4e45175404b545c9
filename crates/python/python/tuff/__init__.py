"""Read and build EROFS images.

    >>> import tuff
    >>> image = tuff.Image.from_bytes(tuff.build({"etc/hostname": "box"}))
    >>> [entry.path for entry in image.walk()]
    ['', 'etc', 'etc/hostname']
    >>> image.read("etc/hostname")
    b'box'
"""

from ._build import Content, Device, Dir, Fifo, File, HardLink, Node, Socket, Symlink, Tree, build
from ._image import Entry, Finding, Image, Stat
from ._tuff import CorruptError, Error, LimitError, SourceError, UnsupportedError, UntrustedError, __version__

__all__ = [
    "Content",
    "CorruptError",
    "Device",
    "Dir",
    "Entry",
    "Error",
    "Fifo",
    "File",
    "Finding",
    "HardLink",
    "Image",
    "LimitError",
    "Node",
    "Socket",
    "SourceError",
    "Stat",
    "Symlink",
    "Tree",
    "UnsupportedError",
    "UntrustedError",
    "__version__",
    "build",
]
