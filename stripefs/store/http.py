"""Web servers as a store, for reading: `http://` and `https://`.

Every call is one request over a pool of connections that stay open: HEAD for a status, GET with `Range` for bytes.
Redirects are followed, each time anew, since their targets may expire. There is no listing: HTTP knows no directories.
The root is shown as one, and so is a path that the server redirects to itself with a slash at the end.

A version is known by its ETag, else by Last-Modified, else only by its length. With a strong ETag a range is asked for
under `If-Range`, and whatever the answer says of its version is compared with that of the open, so that a handle never
mixes two. Bytes count only from an answer 206 with exactly the range that was asked for. A server without ranges
answers 200 with the whole file; that is taken where the whole was wanted.

One request is sent once, but for a connection that breaks before the answer begins, which is replaced once, at once: a
server may close an idle one while a request is on its way. Proxies and certificates come from the environment
(HTTPS_PROXY, NO_PROXY, SSL_CERT_FILE), names and passwords from the URL (`https://USER:PASSWORD@HOST/`) or from netrc
($NETRC, else ~/.netrc); a redirect to another host is followed without them.
"""

from __future__ import annotations

import contextlib
import email.utils
import logging
import re
import socket
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from urllib.parse import quote

import httpx

from stripefs import __version__
from stripefs.errors import (
    Abandoned,
    ConfigError,
    HostFailed,
    IsADirectory,
    NotFound,
    PermissionDenied,
    ServiceDown,
    StaleVersion,
    StoreError,
    Unsupported,
)
from stripefs.settings import StoreSettings, redact
from stripefs.store.allocator import uninitialised
from stripefs.store.base import Block, Buffer, Capabilities, Handle, Identity, Kind, Status, Store, Watch
from stripefs.store.common import InUse, blocks_by_size, cancellable, check_opened, check_range, exact
from stripefs.store.http_environment import credentials, is_about_certificates, trusted_certificates
from stripefs.units import shown

__all__ = ["HttpHandle", "HttpStore", "prepare"]

for _name in ("httpx", "httpcore"):
    # They log every request, with the secrets that a redirect's target may carry.
    logging.getLogger(_name).setLevel(logging.WARNING)

_IDLE_CONNECTIONS = 64  # kept: one for each thread of the reader, those of cancelled reads included
_IDLE_SECONDS = 15.0  # a server commonly closes them after 5 (Apache), 60 or 75 (nginx)

_CONTENT_RANGE = re.compile(r"bytes (?:(\d+)-(\d+)|\*)/(\d+|\*)")
_VALIDATORS = ("etag", "last-modified")  # the better one first
_BUSY = frozenset((408, 425, 429, 500, 502, 503, 504))  # a server may answer better when it is asked again
_LOST = (httpx.ReadError, httpx.WriteError, httpx.CloseError, httpx.RemoteProtocolError)


