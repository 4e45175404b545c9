"""Building of images."""

from __future__ import annotations

import os
import stat as modes
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Literal, Optional, Union

from . import _tuff

if TYPE_CHECKING:
    from typing_extensions import TypedDict, Unpack

    from ._options import Options

    class Attributes(TypedDict, total=False):
        """Attributes of an entry; see ``Node``."""

        mode: Optional[int]
        uid: int
        gid: int
        mtime_ns: int
        xattrs: Mapping[str, bytes]


#: Content of a file. Text is encoded as UTF-8.
Content = Union[str, bytes]


class Node:
    """Entry of a tree, with its attributes.

    ``mode`` has permission, set-id and sticky bits; without it, it is 0644 for a file, 0755 for a directory and 0777 for
    a symbolic link. ``mtime_ns`` is the modification time in nanoseconds since 1970.
    """

    def __init__(
        self,
        kind: int,
        data: Content = b"",
        *,
        device: tuple[int, int] = (0, 0),
        mode: Optional[int] = None,
        uid: int = 0,
        gid: int = 0,
        mtime_ns: int = 0,
        xattrs: Optional[Mapping[str, bytes]] = None,
    ) -> None:
        self.kind = kind
        self.data = _data(data, "content")
        self.device = device
        self.mode = mode
        self.uid = uid
        self.gid = gid
        self.mtime_ns = mtime_ns
        self.xattrs = dict(xattrs or {})

    def _entry(self, path: bytes) -> _tuff._Entry:
        xattrs = [(os.fsencode(name), _data(value, "value of an attribute")) for name, value in self.xattrs.items()]
        mode = None if self.mode is None else self.mode & 0o7777
        attributes = (mode, self.uid, self.gid, self.mtime_ns, xattrs)
        return (path, self.kind, self.data, self.device, attributes)


def _data(data: Content, what: str) -> bytes:
    if isinstance(data, str):
        return data.encode()
    if isinstance(data, (bytes, bytearray, memoryview)):
        return bytes(data)
    # A number would be that many zeros.
    raise TypeError(f"{what} is {type(data).__name__}, expected str or bytes")


def File(content: Content = b"", **attributes: Unpack[Attributes]) -> Node:
    """Regular file with its content."""
    return Node(modes.S_IFREG, content, **attributes)


def Dir(**attributes: Unpack[Attributes]) -> Node:
    """Directory with attributes. Directories that lead to another path need not be added."""
    return Node(modes.S_IFDIR, **attributes)


def Symlink(target: Content, **attributes: Unpack[Attributes]) -> Node:
    """Symbolic link."""
    return Node(modes.S_IFLNK, target, **attributes)


def HardLink(target: Content) -> Node:
    """Another name of the file at the path ``target``."""
    return Node(0, target)


def Device(kind: Literal["char", "block"], major: int, minor: int, **attributes: Unpack[Attributes]) -> Node:
    """Character or block device."""
    bits = {"char": modes.S_IFCHR, "block": modes.S_IFBLK}[kind]
    return Node(bits, device=(major, minor), **attributes)


def Fifo(**attributes: Unpack[Attributes]) -> Node:
    """Named pipe."""
    return Node(modes.S_IFIFO, **attributes)


def Socket(**attributes: Unpack[Attributes]) -> Node:
    """Socket in the Unix domain."""
    return Node(modes.S_IFSOCK, **attributes)


#: Tree in memory: nodes or contents by path. A dictionary inside is a directory.
Tree = Mapping[Union[str, bytes], Union[Node, str, bytes, "Tree"]]

#: Source of a build: a tree, a directory of the host, or a tar, plain or compressed.
Source = Union[Tree, str, "os.PathLike[str]"]


def build(
    source: Union[Source, Sequence[Source]],
    path: Optional[Union[str, os.PathLike[str]]] = None,
    **options: Unpack[Options],
) -> Optional[bytes]:
    """Builds an image from a tree, a directory, a tar, or a list of these, merged in order.

    The image is written to ``path``, which is created or replaced when the image is complete. Without a path its bytes
    are returned. Options are those of ``tuff build --help-all`` and of its ``--set``, with underscores in place of dashes:
    ``compress="zstd:9"``, ``no_xattrs=True``, ``exclude=["*.o", "/tmp"]``.

    The same sources and options give the same bytes.
    """
    sources = [source] if isinstance(source, (str, os.PathLike, Mapping)) else source
    settings = [(name.replace("_", "-"), text) for name, value in options.items() for text in _texts(value)]
    return _tuff.build([_input(s) for s in sources], settings, path)


def _texts(value: object) -> list[str]:
    """Values of an option, as the builder takes them."""
    if isinstance(value, (list, tuple)):
        return [text for one in value for text in _texts(one)]
    if isinstance(value, bool):
        return ["on" if value else "off"]
    return [os.fsdecode(value) if isinstance(value, os.PathLike) else str(value)]


def _input(source: Source) -> _tuff._Input:
    if isinstance(source, Mapping):
        return ("tree", [node._entry(path) for path, node in _nodes(source, b"")])
    if not isinstance(source, (str, os.PathLike)):
        raise TypeError(f"source is {type(source).__name__}, expected a mapping or a path")
    return ("dir" if os.path.isdir(source) else "tar", source)


def _nodes(tree: Tree, above: bytes) -> list[tuple[bytes, Node]]:
    nodes: list[tuple[bytes, Node]] = []
    for name, value in tree.items():
        path = os.path.join(above, os.fsencode(name).lstrip(b"/")) or b"/"
        if isinstance(value, Mapping):
            nodes.append((path, Dir()))
            nodes.extend(_nodes(value, path))
        else:
            nodes.append((path, value if isinstance(value, Node) else File(value)))
    return nodes
