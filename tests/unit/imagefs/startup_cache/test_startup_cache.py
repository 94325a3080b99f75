"""Start-up caches: their key, the facts of a node, what is captured, and how the process that publishes ends."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefs.deps.publish import PublishJob as Publication
from imagefs.deps.publish import publish
from imagefs.errors import RunError, SnapshotError
from imagefs.format.documents import key_digest
from imagefs.repository.snapshots import Snapshots
from imagefs.startup_cache import key, publisher
from imagefs.startup_cache.key import CacheJob, NodeFacts, deciding_words, document, node_facts, world_size
from imagefs.startup_cache.publisher import Publishing, captured
from tests.support.images.stores import images_in
from tests.support.waiting import eventually

NODE = NodeFacts({"model": "167", "instructions": "ab"}, ["NVIDIA H100"], "550.54")
JOB = CacheJob("i" * 64, "p" * 64, ["python", "train.py"], "", {"XLA_FLAGS": "--a"}, "8")


# The table


def test_auto_is_what_changes_nothing_but_where_a_cache_lies() -> None:
    assert {cache.name for cache in key.parse("auto")} == key.CACHES.keys() - {"pycache"}
    assert [cache.name for cache in key.parse("pycache, triton")] == ["triton", "pycache"]
    assert key.parse("auto,pycache") == tuple(key.CACHES.values())
    with pytest.raises(RunError, match="'nosuch' is no cache"):
        key.parse("triton,nosuch")


def test_a_setting_of_the_users_is_kept() -> None:
    caches = key.parse("inductor")
    name = "TORCHINDUCTOR_CPP_CACHE_PRECOMPILE_HEADERS"
    place = f"TORCHINDUCTOR_CACHE_DIR={key.FOLDER}/inductor"
    assert key.environment(caches, {}) == [f"{name}=0", place]
    assert key.environment(caches, {name: "1"}) == [place]


# The key


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({"image": "j" * 64}, True),
        ({"packages": ""}, True),
        ({"words": ["python", "train.py", "--layers=2"]}, True),
        ({"words": ["python", "train.py", "--node-rank", "3", "--master_addr=10.0.0.1"]}, False),
        ({"environ": {"XLA_FLAGS": "--b"}}, True),
        ({"environ": {"XLA_FLAGS": "--a", "RANK": "7", "CUDA_VISIBLE_DEVICES": "3", "HOSTNAME": "n7"}}, False),
        ({"world": "16"}, True),
        ({"salt": "x"}, True),
    ],
)
def test_the_job_in_the_key(change: dict[str, Any], differs: bool) -> None:
    caches = key.parse("auto")
    keys = {key_digest(document(caches, job, NODE)) for job in (JOB, JOB._replace(**change))}
    assert len(keys) == 1 + differs


@pytest.mark.parametrize("change", [{"cpu": {"model": "1"}}, {"accelerators": ["NVIDIA H200"]}, {"driver": "560"}])
def test_a_node_counts_where_the_cache_itself_does_not_tell_it(change: dict[str, Any]) -> None:
    other = NODE._replace(**change)
    for names, counts in (("inductor", True), ("matplotlib,pycache", False)):
        caches = key.parse(names)
        assert (document(caches, JOB, NODE) != document(caches, JOB, other)) == counts


@given(st.lists(st.sampled_from(["--rank", "--rdzv_id", "--node-rank=1", "--lr", "0.1", "train.py", "--", "-x"])))
def test_words_of_launchers_go_with_their_values_and_no_others(words: list[str]) -> None:
    kept = deciding_words(words)
    assert not any(word in ("--rank", "--rdzv_id", "--node-rank=1") for word in kept)
    assert deciding_words(kept) == kept
    plain = [word for word in words if not word.startswith(("--r", "--n"))]
    assert deciding_words(plain) == plain


def test_passwords_in_urls_are_not_published() -> None:
    """Nor is a new one a new key."""
    words = [["--data", f"https://ann:{secret}@host/x?token={secret}"] for secret in ("hunter2", "other")]
    keys = [document(key.parse("auto"), JOB._replace(words=one, environ={"JAX_URL": one[1]}), NODE) for one in words]
    assert keys[0] == keys[1]
    assert "hunter2" not in str(keys[0])


def test_the_container_says_how_many_ranks_there_are_before_the_scheduler_does() -> None:
    assert world_size({"WORLD_SIZE": "4"}, {"SLURM_NTASKS": "8"}) == "4"
    assert world_size({}, {"SLURM_NTASKS": "8"}) == "8"
    assert world_size({}, {}) == ""


def test_a_node_with_accelerators(tmp_path: Path) -> None:
    files = {
        "proc/cpuinfo": "processor : 0\nvendor_id : GenuineIntel\nmodel : 167\nflags : b a\n\nmodel : 1\nflags : c\n",
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX x86_64 Kernel Module  550.54.15  Tue Mar 5\nGCC 12\n",
        "proc/driver/nvidia/gpus/0000:01:00.0/information": "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 1\n",
        "proc/driver/nvidia/gpus/0000:02:00.0/information": "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ: 2\n",
        "sys/class/kfd/kfd/topology/nodes/0/properties": "cpu_cores_count 8\ngfx_target_version 0\n",
        "sys/class/kfd/kfd/topology/nodes/1/properties": "cpu_cores_count 0\ngfx_target_version 90402\n",
    }
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    found = node_facts(tmp_path)
    assert (found.accelerators, found.driver) == (["NVIDIA H100 80GB HBM3", "gfx 90402"], "550.54.15")
    assert found.cpu["model"] == "167"
    (tmp_path / "proc/cpuinfo").write_text(files["proc/cpuinfo"].replace("b a", "a  b"))
    assert node_facts(tmp_path) == found
    (tmp_path / "proc/cpuinfo").write_text(files["proc/cpuinfo"].replace("b a", "a"))
    assert node_facts(tmp_path).cpu != found.cpu
    assert node_facts(Path("/nonexistent")) == NodeFacts({}, [], "")
    assert node_facts().cpu["instructions"], "of this node"


# Capture


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Caches with one whole file, `triton/kernel.so`."""
    made = tmp_path / "upper"
    (made / "triton").mkdir(parents=True)
    made.chmod(0o1777)
    file = made / "triton/kernel.so"
    file.write_bytes(b"whole")
    file.chmod(0o750)
    os.utime(file, ns=(5, 1_600_000_000_123_456_789))
    os.utime(made / "triton", ns=(5, 1_500_000_000_000_000_000))
    return made


