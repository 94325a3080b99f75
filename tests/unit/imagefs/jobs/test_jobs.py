"""Job files, the names of checkpoints, and the share of the link that they have."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
import trio
import trio.testing
from hypothesis import given
from hypothesis import strategies as st

from imagefs.cli import fastpath
from imagefs.cli.fastpath import plain_run
from imagefs.cli.flags import DEPS, JOB, RUN, SECTIONS, WITHOUT, read_line
from imagefs.cli.job import FLAGS, read_job
from imagefs.cli.run import compare_command as compare_command
from imagefs.errors import RunError
from imagefs.jobs import compare
from imagefs.jobs.checkpoint import Checkpoint, parse_share
from imagefs.jobs.compare import MeasuredStart, Variant, VariantFigures, is_publishing, start_words, variants
from imagefs.jobs.job import ready_at, stage_seconds
from imagefs.jobs.warming import Gate, ImageLoad, newest, trouble_lines
from stripefs.cli.cache_warming import STEP, Warmed
from stripefs.cli.mounting import expand
from stripefs.errors import ConfigError
from stripefs.settings import StoreSettings
from stripefs.store.base import Kind, Status

MIB = 1 << 20


@pytest.fixture
def file(tmp_path: Path) -> Path:
    """The path of a job file."""
    return tmp_path / "job.toml"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("hdfs://nn:8020/a/b", ("hdfs://nn:8020/a/b", "/checkpoint", False)),
        ("hdfs://nn/a:/ckpt", ("hdfs://nn/a", "/ckpt", False)),
        ("hdfs://nn/a:/ckpt/:rw", ("hdfs://nn/a", "/ckpt", True)),
        ("s3://bucket/a:ro", ("s3://bucket/a", "/checkpoint", False)),
        ("/data/a:b", ("/data/a:b", "/checkpoint", False)),
        ("throttled+file:///data?rate=40MB/s:/m", ("throttled+file:///data?rate=40MB/s", "/m", False)),
        ("data:/m", ("data", "/m", False)),
    ],
)
def test_names_of_checkpoints(text: str, expected: tuple[str, str, bool]) -> None:
    assert Checkpoint.parse(text) == Checkpoint(*expected)


@pytest.mark.parametrize("text", ["", ":/ckpt", "hdfs://nn/a:/../etc", "/data:/", ":rw", "hdfs:/data/ckpt"])
def test_names_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="two slashes" if text.startswith("hdfs:/d") else "is not SOURCE"):
        Checkpoint.parse(text)


@pytest.mark.parametrize("text", ["-0.1", "1.1", "nan", "half", ""])
def test_shares_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match="not a number from 0 to 1"):
        parse_share(text)


@pytest.mark.parametrize(
    ("paths", "pointer", "expected"),
    [
        ((b"/step_9/a", b"/step_10/a", b"/step_10/b"), b"", (b"/step_10/a", b"/step_10/b")),
        ((b"/global_step9/a", b"/global_step10/a", b"/latest"), b"global_step9\n", (b"/global_step9/a",)),
        (
            (b"/iter_0000009/a", b"/iter_0000010/a", b"/latest_checkpointed_iteration.txt"),
            b"9\n",
            (b"/iter_0000009/a",),
        ),
        ((b"/step_9/a", b"/step_10/a", b"/latest"), b"gone", (b"/step_10/a",)),
        ((b"/a", b"/b/c"), b"", (b"/a", b"/b/c")),
        ((b"/step_9/a", b"/step_10.tmp/a", b"/v2-final/a"), b"", (b"/step_9/a",)),
        ((b"/a_7/x", b"/b_7/x", b"/c_7/x"), b"", (b"/c_7/x",)),
    ],
)
def test_the_newest_checkpoint(paths: tuple[bytes, ...], pointer: bytes, expected: tuple[bytes, ...]) -> None:
    files = [(path, Status(path.rpartition(b"/")[2], Kind.FILE, 8)) for path in paths]
    assert [path for path, _ in newest(files, lambda _path, _size: pointer)] == list(expected)


def test_trouble_is_told_in_one_line() -> None:
    found = Warmed(files=4, trouble=[(b"/a", "denied"), (b"/b", "denied")], missing=[b"/c"])
    assert trouble_lines(found, 0, "all") == ["/a is not warmed: denied (and 1 more)", "/c does not stay on local disk"]
    assert trouble_lines(Warmed(), 0, "all") == []
    assert trouble_lines(Warmed(), 0, "x/*") == ["--checkpoint-warm x/* matches no file"]
    (line,) = trouble_lines(Warmed(files=1), 20 * MIB, "latest")
    assert "cache_trust_mtime" in line


@given(
    share=st.floats(0, 0.95),
    image=st.lists(st.integers(0, 30 * MIB), min_size=1, max_size=30),
    sizes=st.lists(st.integers(1, STEP), min_size=1, max_size=60),
)
def test_the_checkpoint_has_its_share_and_then_all(share: float, image: list[int], sizes: list[int]) -> None:
    """At each step it is within its share of what came by then; when the image is here nothing waits."""
    told = iter(image)
    now = ImageLoad(True, 0)

    def look() -> ImageLoad:
        nonlocal now
        more = next(told, None)
        now = ImageLoad(more is not None, now.fetched + (more or 0))
        return now

    gate = Gate(share, 0, look)
    done = 0

    async def run() -> None:
        nonlocal done
        for size in sizes:
            await gate(size, done)
            done += size
            if now.coming:
                assert done - STEP <= share * (done - STEP + now.fetched) + 1

    trio.run(run, clock=trio.testing.MockClock(autojump_threshold=0.001))
    assert done == sum(sizes)


def test_a_given_rate_is_shared_by_time() -> None:
    clock = trio.testing.MockClock(autojump_threshold=0.001)

    async def run() -> None:
        gate = Gate(0.5, 100 * MIB, lambda: ImageLoad(True, 0), trio.current_time)
        for done in range(0, 108 * MIB, STEP // 2):
            await gate(STEP // 2, done)
            assert done + STEP // 2 <= STEP + 50 * MIB * trio.current_time()
        assert trio.current_time() < 2.5

    trio.run(run, clock=clock)


def test_every_flag_is_a_key(file: Path) -> None:
    """With a value of its kind, which arrives as the command line has it."""
    flags = [flag for flag in (*RUN, *DEPS, *JOB) if flag.name != "job"]
    said = {"text": '"x"', "texts": '["x", "y"]', "switch": "true", "either": "false"}
    chosen = [f'"{flag.choices[0]}"' if flag.choices else said[flag.kind] for flag in flags]
    file.write_text("\n".join(f"{flag.name} = {value}" for flag, value in zip(flags, chosen, strict=True)))
    read = read_job(str(file))
    expected = {"text": "x", "texts": ("x", "y"), "switch": True, "either": False}
    assert read.values == {flag.field: flag.choices[0] if flag.choices else expected[flag.kind] for flag in flags}
    assert read.lines == {flag.name: number for number, flag in enumerate(flags, 1)}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('image = "a#b"\nmemory = ', "job file FILE: Invalid value"),
        ('image = "a#b"\n\nmemroy = "1GiB"', "FILE:3: memroy is no key of a job"),
        ('image = ["a#b"]', "FILE:1: image is neither text nor a number"),
        ('image = "a#b"\ncommand = "sh"', "FILE:2: command is no list"),
        ('command = ["sh"]', "FILE:1: command is given without an image"),
        ('image = "a#b"\nrw = "yes"', "FILE:2: rw is true or false"),
        ('image = "a#b"\n[env]\nA = ["x"]', "FILE:2: env.A is neither text nor a number"),
        ('rw = true\nimage = "a"', "FILE:2: image: 'a' names no image"),
        ('image = "a#b"\nuser = "a\\u0000b"', "FILE:2: user has a zero byte"),
        ('image = "a#b"\ndeps-salt = "a"\ndeps_salt = "b"', "FILE:2: deps_salt is given twice"),
        ("a = " + 100_000 * "[", "job file FILE: it is nested too deeply"),
    ],
)
def test_files_that_are_no_jobs(file: Path, text: str, message: str) -> None:
    file.write_text(text)
    with pytest.raises(ConfigError) as caught:
        read_job(str(file))
    assert caught.value.message.replace(str(file), "FILE").startswith(message)


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ('workload = "a b"', "2: workload"),
        ('events = "/dev/null"', "2: events"),
        ('checkpoint = ["/tmp:/c", "/var:/c"]', "2: checkpoint"),
        ('checkpoint = ["/tmp:/c"]\nbind = ["/var:/c"]', "2: checkpoint"),
        ('checkpoint = ["hdfs:/tmp"]', "2: checkpoint"),
        ('checkpoint = ["/tmp"]\ncheckpoint-option = ["nosuch"]', "3: checkpoint-option"),
        ('checkpoint = ["/tmp"]\ncheckpoint-option = ["range_size=x"]', "3: checkpoint-option"),
    ],
)
def test_a_mistake_is_told_with_its_place(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch, text: str, where: str
) -> None:
    monkeypatch.setenv("IMAGEFS_RUNTIME", str(tmp_path / "run"))
    file.write_text(f'image = "{tmp_path}#b"\n{text}\n')
    run = plain_run([str(file)])
    assert run is not None
    with pytest.raises((ConfigError, RunError)) as caught:
        run()
    assert caught.value.message.startswith(f"{file}:{where}")


def test_an_image_may_be_called_like_a_file(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(fastpath, "start_run", lambda words, *_, **__: words)
    run = plain_run(["/nonexistent#v1.toml"])
    assert run is not None
    assert run() == ["/nonexistent#v1.toml"]


def test_flags_come_before_the_file(file: Path) -> None:
    """Also one whose value is the default; lists take the place of lists, variables are added."""
    file.write_text(
        'image = "a#b"\ncommand = ["run"]\nnetwork = "none"\nbind = ["/a:/b"]\nenv = { A = "1" }\nio-timeout = "5s"'
    )
    read = read_job(str(file))
    unset = {flag.field: flag.unset for flag in (*RUN, *DEPS, *JOB)}
    values = {**unset, "network": "host", "binds": ("/c:/d",), "env": ("A=2",)}
    words, merged, settings = read.under(
        ["more"], values, {"io-timeout": ("9s", "--io-timeout")}, {"network", "binds", "env"}
    )
    assert words == ["a#b", "run", "more"]
    assert (merged["network"], merged["binds"], merged["env"]) == ("host", ("/c:/d",), ["A=1", "A=2"])
    assert settings["io-timeout"][0] == "9s"
    assert read.under([], unset, {}, ())[1]["network"] == "none"


def test_ways_to_start_a_job(tmp_path: Path, file: Path) -> None:
    """Each differs from the job in nothing but what it leaves out; folders and the daemon's settings are its own."""
    (tmp_path / "requirements.txt").touch()
    file.write_text(
        f'image = "a#b"\ncommand = ["run", "--fast"]\nrw = false\ndeps = "{tmp_path}/requirements.txt"\n'
        'deps-probe = "import x"\ncheckpoint = ["hdfs://nn/c:/c"]\ncheckpoint-warm = "latest"\nmemory = "1GiB"\n'
        'cache = "/mine"\nruntime = "/mine"\nevents = "/mine"\nio-timeout = "5s"\nenv = { A = 1 }\n'
    )
    ways = {one.name: one for one in variants(read_job(str(file)), FLAGS, DEPS)}
    assert list(ways) == ["none", "image", "deps", "checkpoint", "all"]
    kept = ["--io-timeout=5s", "--env=A=1", "--memory=1GiB"]
    deps = [f"--deps={tmp_path}/requirements.txt", "--deps-probe=import x"]
    checkpoint = ["--checkpoint=hdfs://nn/c:/c", "--checkpoint-warm=latest"]
    assert ways["all"].arguments == (*kept, *deps, *checkpoint, "a#b", "--", "run", "--fast")
    assert ways["none"].techniques == ()
    assert not {*deps, checkpoint[1]} & {*ways["none"].arguments}
    one_stream = "--checkpoint-option=threads=1,per_host=1,nohedge"
    plain = {*kept, "--env=A=1", "--unpack", "--no-record", "--rw", f"--bind={tmp_path}:{tmp_path}:ro", one_stream}
    assert plain <= {*ways["none"].arguments}
    words = ways["none"].arguments
    assert words[words.index("a#b") + 2 :][:2] == ("python3", "-c")
    assert words[-5:] == ("-r", f"{tmp_path}/requirements.txt", "--", "run", "--fast")
    assert "--unpack" not in ways["image"].arguments
    assert {*deps} <= {*ways["deps"].arguments}
    assert {*checkpoint} <= {*ways["checkpoint"].arguments}
    file.write_text('image = "a#b"\n')
    assert [one.name for one in variants(read_job(str(file)), FLAGS, DEPS)] == ["none", "image"]
    file.write_text('image = "a#b"\ndeps = ["x.txt"]\n')
    with pytest.raises(ConfigError, match="names no command"):
        variants(read_job(str(file)), FLAGS, DEPS)


