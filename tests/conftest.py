"""Fixtures for all tests, the order of the run, and the check that nothing is left when the last test has ended."""

from __future__ import annotations

import gc
import os
import signal
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

from stripefs.api import engine
from tests.support.examples import FULL
from tests.support.leaks import MARK, leaks
from tests.support.memory import MemoryFolders
from tests.support.other_users import open_folder

settings.register_profile("default", max_examples=FULL, deadline=None)  # a busy machine is no failure
settings.register_profile("quick", max_examples=20, deadline=None)
settings.load_profile("default")


def pytest_configure(config: pytest.Config) -> None:
    os.environ[MARK] = str(os.getpid())
    os.environ["HDFS_CLUSTER_JAVA_OPTIONS"] = "-XX:TieredStopAtLevel=1"  # JVMs end before what is optimised pays
    for number in (signal.SIGHUP, signal.SIGINT, signal.SIGQUIT):  # which nohup and & of a shell ignore, and tests send
        if signal.getsignal(number) is signal.SIG_IGN:
            signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # so that fixtures are torn down


_FIRST = (
    "tests/hdfs/faults/",
    "tests/hdfs/",
    "tests/extra/",
    "tests/integration/deps/",
    "tests/integration/imagefs/",
    "tests/integration/mount/",
)
"""Folders whose tests mostly wait, the longest first: started last, they would run alone while a processor idles."""

_ONE_WORKER = ("tests/hdfs/faults", "tests/hdfs/clusters", "tests/hdfs", "tests/extra/hdfs")
"""Folders that one worker runs as a whole, so that a run has one HDFS of either kind, and one that is a test's own."""

_LIGHT = ("tests/unit/", "tests/model/")
"""The folders of tests that start no mounts."""

LIGHT = 10.0
"""Seconds that one of them may take unless it is marked slow, where each processor has one task."""


class _Scheduling(LoadScopeScheduling):  # type: ignore[misc]
    """Gives workers a file at a time, and the folders that share a cluster as one."""

    def _split_scope(self, nodeid: str) -> str:
        folder = nodeid.rsplit("/", 1)[0]
        return next((whole for whole in _ONE_WORKER if f"{folder}/".startswith(f"{whole}/")), nodeid.partition("::")[0])


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> LoadScopeScheduling:
    return _Scheduling(config, log)


def _place(item: pytest.Item) -> int:
    """The rank of an item's folder in the order of the run."""
    return next((rank for rank, folder in enumerate(_FIRST) if item.nodeid.startswith(folder)), len(_FIRST))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    """A light test that takes long fails, so that the quick tier stays quick."""
    report = yield
    light = item.nodeid.startswith(_LIGHT) and item.get_closest_marker("slow") is None
    limit = LIGHT * max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
    if call.when == "call" and light and report.outcome == "passed" and call.duration > limit:
        report.outcome = "failed"
        report.longrepr = f"took {call.duration:.1f} s; a test over {limit:.0f} s is made quick, or marked slow"
    return report


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """The objects of the collection live as long as the run, so garbage is not looked for in them again and again."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_unconfigure() -> None:
    gc.unfreeze()  # modules in C complain of what is still there when the interpreter ends


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """After `-m` has chosen: say at once that what is left cannot run, instead of failing piece by piece."""
    items.sort(key=_place)
    if os.geteuid() == 0:
        return
    for item in items:
        if item.get_closest_marker("root") or item.get_closest_marker("cluster"):
            pytest.exit(f"{item.nodeid} needs root: sudo ./scripts/test", returncode=pytest.ExitCode.USAGE_ERROR)


@pytest.fixture(autouse=True)
def _engine_ends() -> Iterator[None]:
    """That of `stripefs.api` does with the test that started it."""
    yield
    engine.stop()


_LEFT = pytest.StashKey[bool]()


@pytest.hookimpl(trylast=True)
def pytest_sessionfinish(session: pytest.Session) -> None:
    """Leftovers fail the session and no single test, which might pass when it is run again."""
    left = session.config.stash.get(_LEFT, False)
    if hasattr(session.config, "workeroutput"):  # of several processes: the one that started them hears of it
        session.config.workeroutput["left"] = left
    elif left:
        session.exitstatus = pytest.ExitCode.INTERNAL_ERROR


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node: Any, error: object) -> None:
    if getattr(node, "workeroutput", {}).get("left"):
        node.config.stash[_LEFT] = True


@pytest.fixture(scope="session", autouse=True)
def nothing_left(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Fails the run when a process, mount or namespace of a test outlives it. Set up first, so torn down last."""
    yield
    left = leaks(tmp_path_factory.getbasetemp(), patience=10)
    request.config.stash[_LEFT] = bool(left)
    assert not left, "tests left behind:\n" + "\n".join(left)


@pytest.fixture(scope="session")
def _memory(
    nothing_left: None, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MemoryFolders]:
    folders = MemoryFolders(tmp_path_factory.mktemp)
    yield folders
    folders.close(request.session.testsfailed)


@pytest.fixture
def memory_path(_memory: MemoryFolders, request: pytest.FixtureRequest) -> Path:
    """Like `tmp_path`, in memory."""
    return _memory.fresh(request.node.name, request.session.testsfailed)


@pytest.fixture
def open_path(nothing_left: None) -> Iterator[Path]:
    """Like `tmp_path`; every user may enter it."""
    with open_folder() as folder:
        yield folder
