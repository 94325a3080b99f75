"""From a store's URL to the store: `[WRAPPER+…]SCHEME://AUTHORITY/PATH[?PARAMETER=VALUE&…]`, or an absolute path.

    /data/checkpoints                      a local directory, taken letter by letter
    file:///data/check%20points            the same as a URL: %XX is a byte
    hdfs://namenode:8020/checkpoints       HDFS
    s3://bucket/prefix?region=…            S3 and what speaks its protocol; gs://bucket/prefix likewise
    https://host/directory                 files of a web server, each by its name
    throttled+file:///data?rate=40MB/s     a wrapper around any of these
    faulty+throttled+file:///data?throttled.seed=1&faulty.seed=2

The leftmost wrapper is the outermost. A parameter that several layers know is given as LAYER.PARAMETER. A client
library is imported when a URL needs it, not before; so are the wrappers, which are in `stripefs.testing`.
"""

from __future__ import annotations

import importlib
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote_from_bytes, unquote_to_bytes

from stripefs.errors import ConfigError
from stripefs.settings import StoreSettings, redact
from stripefs.store.base import Store
from stripefs.store.local import LocalStore
from stripefs.store.wrapper import Parser, WrappedStore, one_of, switch

__all__ = [
    "SCHEMES",
    "StoreUrl",
    "elsewhere",
    "open_store",
    "parent_and_name",
    "parse_url",
    "prepare",
    "refuse_half_url",
]

_URL = re.compile(
    r"(?P<layers>[A-Za-z][A-Za-z0-9+.-]*)://(?P<authority>[^/?]*)(?P<path>[^?]*)(?:\?(?P<query>.*))?", re.DOTALL
)
SCHEMES: dict[str, Mapping[str, Parser]] = {
    "file": {},
    "hdfs": {},
    "s3": {"endpoint-override": str, "region": str, "scheme": one_of("http", "https"), "anonymous": switch},
    "gs": {"endpoint-override": str, "scheme": one_of("http", "https"), "anonymous": switch},
    "http": {},
    "https": {},
}
"""The parameters that each scheme knows beside its wrappers'."""


@dataclass(frozen=True, slots=True)
class StoreUrl:
    """A URL in parts. wrappers from the outermost in; `inner` is the URL without wrappers and parameters."""

    wrappers: tuple[str, ...]
    scheme: str
    authority: str
    path: bytes
    inner: str
    parameters: Mapping[str, str]


def open_store(settings: StoreSettings, *, make: bool = False) -> Store:
    """The store at `settings.url`, connected. Raises ConfigError for a URL that means nothing, and StoreErrors.

    With `make` its root is made where nothing is there yet.
    """
    url = parse_url(settings.url)
    wrappers = {name: _wrappers()[name] for name in url.wrappers}
    known = {name: kind.PARAMETERS for name, kind in wrappers.items()} | {url.scheme: SCHEMES[url.scheme]}
    values = _assign(url.parameters, known)
    store = _connect(url, settings._replace(url=url.inner), values[url.scheme], make)
    try:
        for name, kind in reversed(wrappers.items()):
            if "host-timeout" in known[name]:
                values[name].setdefault("host_timeout", settings.host_timeout)
            store = kind(store, **values[name])
    except BaseException:
        store.close()
        raise
    store.url = redact(settings.url)
    return store


def prepare(scheme: str) -> None:
    """Load what stores of this scheme need, so that the first one need not wait for it."""
    if scheme in ("http", "https"):
        from stripefs.store import http

        http.prepare()
    elif scheme == "hdfs":
        importlib.import_module("stripefs.store.hdfs")
    elif scheme in ("s3", "gs"):
        importlib.import_module("stripefs.store.object_store")


def parse_url(text: str) -> StoreUrl:
    """`text` in parts, its wrappers and scheme known. Raises ConfigError."""
    if text.startswith("/"):
        return StoreUrl((), "file", "", os.fsencode(text), text, {})
    if "\0" in text or "%00" in text:
        raise ConfigError(f"{redact(text)!r} holds a NUL byte, which no name can")
    match = _URL.fullmatch(text)
    if match is None:
        raise ConfigError(f"{redact(text)!r} is not a store's URL", hint=f"give an absolute path or {_schemes()}")
    *wrappers, scheme = match["layers"].lower().split("+")
    if scheme not in SCHEMES:
        raise ConfigError(f"{redact(text)!r}: unknown scheme {scheme!r}", hint=f"known are {_schemes()}")
    for name in wrappers:
        if name not in _wrappers():
            known = ", ".join(_wrappers())
            raise ConfigError(f"{redact(text)!r}: unknown wrapper {name!r}", hint=f"known are {known}")
    if len(set(wrappers)) != len(wrappers):
        raise ConfigError(f"{redact(text)!r}: a wrapper can be given once")
    return StoreUrl(
        tuple(wrappers),
        scheme,
        match["authority"],
        unquote_to_bytes(match["path"]),
        f"{scheme}://{match['authority']}{match['path']}",
        _parameters(text, match["query"] or ""),
    )