class HttpStore(Store):
    """The files below `scheme`://`authority``path`. Nothing is asked until the first call. Raises ConfigError.

    `settings.host_timeout` bounds the connecting and every wait for bytes.
    """

    capabilities = Capabilities(any_names=True, listing=False)

    def __init__(self, scheme: str, authority: str, path: bytes, settings: StoreSettings) -> None:
        userinfo, _, host = authority.rpartition("@")
        self._root = f"{scheme}://{host}{quote(path.rstrip(b'/'))}"
        try:
            named = httpx.URL(self._root).host
        except httpx.InvalidURL as error:
            raise ConfigError(f"{self._root!r} is not a URL: {error}") from None
        if not named:
            raise ConfigError("the URL names no host", hint=f"write {scheme}://HOST/PATH")
        self.url = f"{scheme}://{host}{shown(path)}"
        self._timeout = settings.host_timeout
        try:
            self._client = httpx.Client(
                auth=credentials(userinfo),
                headers={"User-Agent": f"stripefs/{__version__}", "Accept-Encoding": "identity"},
                follow_redirects=True,
                proxy=settings.proxy or None,
                timeout=httpx.Timeout(settings.host_timeout, pool=None),
                verify=trusted_certificates(),
                # The threads of the callers bound the connections; waiting for one would count as a silent server.
                limits=httpx.Limits(
                    max_connections=None, max_keepalive_connections=_IDLE_CONNECTIONS, keepalive_expiry=_IDLE_SECONDS
                ),
            )
        except (ImportError, ValueError, httpx.InvalidURL) as error:
            whose = redact(settings.proxy) if settings.proxy else "that the environment names"
            raise ConfigError(
                f"the proxy {whose} cannot be used: {error}",
                hint="HTTP_PROXY, HTTPS_PROXY and ALL_PROXY take http://HOST:PORT, NO_PROXY the hosts to reach without",
            ) from error
        self._in_use = InUse(self.url, self._client.close)

    def stat(self, path: bytes) -> Status:
        return self._look(path)[0]

    def scandir(self, path: bytes, after: bytes = b"") -> Iterator[Sequence[Status]]:
        raise Unsupported(f"{self.url} cannot list directories: HTTP has no listing")

    def open(self, path: bytes, expect: Identity | None = None) -> HttpHandle:
        status, validators = self._look(path)
        check_opened(status, expect, self.where(path))
        return HttpHandle(self, path, status, validators)

    def open_checked(self, path: bytes, length: int) -> HttpHandle:
        """Asks nothing: each range is a request of its own, and its reader knows which bytes are right."""
        return HttpHandle(self, path, Status(path.rpartition(b"/")[2], Kind.FILE, length=length, mode=0o444), {})

    def get(self, path: bytes) -> Buffer:
        return self._whole(path, sys.maxsize)

    def read_small(self, path: bytes, length: int) -> Buffer:
        return self._whole(path, length)

    def _whole(self, path: bytes, most: int) -> Buffer:
        """All of a file. Raises StaleVersion, before its bytes come, where it has more than `most`."""
        where, name = self.where(path), path.rpartition(b"/")[2]
        try:
            with self.answer("GET", path, {}) as response:
                if path == b"/" or self._is_directory(response, path):
                    raise IsADirectory(f"{where} is a directory")
                if response.status_code != 200:
                    raise self.refusal(response, path, ServiceDown)
                status, _ = self._file(name, path, response.headers)
                if status.length > most:
                    raise StaleVersion(f"{where} has {status.length} bytes, more than the {most} that were expected")
                return _receive(response, status.length, None, where)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self.failure(error, path, ServiceDown) from error

    def describe(self) -> dict[str, str]:
        return {
            "transport": f"httpx {httpx.__version__}",
            "versions": "told apart by ETag or Last-Modified, as far as the server sends them",
        }

    def close(self) -> None:
        self._in_use.close()

    def where(self, path: bytes) -> str:
        """`path` for messages."""
        return self.url.rstrip("/") + shown(path)

    @contextlib.contextmanager
    def answer(self, method: str, path: bytes, headers: Mapping[str, str]) -> Iterator[httpx.Response]:
        """The answer, its body not yet received; the rest of it at the end goes with its connection.

        Raises StoreError when the store is closed, and exceptions of httpx.
        """
        with self._in_use.reading(), contextlib.closing(self._send(method, path, headers)) as response:
            yield response

    def failure(self, error: Exception, path: bytes, kind: type[HostFailed | ServiceDown]) -> StoreError:
        """The error for an exception of httpx; `kind` where another try may succeed."""
        where = self.where(path)
        if isinstance(error, httpx.TimeoutException):
            message = f"{where}: no answer within {self._timeout:g} s"
            return HostFailed(message, stalled=True) if kind is HostFailed else kind(message)
        message = f"{where}: {' '.join(str(error).split()) or type(error).__name__}"
        if is_about_certificates(error):
            return StoreError(message, hint="SSL_CERT_FILE names the certificates that are trusted")
        if isinstance(error, (httpx.NetworkError, httpx.RemoteProtocolError, httpx.ProxyError)):
            return kind(message)
        return StoreError(message)

    def refusal(self, response: httpx.Response, path: bytes, kind: type[HostFailed | ServiceDown]) -> StoreError:
        """The error for an answer that is no success; `kind` where another try may succeed."""
        where, code = self.where(path), response.status_code
        said = f"{where}: the server answered {code} {response.reason_phrase}".rstrip()
        if code in (404, 410):
            return NotFound(f"{where} does not exist")
        if code == 401:
            return PermissionDenied(said, hint="~/.netrc may hold a name and password for this host")
        if code in (403, 407):
            return PermissionDenied(said)
        return kind(said) if code in _BUSY else StoreError(said)

    def _look(self, path: bytes) -> tuple[Status, dict[str, str]]:
        """The status of `path`, and what the server said of its version."""
        if path == b"/":
            return Status(b"", Kind.DIRECTORY, mode=0o555), {}
        name = path.rpartition(b"/")[2]
        try:
            with self.answer("HEAD", path, {}) as response:
                response.read()  # nothing, but only what was read to its end leaves its connection to the next
                if self._is_directory(response, path):
                    return Status(name, Kind.DIRECTORY, mode=0o555), {}
                if response.status_code != 200:
                    raise self.refusal(response, path, ServiceDown)
                return self._file(name, path, response.headers)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise self.failure(error, path, ServiceDown) from error

    def _file(self, name: bytes, path: bytes, headers: httpx.Headers) -> tuple[Status, dict[str, str]]:
        length = _number(headers.get("content-length"))
        if length is None:
            raise Unsupported(f"{self.where(path)}: the server does not tell its length")
        _check_plain(headers, self.where(path))
        validators = {key: headers[key] for key in _VALIDATORS if headers.get(key)}
        status = Status(
            name,
            Kind.FILE,
            length=length,
            mtime_ns=_time_ns(validators.get("last-modified")),
            mode=0o444,
            file_id=validators.get("etag", ""),
        )
        return status, validators

    def _is_directory(self, response: httpx.Response, path: bytes) -> bool:
        """True if the server redirected to the same path with a slash at the end, whatever it answers there."""
        own = httpx.URL(self._root + quote(path)).path
        return bool(response.history) and any(hop.url.path == f"{own}/" for hop in (*response.history, response))

    def _send(self, method: str, path: bytes, headers: Mapping[str, str]) -> httpx.Response:
        url = self._root + quote(path)
        try:
            return self._client.send(self._client.build_request(method, url, headers=headers), stream=True)
        except _LOST:
            return self._client.send(self._client.build_request(method, url, headers=headers), stream=True)


