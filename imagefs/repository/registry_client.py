"""HTTP as registries speak it (OCI distribution): credentials, tokens, redirects, ranges and uploads.

The first request goes without credentials. A registry that answers 401 names how it wants them: Basic, or a token of a
service that takes them. Tokens end; whenever a request is refused so, credentials are looked for anew and the request
is sent once more. Blobs often lie elsewhere: a GET is then sent on, never with our credentials to another host, never
to anything but http and https, and not from https to plain http. Plain http is spoken only where that was asked for.

One call sends a request once, but for a connection that breaks before the answer begins and for refused credentials.
A call that may succeed later raises Transient; callers pause and try again, as with all stores.
"""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import re
import ssl
import threading
from collections.abc import Iterator, Mapping
from email.utils import parsedate_to_datetime
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote, urlencode, urljoin

import httpx

from imagefs.repository.registry_credentials import FoundCredentials, find_credentials
from stripefs import __version__
from stripefs.errors import (
    ConfigError,
    HostFailed,
    NotFound,
    PermissionDenied,
    ServiceDown,
    StoreError,
    Unsupported,
)
from stripefs.store.http_environment import is_about_certificates, trusted_certificates

__all__ = ["DOCUMENT_LIMIT", "RegistryAccess", "RegistryClient", "receive"]

for _name in ("httpx", "httpcore"):
    # They log every request, with the secrets that a redirect's target may carry.
    logging.getLogger(_name).setLevel(logging.WARNING)

DOCUMENT_LIMIT = 4 << 20
"""Bytes of a manifest, as registries accept them; also of a page of a list."""

_ANSWER_LIMIT = 1 << 20  # bytes of what a token service answers, or of an error
_REDIRECTS = 5
_STEP = 1 << 20
_WRITE_TIMEOUT = 120.0
"""Seconds for a registry to answer an upload: it may copy all of it to another service before."""

_IDLE_CONNECTIONS, _IDLE_SECONDS = 64, 15.0
_BUSY = frozenset((408, 425, 429, 500, 502, 503, 504))
_LOST = (httpx.ReadError, httpx.WriteError, httpx.CloseError, httpx.RemoteProtocolError)
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')
_CERTIFICATES = ("/etc/containers/certs.d", "/etc/docker/certs.d")
_SCOPE = re.compile(r"repository:([^\s:]+):([a-z,*]+)")


class RegistryAccess(NamedTuple):
    """Access to a registry. schemes are tried in this order, and the first that works stays.

    authfile: the only file of credentials, "" for the usual ones. ca_file: certificates to trust besides. verify: False
    takes any certificate. timeout: seconds without a byte. known: USER:PASSWORD in base64, "" for those of files.
    """

    authfile: str = ""
    ca_file: str = ""
    schemes: tuple[str, ...] = ("https",)
    verify: bool = True
    timeout: float = 5.0
    known: str = ""


