"""Packages of a test's own, as wheels and as an archive of sources in C, and the installers that install them."""

from __future__ import annotations

import base64
import hashlib
import io
import os
import subprocess
import sys
import tarfile
import textwrap
import zipfile
from collections.abc import Mapping, Sequence
from pathlib import Path

__all__ = ["UV", "editable", "install", "pip", "sdist", "sdist_in_c", "uv", "venv", "wheel"]

UV = str(Path(sys.executable).with_name("uv"))

_STAMP = (2024, 1, 2, 3, 4, 6)


def wheel(
    folder: Path,
    name: str,
    files: Mapping[str, str | bytes],
    *,
    version: str = "1.0",
    requires: Sequence[str] = (),
    programs: Mapping[str, str] | None = None,
) -> Path:
    """A wheel whose `files` are by path in it, `NAME-VERSION.data` among them; programs: console scripts by name."""
    info = f"{name}-{version}.dist-info"
    head = ["Metadata-Version: 2.1", f"Name: {name}", f"Version: {version}"]
    content: dict[str, bytes] = {path: data.encode() if isinstance(data, str) else data for path, data in files.items()}
    content[f"{info}/METADATA"] = "\n".join([*head, *(f"Requires-Dist: {one}" for one in requires), ""]).encode()
    content[f"{info}/WHEEL"] = b"Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    if programs:
        lines = [f"{program} = {function}\n" for program, function in programs.items()]
        content[f"{info}/entry_points.txt"] = "".join(["[console_scripts]\n", *lines]).encode()
    rows = [f"{path},sha256={_digest(data)},{len(data)}\n" for path, data in content.items()]
    content[f"{info}/RECORD"] = "".join([*rows, f"{info}/RECORD,,\n"]).encode()
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}-{version}-py3-none-any.whl"
    with zipfile.ZipFile(target, "w") as archive:
        for path, data in content.items():
            archive.writestr(zipfile.ZipInfo(path, _STAMP), data)
    return target


def sdist_in_c(folder: Path, name: str, value: int) -> Path:
    """Sources of a module whose function `value` answers that number. setuptools and gcc make it."""
    module = f"""
        #include <Python.h>
        static PyObject *value(PyObject *self, PyObject *none) {{ return PyLong_FromLong({value}); }}
        static PyMethodDef methods[] = {{{{"value", value, METH_NOARGS, ""}}, {{0}}}};
        static struct PyModuleDef module = {{PyModuleDef_HEAD_INIT, "{name}", "", -1, methods}};
        PyMODINIT_FUNC PyInit_{name}(void) {{ return PyModule_Create(&module); }}
    """
    files = {
        "pyproject.toml": '[build-system]\nrequires = ["setuptools"]\nbuild-backend = "setuptools.build_meta"\n',
        "setup.py": f"from setuptools import Extension, setup\n"
        f"setup(name='{name}', version='1.0', ext_modules=[Extension('{name}', ['{name}.c'])])\n",
        f"{name}.c": module,
        "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n",
    }
    return sdist(folder, name, files)


def sdist(folder: Path, name: str, files: Mapping[str, str]) -> Path:
    """An archive of sources in version 1.0, of these files by path in it."""
    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{name}-1.0.tar.gz"
    if "PKG-INFO" not in files:
        files = {**files, "PKG-INFO": f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n"}
    with tarfile.open(target, "w:gz") as archive:
        for path, text in files.items():
            entry = tarfile.TarInfo(f"{name}-1.0/{path}")
            entry.size = len(text)
            archive.addfile(entry, io.BytesIO(text.encode()))
    return target


def editable(folder: Path, name: str) -> Path:
    """Sources of a package that is installed by a path to them, and brings along what makes it so."""
    wheel_name = f"{name}-1.0-py3-none-any.whl"
    backend = f"""
        import pathlib, shutil
        def build_editable(folder, config_settings=None, metadata_directory=None):
            shutil.copy("{wheel_name}", folder)
            return "{wheel_name}"
        build_wheel = build_editable
    """
    settings = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (folder / name).mkdir(parents=True)
    (folder / name / "__init__.py").touch()
    (folder / "pyproject.toml").write_text(f"{settings}[project]\nname = '{name}'\nversion = '1.0'\n")
    (folder / "backend.py").write_text(textwrap.dedent(backend))
    wheel(folder, name, {f"{name}.pth": f"{folder}\n"})
    return folder


def venv(folder: Path) -> str:
    """A virtual environment without pip; its interpreter."""
    install([UV, "--quiet", "venv", "--offline", "--python", sys.executable, str(folder)])
    return f"{folder}/bin/python"


def pip(*arguments: str | Path, python: str = sys.executable) -> list[str]:
    """The command line of `pip install` that asks no index and installs for `python`, which need not have a pip."""
    ours = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", python]
    return [*ours, "install", "--no-index", *map(str, arguments)]


def uv(*arguments: str | Path) -> list[str]:
    """The command line of `uv pip install` that asks no index."""
    return [UV, "--quiet", "pip", "install", "--offline", "--no-index", *map(str, arguments)]


def install(command: Sequence[str], **env: str) -> None:
    """Run an installer, which succeeds and leaves bytecode to us unless `env` says otherwise."""
    quiet = {"PIP_CONFIG_FILE": os.devnull, "PIP_ROOT_USER_ACTION": "ignore", "UV_NO_CONFIG": "1"}
    environment = {**os.environ, **quiet, "PIP_COMPILE": "0", **env}
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def _digest(data: bytes) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