def prepare() -> None:
    """Load what the first store and its first request would wait for: httpx imports half of itself then."""
    HttpStore("http", "localhost", b"/", StoreSettings()).close()
    "localhost".encode("idna")  # the codec that looking for a host uses


class HttpHandle(Handle):
    """One version of the file at `path`, as `validators` (of ETag and Last-Modified those that were sent) tell it."""

    def __init__(self, store: HttpStore, path: bytes, status: Status, validators: Mapping[str, str]) -> None:
        self.status = status
        self._store = store
        self._path = path
        self._where = store.where(path)
        self._validators = validators
        tag = validators.get("etag", "")
        # A weak one says too little for a range, and a date may be as young as the answer that bears it (RFC 9110,
        # 13.1.5): those are only compared with what an answer says.
        self._condition = {"If-Range": tag} if tag.startswith('"') else {}
        self._in_use = InUse(self._where, lambda: None)

    def locate(self, offset: int, length: int) -> Sequence[Block]:
        return blocks_by_size(self.status, offset, length)

    def read(self, offset: int, length: int, *, host: str = "", watch: Watch | None = None) -> Buffer:
        check_range(self.status, offset, length)
        with self._in_use.reading():
            if not length:
                return b""
            if watch is not None and watch.cancelled:
                raise Abandoned(f"{self._where}: the read was cancelled before it began")
            headers = {"Range": f"bytes={offset}-{offset + length - 1}", **self._condition}
            try:
                with self._store.answer("GET", self._path, headers) as response:
                    self._check(response, offset, length)
                    return _receive(response, length, watch, self._where)
            except (httpx.HTTPError, httpx.InvalidURL, HostFailed) as error:
                if watch is not None and watch.cancelled:  # a socket that was shut down looks like a broken one
                    raise Abandoned(f"{self._where}: the read was cancelled") from error
                if isinstance(error, HostFailed):
                    raise
                raise self._store.failure(error, self._path, HostFailed) from error

    def close(self) -> None:
        self._in_use.close()

    def _check(self, response: httpx.Response, offset: int, length: int) -> None:
        """Raise unless the body will be these bytes of this version."""
        headers, code = response.headers, response.status_code
        if code == 206:
            start, end, total = _content_range(headers)
            self._check_version(headers, total)
            if (start, end) != (offset, offset + length - 1):
                said = headers.get("content-range", "an unknown range")
                raise HostFailed(f"{self._where}: the server answered {said} where {length} bytes at {offset} were due")
        elif code == 200:
            self._check_version(headers, _number(headers.get("content-length")))
            if length != self.status.length:
                raise Unsupported(
                    f"{self._where}: the server answered the whole file where a part was asked for",
                    hint="it must serve ranges (Accept-Ranges: bytes)",
                )
        elif code == 416:
            self._check_length(_content_range(headers)[2])
            raise StoreError(f"{self._where}: the server refused {length} bytes at {offset} of {self.status.length}")
        else:
            error = self._store.refusal(response, self._path, HostFailed)
            if isinstance(error, NotFound):
                raise StaleVersion(f"{self._where} was deleted")
            raise error

    def _check_version(self, headers: httpx.Headers, total: int | None) -> None:
        """Raise StaleVersion when an answer with bytes is of another version, of `total` bytes where it says so."""
        _check_plain(headers, self._where)
        self._check_length(total)
        for key in _VALIDATORS:
            if key in self._validators and headers.get(key):
                if headers[key] != self._validators[key]:
                    raise self._stale()
                return
        if self._validators and not self._condition:
            raise StoreError(f"{self._where}: the server does not say of which version its answer is")

    def _check_length(self, total: int | None) -> None:
        if total is not None and total != self.status.length:
            raise self._stale()

    def _stale(self) -> StaleVersion:
        return StaleVersion(f"{self._where} was replaced or changed while it was open")


