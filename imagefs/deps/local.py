"""Directories of this host that are installed from: each is built to a wheel, and the wheel's content is in the key.

Nothing less says what such an installation brings. A project may take its version from a git tag, a module from a link
that leads out of it, or a number from a file beside it; only its own build reads all of that. So it is built at each
start, by the installer of the command and in isolation as that would, and nothing is believed of an earlier build.

After the installation what was installed is compared with that wheel (`differs`), so what was changed in between, or a
build that does not bring the same twice, is not published.

The folder of one start (`Scratch`) holds downloads and wheels that its resolver and its installer share, so that a miss
pays once: pip's `install --dry-run` downloads whatever it resolves to (a hash that an index does not tell is made so),
and the installation would do that again where the user has no cache. So both run with a cache in this folder, and see
projects as the wheels that they were built to.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
import stat
import subprocess
import tempfile
import zipfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Protocol

from packaging.utils import InvalidWheelFilename, canonicalize_name, parse_wheel_filename

from imagefs.deps.check.distributions import parse_record
from imagefs.deps.command import Call, options_among
from imagefs.deps.facts import captured
from imagefs.deps.inventory import Inventory
from imagefs.deps.key import canonical
from imagefs.deps.lock import without_secrets
from imagefs.deps.prebuilt import covering, stand_in
from imagefs.deps.resolver import Question, run_here
from imagefs.errors import SnapshotError

__all__ = ["BuildOrder", "Builder", "Scratch", "Wheel", "build_here", "differs", "read_wheel", "wheel_in"]

_LONGEST = 1800.0
"""Seconds for a build, which may be of many modules in C++."""

_UNSIGNED = (".dist-info/RECORD", ".dist-info/RECORD.jws", ".dist-info/RECORD.p7s")
"""Members that follow from the others."""

_VALUED = frozenset((
    *("-i", "--index-url", "--extra-index-url", "--index", "--default-index", "-f", "--find-links", "-C"),
    *("--config-settings", "--config-setting", "--trusted-host", "--allow-insecure-host", "--no-binary"),
    *("--only-binary", "--build-constraint", "--build-constraints", "-b", "--exclude-newer", "--keyring-provider"),
    *("--index-strategy", "--cert", "--client-cert", "--proxy", "--cache-dir", "--config-file"),
    *("--no-build-isolation-package", "--config-settings-package"),
))  # fmt: skip
"""Options of an installation that decide how a project is built, and have a value."""

_SWITCHES = frozenset((
    *("--no-index", "--pre", "--no-build-isolation", "--use-pep517", "--no-config", "--offline", "--no-cache"),
    *("--native-tls", "--system-certs", "--isolated", "--no-sources", "--no-cache-dir"),
))  # fmt: skip

_NOT_OF_PIP = frozenset(("--offline", "--no-cache", "--native-tls", "--system-certs", "--no-config", "--no-sources"))
_NOT_OF_UV = frozenset((
    *("--use-pep517", "--isolated", "--no-cache-dir", "--pre", "--no-binary", "--only-binary", "--cert"),
    *("--client-cert", "--proxy", "--trusted-host"),
))  # fmt: skip


_RAISED = re.compile(r"[\w.]*(Error|Exception): ")
"""The line of a traceback that says why."""


class BuildOrder(NamedTuple):
    """A build that is to be done.

    call, words: the installer of the command, and all of its words. more: options of requirements files. python: the
    interpreter that is installed for. sources: directories. folder: where the command runs.
    """

    call: Call
    words: Sequence[str]
    more: Sequence[str]
    python: str
    sources: Sequence[str]
    folder: str

    def command(self, source: str, out: str) -> list[str]:
        """The builder of that directory to a wheel in the directory `out`."""
        tool, program = self.call.tool.removesuffix("-project"), self.call.program
        if tool == "pip":
            options = [*options_among(self.words, _VALUED, _SWITCHES, _NOT_OF_PIP), *self.more]
            return [*program, "wheel", "--quiet", "--no-deps", *options, "--wheel-dir", out, source]
        options = [*options_among(self.words, _VALUED, _SWITCHES, _NOT_OF_UV), *self.more]
        return [*program, "build", "--quiet", "--wheel", "--python", self.python, *options, "--out-dir", out, source]


class Builder(Protocol):
    """Builds in an environment; the wheels by directory. Raises SnapshotError and OSError."""

    def __call__(self, order: BuildOrder, environ: Mapping[str, str]) -> Mapping[str, Wheel]: ...


class Wheel(NamedTuple):
    """The wheel that a directory was built to. digest: SHA-256 over names, contents and who may execute what, without
    times. contents: SHA-256 in hexadecimal of the members that are installed as they are. Plain values, to be JSON."""

    name: str
    version: str
    digest: str
    contents: Sequence[str]


def build_here(
    order: BuildOrder, environ: Mapping[str, str], keep: Callable[[str, Path], None] | None = None
) -> dict[str, Wheel]:
    """A `Builder` on this host. The directories stay as they are wherever that is possible.

    keep: gets each directory with its wheel, which is gone afterwards.
    """
    found: dict[str, Wheel] = {}
    top = tempfile.mkdtemp(prefix="imagefs-wheels-")
    try:
        for number, source in enumerate(order.sources):
            out = os.path.join(top, f"wheel{number}")
            os.mkdir(out)
            aside = covering(os.path.join(top, f"written{number}"), dict.fromkeys(order.sources, ""))
            _run(source, [*aside, *order.command(source, out)], order.folder, environ)
            wheel = wheel_in(out, source)
            found[source] = read_wheel(wheel)
            if keep is not None:
                keep(source, wheel)
    finally:
        shutil.rmtree(top, ignore_errors=True)
    return found


def wheel_in(folder: str, source: str) -> Path:
    """The one wheel in a directory. Raises SnapshotError."""
    wheels = list(Path(folder).glob("*.whl"))
    if len(wheels) != 1:
        raise SnapshotError(f"{source} was built to {len(wheels)} wheels", hint="is it the project that is meant?")
    return wheels[0]


def read_wheel(path: Path) -> Wheel:
    """Raises SnapshotError for what is no wheel."""
    try:
        name, version, _, _ = parse_wheel_filename(path.name)
        entries: list[Sequence[str]] = []
        contents: list[str] = []
        with zipfile.ZipFile(path) as archive:
            for member in sorted(archive.infolist(), key=lambda one: one.filename):
                if member.is_dir() or member.filename.endswith(_UNSIGNED):
                    continue
                data = archive.read(member)
                digest = hashlib.sha256(data).hexdigest()
                executable = "executable" if member.external_attr >> 16 & stat.S_IXUSR else "file"
                entries.append((member.filename, executable, digest))
                if not (".data/scripts/" in member.filename and data.startswith(b"#!python")):  # which is rewritten
                    contents.append(digest)
    except (InvalidWheelFilename, zipfile.BadZipFile, OSError, RuntimeError) as error:
        raise SnapshotError(f"{path.name} is no wheel: {error}") from error
    told = canonical([path.name, *([*one] for one in entries)])
    return Wheel(str(name), str(version), hashlib.sha256(told).hexdigest(), tuple(sorted(set(contents))))


def differs(wheels: Iterable[Wheel], inventory: Inventory) -> str:
    """The one of these that was not installed as it is, in a line; "" where all were."""
    for wheel in wheels:
        installed = _installed(wheel, inventory)
        if installed is None:
            return f"{wheel.name} {wheel.version}, which its directory was built to, is not what was installed"
        if set(wheel.contents) - installed:
            return f"{wheel.name} was changed meanwhile, or its build does not bring the same twice"
    return ""


def _installed(wheel: Wheel, inventory: Inventory) -> set[str] | None:
    """Digests in the RECORD of a distribution, None where there is none of its name and version."""
    for path in inventory.entries:
        folder, _, name = path.rpartition("/")
        stem, _, version = folder.rpartition("/")[2].removesuffix(".dist-info").rpartition("-")
        if name != "RECORD" or not folder.endswith(".dist-info") or canonicalize_name(stem) != wheel.name:
            continue
        if _same_version(version, wheel.version):
            with open(inventory.path(path), encoding="utf-8", newline="") as file:
                return {row.digest.hex() for row in parse_record(file.read()) if row.algorithm == "sha256"}
    return None


def _same_version(one: str, other: str) -> bool:
    from packaging.version import InvalidVersion, Version

    try:
        return Version(one.replace("_", "-")) == Version(other)
    except InvalidVersion:
        return one == other


def _run(source: str, command: Sequence[str], folder: str, environ: Mapping[str, str]) -> None:
    """Raises SnapshotError with the last line that it prints on failure."""
    try:
        done = captured(command, environ, folder, _LONGEST)
    except subprocess.TimeoutExpired as error:
        raise SnapshotError(f"{source} was not built to a wheel within {_LONGEST:.0f} s") from error
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        told = [line for line in lines if not line.startswith(("note:", "hint:", "[end of output]"))]
        raised = [line for line in told if _RAISED.match(line)] or [line for line in told if "rror" in line]
        why = (raised or told or ["it says nothing"])[-1]
        raise SnapshotError(f"{source} cannot be built to a wheel: {without_secrets(why)}")


class Scratch:
    """Made when something is put there, gone after `remove`, which the end of a `with` block does too.

    targets: directories that are installed into; a project around one of them is seen as it is.
    """

    def __init__(self, targets: Sequence[str] = ()) -> None:
        self._targets = [os.path.realpath(target) for target in targets]
        self._folder = ""
        self._wheels: dict[str, str] = {}
        self._runs = 0

    def __enter__(self) -> Scratch:
        return self

    def __exit__(self, _type: type[BaseException] | None, _value: object, _traceback: TracebackType | None) -> None:
        self.remove()

    def remove(self) -> None:
        """Remove what is there. Does not fail."""
        if self._folder:
            shutil.rmtree(self._folder, ignore_errors=True)
        self._folder, self._wheels = "", {}

    def downloads(self) -> str:
        """The directory of a cache for an installer. Raises OSError."""
        path = self.path("downloads")
        os.makedirs(path, exist_ok=True)
        return path

    def path(self, name: str) -> str:
        """A path for something of this name. Raises OSError."""
        self._folder = self._folder or tempfile.mkdtemp(prefix="imagefs-deps-")
        return os.path.join(self._folder, name)

    def build(self, order: BuildOrder, environ: Mapping[str, str]) -> Mapping[str, Wheel]:
        """A `Builder`. Raises SnapshotError and OSError."""
        return build_here(order, environ, self.keep if "--no-use-pep517" not in order.words else None)

    def keep(self, source: str, wheel: Path) -> None:
        """Let installers have this wheel for a project. Raises OSError."""
        real = os.path.realpath(source)
        folder = self.path(f"project{len(self._wheels)}")
        if not any(f"{target}/".startswith(f"{real}/") for target in self._targets) and stand_in(
            real, str(wheel), folder
        ):
            self._wheels[real] = folder

    def seen(self, source: str) -> str:
        """The stand-in of a project, "" for none."""
        return self._wheels.get(os.path.realpath(source), "")

    def command(self, command: Sequence[str]) -> Sequence[str]:
        """The command, changed so that it sees the projects as their wheels."""
        if not self._wheels:
            return command
        self._runs += 1
        return [*covering(self.path(f"written{self._runs}"), self._wheels), *command]

    def run(self, question: Question, folder: str, environ: Mapping[str, str], paths: Sequence[str]) -> str:
        """As `imagefs.deps.resolver.run_here`. Raises SnapshotError."""
        return run_here(question._replace(command=self.command(question.command)), folder, environ, paths)
