"""Tries for real what the kernel can mount, as a program in a mount namespace that ends with it.

    python -P -m imagefs.doctor.trial FOLDER

It prints one JSON object: for each of the trials "ok" or the reason why not. FOLDER is the cache's: whether EROFS takes
files depends on the file system that they lie on. It needs root, and leaves nothing behind.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path

from imagefs.build.content import scan
from imagefs.build.layout import lay_out
from imagefs.format.erofs import BLOCK, DeviceSlot, write
from imagefs.plane import erofs
from imagefs.run.namespace import private_mounts
from stripefs.errors import StripefsError
from stripefs.fuse import kernel

__all__ = ["TRIALS", "run_trials"]

TRIALS = ("erofs-file", "erofs-loop", "overlay", "fuse", "fuse-resend")
"""By name, what is tried: EROFS with two devices from files and from loop devices, an overlay on top whose upper
directory lies in the folder, a FUSE connection, and its FUSE_NOTIFY_RESEND."""

_CONTENT = bytes(range(256)) * 512  # 128 KiB, so it lies in a device and not in the metadata


def run_trials(folder: str) -> dict[str, str]:
    """By trial, "ok" or why not. Call it in a mount namespace of its own."""
    results: dict[str, str] = {}
    with tempfile.TemporaryDirectory(prefix="doctor-", dir=folder) as made:
        place = Path(made)
        metadata, devices = _image(place)
        for backing in ("file", "loop"):
            target = place / f"erofs-{backing}"
            target.mkdir()
            results[f"erofs-{backing}"] = _outcome(lambda b=backing, t=target: _erofs(metadata, devices, t, b))  # type: ignore[misc]
        lower = next((place / name for name in ("erofs-file", "erofs-loop") if results[name] == "ok"), None)
        results["overlay"] = _outcome(lambda: _overlay(lower, place)) if lower is not None else "no EROFS to lie on"
        results |= _fuse(place)
        for mounted in reversed(kernel.mounts()):
            if mounted.path.startswith(f"{os.path.realpath(made)}/"):
                kernel.unmount(mounted.path, kernel.MNT_DETACH)
    return results


def _image(folder: Path) -> tuple[str, list[str]]:
    """The metadata and the two devices of an image with one file."""
    source = folder / "source"
    source.mkdir()
    (source / "file").write_bytes(_CONTENT)
    root, contents = scan(str(source))
    (segment,) = lay_out(root, contents)
    cold, hot, metadata = folder / "cold", folder / "hot", folder / "meta.erofs"
    cold.write_bytes(bytes(segment.at) + _CONTENT)
    hot.write_bytes(bytes(BLOCK))
    with metadata.open("wb") as out:
        write(root, [DeviceSlot(b"cold", cold.stat().st_size // BLOCK), DeviceSlot(b"hot", 1)], out)
    return str(metadata), [str(cold), str(hot)]


def _erofs(metadata: str, devices: list[str], target: Path, backing: erofs.Backing) -> str:
    erofs.mount(metadata, devices, str(target), backing)
    return "ok" if (target / "file").read_bytes() == _CONTENT else "the kernel read other bytes than were written"


def _overlay(lower: Path, folder: Path) -> str:
    upper, work, merged = (folder / name for name in ("upper", "work", "merged"))
    for directory in (upper, work, merged):
        directory.mkdir()
    kernel.mount("overlay", str(merged), "overlay", 0, f"lowerdir={lower},upperdir={upper},workdir={work}")
    with (merged / "file").open("ab") as file:
        file.write(b"more")
    return (
        "ok"
        if (upper / "file").stat().st_size == len(_CONTENT) + 4
        else "what was written is not in the upper directory"
    )


def _fuse(folder: Path) -> dict[str, str]:
    """A connection that nobody serves: the kernel's first message tells what it can do."""
    target = folder / "fuse"
    target.mkdir()
    try:
        device = kernel.open_device()
        options = f"fd={device},rootmode=40000,user_id={os.getuid()},group_id={os.getgid()}"
        kernel.mount("doctor", str(target), "fuse.doctor", 0, options)
        init = kernel.read_init(device)
        os.close(device)  # ends the connection
    except (OSError, StripefsError) as error:
        return {"fuse": str(error), "fuse-resend": "no FUSE"}
    return {"fuse": "ok", "fuse-resend": "ok" if init.can_resend else "the kernel does not offer it"}


def _outcome(trial: Callable[[], str]) -> str:
    try:
        return trial()
    except (OSError, StripefsError) as error:
        return str(error)


if __name__ == "__main__":
    private_mounts()
    print(json.dumps(run_trials(sys.argv[1])))  # noqa: T201  how it answers
