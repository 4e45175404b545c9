"""Images as a filesystem of fsspec, with the protocol ``erofs``.

    >>> import fsspec
    >>> fs = fsspec.filesystem("erofs", fo="image.erofs")
    >>> fs.ls("/", detail=False)

``fo`` is the path of a local file, an open file object, or, with ``target_protocol`` and ``target_options``, a URL that
fsspec can open.
"""

from __future__ import annotations

from datetime import datetime, timezone
from typing import IO, Any, Optional, Union

import fsspec
from fsspec.spec import AbstractFileSystem

from ._image import Entry, Image

_TYPES = {0o100: "file", 0o040: "directory", 0o120: "link"}


class ErofsFileSystem(AbstractFileSystem):  # type: ignore[misc]
    """Read-only filesystem over an EROFS image."""

    protocol = "erofs"
    root_marker = ""

    def __init__(
        self,
        fo: Union[str, IO[bytes]],
        target_protocol: Optional[str] = None,
        target_options: Optional[dict[str, Any]] = None,
        **options: Any,
    ) -> None:
        super().__init__(**options)
        if not isinstance(fo, str):
            self.image = Image.from_file(fo)
        elif target_protocol in (None, "file", "local") and "://" not in fo:
            self.image = Image.open(fo)
        else:
            url = fsspec.open(fo, "rb", protocol=target_protocol, **(target_options or {}))
            self.image = Image.from_file(url.open())

    @classmethod
    def _strip_protocol(cls, path: str) -> str:
        return str(super()._strip_protocol(path)).strip("/")

    def info(self, path: str, **options: Any) -> dict[str, Any]:
        path = self._strip_protocol(path)
        return self._info(Entry(path, self.image.stat(path, follow_symlinks=False)))

    def ls(self, path: str, detail: bool = True, **options: Any) -> list[Any]:
        path = self._strip_protocol(path)
        if self.image.stat(path).is_dir:
            found = [self._info(entry) for entry in self.image.scandir(path)]
        else:
            found = [self.info(path)]
        return found if detail else sorted(info["name"] for info in found)

    def modified(self, path: str) -> datetime:
        """Returns the modification time of a path."""
        return datetime.fromtimestamp(self.info(path)["mtime"], tz=timezone.utc)

    def _open(
        self,
        path: str,
        mode: str = "rb",
        block_size: Optional[int] = None,
        autocommit: bool = True,
        cache_options: Optional[dict[str, Any]] = None,
        **options: Any,
    ) -> IO[bytes]:
        return self.image.open_file(self._strip_protocol(path), mode)

    def _info(self, entry: Entry) -> dict[str, Any]:
        stat = entry.stat
        info: dict[str, Any] = {
            "name": entry.path,
            "size": stat.size if stat.is_file else 0,
            "type": _TYPES.get(stat.mode >> 9, "other"),
            "mode": stat.mode,
            "uid": stat.uid,
            "gid": stat.gid,
            "nlink": stat.nlink,
            "mtime": stat.mtime_ns / 1e9,
            "ino": stat.nid,
            "islink": stat.is_symlink,
        }
        if stat.is_symlink:
            info["destination"] = self.image.readlink(entry.path)
        return info
