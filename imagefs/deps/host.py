"""A start on a host: what was asked for is there in the end, mounted where that is possible, installed where not.

A directory that was filled by an earlier start of this host is used as it is; for the rest see `imagefs.deps.engine`.
A directory that had to be filled looks as after a hit, and is published beside the job.

Any failure on our side (a store that is away, a document that is damaged, a mount that is refused, a disk that
is full) ends in the plain installation, and one line says why. The exit status is the installer's. Only a directory in
which nobody may install is refused: one with files that are not ours, or that others use for something else.
"""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, NoReturn

from imagefs.daemon import processes
from imagefs.daemon.client import Client
from imagefs.daemon.protocol import Recording, SharedSnapshot, SnapshotUse
from imagefs.deps import inventory, publications
from imagefs.deps.command import joined
from imagefs.deps.engine import (
    CHANGED,
    Miss,
    Probe,
    absent,
    hit_or_install,
    missed,
    mount_snapshot,
    probe_failure,
    release,
)
from imagefs.deps.local import Scratch
from imagefs.deps.resolver import LockedInstall
from imagefs.deps.target import TargetDirectory, TargetRefused, TargetState, TargetUser
from imagefs.errors import CommandNotExecutable, CommandNotFound, SnapshotError
from imagefs.format.documents import SHORT, key_digest
from imagefs.settings import TreeOptions
from imagefs.startup.emission import events
from stripefs.errors import StripefsError
from stripefs.fuse import kernel
from stripefs.settings import StoreSettings

if TYPE_CHECKING:
    from imagefs.deps.install import InstallOutcome
    from imagefs.deps.publish import PublishJob
    from imagefs.repository.snapshot_lease import InstallLease

__all__ = ["HostRequest", "install_without", "run"]

_UNKNOWN = ""
"""The key of an installation from unknown inputs: no start asks for it."""


class HostRequest(NamedTuple):
    """The request of a start on this host, as plain values.

    key: the document of the key. target: where, absolute, with links resolved. command: installs it. python: the
    interpreter that compiles it; environment: its values for the markers of requirements. users: who uses it; kept: it
    stays mounted without them. wait: until it is published. patience: seconds to wait for another host that installs.
    probe: a program in Python that must run with what is mounted, "" for none. sites, beside, checked, allowed,
    tolerant and setuid: as in `imagefs.deps.check.tree.Installation`; lock: as in `imagefs.deps.publish.PublishJob`.
    locked_install: how the installer is held to it, None for not at all; forget: drops a lock that does not hold any
    more. scratch: what the installer shares with the resolver. unchanged: whether the key is still that of what is
    installed from, which may change meanwhile.
    """

    store: StoreSettings
    key: Any
    target: str
    command: Sequence[str]
    python: str
    environment: Mapping[str, str]
    users: Sequence[TargetUser]
    sites: Sequence[str] = ()
    beside: Sequence[str] = ()
    kept: bool = False
    wait: bool = False
    patience: float = 600.0
    probe: str = ""
    checked: bool = False
    allowed: Sequence[str] = ()
    tolerant: bool = False
    setuid: bool = False
    wheels: Sequence[Sequence[Any]] = ()
    lock: Any = None
    locked_install: LockedInstall | None = None
    forget: Callable[[], None] | None = None
    scratch: Scratch | None = None
    unchanged: Callable[[], bool] | None = None
    recording: Recording = Recording("deps")
    tree: TreeOptions = TreeOptions()

    @property
    def interpreter(self) -> str:
        """The interpreter that imports from the target: its own interpreter where it is an environment."""
        own = os.path.join(self.target, "bin/python")
        return own if os.path.exists(own) else self.python


def run(client: Client, request: HostRequest, tell: Callable[[str], None]) -> int:
    """Have it there; the exit status of the installer, 0 where none had to run. `tell` gets the lines for people.

    Raises TargetRefused, and CommandNotFound or CommandNotExecutable for an installer that cannot be run without us.
    """
    return _HostStart(client, request, tell).run()


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


