"""The border of the daemon: requests of clients are decoded into typed records, and records are answers.

`typed` makes a handler of records one of JSON documents. A request is decoded once, with all its checks; a field that
is missing or of another type is refused in one line that names it. Keys that are not known are ignored, and fields with
a default may be missing or null, so clients of other versions are understood.

Requests and answers that clients use as records, too, are in `imagefs.daemon.protocol`; those here only the daemon
knows as records, so that commands which start at once need not make their classes.
"""

from __future__ import annotations

import functools
import types
import typing
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol, TypeVar, get_args, get_origin

from imagefs.daemon.protocol import CAPABILITIES, VERSION, HeldImage, Lease
from stripefs.errors import ConfigError
from stripefs.fuse.control_server import Request
from stripefs.settings import StoreSettings

__all__ = [
    "AnnounceRequest",
    "CapabilitiesAnswer",
    "CapabilitiesRequest",
    "DetachAnswer",
    "DetachRequest",
    "DiscardRequest",
    "FindAnswer",
    "FindRequest",
    "LeasesAnswer",
    "LeasesRequest",
    "MountedRequest",
    "NoteAnswer",
    "NoteRequest",
    "ReadyRequest",
    "ReleaseRequest",
    "ShownRequest",
    "UnrecordRequest",
    "Unserved",
    "UsageAnswer",
    "UsageRequest",
    "decode",
    "typed",
]


class AnnounceRequest(NamedTuple):
    """An image that will be attached under this id. plain: its store is reached by the defaults alone."""

    id: str
    image: str
    plain: bool = False


class NoteRequest(NamedTuple):
    """A note of a start for later ones, by its name. timeout: seconds for the store."""

    store: StoreSettings
    kind: Literal["locks", "hints"]
    name: str
    timeout: float


class NoteAnswer(NamedTuple):
    note: str


class DetachRequest(NamedTuple):
    id: str


class UnrecordRequest(NamedTuple):
    id: str
    why: str


class MountedRequest(NamedTuple):
    """An attachment is mounted by what `plane`. device: MAJOR:MINOR of what others may copy there, "" for nothing."""

    id: str
    plane: str
    device: str = ""


class ShownRequest(NamedTuple):
    """The place from which others may copy the mount of a container, "" for none."""

    id: str
    path: str
    device: str


class ReadyRequest(NamedTuple):
    """which: the id of an attachment, or its mountpoint."""

    which: str


class DetachAnswer(NamedTuple):
    """events: those of its start that the client is to write."""

    events: dict[str, Any]

    def to_json(self) -> dict[str, Any]:
        return {"events": self.events} if self.events else {}


class FindRequest(NamedTuple):
    """stores: the first is preferred. source: the digest of an OCI manifest. timeout: seconds for all of them."""

    stores: tuple[StoreSettings, ...]
    source: str
    timeout: float


class FindAnswer(NamedTuple):
    """The digest of an image, and the number of the first store that has it; "" and -1 for none."""

    image: str
    store: int


class Unserved(NamedTuple):
    """An image or a snapshot that is not served. message, hint: for people. block: a block of it was damaged or gone.

    missing: the store has none. damaged: the store has something else in the place of the image. broken: the snapshot
    is not whole. stale: what the client saw mounted is none of this daemon's, or went.
    """

    kind: Literal["missing", "damaged", "broken", "stale"]
    message: str = ""
    hint: str = ""
    block: bool | None = None

    def to_json(self) -> dict[str, Any]:
        told = {name: value for name, value in self._asdict().items() if name != "kind" and value is not None}
        return {self.kind: told if self.message else True}


class UsageRequest(NamedTuple):
    image: str


class UsageAnswer(NamedTuple):
    """Bytes and inodes of each part of an image."""

    parts: Mapping[str, tuple[int, int]]


class ReleaseRequest(NamedTuple):
    """at_once: a mount that nobody holds any more does not wait for the next lease."""

    lease: Lease
    at_once: bool = False


class LeasesRequest(NamedTuple):
    """client: "" for all clients."""

    client: str = ""


class LeasesAnswer(NamedTuple):
    leases: tuple[HeldImage, ...]

    def to_json(self) -> dict[str, Any]:
        return {"leases": [one.to_json() for one in self.leases]}


class DiscardRequest(NamedTuple):
    image: str
    parts: tuple[str, ...]


class CapabilitiesRequest(NamedTuple):
    """A request that is its verb alone."""


