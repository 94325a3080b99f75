"""Compiles all sources below some directories: a program of its own, for the interpreter that will import them.

That may be any CPython from 3.8 on, inside a container too, so this needs nothing but its standard
library and comes to it as text (`python -c`). Its one argument is a JSON object, or @ and the path of a file with one:

    paths     directories with sources below them, and sources
    checked   whether an import compares the source with what was compiled
    workers   how many processes

Bytecode is written for optimisation level 0, where an import looks for it, with the hash of its source instead of a
time; whatever stood there is replaced. Two compilations of equal sources at equal paths give equal bytes, although what
else a process knows shows in them:
- constants are hashed with a seed that the caller sets to 0;
- names are interned, and a set with one that something else has interned is made anew, so that two equal sets of a
  program are no longer one. Sources with such sets are compiled once more, when all of their names are interned;
- letters are interned for good by who first uses one as a name, so all are from the start.

Standard input is a pipe that its caller keeps open: when it ends, so does this program. On standard output comes one
JSON object: `compiled` (a count) and `failed` (a list of path and reason, in order). Exit status 0: every file was
looked at. Programs that do not compile are told, and are no failure; pip skips them too.
"""

from __future__ import annotations

import contextlib
import gc
import importlib.util
import json
import marshal
import os
import select
import struct
import sys
import types
from collections.abc import Iterator

__all__ = ["main"]

_TAG = sys.implementation.cache_tag
_INDEX = struct.Struct("=I")
_LETTERS = [sys.intern(chr(number)) for number in range(256)]  # see above; kept, since interning ends with the last use


def main(argument: str) -> int:
    """The program; its exit status."""
    if argument.startswith("@"):
        with open(argument[1:], encoding="utf-8") as file:
            argument = file.read()
    job = json.loads(argument)
    sys.path[:] = [path for path in sys.path if path]  # nothing is imported from where this happens to run
    flags = 0b11 if job["checked"] else 0b01  # of PEP 552
    sources = [path for _, path in sorted((-size, path) for top in job["paths"] for path, size in _sources(top))]
    workers = max(1, min(job["workers"], len(sources)))
    gc.disable()  # code has no cycles, and what little else there is ends with the process
    reader, writer = os.pipe()
    pool = [_start(sources, flags, reader, writer) for _ in range(workers)]
    os.close(reader)
    try:
        with open(writer, "wb") as queue:
            queue.writelines(_INDEX.pack(number) for number in range(len(sources)))
    except BrokenPipeError:
        pass  # no worker is left; what they tell says so too
    compiled, failed, whole = 0, [], True
    for pid, answer in pool:
        with open(answer, encoding="ascii") as file:
            told = file.read()
        whole = os.waitpid(pid, 0)[1] == 0 and whole
        if told:
            more, problems = json.loads(told)
            compiled += more
            failed += problems
    json.dump({"compiled": compiled, "failed": sorted(failed)}, sys.stdout)
    return 0 if whole and compiled + len(failed) == len(sources) else 1


def _sources(top: str) -> Iterator[tuple[str, int]]:
    """Path and bytes of each source below `top`, or of that itself. Links to directories are not followed."""
    if os.path.isfile(top):
        yield top, os.stat(top).st_size
        return
    stack = [top]
    while stack:
        with os.scandir(stack.pop()) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    if entry.name != "__pycache__":
                        stack.append(entry.path)
                elif entry.name.endswith(".py") and entry.is_file():
                    yield entry.path, entry.stat().st_size


def _start(sources: list[str], flags: int, reader: int, writer: int) -> tuple[int, int]:
    """A worker: its process, and where it says in the end what it did."""
    answer, telling = os.pipe()
    pid = os.fork()
    if pid:
        os.close(telling)
        return pid, answer
    status = 1
    try:
        os.close(writer)
        os.close(answer)
        done = _work(sources, flags, reader)
        with open(telling, "w", encoding="ascii") as file:
            json.dump(done, file)
        status = 0
    finally:
        os._exit(status)


def _work(sources: list[str], flags: int, reader: int) -> tuple[int, list[tuple[str, str]]]:
    compiled = 0
    failed = []
    while number := os.read(reader, _INDEX.size):
        if select.select([0], [], [], 0)[0]:
            raise SystemExit  # the caller has ended
        path = sources[_INDEX.unpack(number)[0]]
        try:
            _compile(path, flags)
            compiled += 1
        except Exception as error:  # noqa: BLE001 compilers of all versions raise many kinds for what is no Python
            failed.append((path, f"{type(error).__name__}: {error}"))
    return compiled, failed


def _compile(path: str, flags: int) -> None:
    with open(path, "rb") as file:
        source = file.read()
        mode = os.fstat(file.fileno()).st_mode
    code = compile(source, path, "exec", dont_inherit=True, optimize=0)
    if _has_sets(code):
        first = code  # as long as it is there, its names are interned
        code = compile(source, path, "exec", dont_inherit=True, optimize=0)
        del first
    head = importlib.util.MAGIC_NUMBER + flags.to_bytes(4, "little") + importlib.util.source_hash(source)
    data = head + marshal.dumps(code)
    folder, name = os.path.split(path)
    folder = os.path.join(folder, "__pycache__")
    target = os.path.join(folder, f"{name[:-3]}.{_TAG}.pyc")
    temporary = f"{target}.{os.getpid()}"
    _ensure(folder)
    # Never in place: what stands there may be a hardlink into the cache of an installer.
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode & 0o666 | 0o200)
    try:
        with open(descriptor, "wb") as file:
            file.write(data)
        os.rename(temporary, target)
    except OSError:
        os.unlink(temporary)
        raise


def _has_sets(code: types.CodeType) -> bool:
    """Whether there is a set among the constants, as `x in {1, 2}` makes one."""
    return any(
        _has_sets(constant) if isinstance(constant, types.CodeType) else isinstance(constant, frozenset)
        for constant in code.co_consts
    )


def _ensure(folder: str) -> None:
    with contextlib.suppress(FileExistsError):
        os.mkdir(folder)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
