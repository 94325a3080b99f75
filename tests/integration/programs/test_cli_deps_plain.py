"""`imagefs deps pip` and the like parse without click as click parses, and they load little."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefs.cli.deps import fastpath, install
from imagefs.cli.deps.fastpath import FORMS, INSTALL, plain_deps
from imagefs.config import IMAGEFS

FLAGS = [f"--{flag.name}" for flag in INSTALL] + [f"--{option.name}" for option in IMAGEFS.all]
WORDS = st.one_of(
    st.sampled_from([*FLAGS, "--no-use-datanode-hostname", "--", "-", "", "--nothing", "-r"]),
    st.sampled_from(["requirements.txt", "/opt/deps", "checked", "8MiB", "python3", "-x=3", "--nothing=4"]),
    st.builds("{}={}".format, st.sampled_from(FLAGS), st.sampled_from(["", "unchecked", "A=B", "-x"])),
)


@pytest.fixture(scope="module")
def begun() -> Any:
    """Arguments of installations, which are recorded and not begun."""
    patch = pytest.MonkeyPatch()
    taken: list[tuple[str, tuple[str, ...], dict[str, Any], dict[str, Any]]] = []

    def take(form: str, words: Sequence[str], values: Any, given: Any) -> int:
        taken.append((form, tuple(words), dict(values), dict(given)))
        return 0

    patch.setattr(fastpath, "begin", take)
    patch.setattr(install, "begin", take)
    yield taken
    patch.undo()


@given(form=st.sampled_from(FORMS), arguments=st.lists(WORDS, max_size=8))
def test_what_is_read_plainly_is_what_click_reads(begun: Any, form: str, arguments: list[str]) -> None:
    begun.clear()
    body = plain_deps([form, *arguments])
    if body is None:
        return
    assert body() == 0
    getattr(install, f"{form}_command").main(arguments, standalone_mode=False)
    assert begun[0] == begun[1]


USUAL = [
    "pip --target /opt/deps -r requirements.txt --no-index",
    "uv --target=/opt/deps --wait --store /srv/deps numpy==1.26.4",
    "run --target /opt/deps --keep -- pip install --target /opt/deps x",
]
REST = ["ls", "pip", "pip --help", "pip -r x -h", "run --tarket x y"]
REST += ["pip --bytecode some x", "pip x --target", "pip --keep=1 x", ""]


@pytest.mark.parametrize("line", [*USUAL, *REST])
def test_usual_lines_are_read_without_click_and_the_rest_by_it(line: str) -> None:
    assert (plain_deps(line.split()) is not None) == (line in USUAL)


def test_click_is_not_loaded_before_the_daemon_is_asked(tmp_path: Path) -> None:
    program = (
        "import sys; from stripefs.fuse import control\n"
        "def ask(*_, **__): print(*sys.modules); sys.stdout.flush(); import os; os._exit(0)\n"
        "control.ask = ask; sys.argv = ['imagefs', 'deps', 'run', '--store', sys.argv[1], '--target',\n"
        "    sys.argv[1] + '/target', '--cache', sys.argv[1], '--runtime', sys.argv[1], '--epoch', '1', '--', 'true']\n"
        "from imagefs.cli.main import run; run()"
    )
    done = subprocess.run([sys.executable, "-c", program, str(tmp_path)], capture_output=True, text=True, check=False)
    loaded = set(done.stdout.split())
    assert "imagefs.daemon.client" in loaded, done.stderr
    assert loaded.isdisjoint(
        {"click", "pyfuse3", "trio", "lz4", "imagefs.build.image", "imagefs.deps.install", "imagefs.deps.publish"}
    )
