"""Asking a worker over the control socket of its mount: one JSON object there, one back (`stripefs.mount.service`).

Loads little, because commands that ask are to start at once.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import socket
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from stripefs.errors import MountError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["TIMEOUT", "address", "ask"]

TIMEOUT = 10.0
_ASK_AGAIN = 0.05


def ask(
    path: str | Path,
    request: dict[str, Any],
    timeout: float = TIMEOUT,
    *,
    what: str,
    deaths: int = 0,
    meanwhile: Callable[[], None] | None = None,
) -> dict[str, Any]:
    """Send a request to the socket at `path`; the answer. `what` names who is asked, in messages.

    timeout in seconds covers a worker that is being replaced; one that dies over its answer is asked again through the
    next, so a request must bear being asked twice. deaths: give up after so many, lest a request that kills workers
    ends the mount; 0 for never. meanwhile: what to do while the answer is being made; called each time that the request
    was sent. Raises FileNotFoundError when nobody listens there, MountError when no answer comes, and what the answer
    says went wrong.
    """
    end = time.monotonic() + timeout
    cut_off = 0
    while True:
        try:
            answer: dict[str, Any] = json.loads(_ask(path, request, max(0.1, end - time.monotonic()), meanwhile))
            break
        except (FileNotFoundError, ConnectionRefusedError) as error:
            if cut_off and request["op"] == "stop":
                return {"v": 1, "stopping": True}  # it stopped before its answer was out
            raise FileNotFoundError(str(path)) from error
        except (ConnectionResetError, BrokenPipeError) as error:
            cut_off += 1
            if time.monotonic() > end or cut_off == deaths:
                raise _silent(what, error) from error
            time.sleep(_ASK_AGAIN)
        except (OSError, ValueError) as error:
            raise _silent(what, error) from error
    if "failed" in answer:
        from stripefs.mount.channel import rebuild_error

        raise rebuild_error(answer["failed"])
    if "error" in answer:
        raise MountError(f"{what} refused: {answer['error']}")
    return answer


def _ask(path: str | Path, request: dict[str, Any], timeout: float, meanwhile: Callable[[], None] | None) -> bytes:
    """One request and its answer. Raises OSError; ConnectionResetError when the answer ends before it is whole."""
    answer = b""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as client:
        client.settimeout(timeout)
        with address(path) as short:
            client.connect(short)
        client.sendall(json.dumps({"v": 1, **request}).encode() + b"\n")
        if meanwhile is not None:
            meanwhile()
        while chunk := client.recv(1 << 16):
            answer += chunk
    if not answer.endswith(b"\n"):
        raise ConnectionResetError(errno.ECONNRESET, "the answer was cut off")
    return answer


def _silent(what: str, error: Exception) -> MountError:
    return MountError(f"{what} does not answer: {error}", hint="see its log")


@contextlib.contextmanager
def address(path: str | Path) -> Iterator[str]:
    """A socket's path in fewer than the 108 bytes that a socket address holds, however long the directory's is."""
    folder, name = os.path.split(path)
    directory = os.open(folder or ".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{directory}/{name}"
    finally:
        os.close(directory)
