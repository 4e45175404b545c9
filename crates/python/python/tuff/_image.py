"""Images and their files."""

from __future__ import annotations

import errno
import io
import os
import stat as modes
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import TracebackType
from typing import IO, Any, Optional, TypeVar, Union

from . import _tuff

#: Path in an image. Bytes that are not UTF-8 appear in text as surrogate escapes, as in the module ``os``.
Path = Union[str, bytes, "os.PathLike[str]"]

T = TypeVar("T")

#: Bytes of a file object that are read at once to open an image.
_HEAD = 64 << 10


@dataclass(frozen=True)
class Stat:
    """Attributes of an inode."""

    nid: int
    #: Type and permissions, as in ``os.stat_result.st_mode``.
    mode: int
    #: Size of the data in bytes.
    size: int
    uid: int
    gid: int
    #: Number of names.
    nlink: int
    #: Modification time in nanoseconds since 1970.
    mtime_ns: int
    #: Major and minor number of a device, otherwise 0.
    device: tuple[int, int]

    @property
    def is_dir(self) -> bool:
        return modes.S_ISDIR(self.mode)

    @property
    def is_file(self) -> bool:
        return modes.S_ISREG(self.mode)

    @property
    def is_symlink(self) -> bool:
        return modes.S_ISLNK(self.mode)


@dataclass(frozen=True)
class Entry:
    """Name in an image."""

    #: Path from the root of the image, without a leading slash. That of the root is empty.
    path: str
    stat: Stat

    @property
    def name(self) -> str:
        """Last component of the path."""
        return self.path.rpartition("/")[2]


@dataclass(frozen=True)
class Finding:
    """Violation of a rule that a check found."""

    #: ``error``, ``warning`` or ``note``.
    severity: str
    text: str


