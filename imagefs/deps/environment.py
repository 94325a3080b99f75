"""The environment of an installation, as far as it decides the result: installers' settings, packages, compilers.

pip says itself what its configuration is (`pip config list`). uv has no such command: its `--show-settings` is hidden,
not stable, and prints the host's certificates. So of uv the files count as they are. Variables are read here. Settings
that decide nothing about the result, such as time-outs and caches, are left out, and so are those that are called like
a secret; URLs lose users and passwords. A setting that is not known here is kept: it may matter.

pip does not install packages that it finds installed before it begins, so a snapshot without them would lack them
elsewhere.

Build backends read variables without a word about it in the project, so all that are known to be read are part of the
key of an installation that builds something, and the compilers too. A variable that is not known here is named with
`--env`.
"""

from __future__ import annotations

import contextlib
import os
import re
import shlex
import shutil
import subprocess
import tomllib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from imagefs.deps.command import Call
from imagefs.deps.facts import captured
from imagefs.deps.key import Python
from imagefs.deps.lock import without_secrets
from stripefs.errors import ConfigError

__all__ = [
    "build_variables",
    "compilers",
    "options_from_variables",
    "pip_settings",
    "preinstalled",
    "searched_folders",
    "uv_files",
    "uv_table",
]

_SECRET = re.compile(r"token|passw|secret|username|credential")
_IDLE_PIP = frozenset((
    *("cache-dir", "cert", "client-cert", "config-file", "debug", "default-timeout", "disable-pip-version-check"),
    *("exists-action", "keyring-provider", "log", "log-file", "no-cache-dir", "no-color", "no-input"),
    *("no-python-version-warning", "progress-bar", "proxy", "quiet", "require-virtualenv", "resume-retries", "retries"),
    *("root-user-action", "timeout", "trusted-host", "use-feature", "verbose", "version", "help"),
))  # fmt: skip
_IDLE_UV = re.compile(
    r"cache.*|concurrent-.*|.*-timeout|http-.*|config-file|env-file|git-lfs|github-.*|init-.*|insecure-.*|install-.*|"
    r"internal-.*|keyring-.*|link-mode|log-.*|managed-python|native-tls|no-cache|no-config|no-env-file|no-progress|"
    r"no-wrap|offline|preview.*|project|publish-.*|python-.*dir|python-downloads.*|python-install-.*|python-cache-dir|"
    r"python-preference|request-.*|run-.*|show-.*|stack-size|system-certs|test-.*|tool-.*|unmanaged-.*|upload-.*|"
    r"allow-insecure-host|require(d-version)?|color"
)
_SECTIONS = ("global", "install")
"""Of pip's configuration files, those that hold for `pip install`, of which the later one wins."""


def options_from_variables(variables: Mapping[str, str], tool: str) -> dict[str, list[str]]:
    """Options of pip or uv with their values, as variables say them."""
    found = {}
    for name, value in variables.items():
        if name.startswith(f"{tool.upper()}_") and value:
            option = name[len(tool) + 1 :].lower().replace("_", "-")
            several = tool == "uv" and option == "find-links"
            found[option] = [without_secrets(one) for one in (value.split(",") if several else value.split())]
    return {name: values for name, values in sorted(found.items()) if _counts(tool, name)}


def pip_settings(config: Mapping[str, str], environ: Mapping[str, str]) -> dict[str, list[str]]:
    """Options of `pip install` with their values. config: what pip says of its configuration files."""
    found = {}
    for section in _SECTIONS:
        for name, value in config.items():
            if name.startswith(f"{section}."):
                found[name.removeprefix(f"{section}.")] = [without_secrets(word) for word in value.split()]
    found |= options_from_variables(environ, "pip")
    return {name: values for name, values in sorted(found.items()) if _counts("pip", name)}


