"""Bytecode of whole trees: valid without a look at the source, the same each time, and nothing is compiled after it."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from imagefs.deps.bytecode import (
    command_for,
    compile_command,
    compile_environment,
    compile_tree,
    order_for,
    parse_report,
)
from imagefs.errors import SnapshotError
from tests.waiting import eventually, gone

NASTY = """
'''A docstring with a name that others use: path.'''
import os, sys
WORDS = frozenset(['alpha', 'beta', 'gamma', 'delta', None, 1, 2.5, ('x', None)])
def inside(x):
    return x in {'one', 'two', 'three', None, ('a', 'b'), b'bytes', 3, 300, 3.5, 1j, ...}
def with_an_equal_set(x):
    return x in {'225', '226', '426'} or 'µ'
def and_another(x):
    return x in {'225', '226', '426'}
class Path:
    path = 'path'
    def join(self, *parts, sep='/'):
        parts = [part for part in parts if part not in ('', '.', '..')]
        def nested():
            return sep, parts, 1000, 'not an identifier', 'x', '', b'', b'y', 123456789012345678901234567890
        return nested
"""

COUNT = """
import importlib, json, sys
compiled = []
sys.addaudithook(lambda event, arguments: compiled.append(str(arguments[1])) if event == 'compile' else None)
for name in sys.argv[2:]:
    importlib.import_module(name)
print(json.dumps([path for path in compiled if path.startswith(sys.argv[1])]))
"""


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Packages of the standard library, and a module with constants of all kinds."""
    top = tmp_path / "tree"
    top.mkdir()
    for name in ("email", "json", "logging"):
        source = Path(importlib.util.find_spec(name).origin).parent  # type: ignore[union-attr,arg-type]
        shutil.copytree(source, top / f"my_{name}", ignore=shutil.ignore_patterns("__pycache__"))
    (top / "nasty.py").write_text(NASTY)
    for name, text in (("first", "µ, é = 225, 'µ'\n" * 500 + "x = '225', '226'\n"), ("alone", NASTY)):
        (top / name).mkdir()
        (top / name / "__init__.py").write_text(text)
    return top


def bytecode(top: Path) -> dict[str, bytes]:
    return {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*.pyc")}


def compiled_by_import(top: Path, *names: str, environment: dict[str, str] | None = None) -> list[str]:
    env = {**os.environ, "PYTHONPATH": str(top), "PYTHONDONTWRITEBYTECODE": "1", **(environment or {})}
    command = [sys.executable, "-P", "-c", COUNT, str(top), *names]
    found: list[str] = json.loads(subprocess.run(command, env=env, capture_output=True, check=True).stdout)
    return found


def test_an_import_compiles_nothing(tree: Path) -> None:
    names = ["nasty", "my_json", "my_json.decoder", "my_logging.config", "my_email.message", "my_email.header"]
    assert len(compiled_by_import(tree, *names)) > len(names)
    report = compile_tree(sys.executable, [str(tree)])
    assert (report.compiled, report.failed) == (len(list(tree.rglob("*.py"))), ())
    assert compiled_by_import(tree, *names) == []
    for path in tree.rglob("*.py"):
        os.utime(path, (0, 0))  # as an image without times would have it
    assert compiled_by_import(tree, *names) == []


def test_equal_sources_have_equal_bytecode(tree: Path) -> None:
    """Whatever else a process compiled, whoever compiled it, and in whatever order."""
    compile_tree(sys.executable, [str(tree)], workers=1)
    first = bytecode(tree)
    assert first
    for way in (
        lambda: compile_tree(sys.executable, [str(tree)], workers=1),
        lambda: compile_tree(sys.executable, [str(tree)], workers=3),
        lambda: [compile_tree(sys.executable, [str(one)]) for one in tree.iterdir() if one.is_dir()],
        lambda: _with_others(tree),
    ):
        way()
        assert bytecode(tree) == first


def _with_others(tree: Path) -> None:
    """Names of which something else in the compiling process has a reference."""
    command = compile_command(sys.executable, [str(tree)], "unchecked", 1)
    script = command.index("-c") + 1
    names = sorted({name for path in tree.rglob("*.py") for name in re.findall(r"\w+", path.read_text())})
    command[script] = f"import sys\nkept = [sys.intern(name) for name in {names!r}]\nexec({command[script]!r})"
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=compile_environment({})
    ) as process:
        assert process.stdout
        assert parse_report(process.stdout.read(), 0).compiled