class RegistryClient:
    """The repository `name` at `host`. Nothing is asked before the first call. For many threads. Raises ConfigError."""

    def __init__(self, host: str, name: str, access: RegistryAccess) -> None:
        self.host, self.name = host, name
        self._access = access
        self._schemes = list(access.schemes)
        self._lock = threading.Lock()
        self._authorization = ""
        self._scopes: dict[str, set[str]] = {name: {"pull"}}
        try:
            self._client = httpx.Client(
                headers={"User-Agent": f"imagefs/{__version__}", "Accept-Encoding": "identity"},
                follow_redirects=False,
                timeout=httpx.Timeout(access.timeout, pool=None),
                verify=_certificates(host, access.ca_file) if access.verify else _any_certificate(),
                limits=httpx.Limits(
                    max_connections=None, max_keepalive_connections=_IDLE_CONNECTIONS, keepalive_expiry=_IDLE_SECONDS
                ),
            )
            self._places = {httpx.URL(f"{scheme}://{host}/").netloc for scheme in access.schemes}
        except (ImportError, ValueError, httpx.InvalidURL) as error:
            raise ConfigError(f"the registry {host} cannot be reached so: {error}") from error

    def close(self) -> None:
        self._client.close()

    # -- requests ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def answer(
        self,
        method: str,
        path: str,
        *,
        headers: Mapping[str, str] | None = None,
        content: bytes | None = None,
    ) -> Iterator[httpx.Response]:
        """The answer to a request, its body not yet received.

        path: below /v2/NAME, or a whole URL. Raises NotFound, PermissionDenied, Unsupported for 405, Transient where
        another try may help, StoreError.
        """
        with _failures(self.host), contextlib.closing(self._send(method, path, headers or {}, content)) as response:
            if response.is_success:
                if (coded := response.headers.get("content-encoding", "identity")).lower() != "identity":
                    raise Unsupported(f"{self.host} answers only {coded} encoded")
                yield response
                return
            raise self._refusal(response)

    def document(self, path: str, accept: str) -> tuple[bytes, httpx.Headers]:
        """A document of at most DOCUMENT_LIMIT bytes and its headers. Raises as `answer` does, StoreError for a longer
        one."""
        with self.answer("GET", path, headers={"Accept": accept}) as response:
            return receive(response, DOCUMENT_LIMIT, f"{self.host}{path}"), response.headers

    def length(self, digest: str) -> int:
        """Bytes of a blob. Raises as `answer` does."""
        with self.answer("HEAD", f"/blobs/{digest}") as response:
            length = response.headers.get("content-length", "")
            if not length.isascii() or not length.isdigit():
                raise Unsupported(f"{self.host} does not tell the length of {digest}")
            return int(length)

    def mount(self, digest: str, name: str) -> bool:
        """Link a blob that the repository `name` of this registry has; False where that is refused. Raises as `answer`
        does."""
        with self._lock:
            if name not in self._scopes:
                self._scopes[name] = {"pull"}
                if self._authorization.startswith("Bearer"):
                    self._authorization = ""  # the next token is for both repositories
        query = urlencode({"mount": digest, "from": name})
        with self.answer("POST", f"/blobs/uploads/?{query}", content=b"") as response:
            if response.status_code == 201:
                return True
            place = urljoin(str(response.url), response.headers.get("location", ""))
        with contextlib.suppress(StoreError), self.answer("DELETE", place):
            pass  # it has begun an upload instead
        return False

    def upload(self, digest: str, data: bytes) -> None:
        """Store a blob. Raises as `answer` does."""
        with self.answer("POST", "/blobs/uploads/", content=b"") as response:
            place = urljoin(str(response.url), response.headers.get("location", ""))
        place += ("&" if "?" in place else "?") + urlencode({"digest": digest})
        with self.answer("PUT", place, headers={"Content-Type": "application/octet-stream"}, content=data):
            pass

    def begin_upload(self) -> float | None:
        """Begin an upload and take it back; the registry's clock in seconds since 1970, None where it tells none.

        Raises as `answer` does.
        """
        with self.answer("POST", "/blobs/uploads/", content=b"") as response:
            place = urljoin(str(response.url), response.headers.get("location", ""))
            told = response.headers.get("date", "")
        with contextlib.suppress(StoreError), self.answer("DELETE", place):
            pass  # a registry that cannot do this forgets the upload by itself
        try:
            return parsedate_to_datetime(told).timestamp()
        except ValueError:
            return None

    def credentials(self) -> FoundCredentials:
        """Credentials for the repository, and where they are; those of the URL are in no file."""
        if self._access.known:
            return FoundCredentials(self._access.known, "the URL")
        return find_credentials(self._access.authfile, self.host, self.name)

    def is_elsewhere(self, response: httpx.Response) -> bool:
        """Tells whether an answer came from another host than the registry's."""
        return response.url.netloc not in self._places

    # -- one request ---------------------------------------------------------------------------------------------

    def _send(self, method: str, path: str, headers: Mapping[str, str], content: bytes | None) -> httpx.Response:
        for _ in range(3):
            used = self._authorization
            response = self._follow(method, path, headers, content, used)
            if response.status_code != 401 or self.is_elsewhere(response):
                return response
            challenge = response.headers.get("www-authenticate", "")
            _drop(response)
            if not self._authorize(challenge, used):
                break
        raise PermissionDenied(
            f"{self.host} does not let us {'read' if method in ('GET', 'HEAD') else 'write'} {self.name}",
            hint="`docker login`, `podman login` or `skopeo login` stores credentials",
        )

    def _follow(
        self, method: str, path: str, headers: Mapping[str, str], content: bytes | None, authorization: str
    ) -> httpx.Response:
        response = self._first(method, path, headers, content, authorization)
        if method not in ("GET", "HEAD"):
            return response
        for _ in range(_REDIRECTS):
            if response.next_request is None:
                return response
            here, there = response.url, response.next_request.url
            if there.scheme not in ("http", "https") or (there.scheme == "http" and here.scheme == "https"):
                _drop(response)
                raise StoreError(f"{self.host} sends us to {there.scheme}://{there.host}, where we do not go")
            following = response.next_request
            _drop(response)
            response = self._client.send(following, stream=True)
        _drop(response)
        raise StoreError(f"{self.host} sends us from one place to the next and never answers")

    def _first(
        self, method: str, path: str, headers: Mapping[str, str], content: bytes | None, authorization: str
    ) -> httpx.Response:
        own = path.startswith("/")
        for scheme in list(self._schemes) if own else [""]:
            url = httpx.URL(f"{scheme}://{self.host}/v2/{quote(self.name)}{path}" if own else path)
            if not own and url.scheme != "https" and url.scheme not in self._schemes:
                raise StoreError(f"{self.host} sends us to {url.scheme}://{url.host}, where we do not go")
            wanted = dict(headers)
            if authorization and url.netloc in self._places:
                wanted["Authorization"] = authorization
            timeout = httpx.Timeout(self._access.timeout, pool=None)
            if method in ("POST", "PUT", "DELETE"):
                timeout = httpx.Timeout(self._access.timeout, read=_WRITE_TIMEOUT, pool=None)
            request = self._client.build_request(method, url, headers=wanted, content=content, timeout=timeout)
            try:
                try:
                    response = self._client.send(request, stream=True)
                except _LOST:
                    response = self._client.send(request, stream=True)  # an idle connection that was closed meanwhile
            except httpx.TransportError as error:
                if own and scheme != self._schemes[-1] and _is_about_tls(error):
                    continue
                raise
            if own:
                self._schemes = [scheme]
            return response
        raise StoreError(f"{self.host} speaks neither of {', '.join(self._schemes)}")

    # -- credentials ---------------------------------------------------------------------------------------------

    def _authorize(self, challenge: str, used: str) -> bool:
        """Do as the registry asks; True where there is something else than `used` to try."""
        with self._lock:
            if self._authorization != used:
                return True  # another thread did it
            known = self.credentials().known
            kind, _, rest = challenge.partition(" ")
            if kind.lower() == "basic":
                wanted = f"Basic {known}" if known else ""
            elif kind.lower() == "bearer":
                wanted = self._token(dict(_PARAMETER.findall(rest)), known)
            else:
                wanted = ""
            self._authorization = wanted or self._authorization
            return wanted not in ("", used)

    def _token(self, parameters: Mapping[str, str], known: str) -> str:
        for name, actions in _SCOPE.findall(parameters.get("scope", "")):
            self._scopes.setdefault(name, set()).update(actions.split(","))
        realm = parameters.get("realm", "")
        if not realm.startswith(tuple(f"{scheme}://" for scheme in self._schemes)):
            raise PermissionDenied(f"{self.host} names no token service that may be asked")
        query = [("service", parameters.get("service", ""))]
        query += [("scope", f"repository:{name}:{','.join(sorted(of))}") for name, of in self._scopes.items()]
        url = f"{realm}{'&' if '?' in realm else '?'}{urlencode(query)}"
        headers = {"Authorization": f"Basic {known}"} if known else {}
        with contextlib.closing(
            self._client.send(self._client.build_request("GET", url, headers=headers), stream=True)
        ) as response:
            if response.status_code in _BUSY:
                raise ServiceDown(f"the token service of {self.host} answered {response.status_code}")
            if not response.is_success:
                raise PermissionDenied(
                    f"the token service of {self.host} answered {response.status_code}",
                    hint="`docker login`, `podman login` or `skopeo login` stores credentials",
                )
            data = receive(response, _ANSWER_LIMIT, f"the token service of {self.host}")
        try:
            answer: Any = json.loads(data)
            token = answer.get("token") or answer.get("access_token")
        except (ValueError, RecursionError, AttributeError) as error:
            raise PermissionDenied(f"the token service of {self.host} answered no document") from error
        if not token or not isinstance(token, str):
            raise PermissionDenied(f"the token service of {self.host} gave no token")
        return f"Bearer {token}"

    def _refusal(self, response: httpx.Response) -> StoreError:
        """The error for a response that is not the expected one."""
        code = response.status_code
        said = f"{self.host} answered {code}{_reason(response)}"
        if code in (404, 410):
            return NotFound(said)
        if code in (401, 403, 407):
            return PermissionDenied(said, hint="`docker login`, `podman login` or `skopeo login` stores credentials")
        if code == 405:
            return Unsupported(said)
        return ServiceDown(said) if code in _BUSY else StoreError(said)


