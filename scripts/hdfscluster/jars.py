"""Hadoop's jars: fetched once through Maven, and every time checked against the digests in `jars.sha256`.

`pom.xml` pins the three artefacts that are asked for; the digests pin whatever those bring along. The folder appears
under its name in one rename, complete and checked.
"""

from __future__ import annotations

import hashlib
import os
import subprocess
import tempfile
from pathlib import Path

from hdfscluster.errors import ClusterError
from hdfscluster.network import locked

__all__ = ["VERSION", "ensure_jars"]

VERSION = "3.4.2"
_HERE = Path(__file__).parent
_PLUGIN = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"


def ensure_jars() -> Path:
    """The folder of jars, filled first where it is missing or damaged (65 MB, some 10 s).

    It is `BOOTSEER_HADOOP_JARS` or `~/.cache/bootseer/hadoop-VERSION`.
    """
    chosen = os.environ.get("BOOTSEER_HADOOP_JARS")
    folder = Path(chosen) if chosen else Path.home() / ".cache" / "bootseer" / f"hadoop-{VERSION}"
    if not _complaint(folder):
        return folder
    with locked("the download of Hadoop", patience=600):
        if _complaint(folder):
            _fetch(folder)
    return folder


def _fetch(folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as scratch:
        fresh = Path(scratch, "jars")
        _run_maven(fresh)
        complaint = _complaint(fresh)
        if complaint:
            raise ClusterError(f"Maven fetched other jars than {_HERE.name}/jars.sha256 lists: {complaint}")
        fresh.chmod(0o755)
        if folder.exists():
            folder.rename(Path(scratch, "damaged"))
        fresh.rename(folder)


def _run_maven(target: Path) -> None:
    command = ["mvn", "-q", "-B", "-f", str(_HERE / "pom.xml"), _PLUGIN]
    command += ["-DincludeScope=runtime", f"-DoutputDirectory={target}"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
    except FileNotFoundError as error:
        raise ClusterError(
            "mvn is missing, and Hadoop's jars are still to be fetched: apt-get install maven"
        ) from error
    if done.returncode:
        errors = [line for line in (done.stdout + done.stderr).splitlines() if "ERROR" in line]
        raise ClusterError(f"Maven could not fetch Hadoop {VERSION}: {(errors or ['no reason given'])[0]}")


def _complaint(folder: Path) -> str:
    """The first error in the jars of `folder`, "" when they are exactly those of the list."""
    lines = [line.split() for line in (_HERE / "jars.sha256").read_text().splitlines()]
    wanted = {name: digest for digest, name in lines}
    if not folder.is_dir():
        return f"{folder} is missing"
    present = {file.name for file in folder.iterdir()}
    for name in sorted(present ^ wanted.keys()):
        return f"{name} is {'missing' if name in wanted else 'not listed'}"
    for name, digest in wanted.items():
        with (folder / name).open("rb") as jar:
            if hashlib.file_digest(jar, "sha256").hexdigest() != digest:
                return f"{name} has another digest"
    return ""
