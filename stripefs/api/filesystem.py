"""A source as Python programs use it: `FileSystem` opens its files, lists its directories and changes its names.

Keyword arguments become `Settings`: they are the options of `stripefs mount`, with underscores in their names.
"""

from __future__ import annotations

import errno
import os
import posixpath
from collections.abc import Awaitable, Callable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, TypeVar, TypeVarTuple, overload

from stripefs import config
from stripefs.api.engine import CrossSourceRename, engine, os_errors
from stripefs.api.file_reader import Path, ReadFile, Request, fetch
from stripefs.api.file_writer import MODES, WriteFile
from stripefs.api.source import Source
from stripefs.api.sources import SourceAddress, Sources, in_service, normal, real_path, url_in_service
from stripefs.api.tree_ops import SourceNamespace, Usage, remove_tree, usage
from stripefs.errors import ConfigError, Exists, NotFound
from stripefs.osutil import umask
from stripefs.settings import Settings, redact
from stripefs.store.base import Attributes, Kind, Status
from stripefs.store.url import StoreUrl, parse_url, refuse_half_url
from stripefs.write.upload_names import join_path, split_path

__all__ = ["SECTIONS", "Entry", "FileSystem", "Path", "Usage", "absolute", "resolve"]

SECTIONS = ("store", "read", "write", "cache")
"""Parts of the settings that can be given; the others are about a mount."""


def resolve(url: str, options: Mapping[str, object]) -> Settings:
    """Settings of the source at `url`. `config` in the options names the one TOML file to read.

    Raises TypeError for what is no option, ConfigError for values that cannot be used.
    """
    given = {}
    for name, value in options.items():
        option = config.by_name(name) if name != "config" else None
        if option is not None and option.section in SECTIONS:
            given[option.name] = (_text(value), name)
        elif name != "config":
            known = [each.name.replace("-", "_") for each in config.OPTIONS if each.section in SECTIONS]
            raise TypeError(f"{name!r} is no option: {config.nearest(name, known)}")
    settings = config.resolve(given, url=absolute(url), config=str(options.get("config") or ""))
    return settings._replace(mount=Settings().mount)


def absolute(url: str) -> str:
    """A path made absolute, with links resolved, since a source is read without following any; a URL as it is."""
    refuse_half_url(url)
    return url if "://" in url else os.path.realpath(os.path.expanduser(url))


