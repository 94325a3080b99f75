"""Blobs of a registry, fetched so that a connection that drops costs what was under way and no more.

skopeo, which copies the image in the end, fetches a blob from its beginning again when a connection drops. So the
large ones are fetched here before, into the image layout that it then finds them in: each goes on by range where it was
broken off, after a pause that doubles, and its digest is checked over the whole. It fails when nothing came for
`io_timeout`. Credentials are those of the files of podman, skopeo and Docker, and of the helpers that these name. What
this module is refused (a mirror that only skopeo knows, a login by browser) is left to skopeo.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import logging
import os
import re
import shutil
import ssl
import subprocess
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from imagefs.build.oci import Descriptor
from imagefs.errors import BuildError, HostileLayer

__all__ = ["REAL_CLOCK", "Blobs", "Clock", "Refused", "Registry", "backoff"]

_log = logging.getLogger(__name__)

_STEP = 1 << 18
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0
_AGAIN = (408, 425, 429, 500, 502, 503, 504)
_PARAMETER = re.compile(r'(\w+)="([^"]*)"')
_BROKEN = (http.client.HTTPException, urllib.error.URLError, ConnectionError, TimeoutError, ssl.SSLError)
_DOCKER_HUB = "registry-1.docker.io"

_HELPER = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]*")
_HELPS_WITHIN = 30.0
"""Seconds for a helper to answer: it may ask a service, or a person to unlock something."""


class Registry(NamedTuple):
    """How registries are spoken to: authfile "" means skopeo's own, and tls_verify False allows plain http too.

    io_timeout: seconds without a byte after which fetching fails.
    """

    authfile: str = ""
    tls_verify: bool = True
    io_timeout: float = 90.0


class Clock(NamedTuple):
    """Time in seconds, and how to wait."""

    now: Callable[[], float] = time.monotonic
    sleep: Callable[[float], None] = time.sleep


REAL_CLOCK = Clock()


class Refused(Exception):
    """The registry does not give it to us as we are."""


def backoff(tries: int) -> float:
    """Seconds to wait before the next of these many tries in a row."""
    return float(min(_LONGEST_PAUSE, _FIRST_PAUSE * 2 ** min(tries - 1, 20)))


class Blobs:
    """The blobs of the repository that `docker://REFERENCE` names. Used by several threads."""

    def __init__(self, reference: str, registry: Registry, clock: Clock = REAL_CLOCK) -> None:
        self._registry, self._clock = registry, clock
        self._host, self._name = _repository(reference)
        context = ssl.create_default_context()
        if not registry.tls_verify:
            context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
        self._opener = urllib.request.build_opener(urllib.request.HTTPSHandler(context=context))
        self._schemes = ["https"] if registry.tls_verify else ["https", "http"]
        self._authorization = ""

    def fetch(self, blob: Descriptor, target: Path, progress: Callable[[int], None]) -> None:
        """Write the blob to the new file `target`, which is there once it is whole.

        Raises Refused, BuildError where nothing comes any more, HostileLayer for other bytes than its digest says, and
        OSError for the disk.
        """
        part = target.with_name(f".{target.name}.part")
        try:
            with part.open("xb") as file:
                seen = self._receive(blob, file, progress)
            if f"sha256:{seen}" != blob.digest:
                raise HostileLayer(f"{blob.digest} holds other bytes than its digest says")
            part.rename(target)
        finally:
            part.unlink(missing_ok=True)

    def _receive(self, blob: Descriptor, file: Any, progress: Callable[[int], None]) -> str:
        digest, done, tries = hashlib.sha256(), 0, 0
        last = self._clock.now()
        while True:
            error: Exception
            try:
                with self._open(blob, done) as response:
                    if done and response.status != 206:  # it knows no ranges
                        file.seek(0)
                        file.truncate()
                        progress(-done)
                        digest, done = hashlib.sha256(), 0
                    while done < blob.size and (data := response.read1(min(_STEP, blob.size - done))):
                        file.write(data)
                        digest.update(data)
                        done += len(data)
                        progress(len(data))
                        last, tries = self._clock.now(), 0
                if done == blob.size:
                    return digest.hexdigest()
                error = OSError("the connection ended early")
            except _BROKEN as met:
                error = met
            tries += 1
            pause = backoff(tries)
            if self._clock.now() + pause - last >= self._registry.io_timeout:
                raise BuildError(
                    f"{blob.digest} cannot be fetched: {self._host} sent nothing for {self._registry.io_timeout:g} s"
                    f" ({error})",
                    hint="nothing was published; --io-timeout waits longer",
                )
            self._clock.sleep(pause)

    def _open(self, blob: Descriptor, begin: int) -> http.client.HTTPResponse:
        """Raises Refused, and what urllib raises where another try may help."""
        for _ in range(2):
            used = self._authorization
            try:
                return self._request(f"/v2/{self._name}/blobs/{blob.digest}", begin, used)
            except urllib.error.HTTPError as error:
                with error:
                    if error.code == 401 and self._authorize(error.headers.get("WWW-Authenticate", ""), used):
                        continue
                    if error.code in _AGAIN:
                        raise ConnectionError(f"it answered {error.code}") from error
                    raise Refused(f"{self._host} answered {error.code}") from error
        raise Refused(f"{self._host} takes no credentials")

    def _request(self, path: str, begin: int, authorization: str) -> http.client.HTTPResponse:
        for scheme in list(self._schemes):
            request = urllib.request.Request(f"{scheme}://{self._host}{path}")  # noqa: S310  http, if asked for
            if begin:
                request.add_header("Range", f"bytes={begin}-")
            if authorization:  # not for the host that it may send us to
                request.add_unredirected_header("Authorization", authorization)
            try:
                found = self._opener.open(request, timeout=self._registry.io_timeout)
            except urllib.error.HTTPError:
                self._schemes = [scheme]
                raise
            except urllib.error.URLError as error:
                if isinstance(error.reason, ssl.SSLError) and scheme != self._schemes[-1]:
                    continue
                if isinstance(error.reason, ssl.SSLCertVerificationError):
                    raise Refused(str(error.reason)) from error
                raise
            self._schemes = [scheme]
            return found  # type: ignore[no-any-return]
        raise Refused("there is no scheme left")

    def _authorize(self, challenge: str, used: str) -> bool:
        """Do as the registry asks; True where there is something else than `used` to try."""
        kind, _, rest = challenge.partition(" ")
        known = _credentials(self._registry.authfile, self._host, self._name)
        if kind.lower() == "basic":
            wanted = f"Basic {known}" if known else ""
        elif kind.lower() == "bearer":
            wanted = self._token(dict(_PARAMETER.findall(rest)), known)
        else:
            wanted = ""
        self._authorization = wanted or self._authorization
        return wanted not in ("", used)

    def _token(self, parameters: Mapping[str, str], known: str) -> str:
        """What the token service answers. Raises as `_open` does."""
        query = {"service": parameters.get("service", ""), "scope": f"repository:{self._name}:pull"}
        realm = parameters.get("realm", "")
        if not realm.startswith(tuple(f"{scheme}://" for scheme in self._schemes)):
            raise Refused(f"{self._host} names no token service that may be asked")
        request = urllib.request.Request(f"{realm}?{urllib.parse.urlencode(query)}")  # noqa: S310
        if known:
            request.add_unredirected_header("Authorization", f"Basic {known}")
        try:
            with self._opener.open(request, timeout=self._registry.io_timeout) as response:
                answer = json.loads(response.read(1 << 20))
            token = answer.get("token") or answer.get("access_token")
        except urllib.error.HTTPError as error:
            with error:
                if error.code in _AGAIN:
                    raise ConnectionError(f"its token service answered {error.code}") from error
                raise Refused(f"the token service of {self._host} answered {error.code}") from error
        except (ValueError, AttributeError) as error:
            raise Refused(f"the token service of {self._host} answered no document") from error
        if not token:
            raise Refused(f"the token service of {self._host} gave no token")
        return f"Bearer {token}"


def _repository(reference: str) -> tuple[str, str]:
    """Host and name of `docker://REFERENCE`."""
    name = reference.removeprefix("docker://").partition("@")[0]
    host, slash, rest = name.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost"):
        host, rest = "docker.io", name if slash else f"library/{name}"
    head, slash, last = rest.rpartition("/")
    return _DOCKER_HUB if host == "docker.io" else host, f"{head}{slash}{last.partition(':')[0]}"


def _credentials(authfile: str, host: str, name: str) -> str:
    """USER:PASSWORD in base64, as files of podman, skopeo and Docker have them; "" where none of them does."""
    hosts = [host] if host != _DOCKER_HUB else ["docker.io", "https://index.docker.io/v1/"]
    keys = [f"{hosts[0]}/{name}", *hosts]
    for file in [authfile] if authfile else _auth_files():
        with contextlib.suppress(OSError, ValueError, AttributeError):
            said = json.loads(Path(file).read_bytes())
            auths, helpers = said.get("auths") or {}, said.get("credHelpers") or {}
            found = next((helped for key in keys if key in helpers and (helped := _helped(str(helpers[key]), key))), "")
            found = found or next((auths[key]["auth"] for key in keys if auths.get(key, {}).get("auth")), "")
            if not found and said.get("credsStore"):
                found = _helped(str(said["credsStore"]), hosts[-1])  # as Docker names the hub
            if found:
                base64.b64decode(found, validate=True)
                return str(found)
    return ""


def _helped(helper: str, server: str) -> str:
    """As `_credentials`, from the program docker-credential-HELPER; "" also for the token of a login by browser."""
    program = shutil.which(f"docker-credential-{helper}") if _HELPER.fullmatch(helper) else None
    if program is None:
        return ""
    try:
        done = subprocess.run([program, "get"], input=server.encode(), capture_output=True, timeout=_HELPS_WITHIN)
        answer = json.loads(done.stdout) if not done.returncode else {}
    except (OSError, ValueError, subprocess.SubprocessError) as error:
        _log.warning("%s does not answer for %s: %s", program, server, error)
        return ""
    if not isinstance(answer, dict) or not answer.get("Secret") or answer.get("Username") in ("", None, "<token>"):
        return ""
    return base64.b64encode(f"{answer['Username']}:{answer['Secret']}".encode()).decode()


def _auth_files() -> list[str]:
    if named := os.environ.get("REGISTRY_AUTH_FILE"):
        return [named]
    runtime = os.environ.get("XDG_RUNTIME_DIR") or f"/run/user/{os.getuid()}"
    found = [f"{runtime}/containers/auth.json", f"/run/containers/{os.getuid()}/auth.json"]
    return [*found, os.path.expanduser("~/.config/containers/auth.json"), os.path.expanduser("~/.docker/config.json")]
