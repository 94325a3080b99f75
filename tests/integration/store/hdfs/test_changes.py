"""Namespace at a NameNode whose answers get lost, come late or never; what refusals mean."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Sequence

import pytest

from stripefs import retry
from stripefs.errors import (
    Exists,
    NotFound,
    PermissionDenied,
    ServiceDown,
    StaleVersion,
    StoreError,
    Transient,
    Unsupported,
)
from stripefs.store.base import Attributes, Kind, Status
from stripefs.store.hdfs.namenode_failover import Unanswered
from stripefs.store.hdfs.namespace import Namespace
from stripefs.store.hdfs.wire import inode_path

LOST = Unanswered("the answer was lost")


class FakeCalls:
    """A few entries in memory. `faults` are met by the next changes in turn: a fault may act, fail, or both."""

    def __init__(self) -> None:
        self.entries: dict[str, Status] = {"/": _directory(1)}
        self.faults: list[Callable[[Callable[[], None]], None]] = []
        self.asked: list[str] = []
        self.away = 0

    def stat(self, path: str) -> Status:
        if self.away:
            self.away -= 1
            raise ServiceDown("away")
        return self.entries[self._resolved(path)]

    def _resolved(self, path: str) -> str:
        """The path that an inode's path stands for now. Raises NotFound where nothing is at `path`."""
        for name, status in self.entries.items():
            if path in (name, inode_path(status.file_id)):
                return name
        raise NotFound(path)

    def add(self, path: str, length: int = 1) -> None:
        self.entries[path] = Status(path.encode(), Kind.FILE, length, file_id=str(100 + len(self.entries)))

    def make_directories(self, path: str, mode: int) -> None:
        self._do("mkdirs", lambda: self.entries.update({path: _directory(50 + len(self.entries))}))

    def delete(self, path: str) -> bool:
        gone: list[Status] = []

        def act() -> None:
            with contextlib.suppress(NotFound):
                gone.append(self.entries.pop(self._resolved(path)))

        self._do("delete", act)
        return bool(gone)

    def rename(self, source: str, target: str, *, replace: bool) -> None:
        def act() -> None:
            if source not in self.entries:
                raise NotFound(source)
            if target in self.entries and not replace:
                raise Exists(target)
            name = self._resolved(target) if target.startswith(inode_path("")) else target
            self.entries[name] = self.entries.pop(source)

        self._do("rename", act)

    def set_mode(self, path: str, mode: int) -> None:
        self._do("mode", lambda: self.entries.update({path: dataclasses.replace(self.entries[path], mode=mode)}))

    def set_owner(self, path: str, owner: str | None, group: str | None) -> None:
        self._do("owner", lambda: None)

    def set_times(self, path: str, mtime_ms: int | None, atime_ms: int | None) -> None:
        def act() -> None:
            if atime_ms is not None:
                raise StoreError("Please set dfs.namenode.accesstime.precision configuration parameter.")

        self._do("times", act)

    def concat(self, target: str, sources: Sequence[str]) -> None:
        def act() -> None:
            length = sum(self.entries.pop(source).length for source in sources)
            self.entries[target] = dataclasses.replace(
                self.entries[target], length=self.entries[target].length + length
            )

        self._do(f"concat {' '.join(sources)}", act)

    def _do(self, what: str, act: Callable[[], object]) -> None:
        self.asked.append(what)
        if self.faults:
            self.faults.pop(0)(lambda: act() and None)
        else:
            act()


def _directory(number: int) -> Status:
    return Status(b"", Kind.DIRECTORY, file_id=str(number))


def done_but_lost(act: Callable[[], None]) -> None:
    act()
    raise LOST


def lost(act: Callable[[], None]) -> None:
    raise LOST


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> FakeCalls:
    monkeypatch.setattr(retry, "FIRST_RETRY", 0.001)
    monkeypatch.setattr(retry, "LONGEST_RETRY", 0.001)
    return FakeCalls()