def test_a_start_has_the_settings_of_the_file_and_caches_of_its_own(tmp_path: Path, file: Path) -> None:
    file.write_text(
        'image = "a#b"\ncommand = ["run", "--", "x"]\nuse-datanode-hostname = true\ncheckpoint = ["/c"]\n'
        'checkpoint-option = ["cache=/mine", "uid=5"]\ncache = "/mine"\n'
    )
    for way in variants(read_job(str(file)), FLAGS, DEPS):
        line = read_line(start_words(way, tmp_path / "own", ["--deps-wait"]), FLAGS, SECTIONS, WITHOUT)
        assert line is not None
        assert line.words == ["a#b", "run", "--", "x"]
        assert line.given["use-datanode-hostname"][0] == "true"
        assert line.given["cache"][0] == f"{tmp_path}/own/cache"
        options = expand(line.values["checkpoint_options"])
        assert options.given["cache"][0] == f"{tmp_path}/own/cache/checkpoints"
        assert options.given["uid"][0] == "5"


def test_caches_are_there_for_each_way_that_has_them(
    tmp_path: Path, file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Without a snapshot of dependencies pip is part of the command, and so of the key of the caches."""
    starts: list[tuple[str, bool]] = []

    def start(way: Variant, _folder: Path, *_more: str, publishes: bool = False) -> MeasuredStart:
        starts.append((way.name, publishes))
        return MeasuredStart(1.0, {})

    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    monkeypatch.setattr(compare, "_start", start)
    monkeypatch.setattr(compare, "_learned", lambda *_: None)
    monkeypatch.setattr(compare, "drop_page_cache", lambda: True)
    monkeypatch.setattr(signal, "signal", lambda *_: None)
    file.write_text('image = "a#b"\ncommand = ["run"]\nstartup-cache = "auto"\ndeps = ["x"]\n')
    job = read_job(str(file))
    ways = variants(job, FLAGS, DEPS)
    compare.compare(job, ways, 1, StoreSettings(url="a"), lambda _line: None)
    first = [name for name, publishes in starts if publishes]
    assert sorted(first) == ["all", "caches"]
    assert starts[2:] == [(name, False) for name in ("all", "none", "image", "deps", "caches", "all")]
    file.write_text('image = "a#b"\nstartup-cache = "auto"\n')
    job = read_job(str(file))
    starts.clear()
    compare.compare(job, variants(job, FLAGS, DEPS), 1, StoreSettings(url="a"), lambda _line: None)
    assert [name for name, publishes in starts if publishes] == ["all"]


def test_an_interrupt_waits_until_a_start_is_cleared_away(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    clear = compare._clear

    def interrupted(folder: Path) -> None:
        os.kill(os.getpid(), signal.SIGINT)
        clear(folder)

    monkeypatch.setattr(compare, "_clear", interrupted)
    with pytest.raises(KeyboardInterrupt), compare._folder():
        assert len(os.listdir(tmp_path)) == 1
    assert os.listdir(tmp_path) == []


def test_a_comparison_needs_root(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    file.write_text('image = "a#b"\n')
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    with pytest.raises(RunError, match="needs root"):
        compare_command.main([str(file)], standalone_mode=False)


def span(stage: str, name: str, *, begin: float | None = None, end: float | None = None) -> list[dict[str, Any]]:
    times = {"begin": begin, "end": end}
    return [
        {"event": event, "stage": stage, "span": name, "mono_ns": int(when * 1e9)}
        for event, when in times.items()
        if when is not None
    ]


def test_seconds_of_stages() -> None:
    """Spans that overlap count once, what began before or ended later is cut, and an open one lasts to the end."""
    events = [
        *span("image", "a", begin=0, end=3),
        *span("image", "b", begin=2, end=4),
        *span("image", "c", begin=6, end=7),
        *span("checkpoint", "d", begin=9),
        *span("compile", "e", end=5),
        *span("other", "f", begin=1, end=2),
    ]
    assert stage_seconds(events, int(1e9), int(10e9)) == {"image": 4.0, "checkpoint": 1.0}


def test_when_a_job_is_ready(tmp_path: Path) -> None:
    file = tmp_path / "one.jsonl"
    file.write_bytes(b'{"half')
    assert ready_at(tmp_path) is None
    file.write_text("\n".join(json.dumps(one) for one in span("first_step", "a", begin=1, end=2)) + '\n["no event"]\n')
    assert ready_at(tmp_path) == int(2e9)
    file.write_text(file.read_text() + '{"event": "instant", "stage": "ready", "mono_ns": 3}\n')
    assert ready_at(tmp_path) == 3


def test_a_publisher_is_seen_whichever_thread_started_it() -> None:
    assert not is_publishing(os.getpid())
    command = [sys.executable, "-c", "import sys; sys.stdin.read()", "imagefs.startup_cache.publisher"]
    started: list[subprocess.Popen[bytes]] = []
    thread = threading.Thread(target=lambda: started.append(subprocess.Popen(command, stdin=subprocess.PIPE)))
    thread.start()
    thread.join()
    try:
        assert is_publishing(os.getpid())
    finally:
        started[0].communicate()
    assert not is_publishing(os.getpid())


@given(st.lists(st.floats(0, 1e6), min_size=1, max_size=9))
def test_the_median_of_starts_lies_between_the_least_and_the_most(seconds: list[float]) -> None:
    found = VariantFigures(
        Variant("none", (), ()), [MeasuredStart(one, {"model": one / 3}) for one in seconds]
    ).as_dict()
    for one in (found, *found["stages"].values()):
        assert one["least"] <= one["median"] <= one["most"]
        assert sorted(one["all"])[:: max(1, len(seconds) - 1)] == [one["least"], one["most"]][: len(seconds)]
