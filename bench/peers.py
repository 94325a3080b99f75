"""What stripefs is compared with and does not come from PyPI: rclone, built from source once, and libhdfs.

Both live in ~/.cache/bootseer. rclone is built by Go from `bench/rclone`, which pins it and all its modules by digest
and holds only what a mount of HDFS needs (a minute of one core instead of ten).
"""

from __future__ import annotations

import hashlib
import os
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path

from bench.cluster import ROOT, BenchError

__all__ = ["RCLONE_VERSION", "build_rclone", "find_rclone", "libhdfs_environment"]

_SOURCE = ROOT / "bench" / "rclone"
RCLONE_VERSION = next(
    line.split()[-1] for line in (_SOURCE / "go.mod").read_text().splitlines() if "github.com/rclone/rclone " in line
)
_GO_FOLDERS = ("/usr/local/go/bin", "/usr/lib/go/bin")


def find_rclone() -> Path | None:
    """The binary of `RCLONE_VERSION`, if `build_rclone` has made it of what is in `bench/rclone` now."""
    binary = _binary()
    return binary if binary.exists() else None


def build_rclone(say: Callable[[str], None]) -> Path:
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
    command = ["nice", go, "build", "-p", "2", "-trimpath", "-ldflags", "-s -w", "-o", str(draft), "."]
    done = subprocess.run(
        command, cwd=_SOURCE, env=os.environ | {"CGO_ENABLED": "0"}, capture_output=True, text=True, check=False
    )
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["go said nothing"])[-1]
        raise BenchError(f"rclone is not built: {last}")
    draft.rename(binary)
    return binary


def libhdfs_environment() -> dict[str, str]:
    """What pyarrow needs to load libhdfs, which is built unless it is there. Raises BenchError where it cannot be."""
    from stripefs.store.libhdfs import find_java_home  # imports pyarrow, which only a full run needs

    done = subprocess.run([ROOT / "scripts" / "build-libhdfs"], capture_output=True, text=True, check=False)
    if done.returncode:
        last = (done.stderr.strip().splitlines() or ["it said nothing"])[-1]
        raise BenchError(f"libhdfs is not built: {last}")
    jars = subprocess.run([ROOT / "scripts" / "hdfs-cluster", "jars"], capture_output=True, text=True, check=True)
    names = sorted(str(jar) for jar in Path(jars.stdout.strip()).glob("*.jar"))
    return {"ARROW_LIBHDFS_DIR": done.stdout.strip(), "CLASSPATH": ":".join(names), "JAVA_HOME": find_java_home()}


def _binary() -> Path:
    sources = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(_SOURCE.iterdir())))
    return Path("~/.cache/bootseer").expanduser() / f"rclone-{RCLONE_VERSION}-{sources.hexdigest()[:12]}"
