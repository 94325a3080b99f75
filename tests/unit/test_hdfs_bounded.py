from __future__ import annotations

import threading

import pytest

from stripefs.errors import ServiceDown
from stripefs.store.hdfs.bounded import bounded


def fail(error: BaseException) -> None:
    raise error


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
