"""Pulls an image of a registry into an OCI image layout: by skopeo, after large layers were fetched here.

skopeo fetches a blob from its beginning again when a connection drops. So the large ones are fetched before, into the
layout that it then finds them in: each goes on by range where it was broken off, after a pause that doubles, and its
digest is checked over the whole. A fetch fails when nothing came for `io_timeout`. Blobs that a registry refuses to
this module (a mirror that only skopeo knows, a login by browser) are left to skopeo.

A command of skopeo that a network has broken off is run again, with pauses that double; what it has fetched whole
stays. One of which nothing came for `io_timeout` is killed.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import queue
import re
import shutil
import subprocess
import tempfile
import threading
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path
from typing import Any, NamedTuple

import httpx

from imagefs.build.oci import chosen, config_of, layers_of
from imagefs.errors import BuildError, HostileLayer
from imagefs.progress import Progress
from imagefs.reference import Platform
from imagefs.repository.artifact import Descriptor
from imagefs.repository.registry_client import RegistryAccess, RegistryClient
from imagefs.repository.registry_credentials import DOCKER_HUB
from stripefs.errors import StoreError, Transient
from stripefs.retry import Attempts, RetryClock, RetryPolicy, retry

__all__ = ["Blobs", "Registry", "RegistryRefused", "fetch", "repository_of"]

_REAL_CLOCK = RetryClock()
_FIRST_PAUSE, _LONGEST_PAUSE = 0.2, 10.0  # seconds


class Registry(NamedTuple):
    """Access to registries: authfile "" means skopeo's own, and tls_verify False allows plain http too.

    io_timeout: seconds without a byte after which fetching fails.
    """

    authfile: str = ""
    tls_verify: bool = True
    io_timeout: float = 90.0


class RegistryRefused(Exception):
    """The registry does not give it to us as we are."""


class _Passing(BuildError):
    """skopeo failed by something that may be well again soon."""


class Blobs:
    """The blobs of the repository that `docker://REFERENCE` names. Used by several threads."""

    def __init__(self, reference: str, registry: Registry, clock: RetryClock = _REAL_CLOCK) -> None:
        self._registry, self._clock = registry, clock
        host, name = repository_of(reference)
        schemes = ("https",) if registry.tls_verify else ("https", "http")
        access = RegistryAccess(
            registry.authfile, schemes=schemes, verify=registry.tls_verify, timeout=registry.io_timeout
        )
        self._client = RegistryClient(host, name, access)

    def close(self) -> None:
        self._client.close()

    def fetch(self, blob: Descriptor, target: Path, progress: Callable[[int], None]) -> None:
        """Write the blob to the new file `target`, which is there once it is whole.

        Raises RegistryRefused, BuildError where nothing comes any more, HostileLayer for other bytes than its digest
        says, and OSError for the disk.
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
        digest, done = hashlib.sha256(), 0
        silence = RetryPolicy(
            self._registry.io_timeout, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE, errors=(Transient, httpx.HTTPError)
        )
        attempts = Attempts(silence, self._clock.now())
        while True:
            error: Exception
            try:
                headers = {"Range": f"bytes={done}-"} if done else {}
                with self._client.answer("GET", f"/blobs/{blob.digest}", headers=headers) as response:
                    if done and response.status_code != 206:  # it knows no ranges
                        file.seek(0)
                        file.truncate()
                        progress(-done)
                        digest, done = hashlib.sha256(), 0
                    for data in response.iter_raw():
                        data = data[: blob.size - done]
                        file.write(data)
                        digest.update(data)
                        done += len(data)
                        progress(len(data))
                        attempts.restart(self._clock.now())
                        if done == blob.size:
                            break
                if done == blob.size:
                    return digest.hexdigest()
                error = Transient("the connection ended early")
            except (Transient, httpx.HTTPError) as met:
                error = met
            except StoreError as met:
                raise RegistryRefused(met.message) from met
            pause = attempts.failed(error, self._clock.now())
            if pause is None:
                raise BuildError(
                    f"{blob.digest} cannot be fetched: {self._client.host} sent nothing for"
                    f" {self._registry.io_timeout:g} s ({error})",
                    hint="nothing was published; --io-timeout waits longer",
                )
            self._clock.sleep(pause)