def test_compileall_writes_other_bytes_where_its_process_knows_more(tmp_path: Path) -> None:
    """Of equal sources, with hashes as well; so which worker compiles what decides, as with CPython 3.12."""
    program = "import compileall, py_compile, sys; kept = [sys.intern(name) for name in sys.argv[2:]]; "
    program += "mode = py_compile.PycInvalidationMode.UNCHECKED_HASH; "
    program += "sys.exit(not compileall.compile_dir(sys.argv[1], quiet=1, ddir='/x', invalidation_mode=mode))"
    names = sorted(set(re.findall(r"\w+", NASTY)))
    for folder, known in (("one", []), ("other", names)):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "nasty.py").write_text(NASTY)
        command = [sys.executable, "-S", "-c", program, str(tmp_path / folder), *known]
        subprocess.run(command, env=compile_environment({}), check=True)
    assert [*bytecode(tmp_path / "one").values()] != [*bytecode(tmp_path / "other").values()]


def test_single_sources_that_a_file_names(tree: Path, tmp_path: Path) -> None:
    """As for what was installed into a directory with more in it."""
    order = tmp_path / "order"
    order.write_text(order_for([str(tree / "nasty.py")], "unchecked"))
    command = command_for(sys.executable, f"@{order}")
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=compile_environment({})
    ) as process:
        assert process.stdout
        assert parse_report(process.stdout.read(), 0).compiled == 1
    assert compiled_by_import(tree, "nasty", "alone") == [str(tree / "alone/__init__.py")]


def test_unchecked_bytecode_is_believed(tree: Path) -> None:
    compile_tree(sys.executable, [str(tree)])
    (tree / "nasty.py").write_text("raise SystemExit('compiled anew')")
    assert compiled_by_import(tree, "nasty") == []


def test_checked_bytecode_follows_its_source(tree: Path) -> None:
    compile_tree(sys.executable, [str(tree)], "checked")
    assert compiled_by_import(tree, "nasty", "my_json") == []
    (tree / "nasty.py").write_text("changed = True")
    assert compiled_by_import(tree, "nasty", "my_json") == [str(tree / "nasty.py")]


def test_bytecode_with_a_time_is_replaced(tree: Path) -> None:
    subprocess.run([sys.executable, "-m", "compileall", "-q", str(tree)], check=True)
    with_times = bytecode(tree)
    compile_tree(sys.executable, [str(tree)])
    ours = bytecode(tree)
    assert ours.keys() == with_times.keys()
    assert {data[4:8] for data in with_times.values()} == {bytes(4)}
    assert {data[4:8] for data in ours.values()} == {b"\1\0\0\0"}


def test_what_an_installer_has_in_its_cache_stays_as_it_is(tree: Path, tmp_path: Path) -> None:
    """uv makes hardlinks."""
    (tree / "__pycache__").mkdir()
    target = tree / "__pycache__" / f"nasty.{sys.implementation.cache_tag}.pyc"
    (tmp_path / "cached").write_bytes(b"theirs")
    os.link(tmp_path / "cached", target)
    compile_tree(sys.executable, [str(tree)])
    assert (tmp_path / "cached").read_bytes() == b"theirs"
    assert target.read_bytes() != b"theirs"


