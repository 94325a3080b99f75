"""Base of all store wrappers: every call handed on, parameters read from text, waits that a `Watch` can end."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import cached_property
from typing import Any, ClassVar, TypeVar, Unpack

from stripefs.errors import Abandoned, ConfigError
from stripefs.retry import HostHealth
from stripefs.store.base import (
    Attributes,
    Block,
    Buffer,
    Capabilities,
    Creation,
    Handle,
    Host,
    Identity,
    Sink,
    Space,
    Status,
    Store,
    Watch,
)
from stripefs.store.common import cancellable

__all__ = [
    "CHANGES",
    "Parser",
    "WrappedHandle",
    "WrappedSink",
    "WrappedStore",
    "choices",
    "fraction",
    "one_of",
    "pause",
    "seeded",
    "switch",
    "whole",
]

CHANGES = ("put", "remove", "create", "mkdir", "rmdir", "rename", "attributes", "concat")
"""The calls that change a store, sinks aside."""

_T = TypeVar("_T")

Parser = Callable[[str], Any]
"""From a parameter's text to the keyword argument's value. Raises ConfigError or ValueError."""


class WrappedStore(Store):
    """Hands everything to `inner`. Subclasses set NAME, the URL prefix, and PARAMETERS, their keyword arguments.

    `on_query` and `on_change` run around calls; `handle` and `sink` may replace what `open` and `create` answer.
    """

    NAME: ClassVar[str]
    PARAMETERS: ClassVar[Mapping[str, Parser]]
    capabilities: Capabilities

    def __init__(self, inner: Store) -> None:
        self.inner = inner
        self.url = f"{self.NAME}+{inner.url}"
        self.capabilities = inner.capabilities
        self.local_hosts = inner.local_hosts

    @cached_property
    def health(self) -> HostHealth:
        return self.inner.health

    # -- what subclasses do ------------------------------------------------------------------------------------------

    def on_query(self, call: str, path: bytes, act: Callable[[], _T]) -> _T:
        """Every stat and open goes through here, by its name."""
        return act()

    def on_change(self, call: str, paths: tuple[bytes, ...], act: Callable[[], _T]) -> _T:
        """Every call that changes names, attributes or whole files goes through here, by its name in CHANGES."""
        return act()

    def handle(self, path: bytes, inner: Handle) -> Handle:
        """The handle for the file at `path`, now open as `inner`."""
        return inner

    def sink(self, path: bytes, host: str, inner: Sink) -> Sink:
        """The sink for the new file at `path`, asked to be on `host`, now being written through `inner`."""
        return inner

    # -- the store ---------------------------------------------------------------------------------------------------

    def stat(self, path: bytes) -> Status:
        return self.on_query("stat", path, lambda: self.inner.stat(path))

    def scandir(self, path: bytes, after: bytes = b"") -> Iterator[Sequence[Status]]:
        return self.inner.scandir(path, after)

    def open(self, path: bytes, expect: Identity | None = None) -> Handle:
        return self.handle(path, self.on_query("open", path, lambda: self.inner.open(path, expect)))

    def put(self, path: bytes, data: Iterable[Buffer], *, replace: bool = False, parents: bool = True) -> Status | None:
        self.on_change("put", (path,), lambda: self.inner.put(path, data, replace=replace, parents=parents))
        return None  # a wrapper may change what `stat` answers

    def get_document(self, path: bytes) -> Buffer:
        return self.on_query("open", path, lambda: self.inner.get_document(path))

    def remove(self, path: bytes) -> None:
        self.on_change("remove", (path,), lambda: self.inner.remove(path))

    def create(self, path: bytes, **how: Unpack[Creation]) -> Sink:
        sink = self.on_change("create", (path,), lambda: self.inner.create(path, **how))
        return self.sink(path, how.get("host", ""), sink)

    def mkdir(self, path: bytes, mode: int = 0o755) -> None:
        self.on_change("mkdir", (path,), lambda: self.inner.mkdir(path, mode))

    def rmdir(self, path: bytes) -> None:
        self.on_change("rmdir", (path,), lambda: self.inner.rmdir(path))

    def rename(self, source: bytes, target: bytes, *, replace: bool = False) -> None:
        self.on_change("rename", (source, target), lambda: self.inner.rename(source, target, replace=replace))

    def compare_and_rename(self, source: bytes, target: bytes, seen: Identity) -> None:
        self.on_change("rename", (source, target), lambda: self.inner.compare_and_rename(source, target, seen))

    def compare_and_remove(self, path: bytes, seen: Identity) -> None:
        self.on_change("remove", (path,), lambda: self.inner.compare_and_remove(path, seen))

    def set_attributes(self, path: bytes, attributes: Attributes) -> None:
        self.on_change("attributes", (path,), lambda: self.inner.set_attributes(path, attributes))

    def concat(self, target: bytes, sources: Sequence[bytes]) -> None:
        self.on_change("concat", (target, *sources), lambda: self.inner.concat(target, sources))

    def readlink(self, path: bytes) -> bytes:
        return self.inner.readlink(path)

    def refused_name(self, name: bytes) -> str:
        return self.inner.refused_name(name)

    def has_quota(self, path: bytes) -> bool:
        return self.inner.has_quota(path)

    def space(self) -> Space | None:
        return self.inner.space()

    def hosts(self) -> Sequence[Host]:
        return self.inner.hosts()

    def describe(self) -> dict[str, str]:
        return self.inner.describe()

    def close(self) -> None:
        self.inner.close()


class WrappedHandle(Handle):
    """Hands everything to `inner`."""

    def __init__(self, inner: Handle) -> None:
        self.inner = inner
        self.status = inner.status

    def locate(self, offset: int, length: int) -> Sequence[Block]:
        return self.inner.locate(offset, length)

    def read(self, offset: int, length: int, *, host: str = "", watch: Watch | None = None) -> Buffer:
        return self.inner.read(offset, length, host=host, watch=watch)

    def close(self) -> None:
        self.inner.close()


class WrappedSink(Sink):
    """Hands everything to `inner`."""

    def __init__(self, inner: Sink) -> None:
        self.inner = inner

    def write(self, data: Buffer) -> None:
        self.inner.write(data)

    def close(self) -> Status:
        return self.inner.close()

    def abort(self) -> None:
        self.inner.abort()


def pause(seconds: float, watch: Watch | None) -> None:
    """Wait `seconds`, less when `watch` is cancelled, which raises Abandoned."""
    woken = threading.Event()
    with cancellable(watch, woken.set):
        if woken.wait(seconds):
            raise Abandoned("the read was cancelled")


def seeded(*parts: object) -> random.Random:
    """A generator that depends on `parts` alone, the same in every process."""
    return random.Random("\0".join(map(repr, parts)))  # noqa: S311  # chooses faults, not secrets


def whole(text: str, least: int = 1) -> int:
    """A whole number of at least `least`."""
    number = int(text)
    if number < least:
        raise ConfigError(f"{number} is less than {least}")
    return number


def fraction(text: str) -> float:
    """A share from 0 to 1."""
    number = float(text)
    if not 0 <= number <= 1:
        raise ConfigError(f"{text} is not between 0 and 1")
    return number


def switch(text: str) -> bool:
    """true or false."""
    if text not in ("true", "false"):
        raise ConfigError(f"{text!r} is not true or false")
    return text == "true"


def one_of(*allowed: str) -> Callable[[str], str]:
    """A parser for one of `allowed`."""

    def parse(text: str) -> str:
        if text not in allowed:
            raise ConfigError(f"{text!r} is none of {', '.join(allowed)}")
        return text

    return parse


def choices(*allowed: str) -> Callable[[str], tuple[str, ...]]:
    """A parser for a comma-separated list of some of `allowed`."""
    one = one_of(*allowed)

    def parse(text: str) -> tuple[str, ...]:
        return tuple(one(name) for name in text.split(","))

    return parse
