"""Runs the daemon's helper programs: whatever they do, what the daemon serves goes on.

A helper is a module that takes one JSON object on standard input and may answer with one, the last line of its standard
output: a library may print before that. One that fails, prints no answer, prints without end or does not end in time is
an OSError of its caller, and its process is killed.
"""

from __future__ import annotations

import json
import logging
import subprocess
import sys
from collections.abc import Mapping
from typing import Any

import trio

__all__ = ["run_helper"]

_log = logging.getLogger(__name__)

_OUTPUT = 1 << 20
"""Bytes of standard output, and of standard error, that a helper may write: answers are lines."""

_DYING = 5.0
"""Seconds until a process that was killed is left to itself: one that waits for a hung disk cannot end."""


async def run_helper(module: str, facts: Mapping[str, Any], within: float) -> dict[str, Any]:
    """The answer of `python -m module`, {} where it wrote nothing; killed after `within` seconds. Raises OSError."""
    process = await trio.lowlevel.open_process(
        [sys.executable, "-P", "-m", module],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdin is not None
    assert process.stdout is not None
    assert process.stderr is not None
    output, errors = bytearray(), bytearray()
    try:
        with trio.move_on_after(within) as limit:
            async with trio.open_nursery() as nursery:
                nursery.start_soon(_feed, process.stdin, json.dumps(facts).encode())
                nursery.start_soon(_read, process.stdout, output, process)
                nursery.start_soon(_read, process.stderr, errors, process)
                await process.wait()
    finally:
        await _end(process)
    if limit.cancelled_caught:
        raise OSError(f"{module} did not end within {within:g} s")
    if process.returncode:
        raise OSError(_text(errors) or f"{module} ended with code {process.returncode}")
    lines = _text(output).splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else {}
    except (ValueError, RecursionError):
        answer = None
    if not isinstance(answer, dict):
        raise OSError(f"{module} gave no answer but {lines[-1][:200]!r}")
    return answer


async def _feed(pipe: trio.abc.SendStream, data: bytes) -> None:
    async with pipe:
        try:
            await pipe.send_all(data)
        except trio.BrokenResourceError:  # it ended without reading; its code says why
            return


async def _read(pipe: trio.abc.ReceiveStream, data: bytearray, process: trio.Process) -> None:
    async with pipe:
        while piece := await pipe.receive_some():
            data += piece
            if len(data) > _OUTPUT:
                _log.warning("a helper program writes without end and is killed: %s", _text(data[:200]))
                del data[200:]
                process.kill()
                return


async def _end(process: trio.Process) -> None:
    if process.poll() is None:
        process.kill()
        with trio.move_on_after(_DYING, shield=True):
            await process.wait()
    for pipe in (process.stdin, process.stdout, process.stderr):
        if pipe is not None:
            await trio.aclose_forcefully(pipe)


def _text(output: bytes | bytearray) -> str:
    return output.decode("utf-8", "replace").strip()