def test_its_mode_follows_the_source(tree: Path) -> None:
    (tree / "nasty.py").chmod(0o640)
    compile_tree(sys.executable, [str(tree)])
    (path,) = (tree / "__pycache__").glob("nasty.*")
    assert path.stat().st_mode & 0o777 == 0o640


def test_what_does_not_compile_is_left_out_and_told(tree: Path) -> None:
    (tree / "template.py").write_text("print 'of Python 2'")
    (tree / "zeros.py").write_bytes(b"x = 1\0")
    (tree / "strange.py").write_bytes(b"# -*- coding: no-such-coding -*-\n")
    (tree / "deep.py").write_text("x = " + "(" * 5000 + ")" * 5000)
    (tree / "folder.py").mkdir()
    (tree / "dangling.py").symlink_to("nowhere")
    report = compile_tree(sys.executable, [str(tree)])
    assert [os.path.basename(path) for path, _ in report.failed] == ["deep.py", "strange.py", "template.py", "zeros.py"]
    assert all(": " in why for _, why in report.failed)
    assert not list((tree / "__pycache__").glob("template.*"))


def test_warnings_are_nobodys_business(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tree / "warned.py").write_text("x = '\\d'; assert (x, 'always true')\n")
    assert compile_tree(sys.executable, [str(tree)]).failed == ()
    assert capfd.readouterr() == ("", "")


def test_nothing_to_compile(tmp_path: Path) -> None:
    assert compile_tree(sys.executable, [str(tmp_path)]).compiled == 0


def test_names_that_are_no_text(tmp_path: Path) -> None:
    with open(os.fsencode(tmp_path) + b"/caf\xe9.py", "w") as file:
        file.write("x = 1\n")
    assert compile_tree(sys.executable, [str(tmp_path)]).compiled == 1


def test_the_users_settings_do_not_matter(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONOPTIMIZE", "2")
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("PYTHONPATH", str(tree))
    (tree / "struct.py").write_text("raise SystemExit('imported from the tree')")
    monkeypatch.chdir(tree)
    assert not compile_tree(sys.executable, [str(tree)]).failed
    monkeypatch.undo()
    assert compiled_by_import(tree, "nasty") == []
    assert not (tmp_path / "elsewhere").exists()


def test_an_interpreter_that_cannot(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="absent cannot be run: No such file"):
        compile_tree(str(tmp_path / "absent"), [str(tmp_path)])
    with pytest.raises(SnapshotError, match="FileNotFoundError"):
        compile_tree(sys.executable, [str(tmp_path / "absent")])
    with pytest.raises(SnapshotError, match="makes no sense"):
        compile_tree("/bin/true", [str(tmp_path)])


def test_a_worker_that_is_killed_is_no_success(tree: Path) -> None:
    """For want of memory, most likely."""
    command = compile_command(sys.executable, [str(tree)], "unchecked", 2)
    script = command.index("-c") + 1
    command[script] = command[script].replace("code = compile(", "os.kill(os.getpid(), 9); code = compile(")
    reader, writer = os.pipe()
    done = subprocess.run(command, stdin=reader, stdout=subprocess.DEVNULL, env=compile_environment({}))
    os.close(reader)
    os.close(writer)
    assert done.returncode == 1


def test_it_ends_when_its_caller_does(tmp_path: Path) -> None:
    for number in range(2000):
        (tmp_path / f"m{number}.py").write_text("x = 1\n" * 2000)
    program = "import sys; from imagefs.deps.bytecode import compile_tree; compile_tree(sys.executable, sys.argv[1:])"
    caller = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)])
    eventually(lambda: (tmp_path / "__pycache__").exists(), "the first file is compiled")
    below = [int(pid) for pid in Path(f"/proc/{caller.pid}/task/{caller.pid}/children").read_text().split()]
    assert below
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    for pid in below:
        eventually(lambda pid=pid: gone(pid), "the compiler ends")
    assert len(list((tmp_path / "__pycache__").iterdir())) < 2000