def repository_of(reference: str) -> tuple[str, str]:
    """Host and name of `docker://REFERENCE`."""
    name = reference.removeprefix("docker://").partition("@")[0]
    host, slash, rest = name.partition("/")
    if not slash or not ("." in host or ":" in host or host == "localhost"):
        host, rest = "docker.io", name if slash else f"library/{name}"
    head, slash, last = rest.rpartition("/")
    return DOCKER_HUB if host == "docker.io" else host, f"{head}{slash}{last.partition(':')[0]}"


_log = logging.getLogger(__name__)
_LOOK = 0.2  # seconds between two looks at how much has arrived
_SKOPEO_RETRIES = RetryPolicy(tries=5, first=_FIRST_PAUSE, longest=_LONGEST_PAUSE, errors=(_Passing,))
_LARGE = 1 << 20  # bytes of a layer that is worth a request of its own
_AT_ONCE = 4
_PASSING = re.compile(
    r"EOF|connection (?:reset|refused)|broken pipe|timeout|timed out|unreachable|status(?: code)?:? (?:429|50[0234])"
)
"""Messages of skopeo about networks and servers that may be well again soon."""


def fetch(
    reference: str,
    into: Path,
    platform: Platform,
    registry: Registry,
    progress: Progress,
    clock: RetryClock = _REAL_CLOCK,
    *,
    lowest: int = 0,
) -> str:
    """Copy the image `docker://REFERENCE` for that platform into a new layout; the variant that an index names.

    lowest: so many of the lowest layers alone, 0 for all. Raises BuildError. The messages of skopeo go into the error;
    a process that is interrupted takes it along.
    """
    program = shutil.which("skopeo")
    if program is None:
        raise BuildError("skopeo, which fetches docker:// images, is not installed", hint="apt-get install skopeo")
    progress.stage("fetching")
    skopeo = _Skopeo(program, reference, into, platform, registry, progress, clock)
    blobs = into / "blobs/sha256"
    blobs.mkdir(parents=True)
    manifest, variant = skopeo.manifest()
    document = json.loads(manifest)
    with closing(Blobs(reference, registry, clock)) as source:
        if not lowest:
            large = [layer for layer in layers_of(document) if layer.size >= _LARGE]
            _fetch_ahead(source, large, blobs, progress)
        elif refused := _fetch_ahead(source, [config_of(document), *layers_of(document)[:lowest]], blobs, progress):
            raise BuildError(f"{reference} cannot be fetched: {refused}")
    if lowest:
        digest = hashlib.sha256(manifest).hexdigest()
        (blobs / digest).write_bytes(manifest)
        entry = {"mediaType": str(document.get("mediaType", "")), "digest": f"sha256:{digest}", "size": len(manifest)}
        (into / "index.json").write_text(json.dumps({"schemaVersion": 2, "manifests": [entry]}))
        (into / "oci-layout").write_text(json.dumps({"imageLayoutVersion": "1.0.0"}))
        return variant
    skopeo.copy()
    return variant