def _text(value: object) -> str:
    """A value as it is written on a command line."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, Mapping):
        return ",".join(f"{key}={word}" for key, word in value.items())
    if isinstance(value, list | tuple):
        return ",".join(map(str, value))
    return str(value)


_T = TypeVar("_T")
_Args = TypeVarTuple("_Args")


@dataclass(frozen=True, slots=True)
class Entry:
    """A file or directory. `name` is the last component of its path; type is file, directory, symlink or other.

    size in bytes, of a striped file as a whole; mtime_ns since 1970; mode holds permission bits only; owner and group
    are "" where the store has none; version is another one for each content that a file had ("" for directories).
    """

    name: str
    type: str
    size: int
    mtime_ns: int
    mode: int
    owner: str
    group: str
    version: str

    @property
    def mtime(self) -> float:
        """Seconds since 1970."""
        return self.mtime_ns / 1e9

    @classmethod
    def of(cls, status: Status) -> Entry:
        identity = status.identity
        version = f"{identity.length}:{identity.mtime_ns}:{identity.file_id}" if status.kind is Kind.FILE else ""
        return cls(
            os.fsdecode(status.name),
            status.kind.value,
            status.length,
            status.mtime_ns,
            status.mode,
            status.owner,
            status.group,
            version,
        )


class FileSystem:
    """The source at `url`, as `stripefs mount URL` would show it; made by `stripefs.connect`.

    options: those of the command about the store, reading and writing, with underscores (`memory="2GiB"`,
    `layout="striped"`), and `config`, a TOML file. The others come from the environment and the usual files.
    """

    def __init__(self, url: str, **options: object) -> None:
        with os_errors(url):
            self.url = absolute(url)
            service, root = in_service(self.url)
            self._address = SourceAddress(resolve(service, options), root)

    @classmethod
    def of_service(cls, url: str, **options: object) -> tuple[FileSystem, bytes]:
        """All of the service that a URL names, and the path in it: each file belongs to the source of the nearest pool
        above it. Of a wrapped store (`throttled+file:///DIRECTORY/NAME`): the directory of the file."""
        with os_errors(url):
            return cls.reached(resolve(url, options))

    @classmethod
    def reached(cls, settings: Settings, inside: bytes = b"") -> tuple[FileSystem, bytes]:
        """With settings that are made already: as `of_service`, or, with a path inside, the source at their URL and
        that path. Raises ConfigError."""
        made = cls.__new__(cls)
        service, path = in_service(settings.store.url, of_file=not inside)
        made.url = settings.store.url if inside else service
        root = path if inside else b"/" if parse_url(service).wrappers else None
        made._address = SourceAddress(settings._replace(store=settings.store._replace(url=service)), root)
        return made, inside or path

    def path_of(self, url: str) -> bytes:
        """The path of the file at `url`, which lies in this source. Raises OSError (EINVAL)."""
        with os_errors(url):
            found, ours = parse_url(absolute(url)), parse_url(self.url)
            if _service(found) != _service(ours):
                raise ConfigError(f"it is not of the service of {redact(self.url)}")
            root, path = (normal(each.path).rstrip(b"/") for each in (ours, found))
            if not path.startswith(root + b"/"):
                raise ConfigError(f"it does not lie in {redact(self.url)}", hint="root= is a directory above the file")
            return path.removeprefix(root)

    def url_of(self, path: Path) -> str:
        """The URL of a file or directory, as `stripefs.open` takes it."""
        return self._name(self._full_path(path))

    def __repr__(self) -> str:
        return f"<stripefs.FileSystem {redact(self.url)!r}>"

    # -- files ---------------------------------------------------------------------------------------------------

    @overload
    def open(self, path: Path, mode: Literal["rb"] = "rb") -> ReadFile: ...
    @overload
    def open(self, path: Path, mode: Literal["wb", "xb", "ab"], *, deferred: bool = False) -> WriteFile: ...
    @overload
    def open(self, path: Path, mode: str, *, deferred: bool = False) -> ReadFile | WriteFile: ...
    def open(self, path: Path, mode: str = "rb", *, deferred: bool = False) -> ReadFile | WriteFile:
        """The file at `path`. Modes as in `stripefs.open`; deferred: see `WriteFile`."""
        mode = "".join(sorted(mode, key="rwxab+t".find))
        full_path = self._full_path(path, follow=True)
        if mode == "rb":
            return ReadFile(self._address, full_path, self._name(full_path))
        if mode in MODES:
            return WriteFile(self._address, full_path, self._name(full_path), mode, deferred=deferred)
        raise ValueError(f"mode {mode!r} is none of rb, wb, xb and ab: files are bytes, and written from start to end")

    def read_bytes(self, path: Path) -> bytes:
        """All of a file."""
        with self.open(path) as file:
            return file.read()

    def write_bytes(self, path: Path, data: bytes | bytearray | memoryview) -> None:
        """The file at `path` is `data` from now on."""
        with self.open(path, "wb") as file:
            file.write(data)

    def fetch(self, requests: list[Request]) -> list[bytes | OSError]:
        """Parts of many files, read side by side: for each (path, start, end), as in slices, its bytes or its error."""
        placed = [(self._full_path(path, follow=True), start, end) for path, start, end in requests]
        return self._call("/", fetch, self._address, placed, self._name)

    def status(self) -> dict[str, Any]:
        """Figures: transport, throughput, memory, data hosts, files being written; sizes in bytes, times in seconds.

        Of the reader, which all of a service share.
        """
        return self._call("/", self._look, _status)

    # -- names ---------------------------------------------------------------------------------------------------

    def stat(self, path: Path) -> Entry:
        """Raises FileNotFoundError, NotADirectoryError. Symbolic links of a local source are not followed."""
        return Entry.of(self._call(path, self._look, Source.stat, self._full_path(path)))

    def exists(self, path: Path) -> bool:
        try:
            self.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return False
        return True

    def isdir(self, path: Path) -> bool:
        return self._is(path, Kind.DIRECTORY)

    def isfile(self, path: Path) -> bool:
        return self._is(path, Kind.FILE)

    def scandir(self, path: Path = "/") -> list[Entry]:
        """Entries of a directory, in byte order of the names."""
        return [Entry.of(status) for status in self._call(path, self._look, Source.listing, self._full_path(path))]

    def listdir(self, path: Path = "/") -> list[str]:
        return [entry.name for entry in self.scandir(path)]

    def walk(self, path: Path = "/") -> Iterator[tuple[str, list[str], list[str]]]:
        """As os.walk, from the top: the path of each directory, the names of those in it, and of everything else.
        Errors are raised."""
        folder = os.fsdecode(self._full_path(path))
        entries = self.scandir(folder)
        folders = [entry.name for entry in entries if entry.type == "directory"]
        yield folder, folders, [entry.name for entry in entries if entry.type != "directory"]
        for name in folders:
            yield from self.walk(posixpath.join(folder, name))

    def mkdir(self, path: Path, mode: int = 0o777, *, parents: bool = False, exist_ok: bool = False) -> None:
        """Make a directory, with what the umask leaves of `mode`; `parents`: and those above it that are missing.

        Raises FileExistsError where something is there, for a directory unless `exist_ok`; FileNotFoundError.
        """
        self._call(path, self._mkdir, self._full_path(path), mode & ~umask(), parents, exist_ok)

    def rename(self, path: Path, target: Path) -> None:
        """Move a file or directory, in one step. Raises FileExistsError where something is at `target`."""
        self._call(path, self._rename, self._full_path(path), self._full_path(target), False)

    def replace(self, path: Path, target: Path) -> None:
        """As `rename`, in the place of a file, or of an empty directory, that is at `target`, in the same step."""
        self._call(path, self._rename, self._full_path(path), self._full_path(target), True)

    def remove(self, path: Path) -> None:
        """Remove a file. Readers of a striped file may go on for `grace`."""
        self._call(path, self._remove, self._full_path(path))

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory. Raises OSError (ENOTEMPTY)."""
        self._call(path, self._rmdir, self._full_path(path))

    def rmtree(self, path: Path) -> None:
        """Remove a directory with all that is in it, or a file. Where it has a pool of its own, that keeps it
        for `grace`, and OSError (ENOTEMPTY) says so; with a grace of 0 it goes too."""
        self._call(path, self._rmtree, self._full_path(path))

    def set_attributes(self, path: Path, *, mode: int | None = None, mtime_ns: int | None = None) -> None:
        """Change permission bits, or the time of last change, in nanoseconds since 1970, of a file or directory.

        Raises OSError (EOPNOTSUPP) where the store keeps none.
        """
        self._call(path, self._set_attributes, self._full_path(path), Attributes(mode=mode, mtime_ns=mtime_ns))

    def usage(self, path: Path = "/", onerror: Callable[[OSError], object] | None = None) -> list[Usage]:
        """Usage of each directory from `path` down with all below it, those inside before the one they are in, `path`
        itself last; of a file its own alone. onerror: gets what cannot be looked at; without it the first is raised."""
        found, errors = self._call(path, usage, self._address, self._full_path(path), self._name)
        for error in errors:
            if onerror is None:
                raise error
            onerror(error)
        return found

    # -- in the engine -------------------------------------------------------------------------------------------

    async def _look(self, sources: Sources, ask: Callable[[Source, *_Args], Awaitable[_T]], *args: *_Args) -> _T:
        return await ask(await sources.view(self._address), *args)

    async def _mkdir(self, sources: Sources, full_path: bytes, mode: int, parents: bool, exist_ok: bool) -> None:
        names, inner = await self._namespace(sources, full_path)
        try:
            await names.mkdir(inner, mode)
        except NotFound:
            if not parents or split_path(full_path)[0] == full_path:
                raise
            await self._mkdir(sources, split_path(full_path)[0], 0o777 & ~umask(), True, True)
            await names.mkdir(inner, mode)
        except Exists:
            if not exist_ok or (await self._look(sources, Source.stat, full_path)).kind is not Kind.DIRECTORY:
                raise

    async def _set_attributes(self, sources: Sources, full_path: bytes, wanted: Attributes) -> None:
        names, inner = await self._namespace(sources, full_path)
        await names.set_attributes(inner, wanted)

    async def _rename(self, sources: Sources, full_path: bytes, target: bytes, replace: bool) -> None:
        names, inner = await self._namespace(sources, full_path)
        other, inner_target = await sources.at(self._address, target)
        if other is not names.source:
            raise CrossSourceRename(
                f"{full_path!r} and {target!r} belong to different sources", hint="copy what is to be moved"
            )
        await names.rename(inner, inner_target, replace=replace)
        self._forget(sources, full_path, target)

    async def _remove(self, sources: Sources, full_path: bytes) -> None:
        names, inner = await self._namespace(sources, full_path)
        await names.remove(inner)

    async def _rmdir(self, sources: Sources, full_path: bytes) -> None:
        names, inner = await self._namespace(sources, full_path)
        await names.rmdir(inner)
        self._forget(sources, full_path)

    async def _rmtree(self, sources: Sources, full_path: bytes) -> None:
        async def inside(folder: bytes) -> SourceNamespace | None:
            source = await sources.nested(self._address, folder)
            return None if source is None else SourceNamespace(source, await source.session(self._address.settings))

        names, inner = await self._namespace(sources, full_path)
        await remove_tree(names, inner, full_path, inside)
        self._forget(sources, full_path)

    # -- inner workings ------------------------------------------------------------------------------------------

    async def _namespace(self, sources: Sources, full_path: bytes) -> tuple[SourceNamespace, bytes]:
        source, inner = await sources.at(self._address, full_path)
        return SourceNamespace(source, await source.session(self._address.settings)), inner

    def _forget(self, sources: Sources, *full_paths: bytes) -> None:
        for full_path in full_paths:
            sources.forget(self._address, full_path)

    def _is(self, path: Path, kind: Kind) -> bool:
        try:
            return self.stat(path).type == kind.value
        except (FileNotFoundError, NotADirectoryError):
            return False

    def _call(self, path: Path, function: Callable[[Sources, *_Args], Awaitable[_T]], *args: *_Args) -> _T:
        here = engine()
        with os_errors(lambda: self._name(self._full_path(path))):
            return here.call(function, here.sources, *args)

    def _full_path(self, path: Path, *, follow: bool = False) -> bytes:
        """The path as stores have it. All of the local files are as programs see them: links above `path` are followed,
        and with `follow` the last one."""
        full_path = normal(os.fsencode(path))
        if b"\0" in full_path:
            raise OSError(errno.EINVAL, "no name holds a NUL byte", os.fsdecode(path))
        if self.url == "/" and self._address.root is None:
            folder, name = split_path(full_path)
            return real_path(full_path) if follow else join_path(real_path(folder), name)
        return full_path

    def _name(self, full_path: bytes) -> str:
        """The URL of a file, for messages."""
        return url_in_service(self._address.settings.store.url, (self._address.root or b"").rstrip(b"/") + full_path)


async def _status(source: Source) -> dict[str, Any]:
    return source.status()


def _service(url: StoreUrl) -> StoreUrl:
    return replace(url, path=b"", inner="")
