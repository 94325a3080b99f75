"""Workarounds for hdfs-native: corrupt blocks that it does not tell from absent ones, and one user a process.

**Corrupt blocks.** hdfs-native raises the same "All DataNodes failed" for a block whose replicas are all corrupt and
for one whose DataNodes are away. The reason of each replica is in its log only, which goes to standard error at the
level that the environment had when the library was loaded. So a child process, which runs this module, repeats the
failed read with that log turned on, narrows it down to one byte (which lies in one block), and the block is corrupt
where the log has a checksum error for every replica that the NameNode knows. A replica that fails for any other reason
(a refused connection, silence, a DataNode that does not have the block yet) is one that may come back. A log in other
words than those expected tells nothing: then the read is tried again as if the hosts were away.

**User.** The library knows no user of a client: whenever it connects, and again after each lost connection, it takes
the name from the variable HADOOP_USER_NAME of the process (0.14.7; measured at a socket that took what it sent). So the
name must stand there as long as a client lives, a second user at the same time is refused, and the variable is taken
away with the last client. Where the library would take the right name anyway nothing is set, so that programs which are
started meanwhile inherit nothing. The name is not put into `os.environ`: programs that are given a copy of that do not
inherit it either.
"""

from __future__ import annotations

import json
import os
import pwd
import re
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from typing import Any

from hdfs_native import Client

from stripefs.errors import ConfigError, Corrupt

__all__ = ["BlockChecker", "ClientArguments", "claim_user", "corruption"]

USER_VARIABLE = "HADOOP_USER_NAME"

_lock = threading.Lock()
_user = ""
_clients = 0

REMEMBERED = 10.0
"""Seconds for which an answer about a file is taken to hold. Readers ask again several times a second."""

ANSWER = 20.0
"""Seconds for the child: some 25 small reads of hosts that answered at once a moment ago."""

_LAST = "the last read follows"
_REASON = re.compile(r"WARN +hdfs_native::hdfs::block_reader\] (.*)")
_BLOCK = re.compile(r"block_id: (\d+)")
_REPLICA = re.compile(r'ip_addr: \\?"([^"\\]+).*?xfer_port: (\d+)')


def claim_user(user: str, client: object) -> Callable[[], object]:
    """All connections are of `user` from now on, until the result is called or `client` is gone.

    Raises ConfigError while clients of another user live in this process.
    """
    global _user, _clients
    with _lock:
        if _clients and user != _user:
            raise ConfigError(
                f"this process is connected to HDFS as {_user}, and cannot be {user} at the same time",
                hint="use a process for each user, or --hdfs-transport webhdfs",
            )
        if not _clients and user != _own():
            os.putenv(USER_VARIABLE, user)
        _user = user
        _clients += 1
    release = weakref.finalize(client, _release)
    release.atexit = False
    return release


def _release() -> None:
    global _clients
    with _lock:
        _clients -= 1
        if not _clients:
            before = os.environ.get(USER_VARIABLE)
            if before is None:
                os.unsetenv(USER_VARIABLE)
            else:
                os.putenv(USER_VARIABLE, before)


def _own() -> str:
    """The user that the library takes by itself."""
    try:
        return os.environ.get(USER_VARIABLE) or pwd.getpwuid(os.geteuid()).pw_name
    except KeyError:  # a container's uid without a passwd entry
        return ""


ClientArguments = tuple[str, dict[str, str], str | None]
"""The arguments of hdfs-native's Client: URL, options, and the folder of Hadoop's configuration."""


class BlockChecker:
    """Examines one read at a time, in a child process. Safe to use from many threads."""

    def __init__(self, connection: ClientArguments) -> None:
        self._connection = connection
        self._lock = threading.Lock()
        self._busy = threading.Lock()
        self._answers: dict[str, tuple[float, int, Corrupt | None]] = {}
        """By path: until when it holds, the corrupt byte's offset, and the error, None where hosts are away."""

    def check(self, path: str, offset: int, length: int) -> Corrupt | None:
        """The error where a block in [offset, offset + length) is corrupt on all DataNodes that have it.

        None where that is not known: also while another read is examined, so the caller tries again later.
        """
        with self._lock:
            until, at, known = self._answers.get(path, (0.0, 0, None))
        current = time.monotonic() < until
        if current and known is not None and offset <= at < offset + length:
            return Corrupt(known.message, hint=known.hint)
        if (current and known is None) or not self._busy.acquire(blocking=False):
            return None
        try:
            at, error = self._examine(path, offset, length)
        finally:
            self._busy.release()
        now = time.monotonic()
        with self._lock:
            self._answers = {name: answer for name, answer in self._answers.items() if answer[0] > now}
            self._answers[path] = (now + REMEMBERED, at, error)
        return error

    def _examine(self, path: str, offset: int, length: int) -> tuple[int, Corrupt | None]:
        question = [*self._connection, path, offset, length]
        try:
            child = subprocess.run(
                [sys.executable, "-P", "-m", __name__],
                input=json.dumps(question),
                capture_output=True,
                text=True,
                errors="replace",
                timeout=ANSWER,
                env={**os.environ, "RUST_LOG": "hdfs_native::hdfs::block_reader=debug"},
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired):
            return 0, None
        if child.returncode or not child.stdout.strip():
            return 0, None
        at, message = json.loads(child.stdout)
        found = corruption(child.stderr, message)
        if found is None:
            return 0, None
        block, hosts = found
        return at, Corrupt(
            f"block blk_{block} fails its checksum at byte {at} of the file on all its DataNodes: {', '.join(hosts)}",
            hint="write the file anew from a good copy",
        )


def corruption(log: str, message: str) -> tuple[int, tuple[str, ...]] | None:
    """The block's id and its DataNodes (IP:PORT), where each of them failed by checksum; pure.

    log: hdfs-native's since its start, of a read of one byte behind the line that announces it. message: the failure of
    that read.
    """
    _, announced, last = log.rpartition(_LAST)
    reasons = _REASON.findall(last)
    blocks = set(_BLOCK.findall(last))
    hosts = tuple(f"{ip}:{port}" for ip, port in _REPLICA.findall(message))
    by_checksum = all(reason.endswith("ChecksumError") for reason in reasons)
    if announced and hosts and len(blocks) == 1 and len(reasons) == len(hosts) and by_checksum:
        return int(blocks.pop()), hosts
    return None


def _narrow(question: list[Any]) -> None:
    """Answer [offset, message] of the first byte that cannot be read, on standard output; nothing where all can."""
    url, options, conf_dir, path, offset, length = question
    reader = Client(url, options, conf_dir).read(path)
    start, stop = offset, offset + length
    if _failure(reader, start, stop) is None:
        return
    while stop - start > 1:
        middle = (start + stop) // 2
        if _failure(reader, start, middle) is None:
            start = middle
        else:
            stop = middle
    sys.stderr.write(f"{_LAST}\n")
    sys.stderr.flush()
    message = _failure(reader, start, stop)
    if message is not None:
        sys.stdout.write(json.dumps([start, message]))


def _failure(reader: object, start: int, stop: int) -> str | None:
    try:
        reader.read_range(start, stop - start)  # type: ignore[attr-defined]
    except (OSError, RuntimeError) as error:
        return str(error)
    return None


if __name__ == "__main__":
    _narrow(json.load(sys.stdin))
