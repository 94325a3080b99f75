"""The client of the control socket against workers that die at any point of the conversation. The folder of the
sockets is its user's alone, whoever made it and however."""

from __future__ import annotations

import os
import socket
import stat
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stripefs.errors import MountError
from stripefs.fuse import control
from stripefs.fuse.control import make_directory

MOUNTPOINT = "/some/mountpoint"

Turn = Callable[[socket.socket], None]


@pytest.fixture
def post(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[control.ControlFiles]:
    long = tmp_path / ("x" * 120)  # longer than a socket address
    monkeypatch.setattr(control, "runtime_directory", lambda: long)
    made = control.ControlFiles(MOUNTPOINT)
    yield made
    made.close()


@contextmanager
def serving(post: control.ControlFiles, *turns: Turn) -> Iterator[None]:
    """Each of `turns` has one connection, and then nobody listens."""

    def run() -> None:
        for turn in turns:
            connection, _ = post.listener.accept()
            with connection:
                turn(connection)
        post.close()

    thread = threading.Thread(target=run)
    thread.start()
    yield
    thread.join()


def die_unread(connection: socket.socket) -> None:
    """Close with the request unread: the client's connection is reset."""


def die_midway(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    connection.sendall(b'{"v": 1, "half')


def answer(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    connection.sendall(b'{"v": 1, "generation": 3}\n')


@pytest.mark.parametrize("deaths", [(), (die_unread,), (die_midway,), (die_unread, die_midway, die_unread)])
def test_asked_again_through_the_next_worker(post: control.ControlFiles, deaths: tuple[Turn, ...]) -> None:
    with serving(post, *deaths, answer):
        assert control.query(MOUNTPOINT, "status") == {"v": 1, "generation": 3}


def test_given_up_when_it_kills_workers(post: control.ControlFiles) -> None:
    (path,) = control.runtime_directory().glob("*.sock")
    with serving(post, die_midway, die_midway), pytest.raises(MountError, match="cut off"):
        control.ask(path, {"op": "poison"}, what="the mount", deaths=2)


def test_stopped_before_the_answer_was_out(post: control.ControlFiles) -> None:
    with serving(post, die_midway):
        assert control.query(MOUNTPOINT, "stop") == {"v": 1, "stopping": True}


def test_gone_before_the_answer_was_out(post: control.ControlFiles) -> None:
    with serving(post, die_midway), pytest.raises(MountError, match="not served"):
        control.query(MOUNTPOINT, "status")


def test_no_answer(post: control.ControlFiles) -> None:
    with pytest.raises(MountError, match="does not answer"):
        control.query(MOUNTPOINT, "status", timeout=0.2)


def test_found_while_it_listens(post: control.ControlFiles) -> None:
    mount = control.Mount(MOUNTPOINT, "file:///x", os.getpid())
    post.announce(mount)
    assert control.find_mounts() == [mount]
    (path,) = control.runtime_directory().glob("*.sock")
    assert mode(path) == 0o600
    post.listener.close()
    assert control.find_mounts() == []


def test_a_newer_mount_keeps_its_files(post: control.ControlFiles) -> None:
    newer = control.ControlFiles(MOUNTPOINT)
    newer.announce(control.Mount(MOUNTPOINT, "file:///new", os.getpid()))
    post.close()
    assert [mount.source for mount in control.find_mounts()] == ["file:///new"]
    newer.close()
    assert control.find_mounts() == []


# -- the folder


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_all_that_is_made_is_closed_to_others(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    assert make_directory(tmp_path / "a/b/c") == tmp_path / "a/b/c"
    assert [mode(tmp_path / path) for path in ("a", "a/b", "a/b/c")] == [0o700] * 3
    assert mode(tmp_path) == 0o755


def test_the_default_directories_are_closed_and_others_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only its own directories are closed: a checkout named `bootseer` stays as open as its user wants it."""
    for name in ("run", "home"):
        (tmp_path / name / "bootseer/inner").mkdir(parents=True)
        (tmp_path / name / "bootseer").chmod(0o755)
        (tmp_path / name / "bootseer/inner").chmod(0o750)
    default = tmp_path / "run/bootseer"
    monkeypatch.setattr(control, "runtime_directory", lambda: default / "stripefs")
    make_directory(default / "inner")
    assert [mode(default), mode(default / "inner"), mode(default.parent)] == [0o700, 0o700, 0o755]
    with pytest.raises(MountError, match="open to other users") as raised:
        make_directory(tmp_path / "home/bootseer/inner")
    assert "chmod 700" in raised.value.hint
    assert [mode(tmp_path / "home/bootseer"), mode(tmp_path / "home/bootseer/inner")] == [0o755, 0o750]


def test_what_is_no_folder_of_ours(tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(tmp_path)
    (tmp_path / "file").touch(mode=0o600)
    for name in ("link", "file"):
        with pytest.raises(MountError, match="someone else"):
            make_directory(tmp_path / name)


@pytest.mark.root
def test_a_folder_of_somebody_else(tmp_path: Path) -> None:
    (tmp_path / "bootseer").mkdir(mode=0o700)
    os.chown(tmp_path / "bootseer", 1234, -1)
    with pytest.raises(MountError, match="someone else"):
        make_directory(tmp_path / "bootseer")
