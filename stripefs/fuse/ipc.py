"""Messages between supervisor and worker: JSON on a SEQPACKET socketpair, with descriptors where needed.

supervisor → worker   start   command, payload, mount, first, kept, facts, …   what to serve
                      serve   init (hex), the device descriptor                 the file system is mounted: begin
                      facts   facts                                             for `status`
                      ping                                                      are you there
worker → supervisor   ready   source, kept                                     the source answers
                      failed  kind, message, hint                               it does not: nothing to mount
                      serving                                                   INIT is answered
                      stop    force                                             someone asked for the end
                      alive                                                     the answer to a ping
"""

from __future__ import annotations

import json
import os
import socket
from collections.abc import Sequence
from typing import Any

from stripefs import errors

__all__ = ["describe_error", "pair", "rebuild_error", "receive", "send"]

_LARGEST = 1 << 18
_DESCRIPTORS = 16


def pair() -> tuple[socket.socket, socket.socket]:
    return socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)


def send(channel: socket.socket, message: dict[str, Any], descriptors: Sequence[int] = ()) -> None:
    """Raises OSError when the other side is gone."""
    socket.send_fds(channel, [json.dumps(message).encode()], list(descriptors))


def receive(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """The next message and its descriptors, close-on-exec. Raises EOFError when the other side is gone."""
    try:
        data, descriptors, _, _ = socket.recv_fds(channel, _LARGEST, _DESCRIPTORS)
    except ConnectionResetError:
        data, descriptors = b"", []
    for descriptor in descriptors:
        os.set_inheritable(descriptor, False)
    if not data:
        raise EOFError
    return json.loads(data), descriptors


def describe_error(error: errors.StripefsError) -> dict[str, Any]:
    kind = next(one.__name__ for one in type(error).__mro__ if one.__module__ == errors.__name__)
    facts = {"kind": kind, "message": error.message, "hint": error.hint}
    return {**facts, "exit_code": error.exit_code, "errno": error.errno}


def rebuild_error(message: dict[str, Any]) -> errors.StripefsError:
    """The inverse of `describe_error`; a class that is not public becomes its nearest public one."""
    kind = getattr(errors, message["kind"])
    error: errors.StripefsError = kind(message["message"], hint=message["hint"])
    error.exit_code, error.errno = message["exit_code"], message["errno"]
    return error
