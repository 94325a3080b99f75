"""Libraries that let a CUDA build of torch be imported where CUDA is not installed.

torch's libraries name CUDA's as needed, with the versions of the symbols that they use, so the dynamic linker wants
those files before anything runs. Each stand-in has that name, these versions and a function for every symbol that torch
misses; all of them answer that there is no GPU. Needs gcc and readelf.

`python -m bench.image.stubs SITE` puts them beside the torch that is installed in the folder SITE.
"""

from __future__ import annotations

import re
import sys
import tempfile
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from bench.harness.programs import output, run

__all__ = ["Wanted", "c_source", "make", "parse", "version_script"]

_CUDA = re.compile(r"lib(cu|nccl|nv)")
_DRIVER = "libcuda.so"  # belongs to a machine, not to a wheel, and only what torch loads later wants it
_PREFIXES = ("cu", "nccl", "nv")
_ANSWER = 100  # cudaErrorNoDevice, CUDA_ERROR_NO_DEVICE; to the others an error of some kind
_TEXT = re.compile(r"(Error|Status)_?(String|Name)|GetVersionString")


@dataclass(slots=True)
class Wanted:
    """The demands of one library, or of several together, on the dynamic linker.

    `versions`: names of versions by the library that they are expected in; `missing`: undefined symbols by version, ""
    for those without one; `defined`: symbols that it has itself.
    """

    needed: set[str] = field(default_factory=set)
    versions: dict[str, set[str]] = field(default_factory=dict)
    missing: dict[str, set[str]] = field(default_factory=dict)
    defined: set[str] = field(default_factory=set)

    def add(self, other: Wanted) -> None:
        self.needed |= other.needed
        self.defined |= other.defined
        for mine, theirs in ((self.versions, other.versions), (self.missing, other.missing)):
            for name, values in theirs.items():
                mine.setdefault(name, set()).update(values)


def make(site: Path) -> list[str]:
    """Put stand-ins beside torch's libraries in `site`, and answer their names. Raises BenchError."""
    folder = site / "torch/lib"
    wanted = Wanted()
    for library in sorted(folder.glob("*.so*")):
        tables = output("readelf", "--wide", "--dynamic", "--version-info", "--dyn-syms", library)
        wanted.add(parse(tables.splitlines()))
    names = sorted(
        name
        for name in wanted.needed
        if _CUDA.match(name) and not name.startswith(_DRIVER) and not (folder / name).exists()
    )
    # A symbol without a version is looked for in every library, so any one may have those.
    loose = {name for name in wanted.missing.get("", set()) - wanted.defined if name.startswith(_PREFIXES)}
    with tempfile.TemporaryDirectory() as scratch:
        source, script = Path(scratch, "stub.c"), Path(scratch, "stub.map")
        for number, name in enumerate(names):
            versions = {v: wanted.missing.get(v, set()) for v in wanted.versions.get(name, set())}
            symbols = set().union(*versions.values(), loose if number == 0 else set())
            source.write_text(c_source(symbols))
            script.write_text(version_script(versions))
            options = ["-w", "-fno-builtin", "-nostdlib", "-shared", f"-Wl,-soname,{name}"]
            options += [f"-Wl,--version-script={script}"] if versions else []
            run("gcc", *options, "-o", folder / name, source)
    return names


def parse(lines: Iterable[str]) -> Wanted:
    """The demands of one library, from the output of `readelf --wide --dynamic --version-info --dyn-syms`."""
    wanted, owner = Wanted(), ""
    for line in lines:
        if found := re.search(r"\(NEEDED\).*\[(.+?)\]", line):
            wanted.needed.add(found[1])
        elif found := re.search(r"Version: \d+\s+File: (\S+)", line):
            owner = found[1]
        elif found := re.search(r"Name: (\S+)\s+Flags: .*Version: \d+", line):
            wanted.versions.setdefault(owner, set()).add(found[1])
        else:
            _add_symbol(wanted, line.split())
    return wanted


def _add_symbol(wanted: Wanted, fields: list[str]) -> None:
    """A row: number, value, size, type, binding, visibility, section, name and perhaps a version."""
    if len(fields) < 8 or not fields[0].endswith(":") or fields[4] != "GLOBAL":
        return
    name, _, version = fields[7].partition("@")
    if fields[6] == "UND":
        wanted.missing.setdefault(version, set()).add(name)
    else:
        wanted.defined.add(name)


def c_source(symbols: Iterable[str]) -> str:
    """A function for each; those that are to answer a text do, since somebody may print it."""
    functions = [
        f'const char *{name}(void) {{ return "no CUDA"; }}'
        if _TEXT.search(name)
        else f"long {name}(void) {{ return {_ANSWER}; }}"
        for name in sorted(symbols)
    ]
    return "\n".join([*functions, "int bench_stand_in;", ""])


def version_script(versions: Mapping[str, set[str]]) -> str:
    return "\n".join(_nodes(versions)) + "\n"


def _nodes(versions: Mapping[str, set[str]]) -> Iterator[str]:
    for version, symbols in sorted(versions.items()):
        names = " ".join(f"{name};" for name in sorted(symbols))
        yield f"{version} {{ {'global: ' + names if names else ''} }};"


if __name__ == "__main__":
    print(*make(Path(sys.argv[1])))