def names(folder: Path, copy: Path) -> set[str]:
    """The files that are captured of it."""
    with captured(str(folder), str(copy)):
        return {str(path.relative_to(copy)) for path in copy.rglob("*") if not path.is_dir() or path.is_symlink()}


def test_files_keep_what_they_are(folder: Path, tmp_path: Path) -> None:
    os.symlink("kernel.so", folder / "triton/latest")
    copy = tmp_path / "copy"
    with captured(str(folder), str(copy)):
        for path in ("", "triton", "triton/kernel.so"):
            before, after = (folder / path).stat(), (copy / path).stat()
            assert after.st_mode == before.st_mode
            assert after.st_mtime_ns == before.st_mtime_ns or not path
        assert (copy / "triton/latest").readlink() == Path("kernel.so")
    assert not copy.exists()


def test_what_is_not_whole_is_left_out(folder: Path, tmp_path: Path) -> None:
    triton = folder / "triton"
    (triton / "locks").mkdir()
    (triton / "tmp.pid_7_ab").mkdir()
    passing = ("locks/a", "a.lock", "tmp.pid_7_ab/k.so", ".7.8.tmp", "m.cpython-311.pyc.94", "k.nbc.tmp.0f", "lock",
               "fontlist.json.matplotlib-lock")  # fmt: skip
    for name in passing:  # torch waits for ever until `lock` is gone
        (triton / name).write_text("passing")
    os.mkfifo(triton / "pipe")
    (triton / "one").write_text("two names")
    os.link(triton / "one", triton / "two")
    with socket.socket(socket.AF_UNIX) as made, (triton / "growing").open("wb") as growing:
        made.bind(str(triton / "socket"))
        growing.write(b"half")
        growing.flush()
        assert names(folder, tmp_path / "copy") == {"triton/kernel.so"}
    assert names(folder, tmp_path / "copy") == {"triton/kernel.so", "triton/growing"}


def test_a_file_that_changes_while_it_is_copied_is_left_out(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "triton/other").write_text("whole too")
    copy_file = publisher.shutil.copyfileobj

    def copied(source: Any, target: Any) -> None:
        copy_file(source, target)
        if source.name and os.fstat(source.fileno()).st_size == len(b"whole"):
            (folder / "triton/kernel.so").write_bytes(b"other")

    monkeypatch.setattr(publisher.shutil, "copyfileobj", copied)
    assert names(folder, tmp_path / "copy") == {"triton/other"}


