"""A start on a host: what was asked for is there in the end, mounted where that is possible, installed where not.

A directory that was filled by an earlier start of this host is used as it is; for the rest see `imagefs.deps.engine`.
Any failure on our side (a store that is away, a document that is damaged, a mount that is refused, a disk that
is full) ends in the plain installation, and one line says why. The exit status is the installer's. Only a directory in
which nobody may install is refused: one with files that are not ours, or that others use for something else.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NoReturn

from imagefs.daemon.client import Client
from imagefs.daemon.protocol import SharedSnapshot, SnapshotUse
from imagefs.deps import inventory, publications, smoketest
from imagefs.deps.engine import SHORT, Missed, Used, absent, found_or_installed, missed, release, use
from imagefs.deps.host_request import HostRequest
from imagefs.deps.target import TargetDirectory, TargetRefused, TargetState
from imagefs.errors import CommandNotExecutable, CommandNotFound
from imagefs.format.snapshot import key_digest
from imagefs.startup.emission import events
from stripefs.errors import StripefsError
from stripefs.fuse import kernel

if TYPE_CHECKING:
    from imagefs.deps.lease import Leading

__all__ = ["install_without", "run"]


def run(client: Client, wish: HostRequest, tell: Callable[[str], None]) -> int:
    """Have it there; the exit status of the installer, 0 where none had to run. `tell` gets the lines for people.

    Raises TargetRefused, and CommandNotFound or CommandNotExecutable for an installer that cannot be run without us.
    """
    return _Flow(client, wish, tell).run()


def install_without(reason: str, command: Sequence[str], tell: Callable[[str], None]) -> NoReturn:
    """Become the installer as its user wrote it, for a reason that people are told. Raises CommandNotFound and
    CommandNotExecutable."""
    tell(f"{reason}; installing without a snapshot")
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and that would be inherited
        signal.signal(number, signal.SIG_DFL)
    events().instant("dependencies", "miss")
    events().close()
    try:
        os.execvp(command[0], list(command))  # noqa: S606
    except OSError as error:
        failure = CommandNotFound if isinstance(error, FileNotFoundError) else CommandNotExecutable
        raise failure(f"{command[0]} cannot be run: {error.strerror}") from error


class _Flow:
    def __init__(self, client: Client, wish: HostRequest, tell: Callable[[str], None]) -> None:
        self._client = client
        self._wish = wish
        self._tell = tell
        self._name = key_digest(wish.key)
        self._short = self._name[:SHORT]
        self._target = TargetDirectory(wish.target, client.settings.cache)

    def run(self) -> int:
        try:
            with self._target.turn(self._wait_for_turn):
                return self._run()
        except (TargetRefused, CommandNotFound, CommandNotExecutable):
            raise
        except (StripefsError, OSError) as error:
            self._without(str(error))

    def _run(self) -> int:
        state = self._target.state(self._name)
        if state is TargetState.FINISHED:
            self._note(lambda: self._target.join(self._wish.users))
            events().instant("dependencies", "hit", key=self._name)
            self._tell(f"hit {self._short}: {self._wish.target} was installed by an earlier start")
            self._publish_after_all()
            return 0
        if state is TargetState.CHANGED:
            changed = self._target.changes(inventory.take(self._wish.target)) or ["a file"]
            self._without(f"{changed[0]} in {self._wish.target} was changed since it was installed")
        if state is TargetState.UNSURE:
            self._without(f"nobody knows whether what an earlier start left in {self._wish.target} is whole")
        if state is TargetState.OURS:
            self._target.clear()
        elif state is not TargetState.EMPTY:
            raise self._refusal(state)
        wish = self._wish
        return found_or_installed(wish.store, self._name, wish.patience, self._hit, self._install, self._tell)

    def _refusal(self, state: TargetState) -> TargetRefused:
        path = self._wish.target
        if state is TargetState.IN_USE:
            users = ", ".join(self._target.users())
            return TargetRefused(
                f"{path} holds another installation, which {users} uses",
                hint="name another --target, or remove it when nothing needs it any more",
            )
        return TargetRefused(
            f"{path} is not empty, and what is in it is no installation of imagefs", hint="name a new or empty --target"
        )

    # Hit

    def _hit(self) -> int | Missed:
        """0 when it is mounted."""
        wish = self._wish
        try:
            os.makedirs(wish.target, exist_ok=True)
            users = [*wish.users, *(one for one in self._target.mounted_for(self._name) if one not in wish.users)]
            wanted = SnapshotUse(self._name, tuple(users), wish.kept)
            used = use(self._client, wish.store, wanted, wish.target, wish.recording, wish.tree)
        except (StripefsError, OSError) as error:
            here = kernel.find_mount(wish.target)
            if here is not None and here.fstype in ("erofs", "fuse.imagefs"):
                raise TargetRefused(str(error)) from error
            return missed(error)
        if used is None:
            return absent(wish.store, self._client.settings.cache, self._name)
        if wish.probe and not isinstance(used.attachment, SharedSnapshot) and (failed := self._failure()):
            release(self._client, used, wish.target)
            return Missed(f"the probe failed: {failed}", absent=False)
        self._note(lambda: self._target.note_mounted(self._name, users))
        self._tell(f"hit {self._short}: {_told(used)} at {wish.target} ({used.answered * 1000:.0f} ms)")
        return 0

    def _failure(self) -> str:
        return smoketest.probe_failure(self._wish.interpreter, self._wish.probe, self._wish.target)

    # Miss

    def _install(self, reason: str, leading: Leading | None) -> int:
        from imagefs.deps.miss import install_here  # not needed by most, who find what they want

        settings = self._client.settings
        return install_here(self._wish, settings, self._target, self._name, reason, leading, self._tell)

    def _publish_after_all(self) -> None:
        """Publish what that start has not, because its publisher was killed or the store was away."""
        try:
            if left := publications.unfinished(self._client.settings.cache, self._name):
                from imagefs.deps.miss import publish_again  # which is rarely needed here

                publish_again(self._wish, self._target, left, self._tell)
        except (StripefsError, OSError) as error:
            self._tell(f"snapshot {self._short} is not published: {error}")

    def _without(self, reason: str) -> NoReturn:
        with contextlib.suppress(StripefsError, OSError):  # only the next start would be helped by it
            self._target.note_plain(self._name, self._wish.users)
        if self._wish.scratch is not None:
            self._wish.scratch.remove()
        install_without(reason, self._wish.command, self._tell)

    def _note(self, note: Callable[[], None]) -> None:
        """Write down who uses what is there; it is there all the same."""
        try:
            note()
        except OSError as error:
            self._tell(f"who uses {self._wish.target} cannot be noted: {error}")

    # Lines for people

    def _wait_for_turn(self) -> None:
        self._tell(f"waiting for another process of this host, which installs into {self._wish.target} or mounts there")


def _told(used: Used) -> str:
    return "in use already" if isinstance(used.attachment, SharedSnapshot) else "mounted"