CHANGES: list[tuple[str, Callable[[Namespace], None], Callable[[FakeCalls], bool]]] = [
    ("mkdir", lambda changes: changes.mkdir("/new", 0o755), lambda calls: "/new" in calls.entries),
    ("rename", lambda changes: changes.rename("/a", "/new", replace=False), lambda calls: "/new" in calls.entries),
    ("replace", lambda changes: changes.rename("/a", "/b", replace=True), lambda calls: "/a" not in calls.entries),
    ("remove", lambda changes: changes.remove("/a"), lambda calls: "/a" not in calls.entries),
    (
        "compare and rename",
        lambda changes: changes.compare_and_rename("/a", "/b", changes._calls.stat("/b").identity),
        lambda calls: "/a" not in calls.entries and calls.entries["/b"].file_id == "101",
    ),
    (
        "compare and remove",
        lambda changes: changes.compare_and_remove("/a", changes._calls.stat("/a").identity),
        lambda calls: "/a" not in calls.entries,
    ),
    ("rmdir", lambda changes: changes.rmdir("/d"), lambda calls: "/d" not in calls.entries),
    ("concat", lambda changes: changes.concat("/a", ["/b"]), lambda calls: calls.entries["/a"].length == 2),
    (
        "mode",
        lambda changes: changes.set_attributes("/a", Attributes(mode=0o600)),
        lambda calls: calls.entries["/a"].mode == 0o600,
    ),
]
EACH = pytest.mark.parametrize(("change", "made"), [case[1:] for case in CHANGES], ids=[case[0] for case in CHANGES])


def fill(calls: FakeCalls) -> None:
    calls.add("/a")
    calls.add("/b")
    calls.entries["/d"] = _directory(7)


def undisturbed(change: Callable[[Namespace], None]) -> int:
    """The number of changes that the NameNode is asked for when nothing goes wrong."""
    calls = FakeCalls()
    fill(calls)
    change(Namespace(calls))
    return len(calls.asked)


@EACH
@pytest.mark.parametrize("got_lost", [False, True])
def test_a_change_is_made_again_if_it_got_lost_and_once_if_only_its_answer_did(
    calls: FakeCalls, change: Callable[[Namespace], None], made: Callable[[FakeCalls], bool], got_lost: bool
) -> None:
    fill(calls)
    calls.faults = [lost, lost] if got_lost else [done_but_lost]
    change(Namespace(calls))
    assert made(calls)
    again = 2 if got_lost else calls.asked[0] == "mode"  # which may be set twice
    assert len(calls.asked) == undisturbed(change) + again


def test_a_directory_that_may_have_got_its_name_is_taken_back(calls: FakeCalls) -> None:
    """The store cannot tell what became of the rename: its source does, and a late rename finds none."""

    def rename(act: Callable[[], None], *, done: bool, known: bool) -> None:
        if done:
            act()
        calls.away = 1
        if not known:
            calls.faults = [lost]
        raise LOST

    hurried = Namespace(calls, settle=0)
    for done in (False, True):
        calls.faults = [lambda act: act(), lambda act, done=done: rename(act, done=done, known=True)]
        if done:
            hurried.mkdir("/done", 0o755)
        else:
            with pytest.raises(Transient):
                hurried.mkdir("/lost", 0o755)
    assert set(calls.entries) == {"/", "/done"}
    for done in (False, True):
        calls.faults = [lambda act: act(), lambda act, done=done: rename(act, done=done, known=False)]
        with pytest.raises(StoreError, match="not known whether") as found:
            hurried.mkdir("/unknown", 0o755)
        assert not isinstance(found.value, Transient)


def test_another_file_that_took_the_place_of_the_one_that_was_seen_stays(calls: FakeCalls) -> None:
    """Also where it does so right before the NameNode makes the change."""
    fill(calls)

    def replaced_first(act: Callable[[], None]) -> None:
        calls.entries["/b"] = dataclasses.replace(calls.entries["/b"], file_id=calls.entries["/b"].file_id + "0")
        act()

    changes = Namespace(calls)
    for change in (
        lambda seen: changes.compare_and_rename("/a", "/b", seen),
        lambda seen: changes.compare_and_remove("/b", seen),
    ):
        seen = calls.entries["/b"].identity
        for faults in ([replaced_first], []):
            calls.faults = [*faults]
            with pytest.raises(StaleVersion):
                change(seen)
            assert not calls.faults
    assert {"/a", "/b"} < calls.entries.keys()


@pytest.mark.parametrize("name", ["rename", "replace", "remove"])
def test_a_change_that_was_late_rather_than_lost(calls: FakeCalls, name: str) -> None:
    """The first takes effect only after we looked, so the second meets it."""
    fill(calls)
    late: list[Callable[[], None]] = []

    def meets_the_first(act: Callable[[], None]) -> None:
        late[0]()
        act()

    def lost_for_now(act: Callable[[], None]) -> None:
        late.append(act)
        raise LOST

    calls.faults = [lost_for_now, meets_the_first]
    [(change, made)] = [case[1:] for case in CHANGES if case[0] == name]
    change(Namespace(calls))
    assert made(calls)


