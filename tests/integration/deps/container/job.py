"""A job in a container whose own pip installs what it needs, and what it was seen to do."""

from __future__ import annotations

import os
import random
import re
from pathlib import Path

from imagefs.deps.container.install import EXCHANGE
from stripefs.fuse import kernel
from tests.support.deps.wheels import wheel
from tests.tools.imagefs_daemon import PATIENCE, Service, eventually

CGROUP = f"/imagefs-deps-{os.getpid()}"

JOB = "import heavy, os; print(heavy.VALUE, os.environ.get('PYTHONPATH'))"
SEEN = "7 None\n"


_REFUSING = """\
import imagefs.mounts
from stripefs.errors import MountError
def place(attached, target, tree, settings, *, name, copy=-1, placed=imagefs.mounts.show_attached):
    if {where}:
        raise MountError("the kernel refuses it")
    return placed(attached, target, tree, settings, name=name, copy=copy)
imagefs.mounts.show_attached = place
"""


class Job:
    """A job's packages, and its starts. told: standard error of the last start."""

    def __init__(self, service: Service, image: str, folder: Path) -> None:
        self.service, self.image, self.folder = service, image, folder
        self.store = folder / "store"
        self.wheels = folder / "wheels"
        self.requirements = folder / "requirements.txt"
        self.python = "python3"
        self.told = ""
        self.make_wheel()
        self.wants("heavy==1.0")

    def make_wheel(self) -> None:
        """That of `heavy`, the same each time, whose bytes no other test has."""
        data = random.Random(str(self.folder)).randbytes(320_000)
        wheel(self.wheels, "heavy", {"heavy/__init__.py": "VALUE = 7\n", "heavy/data.bin": data})

    def wants(self, *lines: str) -> None:
        self.requirements.write_text("\n".join(["--no-index", f"--find-links {self.wheels}", *lines, ""]))

    def words(self, *flags: str, script: str = JOB) -> list[str]:
        ours = ["--deps", str(self.requirements), "--store", str(self.store), "--network", "none"]
        ours += ["--cgroup-parent", CGROUP]
        return ["run", *ours, *flags, self.image, "--", self.python, "-c", script]

    def run(self, *flags: str, script: str = JOB, status: int = 0) -> str:
        """Run the job; its standard output."""
        done = self.service.run(*self.words(*flags, script=script))
        self.told = done.stderr
        assert done.returncode == status, done.stdout + done.stderr + self.service.log()
        return done.stdout

    def left(self) -> list[object]:
        """Leftovers of runs when none is running."""
        runtime = Path(self.service.settings.runtime)
        runs = [one for one in (runtime / "imagefs/runs").iterdir() if one.name != ".lock"]
        mounts = [one for one in self.mounts() if one != self.service.settings.devices]
        inner = [path for folder in cgroups() for path in folder.glob("imagefs-*")]
        ready = list((runtime / "imagefs/ready").iterdir())
        return [*self.uppers(), *runs, *mounts, *inner, *ready, *self.service.status()["images"]]

    def kernel_refuses(self, where: str) -> None:
        """From now on programs of this host mount no tree for which the expression, of `target` and `name`, is true."""
        (self.folder / "sitecustomize.py").write_text(_REFUSING.format(where=where))
        self.service.environment["PYTHONPATH"] = str(self.folder)

    def uppers(self) -> list[Path]:
        """Upper directories of containers of this host, ended and running."""
        folder = Path(self.service.settings.cache, "upper")
        return list(folder.iterdir()) if folder.exists() else []

    def mounts(self) -> list[str]:
        places = (self.service.folder, self.folder)
        return [one.path for one in kernel.mounts() if any(Path(one.path).is_relative_to(place) for place in places)]

    def nothing_is_left(self) -> None:
        # Publishers go on when their jobs have ended, those of several hosts at once.
        eventually(lambda: not self.left(), "nothing to be left", 4 * PATIENCE)


def cgroups() -> list[Path]:
    """Those below which the containers have theirs."""
    tops = [mount.path for mount in kernel.mounts() if mount.fstype in ("cgroup", "cgroup2")]
    return [Path(top + CGROUP) for top in tops if os.path.isdir(top + CGROUP)]


def project(folder: Path, code: str) -> Path:
    """The sources of `heavy`, which do more than that when they are built to be installed, not for the key.

    The installer builds them anew where it needs more of the directory than the project: `sources` asks for that."""
    folder.mkdir()
    made = wheel(folder, "heavy", {"heavy/__init__.py": "VALUE = 7\n"})
    backend = f"""\
import os, shutil, subprocess
def install():
    {code}
def build_wheel(folder, config_settings=None, metadata_directory=None):
    shutil.copy("{made.name}", folder)
    if os.path.exists("{EXCHANGE}/report"):
        install()
    return "{made.name}"
"""
    settings = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (folder / "pyproject.toml").write_text(f"{settings}[project]\nname = 'heavy'\nversion = '1.0'\n")
    (folder / "backend.py").write_text(backend)
    return folder


def sources(project: Path) -> list[str]:
    """Requirements that name a project, and a file in it."""
    (project / "constraints.txt").touch()
    return [f"--constraint {project}/constraints.txt", str(project)]


def key_in(told: str) -> str:
    (found,) = re.findall(r"(?:hit|miss) ([0-9a-f]{12}):", told)
    return str(found)
