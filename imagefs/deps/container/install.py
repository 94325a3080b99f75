"""An installation in a container, whose upper directory is kept, and that directory as what is published.

The upper directory is in `cleanup.upper_folder` of the image's attachment, so it goes with the last who holds that.
Inputs of the host are shown at their own paths, as requirements name them; what has to be made in the upper directory
for that goes again. Overlays are mounted without a thought for crashes (`volatile`): nobody uses it after one, and to
sync a whole file system would be the longest part of many installations.

Jobs may look at the directory as a lower one afterwards, but nobody writes to it any more. To be judged it needs the
image below it: what was removed there, which packages that had, what was only copied. So the process that publishes
mounts the image, and both together, in a mount namespace of its own.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from imagefs import containers
from imagefs.containers import AttachedImage
from imagefs.daemon import cleanup
from imagefs.daemon.client import Client
from imagefs.daemon.protocol import Recording
from imagefs.deps import inventory, subreaper
from imagefs.deps.capture import CapturedTree, capture_upper, is_captured
from imagefs.deps.check.distributions import check_consistent, describe_site
from imagefs.deps.check.rules import Finding
from imagefs.deps.check.tree import IGNORED, Findings, check_outside, check_tree
from imagefs.deps.container import programs
from imagefs.deps.container.programs import (
    DOWNLOADS,
    bind_layer,
    env_words,
    helper_options,
    host_binds,
    output_of,
    streams,
    user_output,
)
from imagefs.deps.engine import SmokeTestResult
from imagefs.deps.install import (
    BytecodeMode,
    InstallOutcome,
    compile_command,
    compile_environment,
    compile_failures,
    compile_order,
    installer_environment,
    read_end,
    text_of,
)
from imagefs.deps.inventory import Inventory
from imagefs.deps.local import Scratch
from imagefs.deps.resolver import LockedInstall
from imagefs.errors import LayerFailed, SnapshotError
from imagefs.format.documents import SnapshotKind
from imagefs.plane import kernel_mounts
from imagefs.run import namespace
from imagefs.run.container import MountLayer
from imagefs.run.options import Bind, ResourceLimits, RunOptions
from imagefs.run.rootfs import RootTree
from imagefs.settings import DaemonSettings, TreeOptions, ready_folder
from stripefs.errors import ConfigError, MountError
from stripefs.fuse import kernel
from stripefs.settings import store_settings

if TYPE_CHECKING:
    from imagefs.deps.publish import PublishJob  # which imports this module for a publication of what is held

__all__ = ["EXCHANGE", "ContainerInstallation", "Inside", "InstalledUpper", "opened"]

EXCHANGE = "/run/imagefs"
"""The path in containers of the folder by which we speak with what runs there."""


class ContainerInstallation:
    """An installation in containers of `image`, which are like the job's, and have its variables. python: the
    interpreter. scratch: what its installer shares with the resolver.

    Written files are on disk, or in memory where the cache lies on an overlay. Raises OSError.
    """

    def __init__(
        self, image: AttachedImage, options: RunOptions, environ: Mapping[str, str], python: str, scratch: Scratch
    ) -> None:
        self._image, self._options, self._environ, self._python = image, options, environ, python
        self._scratch = scratch
        self._folder = image.attached.upper
        self._exchange = os.path.join(self._folder, "exchange")
        kernel_mounts.lasting_upper(self._folder)
        os.makedirs(self._exchange, 0o700, exist_ok=True)

    @property
    def upper(self) -> str:
        """Files that were written."""
        return os.path.join(self._folder, "upper")

    def layer(self) -> MountLayer:
        """The upper directory as a layer above the image. Nothing may be run here any more."""
        return bind_layer(self.upper)

    def run_locked(self, install: LockedInstall, paths: Sequence[str]) -> tuple[InstallOutcome, str]:
        """Run pip with what was resolved before; how it ended, and why it did not do that, "" where it did.

        Raises RunError and OSError.
        """
        with open(os.path.join(self._exchange, "constraints.txt"), "w", encoding="utf-8") as file:
            file.write(install.constraints)
        words = install.words(f"{EXCHANGE}/constraints.txt", f"{EXCHANGE}/installed.json")
        done = self.run(words, paths, compiles=False)
        return done, "" if done.status else install.broken(text_of(os.path.join(self._exchange, "installed.json")))

    def run(self, command: Sequence[str], paths: Sequence[str], *, compiles: bool) -> InstallOutcome:
        """Run the installer until it and all that it started have ended, in the working directory. Its output goes to
        standard error.

        paths: absolute, of files and directories of the host that are shown there. compiles: whether it is to make
        bytecode itself, if it likes to. Raises RunError and OSError.
        """
        with open(subreaper.__file__, encoding="utf-8") as file:
            program = [self._python, "-I", "-S", "-B", "-c", file.read(), f"{EXCHANGE}/report", "0"]
        environ = self._environ
        if not compiles:  # the installer's own modules are the image's, and their bytecode is none of its packages
            environ = {**installer_environment(environ), "PYTHONDONTWRITEBYTECODE": "1"}
        binds = [*host_binds(paths, self._scratch.seen), Bind(self._scratch.downloads(), DOWNLOADS)]
        options = helper_options(self._options, [*program, *command])._replace(
            binds=[self._bind(), *binds], env=env_words(environ), workdir=os.getcwd()
        )
        began = time.monotonic()
        with open(os.devnull, "rb") as nothing, user_output() as output, streams(nothing.fileno(), output, output):
            status = self._run(options)
        seconds = time.monotonic() - began
        self._remove_mountpoints([*(bind.target for bind in binds), options.workdir, EXCHANGE])
        report = self._report()
        return read_end(report[1], seconds) if len(report) > 1 else InstallOutcome(status or 1, (), seconds)

    def compile(self, targets: Sequence[str], mode: BytecodeMode) -> list[str]:
        """Make bytecode of what was installed into `targets`; the sources that do not compile.

        Raises SnapshotError, RunError and OSError.
        """
        entries = inventory.take(self.upper).entries
        sources = [
            f"/{path}"
            for path, facts in entries.items()
            if path.endswith(".py") and facts.is_file and is_captured(path, targets)
        ]
        if not sources:
            return []
        with open(os.path.join(self._exchange, "order"), "w", encoding="utf-8") as file:
            file.write(compile_order(sources, mode))
        empty = dict.fromkeys(self._environ, "")  # which is none to an interpreter
        environ = {**empty, **compile_environment(self._environ)}
        options = helper_options(self._options, compile_command(self._python, f"{EXCHANGE}/order"))._replace(
            binds=[self._bind()], env=env_words(environ)
        )
        try:
            told = output_of(self._run, options)
        except ConfigError as error:
            raise SnapshotError(f"what was installed could not be compiled: {error.message}") from error
        self._remove_mountpoints([EXCHANGE])
        return compile_failures(told.encode())

    def _run(self, options: RunOptions) -> int:
        try:
            return self._image.run(options._replace(writable=True), kept_dir=self._folder)
        finally:
            # It says that the overlay was volatile, and the kernel would not mount it again.
            shutil.rmtree(os.path.join(self._folder, "work"), ignore_errors=True)

    def _bind(self) -> Bind:
        return Bind(self._exchange, EXCHANGE)

    def _report(self) -> list[str]:
        with contextlib.suppress(FileNotFoundError), open(os.path.join(self._exchange, "report")) as file:
            return file.read().splitlines()
        return []

    def _remove_mountpoints(self, paths: Sequence[str]) -> None:
        """Remove what had to be made for others to be shown there: empty files and directories."""
        for path in sorted({*paths} - {"/"}, key=len, reverse=True):
            made = os.path.join(self.upper, path.strip("/"))
            with contextlib.suppress(OSError):  # the image has it, or there is something in it
                if os.path.isdir(made) and not os.path.islink(made):
                    os.rmdir(made)
                elif os.lstat(made).st_size == 0:
                    os.unlink(made)
                while (made := os.path.dirname(made)) != self.upper:
                    os.rmdir(made)


class Inside(NamedTuple):
    """The place where it was installed, in values that can be JSON.

    settings: fields of `DaemonSettings`. store: of the image, fields of `StoreSettings`; image: its digest; tree:
    fields of `TreeOptions`. identifier: of the attachment whose `cleanup.upper_folder` it is; held: a descriptor that
    keeps that. targets: absolute, in the container. outside: patterns of what may be written elsewhere. probe: fields
    of `RunOptions`, the container that must not fail with what was packed; none where nothing is to be tried.
    """

    settings: Mapping[str, Any]
    store: Mapping[str, Any]
    image: str
    tree: Sequence[Any]
    identifier: str
    held: int
    targets: Sequence[str]
    outside: Sequence[str] = ()
    probe: Sequence[Any] = ()


class InstalledUpper:
    """An upper directory, a `SnapshotPlace`. base: where the image is mounted; merged: where both are."""

    kind: SnapshotKind = "container"

    def __init__(self, job: PublishJob, inside: Inside, upper: str, base: str, merged: str) -> None:
        self.targets = tuple(inside.targets)
        self._job, self._inside = job, inside
        self._upper, self._base, self._merged = upper, base, merged
        self._before = inventory.take(upper)

    def changed(self) -> Sequence[str]:
        return inventory.changes(self._before, inventory.take(self._upper))

    def look(self) -> tuple[Inventory, Findings]:
        job = self._job
        entries = self._before.entries
        kept = {path: facts for path, facts in entries.items() if not path or is_captured(path, self.targets)}
        seen = Inventory(self._upper, kept)
        beside = _inside(self._merged, job.beside)
        allowed = [pattern.lstrip("/") for pattern in job.allowed]
        found = check_tree(seen, job.installation("/")._replace(beside=beside, allowed=allowed))
        outside = check_outside(self._before, self.targets, (*IGNORED, *self._inside.outside), self._base)
        items = dict.fromkeys((*found.items, *outside, *self._broken()))
        return seen, found._replace(items=tuple(items))

    def capture(self) -> CapturedTree:
        return capture_upper(self._upper, self.targets)

    def smoke_test(self, image: str) -> SmokeTestResult:
        inside, store = self._inside, store_settings(self._job.store)
        if not inside.probe:
            return SmokeTestResult("")
        options = RunOptions(*inside.probe)
        options = options._replace(limits=ResourceLimits(*options.limits))
        client, tree = Client(DaemonSettings(**inside.settings)), TreeOptions(*inside.tree)
        off = Recording(off=True)
        with containers.attached(client, store_settings(inside.store), inside.image, off, tree) as below:
            try:
                with containers.attached(client, store, image, off, tree) as packed, packed.layer() as layer:
                    return SmokeTestResult(programs.probe_failure(below, options, layer))
            except (LayerFailed, MountError) as error:
                return SmokeTestResult(programs.probe_failure(below, options, bind_layer(self._upper)), str(error))

    def _broken(self) -> list[Finding]:
        """Requirements of packages of the image that were met before."""

        def unmet(top: str) -> list[Finding]:
            described = [one for site in _inside(top, self._job.beside) for one in describe_site(site)]
            return check_consistent(described, (), self._job.environment)

        before = set(unmet(self._base))
        found = [one for one in unmet(self._merged) if one not in before]
        return [one._replace(kind="unmet") for one in found] if self._job.tolerant else found


@contextlib.contextmanager
def opened(job: PublishJob) -> Iterator[InstalledUpper]:
    """The container of the job, with its image. This process is in a mount namespace of its own from then on.

    After the block what was kept is gone, unless somebody else keeps it. Raises StripefsError and OSError.
    """
    inside = Inside(*job.inside)
    settings, tree = DaemonSettings(**inside.settings), TreeOptions(*inside.tree)
    client, store = Client(settings), store_settings(inside.store)
    upper = os.path.join(cleanup.upper_folder(settings.cache, inside.identifier), "upper")
    os.set_inheritable(inside.held, False)  # else runtimes of containers kept it as well
    try:
        with containers.attached(client, store, inside.image, Recording(off=True), tree) as image:
            folder = ready_folder(settings.runtime, image.attached.id)
            with image.layer() as layer, _shown(layer, upper, folder) as (base, merged):
                yield InstalledUpper(job, inside, upper, base, merged)
    finally:
        os.close(inside.held)
        cleanup.clear(settings.cache, settings.runtime, inside.identifier)


def _inside(top: str, paths: Sequence[str]) -> list[str]:
    """Paths in the tree at `top` for absolute paths of a container, whatever links lead there."""
    with RootTree(top) as tree:
        return [top + tree.real(path) for path in paths]


@contextlib.contextmanager
def _shown(layer: MountLayer, upper: str, folder: str) -> Iterator[tuple[str, str]]:
    """The mountpoint of the image, and the tree that the container saw: below `folder`, for this process alone."""
    namespace.private_mounts()
    kernel.mount("imagefs", folder, "tmpfs", 0, "mode=700")
    try:
        base, merged = os.path.join(folder, "base"), os.path.join(folder, "merged")
        os.mkdir(base)
        os.mkdir(merged)
        layer(base)
        kernel_mounts.mount_read_only_overlay([upper, base], merged)
        yield base, merged
    finally:
        kernel.unmount(folder, kernel.MNT_DETACH)
