"""Running one container: prepared in a child with namespaces of its own, which becomes the runtime.

    imagefs run --fork--> child: namespaces, mounts, config.json --exec--> runc or crun ---> the command
        | forwards signals, waits, cleans up

The child mounts the image, and what lies above it, where nobody else sees it, and becomes the runtime, process 1 of its
PID namespace. When `imagefs run` ends, in whatever way, the kernel kills the runtime, with it the container, and the
mounts end with them (`imagefs.run.namespace`). Then a folder and an empty cgroup remain, which the next run
sweeps away.

Standard input, output and error are passed through; with a terminal the runtime copies between ours and the
container's. A signal that comes while the image is mounted ends the run; while the runtime starts the command it is
held until that runs.
"""

from __future__ import annotations

import contextlib
import json
import os
import resource
import select
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence

from imagefs.errors import CommandNotExecutable, LayerFailed, RunError
from imagefs.plane import kernel_mounts
from imagefs.reference import Platform
from imagefs.run import host, namespace, rootfs, runtime
from imagefs.run.bundle import RunFolder, sweep
from imagefs.run.namespace import SI_KERNEL, fork_init
from imagefs.run.options import AUTO, Bind, ImageConfig, ResourceLimits, RunOptions, parse_signal
from imagefs.run.rootfs import RootTree, add_directories, make_directories
from imagefs.run.runtime import Marker, watched
from imagefs.run.spec import HostFacts, arguments, build
from stripefs.errors import StripefsError
from stripefs.fuse import kernel

TYPE_CHECKING = False  # as in typing, which would be loaded for it
if TYPE_CHECKING:
    import logging
    from typing import Any, NoReturn

__all__ = ["MountLayer", "run", "sweep"]

MountLayer = Callable[[str], None]
"""Mounts a tree at the directory that it is given."""

_FORWARDED = (
    signal.SIGHUP,
    signal.SIGINT,
    signal.SIGQUIT,
    signal.SIGUSR1,
    signal.SIGUSR2,
    signal.SIGALRM,
    signal.SIGTERM,
    signal.SIGXCPU,
    signal.SIGPWR,
)
"""Signals that users, batch systems and service managers send, but for those that the caller ignores."""

_PAUSE, _PATIENCE = 0.01, 2.0
"""Seconds between looks whether the command runs, when a signal waits for that; and until it is not waited for."""

_FILES = ("/etc/resolv.conf", "/etc/hosts")
_NOT_FOR_THE_RUNTIME = ("NOTIFY_SOCKET", "LISTEN_FDS", "LISTEN_FDNAMES", "LISTEN_PID")


