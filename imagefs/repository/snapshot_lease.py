"""The lease of an installation, for many hosts that miss at once: one leads, the others wait for what it publishes.

The lead is a leased lock of `stripefs.write.file_lock`, beside the document that is to be published. It is renewed by a
thread while its holder installs, and handed over to the process that publishes in the background. A leader that the
store does not hear of for LEASE seconds has lost it to whoever comes next. No host waits for ever: after a bound a host
installs for itself. All times are those of the store's clock, or of the monotonic one of a host.

A leader that will not publish says why, in the store. Then nobody waits for the next one to find the same: all install
at once, as they would without us, and whoever has the lead may publish.
"""

from __future__ import annotations

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator

from imagefs.repository.base import Repository
from imagefs.repository.images import Images
from imagefs.repository.snapshots import FOLDER, Snapshots
from imagefs.repository.store import open_repository
from stripefs.errors import Busy, StoreError, Unsupported
from stripefs.osutil import signals_for_main
from stripefs.settings import StoreSettings
from stripefs.write.file_lock import FileLock

__all__ = [
    "LEASE",
    "InstallLease",
    "LeaseTimeout",
    "NotPublished",
    "RenewedLock",
    "acquire",
    "acquire_or_wait",
    "leading",
    "pause",
]

_log = logging.getLogger(__name__)

LEASE = 20.0
"""Seconds: what a crash of the leader costs all others. It says one word to the store in a third of that."""

_LOOK_LEAST, _LOOK_MOST = 0.5, 5.0
"""Seconds between looks for the document; a look is a question to the store."""

_TRY_LEAST, _TRY_MOST = LEASE / 4, LEASE
"""Seconds between tries to take the lead from one that may have died; each writes to the store."""

_SHARE = 8
"""A pause is this part of the time waited so far: so waiting costs an eighth more at most."""

_PATIENCE = 1.0
"""Seconds in which a store that does not answer is asked again."""


class LeaseTimeout(Exception):
    """The leader did not publish in time."""


class NotPublished(Exception):
    """A leader did not publish, for the reason that is the message."""


class RenewedLock:
    """The lead for one snapshot, renewed until it is released or handed over."""

    def __init__(self, lock: FileLock) -> None:
        self._lock = lock
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._renew, name="lease", daemon=True)
        self._thread.start()

    @property
    def owner(self) -> str:
        """The owner's name, by which another process takes the lock over."""
        return self._lock.document.owner

    def check(self) -> None:
        """Raises DraftLost when somebody else leads now, StoreError when that cannot be told."""
        self._lock.check()

    def hand_over(self) -> str:
        """Stop renewing; who calls `acquire` with the answer soon has it."""
        self._stop()
        return self.owner

    def release(self) -> None:
        """Let the next one lead. A lease that cannot be released now runs out."""
        self._stop()
        with contextlib.suppress(StoreError):
            self._lock.release()

    def _stop(self) -> None:
        self._over.set()
        self._thread.join()

    def _renew(self) -> None:
        while not self._over.wait(LEASE / 3):
            try:
                self._lock.renew()
            except StoreError as error:  # the one who publishes asks before it does
                _log.info("the lead is not renewed: %s", error)