def receive(response: httpx.Response, most: int, where: str) -> bytes:
    """The body, of at most `most` bytes. Raises StoreError for a longer one, HostFailed for one that ends early."""
    data = bytearray()
    for piece in response.iter_raw(_STEP):
        if len(data) + len(piece) > most:
            raise StoreError(f"{where} answers more than {most} bytes")
        data += piece
    length = response.headers.get("content-length", "")
    if length.isascii() and length.isdigit() and int(length) != len(data) and response.request.method != "HEAD":
        raise HostFailed(f"{where} answered {len(data)} bytes of {length}")
    return bytes(data)


@contextlib.contextmanager
def _failures(host: str) -> Iterator[None]:
    """Raise what exceptions of httpx mean."""
    try:
        yield
    except httpx.TimeoutException as error:
        raise ServiceDown(f"{host} sends nothing any more") from error
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
        message = f"{host}: {' '.join(str(error).split()) or type(error).__name__}"
        if is_about_certificates(error):
            raise StoreError(message, hint="?ca-file=FILE or SSL_CERT_FILE names the certificates to trust") from error
        if _is_about_tls(error):
            raise StoreError(message, hint="?scheme=http, or --plain-http of convert, speaks plain http") from error
        if isinstance(error, (httpx.NetworkError, httpx.ProtocolError, httpx.ProxyError)):
            raise ServiceDown(message) from error
        raise StoreError(message) from error