def run(
    options: RunOptions,
    config: Mapping[str, Any],
    layers: Sequence[MountLayer],
    runtime_dir: str,
    scratch_dir: str | None = None,
    kept_dir: str = "",
    started: Callable[[], None] | None = None,
    executed: Callable[[], None] | None = None,
    beside: Mapping[str, MountLayer] | None = None,
) -> int:
    """Run a container and wait for it. Answers the exit status of its command, 128 + N where signal N ended it.

    config: the image's OCI image config, {} for none. layers: the image, and before it what lies above it. Each is
    called in a forked child, in its own mount namespace, so it must not rely on other threads. runtime_dir: what is
    kept while the container runs lies below it; on a local file system, for root alone. scratch_dir: with a writable
    root, what is written lies below it until the container ends; `runtime_dir` where it is None, memory where it lies
    on an overlay. kept_dir: where it lies instead, for good, as `imagefs.plane.kernel_mounts.mount_overlay` has it.
    started: called, on another thread, when the command creates the file $IMAGEFS_READY; without it there is no such
    variable. executed: called, on another thread, when the runtime has started the command. beside: trees that are
    shown at these paths of the container as binds are, called as layers are, and writable as they are.

    Forwards signals, and so must be called on the main thread. Raises RunError, whose exit code is that of `docker
    run`; LayerFailed for a layer that could not be mounted.
    """
    rootless = os.geteuid() != 0
    if rootless and (options.limits != ResourceLimits() or options.cgroup_parent != "/" or options.first_id):
        raise RunError("--memory, --cpus, --pids-limit, --cgroup-parent and --userns need root", hint="sudo")
    image = ImageConfig.parse(config)
    _warn_of_machine(config.get("architecture"))
    command = arguments(options, image)[0]
    stop = parse_signal(image.stop_signal) if image.stop_signal else signal.SIGTERM
    program = runtime.find(options.runtime)
    host.check_limits(options.limits)
    facts = HostFacts(
        environ=os.environ,
        hostname=os.uname().nodename,
        devices=host.devices(options.devices),
        files=[path for path in _FILES if os.path.isfile(path)],
        open_files=resource.getrlimit(resource.RLIMIT_NOFILE)[1],
        terminal=host.wants_terminal(options.terminal),
        hierarchies=host.hierarchies(kernel.mounts()),
        capabilities=host.capabilities(),
        seccomp=host.seccomp_profile(options.seccomp),
        rootless=rootless,
    )
    if options.prepared:
        options.prepared()
    options = options._replace(binds=[host.find_bind(bind) for bind in options.binds])
    if options.first_id == AUTO:
        options = options._replace(first_id=namespace.own_first_id())
    try:
        scratch = (scratch_dir or os.path.join(runtime_dir, "scratch")) if options.writable and not kept_dir else ""
        with (
            host.terminal_kept(facts.terminal),
            host.owners_kept(),
            RunFolder(runtime_dir, scratch, options.cgroup_parent) as folder,
            contextlib.closing(Marker()) if started and not rootless else contextlib.nullcontext() as marker,
            _signals_held() as forwarded,
            namespace.child(
                lambda writer: _in_child(
                    lambda: _exec_runtime(
                        options, image, facts, program, folder, layers, beside or {}, kept_dir, marker, writer
                    ),
                    writer,
                )
            ) as (child, report),
            _swept(runtime_dir),
            marker.watched(started) if marker and started else contextlib.nullcontext(),
            watched(folder.path, folder.started, executed) if executed else contextlib.nullcontext(),
        ):
            status, ended_by = _wait(
                child, report, folder, forwarded, stop, terminal=facts.terminal, aside=options.aside
            )
            if ended_by:
                return 128 + ended_by
            if not folder.started():
                raise _failure(os.read(report, 1 << 16), program, folder, command)
            return status if status >= 0 else 128 - status
    except OSError as error:
        raise RunError(f"{error.filename or runtime_dir}: {error.strerror}") from error


def _log() -> logging.Logger:
    import logging  # takes as long to load as all the rest, and there is seldom anything to say

    return logging.getLogger(__name__)


# The parent
def _warn_of_machine(wanted: object) -> None:
    here = Platform.current().architecture
    if wanted and wanted not in (here, "386" if here == "amd64" else here):
        _log().warning("the image is for %s, and this machine is %s: its programs need an emulator", wanted, here)


@contextlib.contextmanager
def _signals_held() -> Iterator[frozenset[signal.Signals]]:
    """Inside the block signals wait until they are asked for; those to forward."""
    forwarded = frozenset(number for number in _FORWARDED if signal.getsignal(number) is not signal.SIG_IGN)
    handler = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, *forwarded})
    try:
        yield forwarded
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL if handler is None else handler)


@contextlib.contextmanager
def _swept(runtime_dir: str) -> Iterator[None]:
    """Sweep while the container starts: what crashed runs wrote may be much."""
    import threading  # the child that prepares the container is under way

    thread = threading.Thread(target=_sweep, args=(runtime_dir,))
    thread.start()
    try:
        yield
    finally:
        thread.join()