def refuse_half_url(text: str) -> None:
    """Raises ConfigError for `hdfs:/x` and the like, which would be taken for a relative path."""
    layers, colon, rest = text.partition(":")
    *_, scheme = layers.lower().split("+")
    if colon and scheme in SCHEMES and not rest.startswith("//"):
        raise ConfigError(
            f"{redact(text)!r} is no URL: two slashes go behind the colon",
            hint=f"write {layers}://HOST/PATH, or ./{redact(text)} for a local file of that name",
        )


def elsewhere(text: str, place: bytes) -> str:
    """The URL of `place`, an absolute path on the service of the URL `text` (the bucket's name first, where there are
    buckets), reached in the same way. Raises ConfigError."""
    url = parse_url(text)
    if text.startswith("/"):
        return os.fsdecode(place)
    layers, _, rest = text.partition("://")
    authority, path = url.authority, place
    if url.scheme in ("s3", "gs"):
        bucket, _, below = place.lstrip(b"/").partition(b"/")
        authority, path = os.fsdecode(bucket), b"/" + below
    _, mark, query = rest.partition("?")
    return f"{layers}://{authority}{quote_from_bytes(path)}{mark}{query}"


def parent_and_name(url: str) -> tuple[str, bytes]:
    """The URL of the directory around what `url` names, and its path in there; a root has b"/" in itself."""
    place, mark, query = url.partition("?") if "://" in url else (url, "", "")
    head, slashes, tail = place.partition("://") if "://" in place else ("", "", place)
    folder, slash, name = tail.rstrip("/").rpartition("/")
    if not slash or not name:
        return url, b"/"
    return f"{head}{slashes}{folder}/{mark}{query}", b"/" + (unquote_to_bytes(name) if head else os.fsencode(name))


def _wrappers() -> Mapping[str, type[WrappedStore]]:
    from stripefs.testing import WRAPPERS  # only a URL that names one waits for them

    return WRAPPERS


def _parameters(text: str, query: str) -> dict[str, str]:
    try:
        pairs = parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query))
    except ValueError:
        raise ConfigError(f"{redact(text)!r}: what follows ? is not NAME=VALUE&NAME=VALUE") from None
    names = [name for name, _ in pairs]
    for name in names:
        if names.count(name) > 1:
            raise ConfigError(f"{redact(text)!r}: {name} is given twice")
    return dict(pairs)


def _assign(given: Mapping[str, str], known: Mapping[str, Mapping[str, Parser]]) -> dict[str, dict[str, Any]]:
    """Each layer's keyword arguments. `known` holds the parameters of each layer of the URL by name."""
    values: dict[str, dict[str, Any]] = {layer: {} for layer in known}
    for full_name, text in given.items():
        layer, dot, name = full_name.rpartition(".")
        layers = [layer] if dot and layer in known else [each for each in known if full_name in known[each]]
        name = name if dot and layer in known else full_name
        if not layers or name not in known[layers[0]]:
            raise ConfigError(f"unknown parameter {full_name!r} in the store's URL", hint=_known(known))
        if len(layers) > 1:
            meant = " or ".join(f"{each}.{name}" for each in layers)
            raise ConfigError(f"parameter {name!r} could be meant for several layers", hint=f"write {meant}")
        keyword = name.replace("-", "_")
        if keyword in values[layers[0]]:
            raise ConfigError(f"parameter {name!r} of {layers[0]} is given twice")
        try:
            values[layers[0]][keyword] = known[layers[0]][name](text)
        except (ConfigError, ValueError) as error:
            raise ConfigError(f"parameter {name!r} in the store's URL: {error}") from error
    return values


def _known(known: Mapping[str, Mapping[str, Parser]]) -> str:
    parts = [f"{layer} knows {', '.join(names)}" for layer, names in known.items() if names]
    return "; ".join(parts) or f"{next(iter(known))}:// knows none"


def _schemes() -> str:
    return ", ".join(f"{scheme}://" for scheme in SCHEMES)


def _connect(url: StoreUrl, settings: StoreSettings, values: dict[str, Any], make: bool) -> Store:
    """The store without its wrappers. Client libraries are imported here, each only for its own scheme."""
    if url.scheme == "file":
        if url.authority not in ("", "localhost") or not url.path:
            raise ConfigError(f"{url.inner!r} names no local directory", hint="write file:///DIRECTORY")
        return LocalStore(url.path, url.inner, make=make)
    if url.scheme == "hdfs":
        from stripefs.store.hdfs.store import HdfsStore

        return HdfsStore(settings, make=make)
    if url.scheme in ("http", "https"):
        from stripefs.store.http import HttpStore

        return HttpStore(url.scheme, url.authority, url.path, settings)
    from stripefs.store.object_store import open_bucket

    return open_bucket(url.scheme, url.authority, url.path, settings, make=make, **values)