def _is_about_tls(error: BaseException | None) -> bool:
    """Tells whether the other side does not speak TLS, or not as we want it."""
    while error is not None:
        if isinstance(error, ssl.SSLError):
            return True
        error = error.__cause__ or error.__context__
    return False


def _drop(response: httpx.Response) -> None:
    """End an answer that is not wanted; one with a short body leaves its connection to the next request."""
    length = response.headers.get("content-length", "")
    with contextlib.suppress(httpx.HTTPError):
        if length.isascii() and length.isdigit() and int(length) <= 1 << 16:
            for _ in response.iter_raw():
                pass
    response.close()


def _reason(response: httpx.Response) -> str:
    """The registry's explanation of an error, for people; "" for none."""
    try:
        error = json.loads(receive(response, _ANSWER_LIMIT, "an error"))["errors"][0]
        said = " ".join(str(error.get("message") or error.get("code") or "").split())
    except (StoreError, httpx.HTTPError, ValueError, RecursionError, LookupError, TypeError, AttributeError):
        return ""
    return f": {''.join(one for one in said if one.isprintable())[:200]}" if said else ""


def _certificates(host: str, ca_file: str) -> ssl.SSLContext:
    """The TLS context for a host: trusts the system's certificates and those that were named for the host."""
    folders = [Path(base, host) for base in _CERTIFICATES]
    files = [ca_file] if ca_file else [str(one) for folder in folders for one in sorted(folder.glob("*.crt"))]
    return _with(tuple((file, os.stat(file).st_mtime_ns if os.path.exists(file) else 0) for file in files))


@functools.lru_cache(maxsize=8)
def _with(files: tuple[tuple[str, int], ...]) -> ssl.SSLContext:
    if not files:
        return trusted_certificates()
    context = httpx.create_ssl_context()
    for file, _ in files:
        try:
            context.load_verify_locations(file)
        except OSError as error:
            raise ConfigError(f"the certificates in {file} cannot be read: {error.strerror or error}") from error
    return context


def _any_certificate() -> ssl.SSLContext:
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    return context
