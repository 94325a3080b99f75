"""containerd's snapshots service over gRPC: requests in, answers out, and errors as status codes, in one place.

Handlers run on a few threads; one that brings an image's metadata from a store may take seconds, and others go on.
"""

from __future__ import annotations

import errno
import logging
import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import grpc
from google.protobuf.empty_pb2 import Empty

from imagefs.snapshotter.core import Mount, Snapshotter
from imagefs.snapshotter.errors import AlreadyExists, FailedPrecondition, InvalidArgument, SnapshotNotFound
from imagefs.snapshotter.metastore import Kind, SnapshotRecord
from imagefs.snapshotter.metrics import Calls
from imagefs.snapshotter.proto import snapshots_pb2 as wire
from stripefs.errors import MountError, ServiceDown, StripefsError

__all__ = ["SERVICE", "Service", "serve"]

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


class Service:
    """The ten calls, answered by `core`."""

    def __init__(self, core: Snapshotter, calls: Calls) -> None:
        self._core = core
        self._calls = calls

    def handler(self) -> grpc.GenericRpcHandler:
        """For `grpc.Server.add_generic_rpc_handlers`."""
        calls: dict[str, tuple[Any, Callable[[Any], Any]]] = {
            "Prepare": (wire.PrepareRequest, self._prepare),
            "View": (wire.PrepareRequest, self._view),
            "Mounts": (wire.KeyRequest, self._mounts),
            "Commit": (wire.CommitRequest, self._commit),
            "Remove": (wire.KeyRequest, self._remove),
            "Stat": (wire.KeyRequest, self._stat),
            "Update": (wire.UpdateRequest, self._update),
            "Usage": (wire.KeyRequest, self._usage),
            "Cleanup": (wire.CleanupRequest, self._cleanup),
        }
        handlers = {
            name: grpc.unary_unary_rpc_method_handler(
                _answering(name, call, self._calls),
                request_deserializer=request.FromString,
                response_serializer=lambda answer: answer.SerializeToString(),
            )
            for name, (request, call) in calls.items()
        }
        handlers["List"] = grpc.unary_stream_rpc_method_handler(
            _answering("List", self._list, self._calls),
            request_deserializer=wire.ListRequest.FromString,
            response_serializer=lambda answer: answer.SerializeToString(),
        )
        return grpc.method_handlers_generic_handler(SERVICE, handlers)

    def _prepare(self, request: wire.PrepareRequest) -> wire.MountsResponse:
        return _mounts(self._core.prepare(request.key, request.parent, dict(request.labels)))

    def _view(self, request: wire.PrepareRequest) -> wire.MountsResponse:
        return _mounts(self._core.view(request.key, request.parent, dict(request.labels)))

    def _mounts(self, request: wire.KeyRequest) -> wire.MountsResponse:
        return _mounts(self._core.mounts(request.key))

    def _commit(self, request: wire.CommitRequest) -> Empty:
        self._core.commit(request.name, request.key, dict(request.labels), request.parent)
        return Empty()

    def _remove(self, request: wire.KeyRequest) -> Empty:
        self._core.remove(request.key)
        return Empty()

    def _stat(self, request: wire.KeyRequest) -> wire.InfoResponse:
        return wire.InfoResponse(info=_info(self._core.stat(request.key)))

    def _update(self, request: wire.UpdateRequest) -> wire.InfoResponse:
        info = request.info
        changed = self._core.update(info.name, dict(info.labels), list(request.update_mask.paths))
        return wire.InfoResponse(info=_info(changed))

    def _list(self, request: wire.ListRequest) -> Iterator[wire.ListResponse]:
        batch: list[wire.Info] = []
        for one in self._core.walk(list(request.filters)):
            batch.append(_info(one))
            if len(batch) == _BATCH:
                yield wire.ListResponse(info=batch)
                batch = []
        if batch:
            yield wire.ListResponse(info=batch)

    def _usage(self, request: wire.KeyRequest) -> wire.UsageResponse:
        usage = self._core.usage(request.key)
        return wire.UsageResponse(size=usage.bytes, inodes=usage.inodes)

    def _cleanup(self, request: wire.CleanupRequest) -> Empty:
        self._core.cleanup()
        return Empty()


def serve(core: Snapshotter, path: Path, calls: Calls) -> Callable[[float], bool]:
    """Listen at `path`, for its owner alone. Raises MountError where another one does, or nobody can.

    Returns the function that ends it. That takes the seconds which calls under way have to end, and tells whether all
    of them have: a thread that still waits for a daemon or a registry keeps the process from ending by itself.
    """
    path.parent.mkdir(mode=0o711, parents=True, exist_ok=True)
    _take_over(path)
    executor = ThreadPoolExecutor(_THREADS, thread_name_prefix=_THREAD)
    server = grpc.server(executor, options=(("grpc.max_receive_message_length", 16 << 20),))
    server.add_generic_rpc_handlers((Service(core, calls).handler(),))
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


def _answering(name: str, call: Callable[[Any], _T], calls: Calls) -> Callable[[Any, grpc.ServicerContext], Any]:
    """A handler that tells each error of `call` to containerd and never ends the server."""

    def fail(error: Exception, context: grpc.ServicerContext, began: float) -> NoReturn:
        code, text = _status(name, error)
        calls.add(name, time.monotonic() - began, code.name)
        context.abort(code, text)
        raise AssertionError("abort raises")

    def answer(request: Any, context: grpc.ServicerContext) -> _T:
        began = time.monotonic()
        try:
            result = call(request)
        except Exception as error:  # noqa: BLE001  told to the client
            fail(error, context, began)
        calls.add(name, time.monotonic() - began)
        return result

    def answer_all(request: Any, context: grpc.ServicerContext) -> Iterator[Any]:
        began = time.monotonic()
        try:
            yield from call(request)  # type: ignore[misc]
        except GeneratorExit:  # containerd has heard enough
            calls.add(name, time.monotonic() - began)
            raise
        except Exception as error:  # noqa: BLE001
            fail(error, context, began)
        calls.add(name, time.monotonic() - began)

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
