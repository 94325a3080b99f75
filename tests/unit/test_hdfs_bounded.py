from __future__ import annotations

import subprocess
import sys
import threading
import weakref

import pytest

from stripefs.errors import ServiceDown
from stripefs.store.hdfs import bounded as module
from stripefs.store.hdfs.bounded import bounded
from tests.waiting import eventually


def fail(error: BaseException) -> None:
    raise error


def thread() -> threading.Thread:
    return bounded(threading.current_thread, 30, "which")


def test_answers_and_errors_pass_through() -> None:
    assert bounded(lambda: 5, 30, "it") == 5
    for error in (FileNotFoundError("x"), TimeoutError("its own"), KeyboardInterrupt()):
        with pytest.raises(type(error)) as caught:
            bounded(lambda error=error: fail(error), 30, "it")
        assert caught.value is error


def test_a_call_that_does_not_end() -> None:
    end = threading.Event()
    with pytest.raises(ServiceDown, match=r"NameNode of /x: no answer within 0\.05 s"):
        bounded(end.wait, 0.05, "NameNode of /x")
    end.set()


def test_one_call_after_the_other_is_made_by_one_thread() -> None:
    first = thread()
    with pytest.raises(FileNotFoundError):
        bounded(lambda: fail(FileNotFoundError("x")), 30, "it")
    assert {thread() for _ in range(20)} == {first}


def test_a_call_that_hangs_keeps_its_thread_and_gives_it_back(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_idle", [])
    end, held = threading.Event(), []
    before = thread()
    with pytest.raises(ServiceDown):
        bounded(lambda: (held.append(threading.current_thread()), end.wait()), 0.05, "it")
    assert held == [before]
    other = thread()
    assert other is not before
    end.set()
    eventually(lambda: len(module._idle) == 2, "its thread to be free again")
    assert thread() is before


def test_calls_at_once_have_a_thread_each() -> None:
    together = threading.Barrier(5)
    callers = [threading.Thread(target=bounded, args=(together.wait, 30, "it")) for _ in range(5)]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    assert not together.broken
    assert not any(caller.is_alive() for caller in callers)


def test_threads_that_have_nothing_to_do_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_PATIENCE", 0.01)
    monkeypatch.setattr(module, "_idle", [])  # those of other tests are more patient
    one = thread()
    one.join(30)
    assert not one.is_alive()
    assert thread() is not one


class Answer:
    pass


class Refused(Exception):
    pass


def refuse() -> None:
    raise Refused


def refused() -> weakref.ref[Refused]:
    try:
        bounded(refuse, 30, "it")
    except Refused as error:
        return weakref.ref(error)
    raise AssertionError("it was not refused")


def test_an_idle_thread_holds_nothing_of_its_last_call() -> None:
    answer, error = weakref.ref(bounded(Answer, 30, "it")), refused()
    eventually(lambda: answer() is None and error() is None, "both to be let go of")


def test_a_call_that_hangs_does_not_keep_the_program_from_its_end() -> None:
    program = """
import threading
from stripefs.errors import ServiceDown
from stripefs.store.hdfs.bounded import bounded
try:
    bounded(threading.Event().wait, 0.01, "it")
except ServiceDown as error:
    print(error)
"""
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    assert ended.stdout == "it: no answer within 0.01 s\n"
    assert ended.stderr == ""
