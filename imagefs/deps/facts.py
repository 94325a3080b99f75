"""Asks the host, the target's Python and the installers for what a key says of them."""

from __future__ import annotations

import ast
import contextlib
import json
import os
import re
import shutil
import subprocess
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import chain, pairwise
from pathlib import Path

from imagefs.deps import probe
from imagefs.deps.command import calls, is_pip, is_python
from imagefs.deps.key import Facts, Python
from stripefs.errors import ConfigError

__all__ = [
    "LEVELS",
    "ask",
    "captured",
    "chosen_level",
    "inside_command",
    "level_of",
    "own_level",
    "probe_command",
    "python_of",
    "read_inside",
    "read_probe",
    "version_command",
]

_PATIENCE = 60.0  # seconds for an interpreter, which may lie on a network and have to be fetched

_PIP_VERSION = "import pip; print('pip', pip.__version__, flush=True)"

_PIP_CONFIG = f"""
import runpy, sys
{_PIP_VERSION}
sys.argv = ['pip', 'config', 'list']
runpy.run_module('pip', run_name='__main__', alter_sys=True)
"""
"""Its version, and what `pip config list` prints, by one interpreter: half of what a pip takes is its start."""

LEVELS = ("x86-64-v1", "x86-64-v2", "x86-64-v3", "x86-64-v4")
"""The levels of the x86-64 psABI, each with all that is below."""

