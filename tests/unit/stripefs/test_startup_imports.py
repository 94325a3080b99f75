"""Timing of imports: own time, spans in one another, no traces in the job."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.support.start_events import events
from tests.support.waiting import PATIENCE

SLOW = "import time; time.sleep({})\n"
BEGIN = "from stripefs.startup_imports import time_imports\ntimed = time_imports(threshold=0, unused=True)\n"


@pytest.fixture
def modules(tmp_path: Path) -> Path:
    """`outer` loads `inner` and, by a function, `late`; `broken` fails; `lonely` is of no use."""
    texts = {
        "outer/__init__.py": SLOW.format(0.03) + "from outer import part\n",
        "outer/part.py": SLOW.format(0.03) + "import inner\ndef use():\n    import late\n    return inner.value\n",
        "inner.py": SLOW.format(0.03) + "value = 1\n",
        "late.py": SLOW.format(0.03),
        "lonely.py": SLOW.format(0.03),
        "broken.py": "import inner\nraise ValueError\n",
    }
    for name, text in texts.items():
        path = tmp_path / "modules" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "modules"


def ran(modules: Path, text: str, *flags: str, code: int = 0) -> tuple[list[dict[str, Any]], str]:
    """The events of a program, and what it printed."""
    spool = modules.parent / "spool"
    environ = os.environ | {"BOOTSEER_EVENTS": str(spool), "PYTHONPATH": os.pathsep.join([str(modules), os.getcwd()])}
    line = [sys.executable, *flags, "-c", text]
    done = subprocess.run(line, env=environ, capture_output=True, text=True, timeout=PATIENCE, check=False)
    assert done.returncode == code, done.stderr
    return events(spool), done.stdout + done.stderr


def test_spans_lie_in_one_another_and_own_times_add_up(modules: Path) -> None:
    found, said = ran(modules, BEGIN + "import outer.part\nimport late\nprint(outer.part.use())")
    assert said == "1\n"
    spans = {event["span"]: event for event in found if event["event"] == "begin"}
    ends = {event["name"]: event for event in found if event["event"] == "end"}
    parents = {event["name"]: spans.get(event.get("parent", ""), {}).get("name") for event in spans.values()}
    assert parents["outer"] is None
    assert parents["inner"] == "outer"
    assert parents["late"] is None
    assert ends["outer"]["facts"]["modules"] == 2
    begin = next(event for event in spans.values() if event["name"] == "outer")
    total = ends["outer"]["mono_ns"] - begin["mono_ns"]
    inside = [name for name, parent in parents.items() if parent == "outer"]
    below = sum(ends[name]["facts"]["own_ns"] for name in inside)
    assert total - below - ends["outer"]["facts"]["own_ns"] >= 0
    assert ends["outer"]["facts"]["own_ns"] >= 60_000_000
    assert ends["inner"]["facts"]["own_ns"] >= 30_000_000


def test_unused_packages_are_told_when_the_start_is_over(modules: Path) -> None:
    text = """
import lonely, late
import outer
from stripefs.startup_events import default_writer
outer.part.use()
default_writer().instant("ready")
lonely.time
print(type(late).__name__, type(outer).__name__)
"""
    found, said = ran(modules, BEGIN + text)
    assert said == "Watched module\n"
    told = {event["name"] for event in found if event.get("facts", {}).get("used") is False}
    assert told == {"lonely", "late"}


@pytest.mark.parametrize(
    ("text", "errors"),
    [
        ("import nowhere", {"nowhere": "ModuleNotFoundError"}),
        ("import outer.nowhere", {"outer": "ModuleNotFoundError"}),
        ("import broken", {"broken": "ValueError"}),
        ("from inner import x", {}),
    ],
)
def test_failures_look_as_without(modules: Path, text: str, errors: dict[str, str]) -> None:
    _, expected = ran(modules, f"\n\n{text}", code=1)
    found, said = ran(modules, BEGIN + text, code=1)
    assert said == expected
    assert "Traceback" in said
    assert {event["name"]: event["facts"]["error"] for event in found if "error" in event.get("facts", {})} == errors


def test_threads_forks_and_stop(modules: Path) -> None:
    text = """
import os, sys, threading
threads = [threading.Thread(target=__import__, args=(name,)) for name in ("inner", "late")]
for thread in threads: thread.start()
for thread in threads: thread.join()
if not os.fork():
    import lonely
    timed.finish()
    os._exit(0)
os.wait()
timed.stop()
import outer
"""
    found, said = ran(modules, BEGIN + text)
    assert said == ""
    ours = [event for event in found if event["name"] in ("inner", "late", "lonely", "outer")]
    ended = [(event["name"], event["pid"]) for event in ours if event["event"] == "end"]
    assert sorted(name for name, _ in ended) == ["inner", "late", "lonely"]
    assert len({pid for _, pid in ended}) == 2


def test_the_hook_needs_nothing_but_itself(modules: Path) -> None:
    """Copied, on an interpreter without packages, which loads no module for it until it has what the writer needs."""
    text = f"""
import sys
sys.path.insert(0, {str(Path("stripefs").absolute())!r})
before = set(sys.modules)
import startup_imports
assert set(sys.modules) - before <= {{"startup_imports", "atexit", "__future__"}}, set(sys.modules) - before
del sys.path[0]
startup_imports.time_imports()
sys.path.insert(0, {str(modules)!r})
import inner
"""
    found, _ = ran(modules, text, "-I")
    assert "inner" in {event["name"] for event in found}
    assert "startup_events" not in json.dumps(found)


def test_a_program_that_cannot_reach_the_writer_imports_on(modules: Path) -> None:
    """As one that has become another user, or is in another root."""
    shutil.copy("stripefs/startup_imports.py", modules / "startup_imports.py")
    text = f"import sys; sys.path.insert(0, {str(modules)!r}); import startup_imports\n"
    text += "startup_imports.time_imports(threshold=0, unused=True)\nimport json, queue, logging\nimport lonely"
    assert ran(modules, text, "-I")[1] == ""