class Image:
    """Open EROFS image.

    Paths start at the root, with or without a leading slash. Any number of threads may use an image at the same time,
    unless it was opened from a file object.
    """

    def __init__(self, core: _tuff.Image, file: Optional[IO[bytes]] = None) -> None:
        self._core = core
        self._file = file

    @classmethod
    def open(
        cls, path: Union[str, os.PathLike[str]], devices: Sequence[Union[str, os.PathLike[str]]] = ()
    ) -> Image:
        """Opens the image in a file or block device, with the extra devices of its device table."""
        return cls(_tuff.Image.open(path, list(devices)))

    @classmethod
    def from_bytes(cls, data: bytes) -> Image:
        """Opens an image in memory."""
        return cls(_tuff.Image.from_bytes(data))

    @classmethod
    def from_file(cls, file: IO[bytes]) -> Image:
        """Opens an image in a file object that can seek, for example one of fsspec for a URL.

        Only the ranges that are needed are read. The file object must not be used elsewhere.
        """
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        head = file.read(min(size, _HEAD))
        while True:
            try:
                return cls(_tuff.Image.from_ranges(size, head), file)
            except BlockingIOError:
                if len(head) >= size:
                    raise
                head += file.read(max(len(head), _HEAD))

    def __enter__(self) -> Image:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        value: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        # The image is released with its last reference: files and walks may still use it.
        self._file = None

    def exists(self, path: Path) -> bool:
        """Returns whether a path exists. Symbolic links are not followed."""
        return self._retry(lambda: self._core.find(_bytes(path), False)) is not None

    def stat(self, path: Path = "", *, follow_symlinks: bool = True) -> Stat:
        """Returns the attributes of a path."""
        return self._stat(self._nid(path, follow_symlinks))

    def listdir(self, path: Path = "") -> list[str]:
        """Returns the names in a directory."""
        nid = self._nid(path, True)
        return [os.fsdecode(name) for name, _ in self._retry(lambda: self._core.list(nid))]

    def scandir(self, path: Path = "") -> list[Entry]:
        """Returns the entries of a directory."""
        nid = self._nid(path, True)
        prefix = _text(path)
        entries = self._retry(lambda: self._core.list(nid))
        return [Entry(_join(prefix, os.fsdecode(name)), self._stat(n)) for name, n in entries]

    def walk(self, path: Path = "") -> Iterator[Entry]:
        """Iterates over a path and everything below it. Directories come before their entries.

        Images in a file object are listed directory by directory, others by the reader.
        """
        nid, prefix = self._nid(path, False), _text(path)
        if self._file is None:
            for below, n in self._core.walk(nid):
                yield Entry(_join(prefix, os.fsdecode(below)), self._stat(n))
            return
        start = Entry(prefix, self._stat(nid))
        yield start
        stack = [iter(self.scandir(prefix))] if start.stat.is_dir else []
        while stack:
            entry = next(stack[-1], None)
            if entry is None:
                stack.pop()
                continue
            yield entry
            if entry.stat.is_dir:
                stack.append(iter(self.scandir(entry.path)))

    def read(self, path: Path, offset: int = 0, size: Optional[int] = None) -> bytes:
        """Returns ``size`` bytes of a file from ``offset``, or all bytes up to its end."""
        nid = self._nid(path, True)
        left = max(0, self._data_size(nid, path) - offset)
        return self._read(nid, offset, left if size is None else min(size, left))

    def open_file(
        self,
        path: Path,
        mode: str = "rb",
        *,
        encoding: Optional[str] = None,
        errors: Optional[str] = None,
        newline: Optional[str] = None,
    ) -> IO[Any]:
        """Opens a file for reading, as ``open`` does: ``rb`` for bytes, ``r`` for text."""
        if mode not in ("rb", "br", "r", "rt"):
            raise ValueError(f"mode {mode!r}: an image is read-only; use 'rb' or 'r'")
        nid = self._nid(path, True)
        raw = _RawFile(self, nid, self._data_size(nid, path), _text(path))
        # Larger than the usual buffer: a cluster is decoded as a whole.
        buffered = io.BufferedReader(raw, 128 << 10)
        if "b" in mode:
            return buffered
        return io.TextIOWrapper(buffered, encoding, errors, newline)

    def readlink(self, path: Path) -> str:
        """Returns the target of a symbolic link."""
        nid = self._nid(path, False)
        return os.fsdecode(self._retry(lambda: self._core.readlink(nid)))

    def xattrs(self, path: Path = "", *, follow_symlinks: bool = True) -> dict[str, bytes]:
        """Returns the extended attributes of a path."""
        nid = self._nid(path, follow_symlinks)
        return {os.fsdecode(n): value for n, value in self._retry(lambda: self._core.xattrs(nid))}

    def extract(
        self, target: Union[str, os.PathLike[str]], path: Path = "", *, overwrite: bool = False
    ) -> int:
        """Extracts a path, and everything below it, into a directory. Returns the number of files."""
        self._local("extract")
        return self._core.extract(_bytes(path), target, overwrite)

    def check(self) -> list[Finding]:
        """Checks every structure and all data."""
        self._local("check")
        return [Finding(severity, text) for severity, text in self._core.check()]

    def _local(self, what: str) -> None:
        if self._file is not None:
            raise ValueError(f"{what} needs an image in a local file or in memory")

    def _nid(self, path: Path, follow: bool) -> int:
        nid = self._retry(lambda: self._core.find(_bytes(path), follow))
        if nid is None:
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), _text(path))
        return nid

    def _stat(self, nid: int) -> Stat:
        mode, size, uid, gid, nlink, mtime, major, minor = self._retry(lambda: self._core.stat(nid))
        return Stat(nid, mode, size, uid, gid, nlink, mtime, (major, minor))

    def _data_size(self, nid: int, path: Path) -> int:
        stat = self._stat(nid)
        if stat.is_dir:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), _text(path))
        return stat.size if stat.is_file else 0

    def _read(self, nid: int, offset: int, size: int) -> bytes:
        if self._file is None:
            return self._core.read(nid, offset, size)
        # In parts: all ranges of a read must be in memory at once.
        parts = []
        while size > 0:
            n = min(size, 1 << 20)
            parts.append(self._retry(lambda: self._core.read(nid, offset, n)))
            offset, size = offset + n, size - n
        return b"".join(parts)

    def _retry(self, operation: Callable[[], T]) -> T:
        """Repeats an operation until all ranges that it needs are in memory."""
        while True:
            try:
                return operation()
            except BlockingIOError:
                missing = self._core.missing()
                if self._file is None or missing is None:
                    raise
                offset, size = missing
                self._file.seek(offset)
                data = self._file.read(size)
                if len(data) < size:
                    raise EOFError(f"the image ends before byte {offset + size}") from None
                self._core.put(offset, data)


class _RawFile(io.RawIOBase):
    """File of an image without a buffer."""

    def __init__(self, image: Image, nid: int, size: int, name: str) -> None:
        self._image, self._nid, self._size = image, nid, size
        self._position = 0
        self.name = name

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: self._size}
        position = start[whence] + offset
        if position < 0:
            raise ValueError(f"position {position} is before the start of the file")
        self._position = position
        return position

    def readinto(self, buffer: Any) -> int:
        size = max(0, min(len(buffer), self._size - self._position))
        data = self._image._read(self._nid, self._position, size) if size else b""
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)


def _bytes(path: Path) -> bytes:
    return os.fsencode(path)


def _text(path: Path) -> str:
    return os.fsdecode(path).strip("/")


def _join(prefix: str, below: str) -> str:
    return f"{prefix}/{below}" if prefix and below else prefix or below
