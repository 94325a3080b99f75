"""Hints that a start leaves in the store: another host needs no container to find the snapshot, and believes no lie."""

from __future__ import annotations

import contextlib
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from imagefs.deps.container.early import Hint
from tests.integration.deps.container.job import SEEN, Job, key_in
from tests.support.deps.installed import snapshots_in
from tests.support.deps.wheels import wheel
from tests.tools.imagefs_daemon import Service, eventually

pytestmark = [pytest.mark.mount, pytest.mark.root]


@pytest.fixture(scope="module")
def first(_host: Service, image: str, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The job on a host that has published its packages. Tests may change its folder."""
    job = Job(_host, image, tmp_path_factory.mktemp("job"))
    assert job.run("--deps-wait") == SEEN
    shutil.copytree(job.store, job.folder / "published")
    return job


@pytest.fixture
def node(first: Job, tmp_path: Path) -> Iterator[Job]:
    """The job on a host that has nothing yet."""
    shutil.rmtree(first.store)
    shutil.copytree(first.folder / "published", first.store)
    shutil.rmtree(first.wheels)
    with contextlib.closing(Service(tmp_path)) as service:
        again = Job(service, first.image, first.folder)
        again.told = first.told
        yield again


def kept(job: Job) -> tuple[str, Hint]:
    """The hint of the job, and its name."""
    (path,) = (job.store / "hints").iterdir()
    return path.name, Hint.from_json(path.read_bytes(), path.name)


def answers(job: Job) -> Path:
    """The folder of the answers of images' Pythons about themselves, if the host has asked them in a container."""
    return Path(job.service.settings.cache, "deps/interpreters")


def test_another_host_asks_no_python_for_the_key(node: Job) -> None:
    key, (name, hint) = key_in(node.told), kept(node)
    assert hint.snapshot.startswith(key)
    assert node.run() == SEEN
    assert key_in(node.told) == key
    assert "hit" in node.told
    assert not answers(node).exists()
    assert kept(node) == (name, hint)
    node.nothing_is_left()
    assert node.service.status()["images"] == []


def test_a_hint_that_lies_costs_time_alone(node: Job) -> None:
    """It is written anew, unless it leads to the snapshot all the same. A job with other requirements has a hint of its
    own, for which the interpreter is asked."""
    key, (name, hint) = key_in(node.told), kept(node)
    wheel(node.wheels, "other", {"other/__init__.py": "VALUE = 8\n", "heavy/__init__.py": "VALUE = 9\n"})
    node.wants("other==1.0")
    assert node.run("--deps-wait", script="import other; print(other.VALUE)") == "8\n"
    assert ("miss" in node.told, answers(node).exists()) == (True, True)
    assert len(list((node.store / "hints").iterdir())) == 2
    (wrong,) = snapshots_in(node.store).stored().keys() - {hint.snapshot}
    node.wheels.joinpath("other-1.0-py3-none-any.whl").unlink()
    node.wants("heavy==1.0")
    asked = [
        hint._replace(told=hint.told.replace('"version": "3.', '"version": "2.')).to_json(name),
        hint._replace(told="{}\n\npip 24.0\n").to_json(name),
        hint._replace(asked="0" * 64).to_json(name),
        b"{",
    ]
    others = [hint._replace(lock="0" * 64), hint._replace(snapshot="0" * 64), hint._replace(snapshot=wrong)]
    for lie in (*(one.to_json(name) for one in others), *asked):
        shutil.rmtree(answers(node), ignore_errors=True)
        assert lie != hint.to_json(name)
        snapshots_in(node.store).put_note("hints", name, lie)
        assert node.run() == SEEN
        assert (key_in(node.told), "hit" in node.told, answers(node).exists()) == (key, True, lie in asked)
        if lie != others[0].to_json(name):
            eventually(lambda: (node.store / "hints" / name).read_bytes() == hint.to_json(name), "the hint")
    node.nothing_is_left()
