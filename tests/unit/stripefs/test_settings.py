import json
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripefs import settings
from stripefs.errors import ConfigError
from stripefs.fuse.ipc import MountSpec, store_mount_spec
from stripefs.settings import (
    GIB,
    LAYOUTS,
    MIB,
    CacheSettings,
    MountSettings,
    ReadSettings,
    Settings,
    StoreSettings,
    WriteSettings,
    default_budget,
)

T = TypeVar("T")


def some(kind: Callable[..., T], **fields: st.SearchStrategy[object]) -> st.SearchStrategy[T]:
    """Of named tuples that differ in these fields alone; `builds` would make up the others, not-a-number included."""
    return st.fixed_dictionaries(fields).map(lambda given: kind(**given))


ALL = st.builds(
    Settings,
    some(StoreSettings, url=st.text(), hdfs_user=st.text(), webhdfs_port=st.integers(0, 65535)),
    some(ReadSettings, memory=st.integers(0), io_timeout=st.floats(0.1, 1e6), hedge=st.booleans()),
    some(MountSettings, mountpoint=st.text(), options=st.lists(st.text()).map(tuple), umask=st.integers(0, 0o777)),
    some(
        WriteSettings,
        layout_for=st.lists(st.tuples(st.text(), st.sampled_from(LAYOUTS))).map(tuple),
        staging=st.text(),
        trust_pool=st.lists(st.text()).map(tuple),
    ),
    some(CacheSettings, directory=st.text(), size=st.integers(0), match=st.lists(st.text()).map(tuple)),
)


@given(ALL)
def test_settings_travel_as_json_also_from_a_newer_version(value: Settings) -> None:
    assert Settings.from_json(value.to_json()) == value
    newer = {name: {**part, "colour": "red"} for name, part in json.loads(value.to_json()).items()}
    assert Settings.from_json(json.dumps({**newer, "paint": {}})) == value


def test_a_job_of_a_newer_version_is_read() -> None:
    job = store_mount_spec(Settings())
    newer = {**json.loads(job.to_json()), "paint": 1, "mount": {**job.mount._asdict(), "colour": "red"}}
    assert MountSpec.from_json(json.dumps(newer)) == job


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"store": {}, "read": {}, "mount": {}}'])
def test_other_text_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="settings are not readable"):
        Settings.from_json(text)


def test_settings_of_a_mount_that_knows_no_writing() -> None:
    assert Settings.from_json('{"store": {}, "read": {}, "mount": {"options": []}}') == Settings()


@pytest.mark.parametrize(
    ("path", "layout"),
    [
        (b"/step1/model.pt", "striped"),
        (b"/model.pt", "striped"),
        (b"/logs/model.pt", "plain"),
        (b"/logs/deep/x", "plain"),
        (b"/old/logs/x", "concat"),
        (b"/\xff.pt", "striped"),
        (b"/MODEL.PT", "concat"),
    ],
)
def test_the_first_pattern_that_fits_chooses_the_layout(path: bytes, layout: str) -> None:
    settings = WriteSettings(layout_for=(("/logs/*", "plain"), ("*.pt", "striped"), ("*.pt", "plain")))
    assert settings.layout_of(path) == layout


@pytest.mark.parametrize(
    ("memory", "membership", "limits", "budget"),
    [
        (64 * GIB, "", {}, GIB),
        (4 * GIB, "", {}, 512 * MIB),
        (128 * MIB, "", {}, 64 * MIB),
        (64 * GIB, "0::/a/b\n", {"a/b/memory.max": "max\n", "a/memory.max": str(2 * GIB)}, 256 * MIB),
        (64 * GIB, "0::/gone\n", {"memory.max": str(4 * GIB)}, 512 * MIB),
        (64 * GIB, "4:memory:/j\n0::/\n", {"memory/j/memory.limit_in_bytes": str(2 * GIB)}, 256 * MIB),
        (64 * GIB, "4:memory:/j\n", {"memory/j/memory.limit_in_bytes": str((1 << 63) - 4096)}, GIB),
        (64 * GIB, "3:cpu:/j\n", {"memory/j/memory.limit_in_bytes": str(2 * GIB)}, GIB),
    ],
    ids=["large", "small", "tiny", "v2 parent", "v2 container", "v1", "v1 unlimited", "no memory controller"],
)
def test_the_default_budget(
    monkeypatch: pytest.MonkeyPatch, memory: int, membership: str, limits: dict[str, str], budget: int
) -> None:
    """On a machine with `memory` bytes and a cgroup tree of {path below the root: limit}."""
    monkeypatch.setattr(settings.os, "sysconf", lambda name: 4096 if name == "SC_PAGE_SIZE" else memory // 4096)
    files = {f"/sys/fs/cgroup/{path}": text for path, text in limits.items()}
    files["/proc/self/cgroup"] = membership

    def read_text(self: Path) -> str:
        if str(self) not in files:
            raise FileNotFoundError(self)
        return files[str(self)]

    monkeypatch.setattr(Path, "read_text", read_text)
    assert default_budget() == budget
