"""containerd's snapshots service over gRPC: requests in, answers out, and errors as status codes, in one place.

Handlers run on a few threads; one that brings an image's metadata from a store may take seconds, and others go on.
"""

from __future__ import annotations

import contextlib
import errno
import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar

import grpc
from google.protobuf.empty_pb2 import Empty

from imagefs.snapshotter.metastore import (
    AlreadyExists,
    FailedPrecondition,
    InvalidArgument,
    Kind,
    SnapshotNotFound,
    SnapshotRecord,
)
from imagefs.snapshotter.proto import snapshots_pb2 as wire
from imagefs.snapshotter.snapshotter import Mount, Snapshotter
from stripefs.errors import MountError, ServiceDown, StripefsError

__all__ = ["SERVICE", "serve"]

_log = logging.getLogger(__name__)

SERVICE = "containerd.services.snapshots.v1.Snapshots"

_THREADS = 128
"""Requests at work at once. Many of them wait, for an image's metadata or for minutes until its layers are fetched, and
the others must not wait for them. Threads are started when they are needed."""

_THREAD = "snapshots"
"""Before the names of their threads."""

_THREADS_END_WITHIN = 1.0
"""Seconds for threads without work to end."""

_BATCH = 64
"""Snapshots in one message of a listing."""

_KINDS = {Kind.VIEW: wire.VIEW, Kind.ACTIVE: wire.ACTIVE, Kind.COMMITTED: wire.COMMITTED}

_CODES: tuple[tuple[type[StripefsError], grpc.StatusCode], ...] = (
    (AlreadyExists, grpc.StatusCode.ALREADY_EXISTS),
    (SnapshotNotFound, grpc.StatusCode.NOT_FOUND),
    (InvalidArgument, grpc.StatusCode.INVALID_ARGUMENT),
    (FailedPrecondition, grpc.StatusCode.FAILED_PRECONDITION),
    (MountError, grpc.StatusCode.UNAVAILABLE),
    (ServiceDown, grpc.StatusCode.UNAVAILABLE),
)

_FULL = (errno.ENOSPC, errno.EDQUOT)

_T = TypeVar("_T")
_Add = Callable[[str, float, str], None]


def _handler(core: Snapshotter, add: _Add) -> grpc.GenericRpcHandler:
    """The ten calls, answered by `core`. add: called with each call's name, its seconds, and its status code or ""."""

    def commit(one: wire.CommitRequest) -> Empty:
        core.commit(one.name, one.key, dict(one.labels), one.parent)
        return Empty()

    def remove(one: wire.KeyRequest) -> Empty:
        core.remove(one.key)
        return Empty()

    def cleanup(_one: wire.CleanupRequest) -> Empty:
        core.cleanup()
        return Empty()

    def update(one: wire.UpdateRequest) -> wire.InfoResponse:
        changed = core.update(one.info.name, dict(one.info.labels), list(one.update_mask.paths))
        return wire.InfoResponse(info=_info(changed))

    def usage(one: wire.KeyRequest) -> wire.UsageResponse:
        found = core.usage(one.key)
        return wire.UsageResponse(size=found.bytes, inodes=found.inodes)

    def listed(one: wire.ListRequest) -> Iterator[wire.ListResponse]:
        found = map(_info, core.walk(list(one.filters)))
        while batch := list(islice(found, _BATCH)):
            yield wire.ListResponse(info=batch)

    calls: dict[str, tuple[Any, Callable[[Any], Any]]] = {
        "Prepare": (wire.PrepareRequest, lambda one: _mounts(core.prepare(one.key, one.parent, dict(one.labels)))),
        "View": (wire.PrepareRequest, lambda one: _mounts(core.view(one.key, one.parent, dict(one.labels)))),
        "Mounts": (wire.KeyRequest, lambda one: _mounts(core.mounts(one.key))),
        "Commit": (wire.CommitRequest, commit),
        "Remove": (wire.KeyRequest, remove),
        "Stat": (wire.KeyRequest, lambda one: wire.InfoResponse(info=_info(core.stat(one.key)))),
        "Update": (wire.UpdateRequest, update),
        "List": (wire.ListRequest, listed),
        "Usage": (wire.KeyRequest, usage),
        "Cleanup": (wire.CleanupRequest, cleanup),
    }
    of_kind = {True: grpc.unary_stream_rpc_method_handler, False: grpc.unary_unary_rpc_method_handler}
    handlers = {
        name: of_kind[name == "List"](
            _answering(name, call, add),
            request_deserializer=request.FromString,
            response_serializer=lambda answer: answer.SerializeToString(),
        )
        for name, (request, call) in calls.items()
    }
    return grpc.method_handlers_generic_handler(SERVICE, handlers)