def test_nothing_outside_of_the_folder_is_captured(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A job that puts a link in the place of a directory or of a file has nothing of the host read."""
    (folder / "triton/kept").mkdir()
    (folder / "triton/kept/file").write_text("of the host, meanwhile")
    (folder / "triton/kept/link").symlink_to("file")
    (folder / "triton/kept/below").mkdir()
    (folder / "triton/other").write_text("a link later")
    look = publisher.inventory.take

    def taken(top: str) -> Any:
        found = look(top)
        (folder / "triton/kept").rename(tmp_path / "host")
        (folder / "triton/kept").symlink_to(tmp_path / "host")
        (folder / "triton/other").unlink()
        (folder / "triton/other").symlink_to("kernel.so")
        return found

    monkeypatch.setattr(publisher.inventory, "take", taken)
    copy = tmp_path / "copy"
    with captured(str(folder), str(copy)):
        assert {str(path.relative_to(copy)) for path in copy.rglob("*")} == {"triton", "triton/kernel.so"}


@pytest.mark.parametrize("mode", [stat.S_ISUID | 0o755, stat.S_ISGID | 0o755])
def test_a_program_that_gives_privileges_stands_against_all(folder: Path, tmp_path: Path, mode: int) -> None:
    (folder / "triton/kernel.so").chmod(mode)
    with pytest.raises(SnapshotError, match=r"triton/kernel\.so in the caches is set[ug]id"):
        names(folder, tmp_path / "copy")


def test_bounds(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(publisher, "MOST_BYTES", 5)
    assert names(folder, tmp_path / "copy")
    (folder / "triton/more").write_text("x")
    with pytest.raises(SnapshotError, match="at most 5 B"):
        names(folder, tmp_path / "copy")
    monkeypatch.setattr(publisher, "MOST_BYTES", 6)
    monkeypatch.setattr(publisher, "MOST_FILES", 1)
    with pytest.raises(SnapshotError, match="in 2 files"):
        names(folder, tmp_path / "copy")
    (folder / "triton/more").unlink()
    (folder / "triton/kernel.so").unlink()
    with pytest.raises(SnapshotError, match="nothing to its caches"):
        names(folder, tmp_path / "copy")


def test_they_are_published_as_a_snapshot_of_their_kind(folder: Path, tmp_path: Path) -> None:
    images = images_in(tmp_path / "store")
    job = Publication({}, str(tmp_path / "cache"), document(key.parse("triton"), JOB, NODE), key.FOLDER, 0.0)
    for fresh in (True, False):
        with captured(str(folder), str(tmp_path / "copy")) as place:
            done = publish(job, images, lambda: None, place)
        assert (done.published, bool(done.image)) == (True, fresh)
    found = Snapshots(images).load(job.name)
    assert (found.kind, found.targets) == ("cache", (key.FOLDER,))
    assert Snapshots(images).is_usable(job.name)


# The process that publishes


def test_each_run_tells_how_its_own_publishing_ended(folder: Path, tmp_path: Path) -> None:
    """Also where another one of the same key began after that."""
    with socket.create_server(("127.0.0.1", 0)) as silent:
        url = f"hdfs://127.0.0.1:{silent.getsockname()[1]}/store"
        job = Publication({"url": url}, str(tmp_path / "cache"), {"salt": "x"}, key.FOLDER, 0.0)
        said: list[str] = []
        first = Publishing(job, str(tmp_path / "nothing"), str(tmp_path / "copy1"), said.append)
        first.begin()
        eventually(lambda: list((tmp_path / "cache/deps/outcomes").glob("*.json")), "the end of the first")
        second = Publishing(job, str(folder), str(tmp_path / "copy2"), said.append)
        second.begin()
        eventually(lambda: (tmp_path / "copy2/triton/kernel.so").exists(), "the copy")
        first.end(failed=False)
        second.end(failed=True)  # which waits for no store
    assert "cannot be looked at" in said[0]
    assert said[1:] == ["the start-up caches are not published, since the run has ended"]
    assert not (tmp_path / "copy2").exists()
    second.end(failed=True)  # nothing is left to end


def test_a_run_that_never_was_ready_has_nothing_to_end(folder: Path, tmp_path: Path) -> None:
    said: list[str] = []
    Publishing(Publication({}, "", {}, "", 0.0), str(folder), str(tmp_path / "copy"), said.append).end(failed=False)
    assert said == []