def uv_files(environ: Mapping[str, str], folder: str) -> Iterator[str]:
    """uv's configuration files that are there. folder: where it runs. Raises ConfigError for one that is no TOML."""
    if environ.get("UV_NO_CONFIG", "").lower() in ("1", "true", "yes", "on", "t", "y"):
        return
    if given := environ.get("UV_CONFIG_FILE"):
        yield given
        return
    for above in (Path(folder), *Path(folder).parents):
        own, project = above / "uv.toml", above / "pyproject.toml"
        if own.is_file():
            yield str(own)
            break
        if project.is_file() and uv_table(str(project)):
            yield str(project)
            break
    home = environ.get("HOME") or os.path.expanduser("~")
    systems = (environ.get("XDG_CONFIG_DIRS") or "/etc/xdg").split(os.pathsep)
    user = os.path.join(environ.get("XDG_CONFIG_HOME") or os.path.join(home, ".config"), "uv", "uv.toml")
    if os.path.isfile(user):
        yield user
    for system in (*systems, "/etc"):
        path = os.path.join(system, "uv", "uv.toml")
        if os.path.isfile(path):
            yield path
            return


def uv_table(path: str) -> dict[str, Any]:
    """The settings of uv in a file. Raises ConfigError for one that uv could not read either."""
    try:
        with open(path, "rb") as file:
            document = tomllib.load(file)
    except (OSError, ValueError, RecursionError) as error:
        why = (str(error).splitlines() or [type(error).__name__])[0]
        raise ConfigError(f"{path} is no configuration of uv: {why}") from error
    if os.path.basename(path) != "pyproject.toml":
        return document
    tool = document.get("tool")
    table = tool.get("uv") if isinstance(tool, dict) else None
    return table if isinstance(table, dict) else {}


def _counts(tool: str, name: str) -> bool:
    return not (_SECRET.search(name) or (name in _IDLE_PIP if tool == "pip" else _IDLE_UV.fullmatch(name)))


_ANEW = frozenset(("target", "ignore-installed", "force-reinstall"))
"""Options with which pip installs all that it is asked for."""

_BESIDE = frozenset(("prefix", "root", "user"))
"""Options with which it looks at what its own interpreter has, and installs elsewhere."""

_SHORT = {"-t": "target", "-I": "ignore-installed"}


