"""Bytecode of whole trees: it is valid without a look at the source, and imports compile nothing."""

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

from imagefs.deps.install import compile_tree
from imagefs.errors import SnapshotError
from tests.support.waiting import eventually, gone

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
    """Packages of the standard library, and a module."""
    top = tmp_path / "tree"
    top.mkdir()
    for name in ("email", "json", "logging"):
        source = Path(importlib.util.find_spec(name).origin).parent  # type: ignore[union-attr,arg-type]
        shutil.copytree(source, top / f"my_{name}", ignore=shutil.ignore_patterns("__pycache__"))
    (top / "module.py").write_text("x = 1\n")
    return top


def bytecode(top: Path) -> dict[str, bytes]:
    return {str(path.relative_to(top)): path.read_bytes() for path in top.rglob("*.pyc")}


def compiled_by_import(top: Path, *names: str, environment: dict[str, str] | None = None) -> list[str]:
    env = {**os.environ, "PYTHONPATH": str(top), "PYTHONDONTWRITEBYTECODE": "1", **(environment or {})}
    command = [sys.executable, "-P", "-c", COUNT, str(top), *names]
    found: list[str] = json.loads(subprocess.run(command, env=env, capture_output=True, check=True).stdout)
    return found


def test_an_import_compiles_nothing(tree: Path) -> None:
    names = ["module", "my_json", "my_json.decoder", "my_logging.config", "my_email.message", "my_email.header"]
    assert len(compiled_by_import(tree, *names)) > len(names)
    assert compile_tree(sys.executable, [str(tree)]) == []
    assert len(bytecode(tree)) == len(list(tree.rglob("*.py")))
    assert compiled_by_import(tree, *names) == []
    for path in tree.rglob("*.py"):
        os.utime(path, (0, 0))  # as an image without times would have it
    assert compiled_by_import(tree, *names) == []


def test_checked_bytecode_follows_its_source(tree: Path) -> None:
    compile_tree(sys.executable, [str(tree)], "checked")
    assert compiled_by_import(tree, "module", "my_json") == []
    (tree / "module.py").write_text("changed = True")
    assert compiled_by_import(tree, "module", "my_json") == [str(tree / "module.py")]


def test_bytecode_with_a_time_is_replaced(tree: Path) -> None:
    """Installers that compile leave it."""
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
    target = tree / "__pycache__" / f"module.{sys.implementation.cache_tag}.pyc"
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
    (tree / "th\udce9.py").write_text("x =\n")
    failed = compile_tree(sys.executable, [str(tree)])
    assert failed == [str(tree / name) for name in ("deep.py", "strange.py", "template.py", "th\udce9.py", "zeros.py")]
    assert not list((tree / "__pycache__").glob("template.*"))


def test_the_users_settings_do_not_matter(tree: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONOPTIMIZE", "2")
    monkeypatch.setenv("PYTHONPYCACHEPREFIX", str(tmp_path / "elsewhere"))
    monkeypatch.setenv("PYTHONPATH", str(tree))
    (tree / "struct.py").write_text("raise SystemExit('imported from the tree')")
    monkeypatch.chdir(tree)
    assert compile_tree(sys.executable, [str(tree)]) == []
    monkeypatch.undo()
    assert compiled_by_import(tree, "module") == []
    assert not (tmp_path / "elsewhere").exists()


def test_an_interpreter_that_cannot(tmp_path: Path) -> None:
    with pytest.raises(SnapshotError, match="absent cannot be run: No such file"):
        compile_tree(str(tmp_path / "absent"), [str(tmp_path)])
    with pytest.raises(FileNotFoundError):
        compile_tree(sys.executable, [str(tmp_path / "absent")])
    with pytest.raises(SnapshotError, match="makes no sense"):
        compile_tree("/bin/true", [str(tmp_path)])


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