def _receive(response: httpx.Response, length: int, watch: Watch | None, where: str) -> bytearray:
    """The body, which must be of this length. Raises HostFailed."""
    buffer = uninitialised(length)
    received = 0
    cut = _Cut(response)
    with memoryview(buffer) as view, contextlib.closing(cut), cancellable(watch, cut.shut):
        for piece in response.iter_raw():
            end = received + len(piece)
            if end > length:
                raise HostFailed(f"{where}: the server answered more than the {length} bytes asked for")
            view[received:end] = piece
            received = end
            if received == length:
                cut.close()
            if watch is not None:
                watch.progress(received)
        exact(view[:received], length, where=where)
    return buffer


class _Cut:
    """Ends a blocked receive by shutting its socket down; once closed it leaves alone what is then someone else's."""

    def __init__(self, response: httpx.Response) -> None:
        self._lock = threading.Lock()
        self._socket: socket.socket | None = response.extensions["network_stream"].get_extra_info("socket")

    def shut(self) -> None:
        with self._lock:
            if self._socket is not None:
                with contextlib.suppress(OSError):  # it may have ended by itself
                    # Not SSLSocket's own, after which a receive under way would take ciphertext for plain text.
                    socket.socket.shutdown(self._socket, socket.SHUT_RDWR)

    def close(self) -> None:
        """Call this before the connection can go back to the pool."""
        with self._lock:
            self._socket = None


def _check_plain(headers: httpx.Headers, where: str) -> None:
    """Raise Unsupported where bytes come encoded although that was not asked for: lengths and ranges are not theirs."""
    if headers.get("content-encoding", "identity").lower() != "identity":
        raise Unsupported(f"{where}: the server answers only {headers['content-encoding']} encoded")


def _content_range(headers: httpx.Headers) -> tuple[int | None, int | None, int | None]:
    """First and last byte and the length of the whole, each None where the header does not tell it."""
    match = _CONTENT_RANGE.fullmatch(headers.get("content-range", ""))
    if match is None:
        return None, None, None
    return _number(match[1]), _number(match[2]), _number(match[3])


def _number(text: str | None) -> int | None:
    return int(text) if text is not None and text.isascii() and text.isdigit() else None


def _time_ns(date: str | None) -> int:
    """A date of HTTP in nanoseconds since 1970; 0 for what is none."""
    parts = email.utils.parsedate_tz(date or "")
    try:
        return email.utils.mktime_tz(parts) * 1_000_000_000 if parts else 0
    except (ValueError, OverflowError):
        return 0
