"""A miss on a host: install into the target, leave it as a hit would look, and publish it beside the job.

Publishing in the background is also for what was installed in a container.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence

from imagefs.daemon import processes
from imagefs.deps import inventory, publications
from imagefs.deps.bytecode import compile_tree
from imagefs.deps.check.report import Finding, outcome_findings
from imagefs.deps.command import joined
from imagefs.deps.engine import CHANGED, SHORT
from imagefs.deps.host_request import HostRequest
from imagefs.deps.install import InstallOutcome, install, installer_environment
from imagefs.deps.lease import Leading
from imagefs.deps.publish import PublishJob
from imagefs.deps.smoketest import Probe
from imagefs.deps.target import TargetDirectory
from imagefs.errors import SnapshotError
from imagefs.format.snapshot import key_digest
from imagefs.settings import DaemonSettings
from imagefs.startup.emission import events, unnamed
from stripefs.errors import StripefsError

__all__ = [
    "BY_SIGNAL",
    "RESOLVED_EARLIER",
    "UNHELD",
    "course_findings",
    "install_here",
    "publish_again",
    "publish_beside",
    "text_of",
]

RESOLVED_EARLIER = "the installer failed with what was resolved earlier; it runs once more as it was written"
UNHELD = "it was installed without what was resolved before"

BY_SIGNAL = 128
"""The least status of a program that a signal has ended."""

_UNKNOWN = ""
"""The key of what was installed from nobody knows which inputs: no start asks for it."""


def install_here(
    wish: HostRequest,
    settings: DaemonSettings,
    target: TargetDirectory,
    name: str,
    reason: str,
    leading: Leading | None,
    tell: Callable[[str], None],
) -> int:
    """Install what the store does not give, for that reason; the exit status of the installer.

    settings: of the daemon. leading: None where nothing is to be published. Raises StripefsError and OSError as long as
    nothing was run.
    """
    tell(f"miss {name[:SHORT]}: {reason}; installing into {wish.target}")
    target.begin(name, wish.users)
    with events().begin("dependencies", "install", key=name):
        done, broken = _installed(wish, tell)
    if done.status:
        tell(f"the installer ended with status {done.status}, so nothing is kept")
        if leading is not None:
            leading.give_up(f"the installer ended with status {done.status}")
        return done.status
    try:
        _keep(wish, settings, target, name, done, broken, leading, tell)
    except (StripefsError, OSError) as error:
        tell(f"snapshot {name[:SHORT]} is not published: {error}")
        if leading is not None:
            leading.give_up(str(error))
        with contextlib.suppress(OSError):  # then a later start empties it, which it was about to be
            target.hand_over()
    return 0


def _installed(wish: HostRequest, tell: Callable[[str], None]) -> tuple[InstallOutcome, str]:
    """The end of the installer, and the reason why it did not do what was resolved before.

    One that fails with a lock of an earlier start is run once more without that, for an index may have lost a file.
    """
    environ = installer_environment(os.environ)

    def run(command: Sequence[str]) -> InstallOutcome:
        return install(wish.scratch.command(command) if wish.scratch is not None else command, environ)

    if wish.held is None:
        return run(wish.command), ""
    with tempfile.TemporaryDirectory(prefix="imagefs-deps-") as folder:
        constraints, report = os.path.join(folder, "constraints.txt"), os.path.join(folder, "report.json")
        with open(constraints, "w", encoding="utf-8") as file:
            file.write(wish.held.constraints)
        done = run(joined(wish.held.setup, wish.held.words(constraints, report)))
        if not done.status:
            return done, wish.held.broken(text_of(report))
    if not wish.held.cached or done.status >= BY_SIGNAL:
        return done, ""
    if wish.forget is not None:
        wish.forget()
    tell(RESOLVED_EARLIER)
    return run(wish.command), UNHELD


def text_of(path: str) -> str | None:
    """The content of a file that a program may have written; None where it has not."""
    try:
        with open(path, encoding="utf-8", errors="replace") as file:
            return file.read()
    except OSError:
        return None


def _keep(
    wish: HostRequest,
    settings: DaemonSettings,
    target: TargetDirectory,
    name: str,
    done: InstallOutcome,
    broken: str,
    leading: Leading | None,
    tell: Callable[[str], None],
) -> None:
    """Leave what was installed as a hit would look, and publish it. Raises what keeps it from that, and OSError.

    broken: why it is not what was resolved before, "" where it is.
    """
    problem = ""
    try:
        failed = compile_tree(wish.interpreter, [wish.target], "checked" if wish.checked else "unchecked")
    except SnapshotError as error:
        failed, problem = [], error.message
    same = not broken and (wish.unchanged is None or wish.unchanged())
    seen = inventory.take(wish.target)
    if all(facts.is_directory for facts in seen.entries.values()):  # a hit would bring nothing of what it put elsewhere
        raise SnapshotError(f"there are no files in {wish.target}", hint="does the command install there?")
    target.finish(seen, name if same else _UNKNOWN)
    if problem or not same:
        raise SnapshotError(problem or broken or CHANGED)
    if leading is None or not leading.may_publish:
        return
    findings = course_findings(done, [os.path.relpath(path, wish.target) for path in failed])
    probe = Probe(wish.interpreter, wish.probe, os.getcwd(), settings._asdict(), wish.tree)
    job = PublishJob(
        wish.store._asdict(),
        settings.cache,
        wish.key,
        wish.target,
        done.seconds,
        findings,
        wish.environment,
        wish.sites,
        wish.beside,
        wish.allowed,
        wish.checked,
        leading.hand_over(),
        wish.lock,
        wish.tolerant,
        probe=probe if wish.probe else (),
        setuid=wish.setuid,
        wheels=wish.wheels,
        doubted=leading.doubted,
    )
    descriptor = publications.begin_publication(job.cache, job.name, job._asdict())
    _publish_here(job, target, descriptor, tell, wait=wish.wait)


def publish_again(
    wish: HostRequest, target: TargetDirectory, left: publications.Unfinished, tell: Callable[[str], None]
) -> None:
    """Publish after all what an earlier start of this host installed, whose publisher came to no answer.

    Raises OSError.
    """
    try:
        job = PublishJob(**left.job)
    except TypeError:  # of another version, which nobody goes on with
        os.close(left.descriptor)
        publications.end_publication(target.cache, key_digest(wish.key))
    else:
        _publish_here(job, target, left.descriptor, tell, wait=wish.wait)


def _publish_here(
    job: PublishJob, target: TargetDirectory, descriptor: int, tell: Callable[[str], None], *, wait: bool
) -> None:
    """descriptor: with the lock of what is pending; it is closed."""
    try:
        with publish_beside(job, tell, wait=wait, held=[descriptor]) as publisher:
            target.join([(publisher, processes.began(publisher))])
    finally:
        os.close(descriptor)


def course_findings(done: InstallOutcome, uncompiled: Sequence[str]) -> list[Finding]:
    """Findings about the course of an installation. uncompiled: paths of sources."""
    findings = outcome_findings(done.status, [(one.pid, one.command) for one in done.survivors])
    return [*findings, *(Finding("bytecode", path) for path in uncompiled)]


@contextlib.contextmanager
def publish_beside(
    job: PublishJob, tell: Callable[[str], None], *, wait: bool, held: Sequence[int] = ()
) -> Iterator[int]:
    """Publish in the background; the process that does. With `wait` it has ended after the block.

    held: descriptors that it is to keep. Raises OSError.
    """
    publisher = _publisher(job, held)
    yield publisher.pid
    if not wait:
        tell(f"snapshot {job.name[:SHORT]} is published in the background (process {publisher.pid})")
        return
    status = publisher.wait()
    told = publications.log_of(job.cache, job.name).read_text(errors="replace").splitlines()
    for line in told or [f"snapshot {job.name[:SHORT]}: what publishes it ended with status {status}"]:
        tell(line.removeprefix("imagefs: "))


def _publisher(job: PublishJob, held: Sequence[int]) -> subprocess.Popen[bytes]:
    """The process that publishes, which outlives this one and its group."""
    with open(publications.log_of(job.cache, job.name), "wb") as log:
        process = subprocess.Popen(
            [sys.executable, "-P", "-m", "imagefs.deps.publish"],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            stderr=log,
            start_new_session=True,
            pass_fds=held,
            cwd="/",
            # It is no part of the start, which goes on beside it.
            env=unnamed(os.environ),
        )
    assert process.stdin is not None
    with process.stdin:
        process.stdin.write(json.dumps(job._asdict()).encode())
    return process
