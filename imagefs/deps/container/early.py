"""An early start of what a job's container will need: by a hint of the last start like it, the snapshot is attached
while the image is.

    main thread     attach the image      make the key          take the snapshot, if the key is its name
    this thread     hint, lock, attach the snapshot

The main thread does not wait for the thread before its result is needed, and a failure of it is none of the start: it
does without. It also does without a hint that the store has not given by the time that the key is known. The thread has
ended before a container is made, since that takes a fork.

A hint tells what that start came to. It is canonical JSON in a store, `hints/NAME`, beside the snapshots; NAME is the
digest of the request (`hint_name`):

    bootseer   "deps-hint", and `version` 1
    name       NAME
    asked      the digest of what the interpreter of the image was asked, the image's digest included
    told       what it printed
    lock       the name of the lock in the store, "" for none
    snapshot   the name of the snapshot
    digest     SHA-256 of the document without this

A hint is believed no further than to find a snapshot. A snapshot that is attached because of it is used only under the
key that the start makes itself. A key that is made of `told` names a snapshot only where a host that installed printed
the same by the interpreter itself; where it names none, the interpreter is asked before anything else is done. So a
hint that is wrong costs time.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import threading
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from imagefs import containers
from imagefs.daemon.client import Client
from imagefs.daemon.protocol import Attached, Recording
from imagefs.deps.engine import PATIENCE
from imagefs.deps.facts import own_level
from imagefs.deps.key import Request
from imagefs.deps.lock import without_secrets
from imagefs.errors import FormatError
from imagefs.format import is_digest
from imagefs.format.documents import canonical
from stripefs.errors import ConfigError, StripefsError
from stripefs.osutil import signals_for_main
from stripefs.settings import StoreSettings

__all__ = ["EarlyStart", "Hint", "hint_name"]

_NOTES_WITHIN = 5.0
"""Seconds for a store to give a small document of which a start can do without."""


_VERSION = 1


class Hint(NamedTuple):
    """The document, but for its name and what tells that it is whole."""

    asked: str
    told: str
    lock: str
    snapshot: str

    def to_json(self, name: str) -> bytes:
        """The document under this name."""
        document = {"bootseer": "deps-hint", "version": _VERSION, "name": name, **self._asdict()}
        return canonical({**document, "digest": _digest(document)})

    @classmethod
    def from_json(cls, data: bytes | str, name: str) -> Hint:
        """Raises FormatError for what is no document of this name and version."""
        try:
            document = json.loads(data)
            digest = document.pop("digest")
            head = document.pop("bootseer"), document.pop("version"), document.pop("name")
            found = cls(**document)
            whole = digest == _digest({"bootseer": head[0], "version": head[1], "name": head[2], **document})
        except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
            raise FormatError(f"the hint {name[:12]} is damaged") from error
        if not whole or head != ("deps-hint", _VERSION, name):
            raise FormatError(f"the hint {name[:12]} is damaged, of another version, or another one's")
        named = [found.asked, found.snapshot, *([] if found.lock == "" else [found.lock])]
        if not all(isinstance(one, str) and is_digest(one) for one in named) or not isinstance(found.told, str):
            raise FormatError(f"the hint {name[:12]} names or tells nothing")
        return found


class EarlyStart:
    """The early start of one job. name: of its hint. hint: once it was read, None for none. shares: as for
    `Client.attach`. Methods are for the main thread."""

    def __init__(self, client: Client, store: StoreSettings, name: str, *, shares: bool) -> None:
        self.name = name
        self._own = client
        self._client = Client(client.settings, starts=False, waits=_NOTES_WITHIN)  # of the thread alone
        self._store = store
        self._shares = shares
        self._hint: Hint | None = None
        self._lock = b""
        self._attached: Attached | None = None
        self._was_read = threading.Event()
        self._is_late = False  # the main thread does without what is not attached yet
        self._thread: threading.Thread | None = None

    def begin(self, recording: Recording) -> None:
        """Start the thread. recording: that of the image."""
        self._thread = threading.Thread(target=self._run, args=(recording,), name="early start", daemon=True)
        with signals_for_main():
            self._thread.start()

    def hint(self, asked: str) -> Hint | None:
        """The hint, where the interpreter that it tells of was asked the same; waits for it."""
        if self._thread is not None:
            self._was_read.wait()
        return self._hint if self._hint is not None and self._hint.asked == asked else None

    def lock(self, name: str) -> bytes:
        """The document of a lock in the store, nothing where there is none. Raises StripefsError."""
        if self._hint is not None and self._hint.lock == name:
            self.wait()
            if self._lock:
                return self._lock
        return self._own.note(self._store, "locks", name, _NOTES_WITHIN).encode()

    def take(self, asked: str, snapshot: str) -> Attached | None:
        """The snapshot of this name where it was attached for that interpreter, for the caller to let go of; else None,
        and whatever was attached is let go of here, or by `end` where the store has not given the hint yet."""
        if self._thread is not None and not self._was_read.is_set():
            self._is_late = True
            return None
        self.wait()
        found, hint = self._attached, self._hint
        if found is None or hint is None or (hint.asked, hint.snapshot) != (asked, snapshot):
            self.end()
            return None
        self._attached = None
        return found

    def wait(self) -> None:
        """Until the thread has ended."""
        if self._thread is not None:
            self._thread.join()

    def end(self) -> None:
        """Let go of what was attached and not taken. The thread has ended then."""
        self._is_late = True
        self.wait()
        found, self._attached = self._attached, None
        if found is not None:
            with contextlib.suppress(StripefsError):  # a daemon that is gone makes no trace of it either
                self._own.unrecord(found.id, "it was attached early, and is not used")
            containers.release(self._own, found)

    def _run(self, recording: Recording) -> None:
        try:
            self._read()
        except (StripefsError, OSError):
            return  # the start asks for all of it by itself, and says what is wrong
        finally:
            self._was_read.set()
        self._attach(recording)

    def _read(self) -> None:
        if document := self._client.note(self._store, "hints", self.name, _NOTES_WITHIN):
            self._hint = Hint.from_json(document, self.name)

    def _attach(self, recording: Recording) -> None:
        if (hint := self._hint) is None or self._is_late:
            return
        try:
            if hint.lock:
                self._lock = self._client.note(self._store, "locks", hint.lock, _NOTES_WITHIN).encode()
            self._attached = self._client.attach_layer(
                self._store, hint.snapshot, recording, timeout=PATIENCE, shares=self._shares
            )
        except (StripefsError, OSError):
            return  # as above


def hint_name(image: str, request: Request, files: Sequence[str], environ: Mapping[str, str]) -> str:
    """The name of the hint for starts like this one. All of it only tells jobs apart that would overwrite each other's.

    image: the tag or digest as the user has it. request: without what the image says. files: requirements files.
    environ: what the user gives to the container; variables of pip count, and those that the request names. Raises
    ConfigError for a processor level that does not run here and for what is no regular file, such as a pipe, which can
    be read once; and OSError for a file that cannot be read.
    """
    for file in files:
        if not os.path.isfile(file):
            raise ConfigError(f"{file} is no file")
    digests = [hashlib.sha256(Path(file).read_bytes()).hexdigest() for file in files]
    counted = {
        name: without_secrets(value)
        for name, value in sorted(environ.items())
        if name.startswith("PIP_") or name in request.env
    }
    wanted = request._replace(command=(), folder="", base_image="")._asdict()
    level = own_level(request.cpu_level)
    return _digest({"image": image, "request": wanted, "files": digests, "environ": counted, "level": level})


def _digest(value: Mapping[str, object]) -> str:
    return hashlib.sha256(canonical(value)).hexdigest()