def test_a_directory_that_another_client_makes_meanwhile(calls: FakeCalls) -> None:
    def another_was_faster(act: Callable[[], None]) -> None:
        calls.entries["/new"] = _directory(4711)
        act()

    calls.faults = [another_was_faster]
    with pytest.raises(Exists):
        Namespace(calls).mkdir("/new", 0o755)
    assert set(calls.entries) == {"/", "/new"}
    assert calls.entries["/new"].file_id == "4711"


def test_the_namenodes_may_take_a_while_to_tell(calls: FakeCalls) -> None:
    fill(calls)

    def lost_and_away(act: Callable[[], None]) -> None:
        act()
        calls.away = 5
        raise LOST

    calls.faults = [lost_and_away]
    Namespace(calls).rename("/a", "/new", replace=False)
    assert calls.asked == ["rename"]


def test_a_change_that_is_never_answered(calls: FakeCalls) -> None:
    fill(calls)
    calls.faults = [lost] * 10_000
    with pytest.raises(ServiceDown):
        Namespace(calls, settle=0.05).set_attributes("/a", Attributes(mode=0o600))


def test_what_another_put_in_the_place_is_no_effect_of_ours(calls: FakeCalls) -> None:
    fill(calls)

    def another_was_faster(act: Callable[[], None]) -> None:
        calls.add("/new", 5)
        raise LOST

    calls.faults = [another_was_faster]
    with pytest.raises(Exists):
        Namespace(calls).rename("/a", "/new", replace=False)
    assert calls.entries["/new"].length == 5


def test_a_cluster_without_access_times(calls: FakeCalls) -> None:
    fill(calls)
    Namespace(calls).set_attributes("/a", Attributes(mtime_ns=10**9, atime_ns=10**9))
    Namespace(calls).set_attributes("/a", Attributes(atime_ns=10**9))
    assert calls.asked == ["times"] * 3


def test_bits_that_hdfs_does_not_keep(calls: FakeCalls) -> None:
    fill(calls)
    for mode in (0o4755, 0o2755):
        with pytest.raises(PermissionDenied, match="setuid"):
            Namespace(calls).set_attributes("/a", Attributes(mode=mode))
    Namespace(calls).set_attributes("/d", Attributes(mode=0o1777))
    assert calls.entries["/d"].mode == 0o1777


def test_a_join_that_fails_puts_names_with_commas_back(calls: FakeCalls) -> None:
    for path in ("/a", "/.c,d.stripefs-0-1", "/e,f", "/e,f/1", "/e,f/2"):
        calls.add(path)

    def fail(_: Callable[[], None]) -> None:
        assert "/.c~d.stripefs-0-1" in calls.entries
        raise Transient("not yet")

    calls.faults = [lambda act: act(), lambda act: act(), fail]
    with pytest.raises(Transient):
        Namespace(calls).concat("/a", ["/.c,d.stripefs-0-1", "/e,f"])
    assert set(calls.entries) == {"/", "/a", "/.c,d.stripefs-0-1", "/e,f", "/e,f/1", "/e,f/2"}
    Namespace(calls).concat("/a", ["/.c,d.stripefs-0-1", "/e,f"])
    assert set(calls.entries) == {"/", "/a", "/e,f/1", "/e,f/2"}
    assert calls.entries["/a"].length == 3
    assert all("," not in asked for asked in calls.asked if asked.startswith("concat"))
    calls.entries["/e,f"] = _directory(9)
    with pytest.raises(Unsupported, match="comma"):
        Namespace(calls).concat("/e,f/1", ["/e,f/2"])


def test_joins_that_say_what_stands_in_the_way(calls: FakeCalls) -> None:
    fill(calls)

    def refuse(message: str) -> Callable[[Callable[[], None]], None]:
        def act(_: Callable[[], None]) -> None:
            raise StoreError(f"/a: HadoopIllegalArgumentException: {message}")

        return act

    calls.faults = [refuse("concat: source file /b is invalid or empty or underConstruction")]
    with pytest.raises(Transient):
        Namespace(calls).concat("/a", ["/b"])
    calls.faults = [refuse("The last block in /b is not full")]
    with pytest.raises(Unsupported):
        Namespace(calls).concat("/a", ["/b"])
    calls.add("/empty", 0)
    with pytest.raises(Unsupported):
        Namespace(calls).concat("/a", ["/empty"])
    Namespace(calls).concat("/a", [])
