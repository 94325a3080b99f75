"""Which variables and compilers decide what is built from source on a host.

Build backends read them without a word about it in the project, so all that are known to be read are part of the key of
an installation that builds something. A variable that is not in this table is named with `--env`.
"""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor

from imagefs.deps.urls import without_secrets

__all__ = ["build_variables", "compilers"]

_SECRET = re.compile(r"(?i)token|passw|secret|credential|username|auth(?!or)")

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
    """Those of `environ` that build backends read, with their values; secrets are no part of them."""
    return {
        name: without_secrets(value)
        for name, value in sorted(environ.items())
        if _NAMES.fullmatch(name) and not _IDLE.fullmatch(name) and not _SECRET.search(name)
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
    """What is run to build, "" for what is not there."""
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
    """What it prints: of nvcc the line with the release, of all others the first."""
    try:
        done = subprocess.run(
            [*words, "--version"],
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_PATIENCE,
            check=False,
        )
    except (OSError, subprocess.SubprocessError):
        return ""
    lines = done.stdout.splitlines() if done.returncode == 0 else []
    return next((line for line in lines if "release" in line), lines[0] if lines else "").strip()
