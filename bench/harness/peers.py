"""Peers and loaders that do not come with the package: rclone, built from source once, libhdfs, and torch.

rclone and libhdfs live in ~/.cache/bootseer. rclone is built by Go from `bench/rclone`, which pins it and all its
modules by digest and holds only what a mount of HDFS needs (a minute of one core instead of ten).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import sys
from pathlib import Path

from bench.harness import ROOT, BenchError, Say
from bench.harness.environment import CACHE
from bench.harness.programs import output

__all__ = ["RCLONE_VERSION", "TORCH", "build_rclone", "find_rclone", "libhdfs_environment", "try_rclone"]

TORCH = Path(sys.prefix, "torch")
"""The folder into which `need_torch` of scripts/lib/setup.sh installs torch and the loaders of checkpoints."""

_SOURCE = ROOT / "bench" / "rclone"
RCLONE_VERSION = next(
    line.split()[-1] for line in (_SOURCE / "go.mod").read_text().splitlines() if "github.com/rclone/rclone " in line
)
_GO_FOLDERS = ("/usr/local/go/bin", "/usr/lib/go/bin")


def find_rclone() -> Path | None:
    """The binary of `RCLONE_VERSION`, if `build_rclone` has made it of what is in `bench/rclone` now."""
    binary = _binary()
    return binary if binary.exists() else None


def try_rclone(notes: list[str], say: Say) -> Path | None:
    """rclone's binary, built unless it is there; None, and a note that tells why, where it cannot be."""
    try:
        return build_rclone(say)
    except BenchError as error:
        notes.append(str(error))
        return None


def build_rclone(say: Say) -> Path:
    """Build it unless it is there. Raises BenchError where Go is missing or the build fails."""
    binary = _binary()
    if binary.exists():
        return binary
    go = shutil.which("go", path=os.pathsep.join([os.environ.get("PATH", ""), *_GO_FOLDERS]))
    if go is None:
        raise BenchError("rclone is not built: Go is missing (put it on PATH, then ./scripts/bench build-rclone)")
    say(f"building rclone {RCLONE_VERSION} (once, some minutes)")
    binary.parent.mkdir(parents=True, exist_ok=True)
    draft = binary.with_suffix(".new")
    command: list[str | Path] = ["nice", go, "build", "-p", "2", "-trimpath", "-ldflags", "-s -w", "-o", draft, "."]
    try:
        output(*command, cwd=_SOURCE, env=os.environ | {"CGO_ENABLED": "0"})
    except BenchError as error:
        raise BenchError(f"rclone is not built: {error}") from error
    draft.rename(binary)
    return binary


def libhdfs_environment() -> dict[str, str]:
    """Variables with which pyarrow loads libhdfs, which is built unless it is there. Raises BenchError."""
    from stripefs.store.hdfs.libhdfs import find_java_home  # imports pyarrow, which only a full run needs

    folder = output(ROOT / "scripts" / "build-libhdfs").strip()
    jars = output(ROOT / "scripts" / "hdfs-cluster", "jars").strip()
    names = sorted(str(jar) for jar in Path(jars).glob("*.jar"))
    return {"ARROW_LIBHDFS_DIR": folder, "CLASSPATH": ":".join(names), "JAVA_HOME": find_java_home()}


def _binary() -> Path:
    sources = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(_SOURCE.iterdir())))
    return CACHE / f"rclone-{RCLONE_VERSION}-{sources.hexdigest()[:12]}"