class InstallLease:
    """The place of a host among those that want one snapshot, as long as this lasts.

    published: another host did it. may_publish: this one may, because it leads, or because the store has no locks and
    the first who is done publishes. damaged: the store has a snapshot that seems whole, and was not when it was read.
    remark: what people should know of it, "" for nothing.
    """

    def __init__(
        self,
        settings: StoreSettings,
        name: str,
        patience: float,
        waiting: Callable[[str], None],
        *,
        damaged: bool = False,
    ) -> None:
        self.published = False
        self.damaged = damaged
        self.may_publish = False
        self.remark = ""
        self._name = name
        self._why = ""
        self._repository: Repository | None = None
        self._held: RenewedLock | None = None
        try:
            with signals_for_main():
                self._repository = open_repository(settings, make=True)
            self._held = acquire_or_wait(self._snapshots(self._repository), name, patience, waiting, damaged=damaged)
            self.published, self.may_publish = self._held is None, self._held is not None
        except LeaseTimeout:
            self.remark = f", and who installs it did not publish it within {patience:g} s"
        except NotPublished as error:
            self.remark = f", and was not published by who installed it: {error}"
        except Unsupported as error:
            self.may_publish = self._repository is not None and self._repository.capabilities.put
            self.remark = "" if self.may_publish else f", and takes none: {error.message}"
        except StoreError as error:
            self.remark = f", and takes none: {error.message}"

    def __enter__(self) -> InstallLease:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        with signals_for_main():
            if self._held is not None:
                if self._repository is not None and (error is None or isinstance(error, Exception)):
                    why = self._why or str(error or "it was left at that")
                    with contextlib.suppress(StoreError):  # the others find out by themselves
                        self._snapshots(self._repository).note_unpublished(self._name, why)
                self._held.release()
            if self._repository is not None:
                self._repository.close()

    def give_up(self, why: str) -> None:
        """Note that the snapshot will not be published, and why, where no exception says so."""
        self._why = why

    def hand_over(self) -> str:
        """Hand the lead over to a process that publishes: its owner, "" where there is no lead."""
        if self._held is None:
            return ""
        owner, self._held = self._held.hand_over(), None
        return owner

    @staticmethod
    def _snapshots(repository: Repository) -> Snapshots:
        return Snapshots(Images(repository, _PATIENCE))


def acquire(snapshots: Snapshots, name: str, owner: str = "") -> RenewedLock:
    """Lead the installation of this snapshot. Raises Busy while somebody else does, and Unsupported where the store has
    no locks."""
    return RenewedLock(snapshots.images.repository.lock(FOLDER + b"/" + name.encode(), owner, LEASE))


@contextlib.contextmanager
def leading(snapshots: Snapshots, name: str, owner: str = "") -> Iterator[RenewedLock | None]:
    """The lead of this snapshot as long as this lasts, None where the store has no locks. Raises Busy."""
    try:
        held = acquire(snapshots, name, owner)
    except Unsupported:
        yield None
        return
    try:
        yield held
    finally:
        held.release()


def acquire_or_wait(
    snapshots: Snapshots, name: str, patience: float, waiting: Callable[[str], None], *, damaged: bool = False
) -> RenewedLock | None:
    """The lead, or None once the snapshot was published by the one who had it.

    waiting: called once, with who leads, "" where nobody knows, before this begins to wait. Raises LeaseTimeout after
    `patience` seconds, NotPublished where the last who led did not publish, and what `acquire` raises but for Busy.
    """
    begun, told = time.monotonic(), False
    while True:
        try:
            with signals_for_main():
                found = acquire(snapshots, name)
        except Busy as error:
            with signals_for_main():
                why = snapshots.unpublished_reason(name)
            if why:
                raise NotPublished(why) from None
            if not told and patience:
                waiting(error.by)
                told = True
        else:
            if damaged or not _is_usable(snapshots, name):
                return found
            found.release()  # the one before was done in the meantime
            return None
        again = time.monotonic() + pause(time.monotonic() - begun, _TRY_LEAST, _TRY_MOST)
        while time.monotonic() < again:
            if _is_usable(snapshots, name):
                return None
            if time.monotonic() > begun + patience:
                raise LeaseTimeout
            time.sleep(pause(time.monotonic() - begun, _LOOK_LEAST, _LOOK_MOST))


def pause(waited: float, least: float, most: float) -> float:
    """Seconds until the next question of one who has waited so long: longer and longer, and not in step with others."""
    return min(max(least, waited / _SHARE), most) * random.uniform(0.5, 1.5)  # noqa: S311


def _is_usable(snapshots: Snapshots, name: str) -> bool:
    with signals_for_main():
        return snapshots.is_usable(name)
