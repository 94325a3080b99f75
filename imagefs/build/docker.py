"""Images of registries: skopeo fetches them into an image layout."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from imagefs.build.platform import Platform
from imagefs.errors import BuildError
from imagefs.progress import Progress

__all__ = ["Registry", "fetch"]

_LOOK = 0.2  # seconds between two looks at how much has arrived


@dataclass(frozen=True, slots=True)
class Registry:
    """How registries are spoken to: authfile "" means skopeo's own, and tls_verify False allows plain http too."""

    authfile: str = ""
    tls_verify: bool = True


def fetch(reference: str, into: Path, platform: Platform, registry: Registry, progress: Progress) -> None:
    """Copy the image `docker://REFERENCE` for that platform into a new layout. Raises BuildError.

    What skopeo says goes into the error; a process that is interrupted takes it along.
    """
    skopeo = shutil.which("skopeo")
    if skopeo is None:
        raise BuildError("skopeo, which fetches docker:// images, is not installed", hint="apt-get install skopeo")
    command = [skopeo, f"--tmpdir={into.parent}", f"--override-os={platform.system}"]
    command.append(f"--override-arch={platform.architecture}")
    if platform.variant:
        command.append(f"--override-variant={platform.variant}")
    command += ["copy", "--quiet", f"--src-tls-verify={'true' if registry.tls_verify else 'false'}"]
    if registry.authfile:
        command.append(f"--src-authfile={registry.authfile}")
    command += [reference, f"oci:{into}"]
    with tempfile.TemporaryFile() as said:
        process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=said, stderr=said)
        try:
            _follow(process, into, progress)
        finally:
            if process.poll() is None:
                process.kill()
            process.wait()
        if process.returncode:
            said.seek(0)
            raise BuildError(f"{reference} cannot be fetched: {_reason(said.read())}")


def _follow(process: subprocess.Popen[bytes], layout: Path, progress: Progress) -> None:
    progress.stage("fetching")
    before = 0
    while True:
        with suppress(subprocess.TimeoutExpired):
            process.wait(_LOOK)
        now = _bytes_below(layout)
        progress.advance(now - before)
        before = now
        if process.returncode is not None:
            return


def _bytes_below(folder: Path) -> int:
    total = 0
    for path, _, names in os.walk(folder):
        for name in names:
            with suppress(FileNotFoundError):  # renamed meanwhile
                total += os.lstat(os.path.join(path, name)).st_size
    return total


def _reason(output: bytes) -> str:
    """What the last line of a log like skopeo's says."""
    lines = output.decode("utf-8", "replace").strip().splitlines() or ["skopeo said nothing"]
    message = lines[-1].partition('msg="')[2].rstrip('"') or lines[-1]
    return message.replace('\\"', '"')