class _HostStart:
    def __init__(self, client: Client, request: HostRequest, tell: Callable[[str], None]) -> None:
        self._client = client
        self._request = request
        self._tell = tell
        self._name = key_digest(request.key)
        self._short = self._name[:SHORT]
        self._target = TargetDirectory(request.target, client.settings.cache)

    def run(self) -> int:
        try:
            with self._target.locked(self._wait_for_turn):
                return self._run()
        except (TargetRefused, CommandNotFound, CommandNotExecutable):
            raise
        except (StripefsError, OSError) as error:
            self._without(str(error))

    def _run(self) -> int:
        state = self._target.state(self._name)
        if state is TargetState.FINISHED:
            self._note(lambda: self._target.join(self._request.users))
            events().instant("dependencies", "hit", key=self._name)
            self._tell(f"hit {self._short}: {self._request.target} was installed by an earlier start")
            self._publish_after_all()
            return 0
        if state is TargetState.CHANGED:
            changed = self._target.changes(inventory.take(self._request.target)) or ["a file"]
            self._without(f"{changed[0]} in {self._request.target} was changed since it was installed")
        if state is TargetState.UNSURE:
            self._without(f"nobody knows whether what an earlier start left in {self._request.target} is whole")
        if state is TargetState.OURS:
            self._target.clear()
        elif state is not TargetState.EMPTY:
            raise self._refusal(state)
        request = self._request
        return hit_or_install(request.store, self._name, request.patience, self._hit, self._install, self._tell)

    def _refusal(self, state: TargetState) -> TargetRefused:
        path = self._request.target
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

    def _hit(self) -> int | Miss:
        """0 when it is mounted."""
        request = self._request
        try:
            os.makedirs(request.target, exist_ok=True)
            users = [*request.users, *(one for one in self._target.mounted_for(self._name) if one not in request.users)]
            wanted = SnapshotUse(self._name, tuple(users), request.kept)
            mounted = mount_snapshot(
                self._client, request.store, wanted, request.target, request.recording, request.tree
            )
        except (StripefsError, OSError) as error:
            here = kernel.find_mount(request.target)
            if here is not None and here.fstype in ("erofs", "fuse.imagefs"):
                raise TargetRefused(str(error)) from error
            return missed(error)
        if mounted is None:
            return absent(request.store, self._client.settings.cache, self._name)
        shared = isinstance(mounted.attachment, SharedSnapshot)
        if (
            request.probe
            and not shared
            and (failed := probe_failure(request.interpreter, request.probe, request.target))
        ):
            release(self._client, mounted, request.target)
            return Miss(f"the probe failed: {failed}", absent=False)
        self._note(lambda: self._target.note_mounted(self._name, users))
        how = "in use already" if shared else "mounted"
        self._tell(f"hit {self._short}: {how} at {request.target} ({mounted.answered * 1000:.0f} ms)")
        return 0

    # Miss; most starts find what they want, so what is needed for this is loaded here

    def _install(self, reason: str, lease: InstallLease | None) -> int:
        """Install what the store does not give, for that reason; the exit status of the installer.

        lease: None where nothing is to be published. Raises StripefsError and OSError as long as nothing was run.
        """
        self._tell(f"miss {self._short}: {reason}; installing into {self._request.target}")
        self._target.begin(self._name, self._request.users)
        with events().begin("dependencies", "install", key=self._name):
            done, broken = self._run_installer()
        if done.status:
            self._tell(f"the installer ended with status {done.status}, so nothing is kept")
            if lease is not None:
                lease.give_up(f"the installer ended with status {done.status}")
            return done.status
        try:
            self._keep(done, broken, lease)
        except (StripefsError, OSError) as error:
            self._tell(f"snapshot {self._short} is not published: {error}")
            if lease is not None:
                lease.give_up(str(error))
            with contextlib.suppress(OSError):  # then a later start empties it, which it was about to be
                self._target.hand_over()
        return 0

    def _run_installer(self) -> tuple[InstallOutcome, str]:
        """The end of the installer, and the reason why it did not do what was resolved before."""
        from imagefs.deps.install import install, installer_environment, run_held, text_of

        request = self._request
        environ = installer_environment(os.environ)

        def run(command: Sequence[str]) -> InstallOutcome:
            return install(request.scratch.command(command) if request.scratch is not None else command, environ)

        def run_locked(locked: LockedInstall) -> tuple[InstallOutcome, str]:
            with tempfile.TemporaryDirectory(prefix="imagefs-deps-") as folder:
                constraints, report = os.path.join(folder, "constraints.txt"), os.path.join(folder, "report.json")
                with open(constraints, "w", encoding="utf-8") as file:
                    file.write(locked.constraints)
                done = run(joined(locked.setup, locked.words(constraints, report)))
                return done, "" if done.status else locked.broken(text_of(report))

        forget = request.forget or (lambda: None)
        return run_held(request.locked_install, run_locked, lambda: run(request.command), forget, self._tell)

    def _keep(self, done: InstallOutcome, broken: str, lease: InstallLease | None) -> None:
        """Leave what was installed as a hit would look, and publish it. Raises what keeps it from that, and OSError.

        broken: why it is not what was resolved before, "" where it is.
        """
        from imagefs.deps.install import compile_tree

        request, problem = self._request, ""
        try:
            failed = compile_tree(request.interpreter, [request.target], "checked" if request.checked else "unchecked")
        except SnapshotError as error:
            failed, problem = [], error.message
        same = not broken and (request.unchanged is None or request.unchanged())
        seen = inventory.take(request.target)
        if all(facts.is_directory for facts in seen.entries.values()):  # a hit brings nothing of what it put elsewhere
            raise SnapshotError(f"there are no files in {request.target}", hint="does the command install there?")
        self._target.finish(seen, self._name if same else _UNKNOWN)
        if problem or not same:
            raise SnapshotError(problem or broken or CHANGED)
        if lease is None or not lease.may_publish:
            return
        job = self._publication(done, [os.path.relpath(path, request.target) for path in failed], lease)
        self._publish(job, publications.begin_publication(job.cache, job.name, job._asdict()))

    def _publication(self, done: InstallOutcome, uncompiled: Sequence[str], lease: InstallLease) -> PublishJob:
        from imagefs.deps.publish import job_of

        request, settings = self._request, self._client.settings
        probe = Probe(request.interpreter, request.probe, os.getcwd(), settings._asdict(), request.tree)
        return job_of(request, settings, request.key, request.target, done, uncompiled, lease)._replace(
            environment=request.environment,
            sites=request.sites,
            beside=request.beside,
            lock=request.lock,
            probe=probe if request.probe else (),
            wheels=request.wheels,
        )

    def _publish_after_all(self) -> None:
        """Publish what an earlier start of this host installed and did not publish, because its publisher was killed or
        the store was away."""
        cache = self._client.settings.cache
        try:
            if left := publications.unfinished(cache, self._name):
                from imagefs.deps.publish import PublishJob

                try:
                    job = PublishJob(**left.job)
                except TypeError:  # of another version, which nobody goes on with
                    os.close(left.descriptor)
                    publications.end_publication(cache, self._name)
                else:
                    self._publish(job, left.descriptor)
        except (StripefsError, OSError) as error:
            self._tell(f"snapshot {self._short} is not published: {error}")

    def _publish(self, job: PublishJob, descriptor: int) -> None:
        """descriptor: with the lock of what is pending; it is closed. Raises OSError."""
        try:
            with publications.publish_beside(job, self._tell, wait=self._request.wait, held=[descriptor]) as publisher:
                self._target.join([(publisher, processes.began(publisher))])
        finally:
            os.close(descriptor)

    def _without(self, reason: str) -> NoReturn:
        with contextlib.suppress(StripefsError, OSError):  # only the next start would be helped by it
            self._target.note_plain(self._name, self._request.users)
        if self._request.scratch is not None:
            self._request.scratch.remove()
        install_without(reason, self._request.command, self._tell)

    def _note(self, note: Callable[[], None]) -> None:
        """Write down who uses what is there; it is there all the same."""
        try:
            note()
        except OSError as error:
            self._tell(f"who uses {self._request.target} cannot be noted: {error}")

    def _wait_for_turn(self) -> None:
        self._tell(
            f"waiting for another process of this host, which installs into {self._request.target} or mounts there"
        )
