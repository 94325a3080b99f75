"""Bytecode of whole trees: valid without a look at the source, the same each time, and imports compile nothing."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from imagefs.deps.install import compile_command, compile_environment, compile_order, compile_tree
from imagefs.errors import SnapshotError
from tests.support.waiting import eventually, gone

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
    assert compile_tree(sys.executable, [str(tree)]) == []
    assert len(bytecode(tree)) == len(list(tree.rglob("*.py")))
    assert compiled_by_import(tree, *names) == []
    for path in tree.rglob("*.py"):
        os.utime(path, (0, 0))  # as an image without times would have it
    assert compiled_by_import(tree, *names) == []


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


def test_what_does_not_compile_is_left_out_and_told(tree: Path) -> None:
    (tree / "template.py").write_text("print 'of Python 2'")
    (tree / "zeros.py").write_bytes(b"x = 1\0")
    (tree / "strange.py").write_bytes(b"# -*- coding: no-such-coding -*-\n")
    (tree / "deep.py").write_text("x = " + "(" * 5000 + ")" * 5000)
    (tree / "folder.py").mkdir()
    (tree / "dangling.py").symlink_to("nowhere")
    failed = compile_tree(sys.executable, [str(tree)])
    assert failed == [str(tree / name) for name in ("deep.py", "strange.py", "template.py", "zeros.py")]
    assert not list((tree / "__pycache__").glob("template.*"))


def test_warnings_are_nobodys_business(tree: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tree / "warned.py").write_text("x = '\\d'; assert (x, 'always true')\n")
    assert compile_tree(sys.executable, [str(tree)]) == []
    assert capfd.readouterr() == ("", "")


def test_names_that_are_no_text(tmp_path: Path) -> None:
    for name, text in ((b"/caf\xe9.py", "x = 1\n"), (b"/th\xe9.py", "x =\n")):
        Path(os.fsdecode(os.fsencode(tmp_path) + name)).write_text(text)
    assert compile_tree(sys.executable, [str(tmp_path)]) == [os.fsdecode(os.fsencode(tmp_path) + b"/th\xe9.py")]
    assert len(bytecode(tmp_path)) == 1


def test_the_users_settings_do_not_matter(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONOPTIMIZE", "2")
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("PYTHONPATH", str(tree))
    (tree / "struct.py").write_text("raise SystemExit('imported from the tree')")
    monkeypatch.chdir(tree)
    assert compile_tree(sys.executable, [str(tree)]) == []
    monkeypatch.undo()
    assert compiled_by_import(tree, "nasty") == []
    assert not (tmp_path / "elsewhere").exists()


def test_an_interpreter_that_cannot(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="absent cannot be run: No such file"):
        compile_tree(str(tmp_path / "absent"), [str(tmp_path)])
    with pytest.raises(FileNotFoundError):
        compile_tree(sys.executable, [str(tmp_path / "absent")])
    with pytest.raises(SnapshotError, match="makes no sense"):
        compile_tree("/bin/true", [str(tmp_path)])


def test_a_worker_that_is_killed_is_no_success(tree: Path, tmp_path: Path) -> None:
    """For want of memory, most likely."""
    job = tmp_path / "job"
    job.write_text(compile_order([str(path) for path in tree.rglob("*.py")], "unchecked"))
    words = compile_command(sys.executable, str(job))
    script = words.index("-c") + 1
    killer = "def killed(*_, **__): os.kill(os.getpid(), 9)\n"
    words[script] = killer + words[script].replace("compileall.compile_file", "killed")
    reader, writer = os.pipe()
    done = subprocess.run(words, stdin=reader, capture_output=True, env=compile_environment({}), start_new_session=True)
    os.close(reader)
    os.close(writer)
    assert (done.returncode, done.stdout) == (1, b"")


def test_it_ends_when_its_caller_does(tmp_path: Path) -> None:
    for number in range(2000):
        (tmp_path / f"m{number}.py").write_text("x = 1\n" * 2000)
    program = "import sys; from imagefs.deps.install import compile_tree; compile_tree(sys.executable, sys.argv[1:])"
    caller = subprocess.Popen([sys.executable, "-c", program, str(tmp_path)])
    eventually(lambda: (tmp_path / "__pycache__").exists(), "the first file is compiled")
    below = descendants(caller.pid)
    assert len(below) > 1
    caller.send_signal(signal.SIGKILL)
    caller.wait()
    for pid in below:
        eventually(partial(gone, pid), "the compiler ends")
    assert len(list((tmp_path / "__pycache__").iterdir())) < 2000


def descendants(pid: int) -> list[int]:
    children = [int(one) for one in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]
    return [*children, *(one for child in children for one in descendants(child))]