class CapabilitiesAnswer(NamedTuple):
    version: int = VERSION
    capabilities: tuple[str, ...] = CAPABILITIES


class Record(Protocol):
    """A named tuple, perhaps with a `to_json` of its own."""

    def _asdict(self) -> dict[str, Any]: ...


_R = TypeVar("_R", bound=Record)


def typed(kind: type[_R], handler: Callable[[_R], Awaitable[Record | dict[str, Any] | None]]) -> Request:
    """`handler` for JSON documents: it gets requests of this kind, and answers by a record, or by nothing."""

    async def answer(data: Mapping[str, Any]) -> dict[str, Any]:
        found = await handler(decode(kind, data))
        if found is None or isinstance(found, dict):
            return found or {}
        to_json: Callable[[], dict[str, Any]] = getattr(found, "to_json", found._asdict)
        return to_json()

    return answer


def decode(kind: type[_R], data: Mapping[str, Any]) -> _R:
    """The record of this kind that a request describes. Raises ConfigError."""
    try:
        found: _R = _decoder(kind)(data)
        return found
    except _WrongValueError as error:
        raise ConfigError(f"the request {data.get('op', '')}: {error.path} {error}") from error


class _WrongValueError(Exception):
    """path: of the value in the request."""

    path = ""

    def inside(self, name: str) -> _WrongValueError:
        """The same of a value that is in the field or the place of this name."""
        self.path = f"{name}{'' if self.path[:1] in ('', '[') else '.'}{self.path}"
        return self


_Decoder = Callable[[Any], Any]
"""Decodes the value of a field. Raises _WrongValueError."""

_PLAIN: dict[Any, tuple[tuple[type, ...], str]] = {
    str: ((str,), "a text"),
    int: ((int,), "a whole number"),
    float: ((float, int), "a number"),
    bool: ((bool,), "true or false"),
}


@functools.cache
def _decoder(hint: Any) -> _Decoder:
    """That of a field with this annotation."""
    if hasattr(hint, "_fields"):
        return _record(hint)
    kinds = get_args(hint)
    if isinstance(hint, types.UnionType):  # with None, which stands for the default
        decoder = _decoder(kinds[0])
        return lambda value: None if value == {} else decoder(value)
    if get_origin(hint) is tuple:
        return _sequence(kinds)
    if get_origin(hint) is Literal:
        return _checked(lambda value: value in kinds, " or ".join(kinds))
    exact, name = _PLAIN.get(hint, ((dict,), "an object"))
    return _checked(lambda value: type(value) in exact, name)  # true is no number


def _checked(fits: Callable[[Any], bool], name: str) -> _Decoder:
    def decode(value: Any) -> Any:
        if not fits(value):
            raise _WrongValueError(f"is {value!r:.80} and not {name}")
        return value

    return decode


def _sequence(kinds: Sequence[Any]) -> _Decoder:
    """kinds: those of a tuple, `X, ...` for any number of X."""
    many = kinds[1:] == (...,)
    decoders = [_decoder(kinds[0])] if many else list(map(_decoder, kinds))

    def decode(value: Any) -> Any:
        if not isinstance(value, list | tuple) or not (many or len(value) == len(kinds)):
            raise _WrongValueError(f"is {value!r:.80} and not a list{'' if many else f' of {len(kinds)}'}")
        found: list[Any] = []
        try:
            for decoder, one in zip(decoders * len(value) if many else decoders, value, strict=True):
                found.append(decoder(one))
        except _WrongValueError as error:
            raise error.inside(f"[{len(found)}]") from None
        return tuple(found)

    return decode


def _record(kind: Any) -> _Decoder:
    """A record that checks more than types has a `from_json` of its own."""
    hints = typing.get_type_hints(kind, localns=vars(typing))
    fields = [(name, _PLAIN.get(hints[name], ((), ""))[0], _decoder(hints[name])) for name in kind._fields]
    defaults, own = kind._field_defaults, getattr(kind, "from_json", None)

    def decode(data: Any) -> Any:
        if not isinstance(data, dict):
            raise _WrongValueError(f"is {data!r:.80} and not an object")
        if own is not None:
            return own(data)
        values = []
        for name, plain, decoder in fields:
            value = data.get(name)
            if value is None and name in defaults:
                value = defaults[name]
            elif value is None:
                raise _WrongValueError("is missing").inside(name)
            elif type(value) not in plain:  # most are, and need no call
                try:
                    value = decoder(value)
                except _WrongValueError as error:
                    raise error.inside(name) from None
            values.append(value)
        return kind(*values)

    return decode
