"""Checked readers as processes: started together, watched, stopped together."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import time
from dataclasses import dataclass
from pathlib import Path

from tests.soak.readers import KINDS
from tests.support.checkout import CHECKOUT

__all__ = ["Crowd", "ReaderFailed", "Total"]


class ReaderFailed(Exception):
    """A reader saw a wrong byte or a failed call, died, or does not get on. The message says which."""


@dataclass(frozen=True, slots=True)
class Total:
    reads: int
    bytes: int


class _Reader:
    def __init__(self, kind: str, seed: int, pause: float, folder: Path) -> None:
        self.name = f"{kind} reader {seed}"
        self.bytes = self.reads = 0
        self.error = ""
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tests.soak.readers", kind, str(seed), str(pause), str(folder)],
            cwd=CHECKOUT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self._listener = threading.Thread(target=self._listen, name=self.name, daemon=True)
        self._listener.start()

    def _listen(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            message = json.loads(line)
            self.error = message.get("error", self.error)
            self.reads, self.bytes = message.get("reads", self.reads), message.get("bytes", self.bytes)

    def check(self) -> None:
        status = self.process.poll()
        if status is not None:
            self._listener.join(5)
            raise ReaderFailed(self.error or f"{self.name} ended with status {status}")

    def _ended(self, patience: float) -> int:
        """Wait for its end; its exit status. Raises ReaderFailed."""
        try:
            status = self.process.wait(patience)
        except subprocess.TimeoutExpired:
            raise ReaderFailed(f"{self.name} does not come back from a read") from None
        self._listener.join(5)
        return status

    def failure(self, patience: float) -> str:
        """Wait for its end, which must not be a good one; what it said, or the name of the signal."""
        status = self._ended(patience)
        if status == 0:
            raise ReaderFailed(f"{self.name} ended as if nothing had happened")
        return self.error or signal.Signals(-status).name

    def finish(self, patience: float) -> None:
        """End its input and wait for it. Raises ReaderFailed."""
        self.check()
        assert self.process.stdin is not None
        self.process.stdin.close()
        status = self._ended(patience)
        if status or self.error:
            raise ReaderFailed(self.error or f"{self.name} ended with status {status}")

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        for stream in (self.process.stdin, self.process.stdout):
            assert stream is not None
            with contextlib.suppress(OSError):
                stream.close()
        # Killed in the middle of a read it ends when the mount does; whoever closes us takes that away next.
        with contextlib.suppress(subprocess.TimeoutExpired):
            self.process.wait(5)


class Crowd:
    """`count` readers of `folder`, of all kinds in turn (or of `kinds`), which pause for so many seconds after each
    read. patience in seconds: longer is a hang."""

    def __init__(
        self,
        folder: Path,
        count: int,
        *,
        seed: int = 0,
        kinds: tuple[str, ...] = tuple(KINDS),
        pause: float = 0.0,
        patience: float = 150.0,
    ) -> None:
        self._patience = patience
        self._readers = [_Reader(kinds[number % len(kinds)], seed + number, pause, folder) for number in range(count)]

    def __enter__(self) -> Crowd:
        return self

    def __exit__(self, *_: object) -> None:
        for reader in self._readers:
            reader.close()

    @property
    def total(self) -> Total:
        return Total(sum(reader.reads for reader in self._readers), sum(reader.bytes for reader in self._readers))

    @property
    def pids(self) -> list[int]:
        return [reader.process.pid for reader in self._readers]

    def errors(self) -> list[str]:
        """The error of each reader; all are expected to fail. Raises ReaderFailed for one that goes on."""
        return [reader.failure(self._patience) for reader in self._readers]

    def check(self) -> None:
        """Raises ReaderFailed for what any reader complains of."""
        for reader in self._readers:
            reader.check()

    def get_on(self) -> None:
        """Wait until every reader has told of new bytes. Raises ReaderFailed."""
        before = [reader.bytes for reader in self._readers]
        deadline = time.monotonic() + self._patience
        while True:
            self.check()
            stuck = [reader.name for reader, had in zip(self._readers, before, strict=True) if reader.bytes <= had]
            if not stuck:
                return
            if time.monotonic() > deadline:
                raise ReaderFailed(f"no byte for {self._patience:.0f} s: {', '.join(stuck)}")
            time.sleep(0.1)

    def finish(self) -> Total:
        """Stop all readers, each after the read it is in. Raises ReaderFailed."""
        for reader in self._readers:
            reader.finish(self._patience)
        return self.total