def _sweep(runtime_dir: str) -> None:
    try:
        swept = sweep(runtime_dir)
    except OSError as error:
        _log().warning("what crashed runs left in %s stays: %s", runtime_dir, error)
        return
    if swept:
        _log().info("removed what crashed runs left: %s", ", ".join(swept))


def _wait(
    child: int,
    report: int,
    folder: RunFolder,
    forwarded: frozenset[signal.Signals],
    stop: int,
    *,
    terminal: bool,
    aside: bool,
) -> tuple[int, int]:
    """The runtime's exit status, negative for a signal; and the signal of ours that ended it before its command ran,
    or `aside`."""
    wanted = {signal.SIGCHLD, *forwarded}
    held: list[int] = []  # until the runtime can pass them on
    ended_by, patience = 0, _PATIENCE
    while True:
        received = signal.sigtimedwait(wanted, _PAUSE) if held else signal.sigwaitinfo(wanted)
        if received is None:
            patience -= _PAUSE
        elif received.si_signo == signal.SIGCHLD:
            pid, status = os.waitpid(child, os.WNOHANG)
            if pid:
                return os.waitstatus_to_exitcode(status), ended_by
        elif not (terminal and received.si_code == SI_KERNEL and folder.started()):  # then the runtime got it too
            held.append(received.si_signo)
        if held and folder.started() and not aside:
            for number in held:
                os.kill(child, stop if number == signal.SIGTERM else number)
            held.clear()
        elif held and (aside or patience < 0 or not _is_runtime(report)):
            ended_by = held[0]
            os.kill(child, signal.SIGKILL)
            held.clear()


def _is_runtime(report: int) -> bool:
    """Tells whether the child became the runtime, or ended: either closes its end of the pipe."""
    poll = select.poll()
    poll.register(report, 0)
    return any(event & select.POLLHUP for _, event in poll.poll(0))


def _failure(report: bytes, program: runtime.Runtime, folder: RunFolder, command: str) -> RunError:
    if not report:
        return program.failure(folder.path, command)
    message, hint, number, executable = json.loads(report)
    if not executable:
        return CommandNotExecutable(message, hint=hint)
    return RunError(message, hint=hint) if number is None else LayerFailed(message, hint=hint, number=number)


# The child
def _in_child(become: Callable[[], NoReturn], writer: int) -> None:
    try:
        _take_no_signals()
        become()
    except LayerFailed as error:
        _tell(writer, error.message, error.hint, error.number)
    except CommandNotExecutable as error:
        _tell(writer, error.message, error.hint, executable=False)
    except StripefsError as error:
        _tell(writer, error.message, error.hint)
    except OSError as error:
        _tell(writer, _cannot_prepare(error))
    except BaseException as error:
        _tell(writer, f"the container cannot be prepared: {error!r}")
        raise


def _take_no_signals() -> None:
    """Our parent minds them. Process 1 is not hurt by those that it has no handler for; what it starts may use them."""
    for number in _FORWARDED:
        if signal.getsignal(number) is not signal.SIG_IGN:
            signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def _tell(writer: int, message: str, hint: str = "", number: int | None = None, *, executable: bool = True) -> None:
    os.write(writer, json.dumps([message, hint, number, executable]).encode())


def _cannot_prepare(error: OSError) -> str:
    return f"the container cannot be prepared: {error}"