def searched_folders(
    call: Call, settings: Iterable[str], environ: Mapping[str, str], python: Python | None
) -> list[str]:
    """Directories whose distributions this call does not install once more.

    settings: names of options that are set beside the command.
    """
    options = {_SHORT.get(one, one.lstrip("-")) for one in call.switches} | set(settings)
    if call.tool != "pip" or options & _ANEW:
        return []
    folders = [path for path in environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    if python is not None and options & _BESIDE:
        folders += [*python.sites, _of_user(environ, python)]
    return folders


def preinstalled(folders: Iterable[str]) -> list[str]:
    """Distributions that are installed there, as `NAME-VERSION`, sorted."""
    found = set()
    for folder in folders:
        with contextlib.suppress(OSError):  # pip finds nothing there either
            stems = map(os.path.splitext, os.listdir(folder))
            found |= {stem for stem, suffix in stems if suffix in (".dist-info", ".egg-info", ".egg")}
    return sorted(found)


def _of_user(environ: Mapping[str, str], python: Python) -> str:
    base = environ.get("PYTHONUSERBASE") or os.path.join(environ.get("HOME") or os.path.expanduser("~"), ".local")
    return os.path.join(base, "lib", f"python{python.markers.get('python_version', '')}", "site-packages")


_SECRET_VARIABLE = re.compile(r"(?i)token|passw|secret|credential|username|auth(?!or)")
_READ = (
    # The GNU coding standards, "Variables for Specifying Commands"; sysconfig and distutils.sysconfig of Python:
    # customize_compiler; autoconf, "Preset Output Variables".
    (
        r"CC|CXX|CPP|FC|F77|F90|LD|AR|AS|NM|RANLIB|STRIP|OBJCOPY|LDSHARED|LDCXXSHARED|CCSHARED|LIBS|"
        r"\w*FLAGS(_\w+)?|\w*LDFLAGS\w*"
    ),
    # GCC, "Environment Variables Affecting GCC"; ld(1), ENVIRONMENT; Clang's CCC_OVERRIDE_OPTIONS; ld.so(8).
    (
        r"CPATH|C_INCLUDE_PATH|CPLUS_INCLUDE_PATH|OBJC_INCLUDE_PATH|LIBRARY_PATH|COMPILER_PATH|GCC_EXEC_PREFIX|"
        r"GCC_COMPARE_DEBUG|LD_RUN_PATH|LD_LIBRARY_PATH|LDEMULATION|CCC_OVERRIDE_OPTIONS|SDKROOT|"
        r"MACOSX_DEPLOYMENT_TARGET|_PYTHON_HOST_PLATFORM|_PYTHON_SYSCONFIGDATA_NAME|SOURCE_DATE_EPOCH"
    ),
    # setuptools and its vendored distutils; setuptools-scm, "Overrides"; pbr; wheel's bdist_wheel; hatch; pdm; poetry.
    (
        r"SETUPTOOLS_\w+|DISTUTILS_\w+|DISTUTILSDEBUG|DIST_EXTRA_CONFIG|PBR_\w+|HATCH_\w+|PDM_\w+|POETRY_\w+|"
        r"VCS_VERSIONING_\w+|FLIT_\w+|UV_DYNAMIC_VERSIONING_\w+"
    ),
    # cmake-env-variables(7); scikit-build and scikit-build-core, "Configuration"; meson and meson-python; ninja.
    (
        r"CMAKE_(?!BUILD_PARALLEL_LEVEL$)\w+|CUDAARCHS|CUDAHOSTCXX|HIPHOSTCXX|SKBUILD_\w+|MESON\w*|\w+_ROOT|"
        r"PKG_CONFIG\w*|CTEST_\w+"
    ),
    # The Cargo book, "Environment Variables"; rustc(1); rustup; maturin; setuptools-rust; PyO3.
    (
        r"RUST(?!_LOG$|_BACKTRACE$)\w*|CARGO(_(?!BUILD_JOBS$|HTTP_|NET_|TERM_|REGISTR|LOG$)\w+)?|MATURIN_\w+|"
        r"PYO3_\w+|SETUPTOOLS_RUST_\w+"
    ),
    # torch.utils.cpp_extension; nvcc, "Environment Variables"; extensions of torch; ROCm.
    (
        r"CUDA_(?!VISIBLE_DEVICES$|DEVICE_ORDER$|LAUNCH_BLOCKING$|CACHE_\w+$)\w+|CUDNN_\w+|NCCL_(ROOT|HOME|LIB|INCLUDE)\w*|"
        r"NVCC_(?!THREADS$)\w+|TORCH_(CUDA_ARCH_LIST|NVCC_FLAGS|EXTENSION\w*|DONT_CHECK_\w+)|PYTORCH_NVCC|"
        r"PYTORCH_ROCM_ARCH|ROCM_(HOME|PATH)|HIP_(PATH|PLATFORM|CLANG_PATH)|HCC_AMDGPU_TARGET|DS_BUILD_\w+|"
        r"FLASH_ATT\w+|FORCE_\w+|USE_\w+|WITH_\w+|BUILD_\w+|NO_(CUDA|CUDA_EXT)|\w+_FORCE_(BUILD|CXX11_ABI)|MPICC|MPICXX"
    ),
    # numpy and scipy, "Building from source"; h5py, lxml, psycopg, pycurl, grpcio and others by their setup.py.
    (
        r"NPY_\w+|BLAS\w*|LAPACK\w*|ATLAS|OPENBLAS|MKL(ROOT|_ROOT)|ARCHFLAGS|CYTHON\w*|HDF5_\w+|\w+_(INCLUDE|LIB)_?DIRS?|"
        r"\w+_INCLUDES?|\w+_LIBRAR(Y|IES)|\w+_DIR|\w+_CONFIG|GRPC_PYTHON_\w+|JAVA_HOME|STATIC_DEPS|\w+_BUILD_\w+"
    ),
)
"""Names of variables, with where it is written that they are read."""

_IDLE = re.compile(
    r"(TMP|TEMP|HOME|CACHE|LOG|RUNTIME|STATE|CONFIG|DATA|WORK|OLDPWD|XDG_\w+|UV_\w+|PIP_\w+|IMAGEFS_\w+|STRIPEFS_\w+|"
    r"GITHUB_\w+|CI_\w+|SLURM_\w+|PBS_\w+|KUBERNETES_\w+|JENKINS_\w+|BUILDKITE_\w+|SSH_\w+|DBUS_\w+|VSCODE_\w+)"
    r"|(TMP|TEMP|XDG|LOG|CACHE|RUN|WORK|HIST|SESSION|JOB|OUTPUT|CHECKPOINT|WANDB|TENSORBOARD|PYENV|NVM)\w*_(DIR|ROOT)"
    r"|CMAKE_BUILD_PARALLEL_LEVEL|(BUILD|\w+_BUILD)_(ID|NUMBER|URL|TAG|DISPLAY_NAME|JOBS|CAUSE|USER\w*|VCS_NUMBER)"
)
"""Names that look like one of those, and differ between starts that build the same."""

_NAMES = re.compile("|".join(_READ))
_PATIENCE = 20.0
"""Seconds for a compiler to tell its version, from a disk that may be away."""


def build_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables of `environ` that build backends read, with their values; secrets are no part of them."""
    return {
        name: without_secrets(value)
        for name, value in sorted(environ.items())
        if _NAMES.fullmatch(name) and not _IDLE.fullmatch(name) and not _SECRET_VARIABLE.search(name)
    }


def compilers(environ: Mapping[str, str]) -> dict[str, str]:
    """By name, the first line with which each compiler that is found tells its version: of C, of C++, rustc and nvcc.

    One that does not tell is left out: it would not build anything either.
    """
    found = {name: words for name, words in _programs(environ).items() if words}
    with ThreadPoolExecutor(len(found) or 1) as pool:
        lines = pool.map(lambda words: _version(words, environ), found.values())
    return {name: line for name, line in zip(found, lines, strict=True) if line}


def _programs(environ: Mapping[str, str]) -> dict[str, Sequence[str]]:
    """Programs that are run to build, "" for those that are not there."""
    search = environ.get("PATH", os.defpath)

    def found(variable: str, *names: str) -> Sequence[str]:
        given = _words(environ.get(variable, ""))
        if given:
            return given
        path = next((path for name in names if (path := shutil.which(name, path=search))), None)
        return [path] if path else []

    homes = [os.path.join(environ[name], "bin/nvcc") for name in ("CUDA_HOME", "CUDA_PATH") if environ.get(name)]
    return {
        "cc": found("CC", "cc", "gcc"),
        "c++": found("CXX", "c++", "g++"),
        "rustc": found("RUSTC", "rustc"),
        "nvcc": found("PYTORCH_NVCC", *homes, "nvcc"),
    }


def _words(text: str) -> list[str]:
    """A command as a shell reads it; one that no shell would read, as one word."""
    try:
        return shlex.split(text)
    except ValueError:
        return [text]


def _version(words: Sequence[str], environ: Mapping[str, str]) -> str:
    """The output of it: of nvcc the line with the release, of all others the first."""
    try:
        done = captured([*words, "--version"], environ, None, _PATIENCE)
    except (OSError, subprocess.SubprocessError):
        return ""
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    return next((line for line in lines if "release" in line), lines[0] if lines else "").strip()