class _Skopeo:
    """Commands of skopeo on one image. Raises BuildError."""

    def __init__(
        self,
        program: str,
        reference: str,
        into: Path,
        platform: Platform,
        registry: Registry,
        progress: Progress,
        clock: RetryClock,
    ) -> None:
        self._reference, self._into, self._platform = reference, into, platform
        self._registry, self._progress, self._clock = registry, progress, clock
        self._command = [program, f"--tmpdir={into.parent}", f"--override-os={platform.system}"]
        self._command.append(f"--override-arch={platform.architecture}")
        if platform.variant:
            self._command.append(f"--override-variant={platform.variant}")

    def manifest(self) -> tuple[bytes, str]:
        """The manifest of the image for the platform, and the variant that an index names."""
        found, reference, variant = b"", self._reference, ""
        for _ in range(4):  # an index may hold indexes, but not for ever
            found = self._run(["inspect", "--raw", *self._access(""), reference])
            digest, named = chosen(json.loads(found), self._platform)
            if not digest:
                break
            variant = named or variant
            head, slash, last = reference.partition("@")[0].rpartition("/")
            reference = f"{head}{slash}{last.partition(':')[0]}@{digest}"
        return found, variant

    def copy(self) -> None:
        self._run(["copy", "--quiet", *self._access("src-"), self._reference, f"oci:{self._into}"])

    def _access(self, prefix: str) -> list[str]:
        found = [f"--{prefix}tls-verify={'true' if self._registry.tls_verify else 'false'}"]
        return [*found, f"--{prefix}authfile={self._registry.authfile}"] if self._registry.authfile else found

    def _run(self, arguments: list[str]) -> bytes:
        """The output of it."""
        return retry(lambda: self._run_once(arguments), _SKOPEO_RETRIES, self._clock)

    def _run_once(self, arguments: list[str]) -> bytes:
        with tempfile.TemporaryFile() as out, tempfile.TemporaryFile() as said:
            process = subprocess.Popen([*self._command, *arguments], stdin=subprocess.DEVNULL, stdout=out, stderr=said)
            try:
                self._follow(process)
            finally:
                if process.poll() is None:
                    process.kill()
                process.wait()
            out.seek(0)
            said.seek(0)
            if not process.returncode:
                return out.read()
            reason = _reason(said.read())
        failure = _Passing if _PASSING.search(reason) else BuildError
        raise failure(f"{self._reference} cannot be fetched: {reason}")

    def _follow(self, process: subprocess.Popen[bytes]) -> None:
        """Until it ends. Raises BuildError where nothing comes any more."""
        before, last = _bytes_below(self._into), self._clock.now()
        while True:
            with suppress(subprocess.TimeoutExpired):
                process.wait(_LOOK)
            now = _bytes_below(self._into)
            self._progress.advance(now - before)
            if now != before:
                last = self._clock.now()
            before = now
            if process.returncode is not None:
                return
            if self._clock.now() - last >= self._registry.io_timeout:
                raise BuildError(
                    f"{self._reference} cannot be fetched: nothing came for {self._registry.io_timeout:g} s",
                    hint="nothing was published; --io-timeout waits longer",
                )


def _fetch_ahead(blobs: Blobs, layers: list[Descriptor], folder: Path, progress: Progress) -> str:
    """Fetch these layers, several at once; why the registry refuses us the rest, which is left to skopeo.

    Raises StripefsError.
    """
    waiting: queue.SimpleQueue[Descriptor] = queue.SimpleQueue()
    ended: queue.SimpleQueue[BaseException | None] = queue.SimpleQueue()
    refused = ""
    for layer in {layer.digest: layer for layer in layers}.values():
        waiting.put(layer)

    def work() -> None:
        try:
            while True:
                layer = waiting.get_nowait()
                blobs.fetch(layer, folder / layer.digest.partition(":")[2], progress.advance)
        except queue.Empty:
            ended.put(None)
        except RegistryRefused as error:
            _log.info("skopeo fetches layers, and begins them anew when a connection drops: %s", error)
            ended.put(error)
        except BaseException as error:  # noqa: BLE001  raised again where it is waited for
            ended.put(error)

    count = min(_AT_ONCE, waiting.qsize())
    for _ in range(count):  # they do not outlive an interrupted program
        threading.Thread(target=work, daemon=True).start()
    for _ in range(count):
        error = ended.get()
        if isinstance(error, RegistryRefused):
            refused = str(error)
            continue
        if isinstance(error, OSError):
            raise BuildError(f"a layer cannot be written to {folder}: {error.strerror}") from error
        if error is not None:
            raise error
    return refused


def _bytes_below(folder: Path) -> int:
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # renamed meanwhile
                total += os.lstat(os.path.join(path, name)).st_size
    return total


def _reason(output: bytes) -> str:
    """The message in the last line of a log like skopeo's."""
    lines = output.decode("utf-8", "replace").strip().splitlines() or ["skopeo said nothing"]
    message = lines[-1].partition('msg="')[2].rstrip('"') or lines[-1]
    return message.replace('\\"', '"')