def _exec_runtime(
    options: RunOptions,
    image: ImageConfig,
    facts: HostFacts,
    program: runtime.Runtime,
    folder: RunFolder,
    layers: Sequence[MountLayer],
    beside: Mapping[str, MountLayer],
    kept_dir: str,
    marker: Marker | None,
    writer: int,
) -> NoReturn:
    """Raises StripefsError and OSError."""
    root = folder.rootfs
    if facts.rootless:
        namespace.enter_user_namespace(writer, terminal=facts.terminal)
    namespace.private_mounts()
    if marker:
        marker.show(folder.marker)
        facts = facts._replace(marker=folder.marker)
    os.mkdir(root, 0o700)
    for number, (path, layer) in enumerate(beside.items(), len(layers)):
        place = folder.layer(number)
        os.makedirs(place, 0o700)
        layer(place)
        options = options._replace(binds=[*options.binds, Bind(place, path)])
    with namespace.user_namespace(options.first_id) as users:
        lowers = _mount_layers(folder, layers, users)
        if kept_dir:
            kernel_mounts.mount_overlay(lowers, kept_dir, root, volatile=True)
        elif options.writable:
            upper = kernel_mounts.mount_overlay(
                lowers, folder.scratch, root, without_disk="memory", volatile=True, rootless=facts.rootless
            )
            if upper != "disk":
                _log().warning("%s lies on an overlay: what the container writes is kept in memory", folder.scratch)
        elif len(lowers) > 1:
            kernel_mounts.mount_read_only_overlay(lowers, root, rootless=facts.rootless)
        with RootTree(root) as tree:
            spec = build(
                options, image, tree, facts, root=root, volumes=folder.volumes, name=folder.name, cgroup=folder.cgroup
            )
            process = spec.document["process"]
            runtime.check_arguments(process["args"], process["env"], resource.getrlimit(resource.RLIMIT_STACK)[0])
            missing = [tree.real(path) for path in spec.missing]
            if spec.volumes:
                rootfs.make_volumes(folder.volumes, spec.volumes, tree, options.first_id)
        if missing and not options.writable:
            made = os.path.join(folder.path, "directories")
            add_directories(root, made, missing, lowers, options.first_id, rootless=facts.rootless)
        elif not kept_dir:  # where what is written is kept, volumes are no part of it
            make_directories(root, missing, options.first_id)
        needed = [folder.path, program.path, *facts.files]
        if users >= 0:
            mapped = [bind.target for bind in options.binds if bind.mapped]
            needed.append(namespace.move_mounts(spec.document, users, mapped, needed))
        elif facts.rootless:
            for mount in spec.document["mounts"]:
                if mount["type"] == "bind":
                    namespace.keep_locked_flags(mount)
    with open(os.path.join(folder.path, "config.json"), "w", encoding="utf-8") as file:
        file.write(json.dumps(spec.document))  # json.dump takes five times as long
    if program.name == "crun":
        runtime.hide_unified_cgroups()
    if not facts.terminal:
        os.setpgid(0, 0)  # a signal to our group comes once, by our parent
    if namespace.is_alone():
        namespace.unmount_others([*needed, *(bind.source for bind in options.binds)])
    else:  # a layer started what serves its tree, which may need any mount that there is
        fork_init(writer, terminal=facts.terminal)
    for number in (signal.SIGPIPE, signal.SIGXFSZ):  # Python ignores them, and that would be inherited
        signal.signal(number, signal.SIG_DFL)
    os.set_inheritable(folder.lock, True)
    environment = {name: value for name, value in os.environ.items() if name not in _NOT_FOR_THE_RUNTIME}
    os.execve(program.path, program.command(folder.path, folder.name, rootless=facts.rootless), environment)  # noqa: S606


def _mount_layers(folder: RunFolder, layers: Sequence[MountLayer], users: int) -> list[str]:
    """Their mountpoints then: one alone at the root itself. users: of `namespace.user_namespace`."""
    alone = len(layers) == 1
    places = [folder.rootfs if alone else folder.layer(number) for number in range(len(layers))]
    for number, (layer, place) in enumerate(zip(layers, places, strict=True)):
        os.makedirs(place, 0o700, exist_ok=alone)
        try:
            layer(place)
            if users >= 0:
                namespace.show_mapped(place, users)
        except StripefsError as error:
            raise LayerFailed(error.message, hint=error.hint, number=number) from error
        except OSError as error:
            raise LayerFailed(_cannot_prepare(error), number=number) from error
    return places
