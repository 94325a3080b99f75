"""Go programs for tests, built once for each version into the user's cache: containerd 2.x and clients of it.

A version of containerd takes two minutes of processor time and 80 MB, so only tests/extra uses it. The sources come as
Go modules; the digest of a module is pinned here, and its go.sum pins all that it needs. A folder of the cache is there
when it is whole; a lock makes workers and checkouts that need the same one wait for the first.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

__all__ = ["conformance", "containerd"]

_SUMS = {
    "1.7.35": "h1:7AU2T1qI2OdNBmKkreWZ7kASHUNFItN5Hgejd9sY938=",
    "2.2.9": "h1:ddw9THGOXhcKnHORjkKoXtazPjwtcPwmqk8AVyRpfZw=",
    "2.4.2": "h1:p6Qg+xbEz8lvwdhHDx0U469xENvp4LgGBx+E7djXkGw=",
}
"""Digests of containerd's module by version, as go.sum has them: the first line that has snapshotters of runtime
handlers, one whose transfer service knows lazy images, and the first that takes them when it unpacks in parallel."""

_FLAGS = ("-mod=readonly", "-trimpath", "-tags", "no_btrfs,no_devmapper,no_zfs")
"""One set for all builds, so that they share compiled packages. The tags leave out what needs headers of C."""

_OLDEST = 21
"""The minor version of the first Go that fetches a newer one where a module asks for it."""

_NEEDED = f"containerd is built for these tests, so put Go 1.{_OLDEST} or later on PATH (Debian 12 has 1.19)"

_CONFORMANCE = Path(__file__).parent / "conformance"


def containerd(version: str) -> Path:
    """Folder with `containerd`, its shim for runc, and `ctr`."""
    module = "github.com/containerd/containerd" + ("" if version.startswith("1.") else "/v2")
    named = ("-ldflags", f"-s -w -X {module}/version.Version=v{version}")
    programs = [f"./cmd/{name}" for name in ("containerd", "containerd-shim-runc-v2", "ctr")]

    def build(folder: Path) -> None:
        source = _download(module, f"v{version}", _SUMS[version])
        _go(source, "build", *_FLAGS, *named, "-o", f"{folder}/", *programs)

    return _once(f"containerd-{version}", build)


def conformance() -> Path:
    """The program that runs containerd's own tests of snapshotters."""
    files = sorted(_CONFORMANCE.iterdir())
    key = hashlib.sha256(b"".join(file.read_bytes() for file in files)).hexdigest()[:12]

    def build(folder: Path) -> None:
        _go(_CONFORMANCE, "test", *_FLAGS, "-c", "-o", str(folder / "conformance"))

    return _once(f"conformance-{key}", build) / "conformance"


def _once(name: str, build: Callable[[Path], None]) -> Path:
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "bootseer"
    cache.mkdir(parents=True, exist_ok=True)
    folder = cache / name
    with (cache / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not folder.exists():
            unfinished = cache / f"{name}.new"
            shutil.rmtree(unfinished, ignore_errors=True)
            unfinished.mkdir()
            build(unfinished)
            unfinished.rename(folder)
    return folder


def _download(module: str, version: str, digest: str) -> Path:
    """The module's folder in Go's cache."""
    found = json.loads(_go(Path("/"), "mod", "download", "-json", f"{module}@{version}"))
    assert found["Sum"] == digest, f"{module}@{version} is {found['Sum']}, not {digest}"
    return Path(found["Dir"])


def _go(folder: Path, *arguments: str) -> str:
    program = shutil.which("go")
    assert program is not None, f"go is not on PATH: {_NEEDED}"
    version = _output([program, "env", "GOVERSION"], folder)
    found = re.match(r"go1\.(\d+)", version)
    minor = int(found[1]) if found is not None else 0
    assert minor >= _OLDEST, f"{program} is {version.strip()}: {_NEEDED}"
    return _output([program, *arguments], folder)


def _output(command: list[str], folder: Path) -> str:
    environment = {**os.environ, "CGO_ENABLED": "0"}
    done = subprocess.run(
        command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{' '.join(command)}: {done.stderr[-2000:]}"
    return done.stdout
