"""Images and their files."""

from __future__ import annotations

import errno
import fnmatch
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

#: Path of the host, or URL of an image.
HostPath = Union[str, "os.PathLike[str]"]

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

    def __init__(self, core: _tuff.Image, file: Optional[IO[bytes]] = None, source: str = "") -> None:
        self._core = core
        self._file = file
        self._source = source
        self._is_local = file is None
        self._closed = False

    def __repr__(self) -> str:
        return f"<tuff.Image {self._source}{' (closed)' if self._closed else ''}>"

    @classmethod
    def open(
        cls,
        path: HostPath,
        devices: Sequence[Union[HostPath, tuple[HostPath, str]]] = (),
        *,
        offset: int = 0,
        root_hash: Optional[str] = None,
        verity_tree: Optional[HostPath] = None,
        trust: Optional[HostPath] = None,
        no_checksum: bool = False,
        cache_dir: Optional[HostPath] = None,
        cache_max: Optional[int] = None,
        fetch_timeout: Optional[int] = None,
    ) -> Image:
        """Opens the image at a path or URL: a file, a block device, a disk, ``https://``, ``s3://`` or ``oci://``.

        The arguments are those of the command. With ``root_hash`` or ``trust``, the path of a certificate, all that is read is
        verified; a device then needs a root hash too, in a pair. After a fork, the child opens images behind URLs again.
        """
        settings: list[tuple[str, Optional[HostPath]]] = [
            ("offset", str(offset)),
            ("root-hash", root_hash),
            ("verity-tree", verity_tree),
            ("trust", trust),
            ("no-checksum", "" if no_checksum else None),
            ("cache-dir", cache_dir),
            ("cache-max", None if cache_max is None else str(cache_max)),
            ("fetch-timeout", None if fetch_timeout is None else str(fetch_timeout)),
        ]
        for device in devices:
            if isinstance(device, tuple):
                device = f"{os.fspath(device[0])},{device[1]}"
            settings.append(("device", device))
        given = [(name, value) for name, value in settings if value is not None]
        core = _tuff.Image.open(path, given)
        # The text of a URL may have a password.
        return cls(core, source=core.url() or repr(os.fspath(path)))

    @classmethod
    def from_bytes(cls, data: bytes) -> Image:
        """Opens an image in memory."""
        return cls(_tuff.Image.from_bytes(data), source=f"of {len(data)} bytes in memory")

    @classmethod
    def from_file(cls, file: IO[bytes]) -> Image:
        """Opens an image in a file object that can seek, for example one of fsspec for a URL.

        Only the ranges that are needed are read. The file object must not be used elsewhere.
        """
        size = file.seek(0, io.SEEK_END)
        file.seek(0)
        head = _read_exact(file, 0, min(size, _HEAD))
        while True:
            try:
                return cls(_tuff.Image.from_ranges(size, head), file, f"in {file!r}")
            except BlockingIOError:
                if len(head) >= size:
                    raise
                more = min(size - len(head), max(len(head), _HEAD))
                head += _read_exact(file, len(head), more)

    def __enter__(self) -> Image:
        return self

    def __exit__(
        self,
        kind: Optional[type[BaseException]],
        value: Optional[BaseException],
        traceback: Optional[TracebackType],
    ) -> None:
        self.close()

    @property
    def closed(self) -> bool:
        """Whether the image was closed."""
        return self._closed

    def close(self) -> None:
        """Ends the use of the image. The file object of ``from_file`` is not closed.

        Files that are open stay readable, unless the image is in a file object.
        """
        self._closed = True
        self._file = None

    def exists(self, path: Path) -> bool:
        """Returns whether a path exists. Symbolic links are not followed."""
        self._check_open()
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
        if self._is_local:
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

    def glob(self, pattern: str) -> list[str]:
        """Returns the paths that match a pattern, sorted: ``*``, ``?`` and ``[abc]`` within a name, ``**`` for any directories.

        Names that begin with a dot match like others. Symbolic links are not followed.
        """
        parts = [part for part in pattern.split("/") if part]
        return sorted(entry.path for entry in self.walk() if _matches([name for name in entry.path.split("/") if name], parts))

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
        self._check_open()
        if not self._is_local:
            raise ValueError(f"{what} needs an image in a local file or in memory")

    def _check_open(self) -> None:
        if self._closed:
            raise ValueError("the image is closed")

    def _nid(self, path: Path, follow: bool) -> int:
        self._check_open()
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
        if self._is_local:
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
                if self._closed and not self._is_local:
                    raise ValueError("the image is closed") from None
                if self._file is None or missing is None:
                    raise
                offset, size = missing
                self._core.put(offset, _read_exact(self._file, offset, size))


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


def _read_exact(file: IO[bytes], offset: int, size: int) -> bytes:
    """Reads a range of a file object, which may return less at once, and may have fewer bytes than it stated."""
    file.seek(offset)
    data = b""
    while len(data) < size:
        more = file.read(size - len(data))
        if not more:
            raise EOFError(f"the image ends at byte {offset + len(data)}, before byte {offset + size}")
        data += more
    return data


def _matches(names: list[str], parts: list[str]) -> bool:
    """Returns whether the names of a path match the parts of a pattern."""

    def after_any(positions: set[int]) -> set[int]:
        # "**" matches no directory, too.
        found = set(positions)
        for position in positions:
            while position < len(parts) and parts[position] == "**":
                position += 1
                found.add(position)
        return found

    positions = after_any({0})
    for name in names:
        stays = {i for i in positions if i < len(parts) and parts[i] == "**"}
        moves = {i + 1 for i in positions - stays if i < len(parts) and fnmatch.fnmatchcase(name, parts[i])}
        positions = after_any(stays | moves)
    return len(parts) in positions


def _bytes(path: Path) -> bytes:
    return os.fsencode(path)


def _text(path: Path) -> str:
    return os.fsdecode(path).strip("/")


def _join(prefix: str, below: str) -> str:
    return f"{prefix}/{below}" if prefix and below else prefix or below