_FLAGS = (
    (),
    ("cx16", "lahf_lm", "popcnt", "pni", "ssse3", "sse4_1", "sse4_2"),
    ("avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "abm", "movbe", "xsave"),
    ("avx512f", "avx512bw", "avx512cd", "avx512dq", "avx512vl"),
)
"""Flags that each level adds, by the kernel's names: pni is SSE3, abm has LZCNT."""


def ask(
    python: str,
    installers: Mapping[str, Sequence[str]],
    others: Mapping[str, Sequence[str]],
    cpu_level: str,
    environ: Mapping[str, str],
    folder: str,
) -> Facts:
    """The facts of this host. All are asked at once, in `folder`.

    python: the interpreter, "" for none. installers: by name, what makes each tell its version, as `version_command`
    has it; others: those that need not be there.
    cpu_level: the one that the user wants in place of the processor's, "" for that. Raises ConfigError for a program
    that does not answer, and for a level that the processor does not have.
    """
    commands = {**installers, **others}
    if python:
        commands["python"] = probe_command(python)
    answers = _answers(commands, others, environ, folder)
    told = answers.pop("python", None)
    versions = {}
    for name, text in answers.items():
        with _ignored_if(name in others):
            versions[name] = _version(commands[name], text)
    here = os.uname()
    level = chosen_level(cpu_level, level_of(here.machine, _cpu_flags()))
    if told is None:
        return Facts(here.sysname, here.machine, level, probe.libc(), None, versions, _config(answers.get("pip", "")))
    return read_probe(told)._replace(cpu_level=level, installers=versions, pip_config=_config(answers.get("pip", "")))


def probe_command(python: str) -> list[str]:
    """The command by which the interpreter at this path tells of itself, for `read_probe`.

    Cached facts of interpreters, and hints, are keyed by its text: after any change of it, also of its docstring, all
    are asked anew.
    """
    with open(probe.__file__, encoding="utf-8") as file:
        return [python, "-I", "-c", file.read()]


def inside_command(python: str) -> list[str]:
    """The command by which the interpreter of a container tells of itself and of its pip, for `read_inside`."""
    *program, text = probe_command(python)
    return [*program, f"{text}\nprint()\n{_PIP_VERSION}\n"]


def read_inside(text: str, cpu_level: str) -> Facts:
    """Facts from what `inside_command` printed in a container of this host, whose processor is that of the container.

    cpu_level: as `ask` has it. Raises ConfigError.
    """
    told, _, pip = text.strip().rpartition("\n")
    facts = read_probe(told)
    level = chosen_level(cpu_level, level_of(facts.architecture, _cpu_flags()))
    return facts._replace(cpu_level=level, installers={"pip": _version(["pip"], pip)})


def version_command(program: Sequence[str], environ: Mapping[str, str], folder: str) -> list[str]:
    """The command by which an installer that is run by these words prints its version, and a pip its configuration.

    A pip is run from where it would be imported.
    """
    if list(program[-2:]) == ["-m", "pip"]:
        return [*program[:-2], "-c", _PIP_CONFIG]
    python = _of_script(_found(program[0], environ, folder)) if is_pip(program[0]) else ""
    if not python:
        return [*program, "--version"]
    return [python, "-c", f"import sys; sys.path = [path for path in sys.path if path]\n{_PIP_CONFIG}"]


def read_probe(text: str) -> Facts:
    """Facts from what `probe_command` printed, without what it does not know: the processor and the installers.

    Raises ConfigError for what it cannot have printed.
    """
    try:
        told = json.loads(text)
        libc_name, libc_version = told["libc"]
        python = Python(**told["python"])
        facts = Facts(told["os"], told["architecture"], "", (libc_name, libc_version), python, {})
        own = (python.executable, python.prefix, python.implementation, python.version, python.soabi, python.installs)
        texts = [facts.os, facts.architecture, *facts.libc, *own, *python.sites]
        if not all(isinstance(one, str) and "\0" not in one for one in (*texts, *chain(*python.markers.items()))):
            raise TypeError("a fact is no text")
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ConfigError(
            "the Python interpreter does not tell what it is", hint="name another with --python"
        ) from error
    return facts


def captured(
    command: Sequence[str], environ: Mapping[str, str], folder: str | None, patience: float, text: str = ""
) -> subprocess.CompletedProcess[str]:
    """The end and the outputs of a program that gets this text. Raises OSError, and SubprocessError after `patience`
    seconds."""
    return subprocess.run(
        command,
        cwd=folder,
        env=dict(environ),
        input=text,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=patience,
        check=False,
    )


def level_of(machine: str, flags: Collection[str]) -> str:
    """The highest level whose features are all among the processor's flags; "" for other machines than x86-64."""
    if machine != "x86_64":
        return ""
    found = ""
    for level, needed in zip(LEVELS, _FLAGS, strict=True):
        if not set(needed) <= set(flags):
            break
        found = level
    return found


def own_level(wanted: str) -> str:
    """`wanted` where that runs on this host's processor, the processor's level for "". Raises ConfigError."""
    return chosen_level(wanted, level_of(os.uname().machine, _cpu_flags()))


def chosen_level(wanted: str, own: str) -> str:
    """`wanted` where that is one that runs on a processor of the level `own`, `own` for "". Raises ConfigError."""
    if not wanted:
        return own
    if wanted not in LEVELS:
        raise ConfigError(f"{wanted!r} is no CPU level", hint=f"give one of {', '.join(LEVELS)}")
    if own not in LEVELS or LEVELS.index(wanted) > LEVELS.index(own):
        raise ConfigError(
            f"what is built for {wanted} does not run here", hint=f"this processor has {own or 'no x86-64 level'}"
        )
    return wanted


def python_of(command: Sequence[str], environ: Mapping[str, str], folder: str) -> str:
    """The interpreter that a command installs for, as far as its words tell: the one that it runs, that of a `pip`,
    the one that `pip --python` or `uv … --python` names, that of an active environment, else `python3`. "" where there
    is none.
    """
    if other := _of_pip(command, environ, folder):
        return other
    for word in command:
        if is_python(word):
            return _found(word, environ, folder)
        if is_pip(word):
            return _of_script(_found(word, environ, folder)) or _found("python3", environ, folder)
        if os.path.basename(word) == "uv":
            return _of_uv(command, environ, folder)
    return _found("python3", environ, folder)


def _of_pip(command: Sequence[str], environ: Mapping[str, str], folder: str) -> str:
    """The interpreter, or that of the environment, that pip installs for by an option; "" where there is no such
    option, or one that is not there yet."""
    if not any(call.tool == "pip" for call in calls(command)):
        return ""
    wanted = (_named_python(command) or [environ.get("PIP_PYTHON", "")])[-1]
    own = os.path.join(folder, wanted, "bin/python")
    return (own if os.path.exists(own) else _found(wanted, environ, folder)) if wanted else ""


def _named_python(command: Sequence[str]) -> list[str]:
    """The value of `--python`."""
    named = [value for word, value in pairwise(command) if word == "--python"]
    return named + [word.partition("=")[2] for word in command if word.startswith("--python=")]


def _of_uv(command: Sequence[str], environ: Mapping[str, str], folder: str) -> str:
    """The interpreter that uv itself would choose, given what the command says about it."""
    wanted = [value for word, value in pairwise(command) if word == "-p"] + _named_python(command)
    uv = next(word for word in command if os.path.basename(word) == "uv")
    system = ["--system"] if "--system" in command else []
    try:
        asked = captured([uv, "python", "find", *system, *wanted[:1]], environ, folder, _PATIENCE)
    except (OSError, subprocess.SubprocessError):
        return _found("python3", environ, folder)
    return asked.stdout.strip() if asked.returncode == 0 else ""


def _of_script(path: str) -> str:
    """The interpreter in the first lines of a console script, "" for a program of another kind."""
    try:
        with open(path, "rb") as file:
            first, second = (file.readline(4096).decode("utf-8", "surrogateescape") for _ in range(2))
    except OSError:
        return ""
    # of a path that is too long for the kernel, pip makes a shell script whose second line is that of Python
    words = first[2:].split() if first.startswith("#!") else []
    long = re.match(r"'''exec' \"?([^\"]+?)\"? \"\$0\"", second)
    found = long[1] if long else words[0] if words else ""
    return found if is_python(found) else ""


def _found(program: str, environ: Mapping[str, str], folder: str) -> str:
    """The path at which a shell in `folder` would find it; "" where it would not."""
    if "/" in program:
        path = os.path.join(folder, program)
        return path if os.access(path, os.X_OK) else ""
    return shutil.which(program, path=environ.get("PATH", os.defpath)) or ""


def _answers(
    commands: Mapping[str, Sequence[str]], optional: Collection[str], environ: Mapping[str, str], folder: str
) -> dict[str, str]:
    """The output of each; nothing of optional ones that fail. Raises ConfigError."""
    running: dict[str, subprocess.Popen[str]] = {}
    found: dict[str, str] = {}
    try:
        for name, command in commands.items():
            with _ignored_if(name in optional):
                running[name] = _begin(command, environ, folder)
        for name, process in running.items():
            with _ignored_if(name in optional):
                found[name] = _answer(commands[name], process)
    finally:
        for process in running.values():
            with process:  # which closes its pipes and waits for it
                process.kill()
    return found


@contextmanager
def _ignored_if(optional: bool) -> Iterator[None]:
    try:
        yield
    except ConfigError:
        if not optional:
            raise


def _begin(command: Sequence[str], environ: Mapping[str, str], folder: str) -> subprocess.Popen[str]:
    pipe = subprocess.PIPE
    try:
        return subprocess.Popen(
            command,
            cwd=folder,
            env=dict(environ),
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            stderr=pipe,
            text=True,
            errors="replace",
        )
    except OSError as error:
        raise ConfigError(f"{command[0]} cannot be run: {error.strerror}") from error


def _answer(command: Sequence[str], process: subprocess.Popen[str]) -> str:
    try:
        out, errors = process.communicate(timeout=_PATIENCE)
    except subprocess.TimeoutExpired as error:
        raise ConfigError(f"{command[0]} does not answer within {_PATIENCE:.0f} s") from error
    if process.returncode != 0:
        why = (errors.strip().splitlines() or ["it says nothing"])[-1]
        raise ConfigError(f"{command[0]} does not tell what it is: {why}")
    return out


def _version(command: Sequence[str], text: str) -> str:
    """The second word, as in `pip 24.0 from …` and `uv 0.5.1 (…)`. Raises ConfigError."""
    words = text.split()
    if len(words) < 2:
        raise ConfigError(f"{' '.join(command)} tells no version")
    return words[1]


def _config(text: str) -> dict[str, str]:
    """Settings from what `pip config list` printed behind a line with pip's version: lines such as
    `install.no-deps='1'`."""
    found = {}
    for line in text.splitlines()[1:]:
        name, _, value = line.partition("=")
        if not name.startswith(":env:"):  # variables are read by themselves
            with contextlib.suppress(ValueError, SyntaxError):  # a line that is none, such as a warning
                found[name] = str(ast.literal_eval(value))
    return found


def _cpu_flags() -> Collection[str]:
    """The flags of the first processor, which all of a machine share."""
    for line in Path("/proc/cpuinfo").read_text(encoding="ascii", errors="replace").splitlines():
        name, _, value = line.partition(":")
        if name.strip() == "flags":
            return value.split()
    return ()