def serve(core: Snapshotter, path: Path, add: _Add) -> Callable[[float], bool]:
    """Listen at `path`, for its owner alone. Raises MountError where another one does, or nobody can.

    Returns the function that ends it. That takes the seconds which calls under way have to end, and tells whether all
    of them have: a thread that still waits for a daemon or a registry keeps the process from ending by itself.
    """
    path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    _take_over(path)
    executor = ThreadPoolExecutor(_THREADS, thread_name_prefix=_THREAD)
    server = grpc.server(executor, options=(("grpc.max_receive_message_length", 16 << 20),))
    server.add_generic_rpc_handlers((_handler(core, add),))
    previous = os.umask(0o177)
    try:
        server.add_insecure_port(f"unix:{path}")
    except RuntimeError as error:
        raise MountError(f"nobody can listen at {path}: {error}", hint="choose a shorter or other --socket") from error
    finally:
        os.umask(previous)
    server.start()

    def stop(grace: float) -> bool:
        server.stop(grace).wait()
        executor.shutdown(wait=False, cancel_futures=True)
        end = time.monotonic() + _THREADS_END_WITHIN
        for thread in threading.enumerate():
            if thread.name.startswith(_THREAD):
                thread.join(max(0.0, end - time.monotonic()))
        return not any(thread.name.startswith(_THREAD) for thread in threading.enumerate())

    return stop


def _take_over(path: Path) -> None:
    """Remove the socket that a server left behind. Raises MountError where one still answers at it."""
    try:
        mode = path.lstat().st_mode
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(mode):
        raise MountError(f"{path} is no socket", hint="choose another --socket, or remove it")
    with socket.socket(socket.AF_UNIX) as probe:
        try:
            probe.connect(str(path))
        except ConnectionRefusedError:
            path.unlink()
            return
    raise MountError(f"another snapshotter answers at {path}", hint="end it first, or choose another --socket")


def _answering(name: str, call: Callable[[Any], _T], add: _Add) -> Callable[[Any, grpc.ServicerContext], Any]:
    """A handler that tells each error of `call` to containerd and never ends the server."""

    @contextlib.contextmanager
    def counted(context: grpc.ServicerContext) -> Iterator[None]:
        began, failed = time.monotonic(), ""
        try:
            yield
        except Exception as error:  # noqa: BLE001  told to the client
            code, text = _status(name, error)
            failed = code.name
            context.abort(code, text)  # which raises
        finally:  # also where containerd has heard enough of a listing
            add(name, time.monotonic() - began, failed)

    def answer(request: Any, context: grpc.ServicerContext) -> _T:
        with counted(context):
            return call(request)

    def answer_all(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        with counted(context):
            yield from call(request)  # type: ignore[misc]

    return answer_all if name == "List" else answer


def _status(name: str, error: Exception) -> tuple[grpc.StatusCode, str]:
    if isinstance(error, StripefsError):
        code = next((code for kind, code in _CODES if isinstance(error, kind)), grpc.StatusCode.UNKNOWN)
        if code in (grpc.StatusCode.UNKNOWN, grpc.StatusCode.UNAVAILABLE):
            _log.warning("%s: %s", name, error)
        return code, str(error)
    if isinstance(error, OSError) and error.errno in _FULL:
        return grpc.StatusCode.RESOURCE_EXHAUSTED, f"the disk of the snapshots is full: {error}; free room on it"
    _log.exception("%s failed", name)
    return grpc.StatusCode.INTERNAL, f"{type(error).__name__}: {error}"


def _mounts(mounts: list[Mount]) -> wire.MountsResponse:
    shown = [wire.Mount(type=one.type, source=one.source, options=one.options) for one in mounts]
    return wire.MountsResponse(mounts=shown)


def _info(snapshot: SnapshotRecord) -> wire.Info:
    info = wire.Info(
        name=snapshot.name, parent=snapshot.parent, kind=_KINDS[snapshot.kind], labels=dict(snapshot.labels)
    )
    info.created_at.FromNanoseconds(snapshot.created)
    info.updated_at.FromNanoseconds(snapshot.updated)
    return info
