import json
import logging
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from stripefs import logs
from stripefs.errors import ConfigError


@pytest.fixture(autouse=True)
def root_logger_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    handlers, level = list(root.handlers), root.level
    root.handlers = []
    yield
    for handler in root.handlers:
        handler.close()
    root.handlers, root.level = handlers, level


def write(message: str, *arguments: object, **options: object) -> None:
    logging.getLogger("stripefs.room").warning(message, *arguments, **options)


def test_text(capsys: pytest.CaptureFixture[str]) -> None:
    logs.configure("text", "info")
    write("%s happened", "something")
    logging.getLogger("stripefs.room").debug("not this")
    pattern = r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z stripefs\[\d+\] WARNING stripefs\.room: something happened\n"
    assert re.fullmatch(pattern, capsys.readouterr().err)


def test_json_lines(tmp_path: Path) -> None:
    file = tmp_path / "log"
    logs.configure("json", "debug", str(file))
    write("two\nlines %d", 1, extra={"fields": {"host": "h1", "bytes": 3}})
    try:
        raise ValueError("odd")
    except ValueError:
        write("failed", exc_info=True)
    first, second = map(json.loads, file.read_text().splitlines())
    assert (first["level"], first["logger"], first["message"]) == ("warning", "stripefs.room", "two\nlines 1")
    assert (first["host"], first["bytes"]) == ("h1", 3)
    assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{3}Z", first["time"])
    assert "ValueError: odd" in second["exception"]


def test_a_rotated_file_is_opened_anew(tmp_path: Path) -> None:
    file = tmp_path / "log"
    logs.configure("text", "info", str(tmp_path / "first"))
    logs.configure("text", "info", str(file))  # which takes the place of the first
    write("before")
    file.rename(tmp_path / "log.1")
    write("after")
    assert (tmp_path / "first").read_text() == ""
    assert (tmp_path / "log.1").read_text().count("before") == 1
    assert "after" in file.read_text()


def test_a_file_that_cannot_be_opened(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="cannot be opened: Is a directory"):
        logs.configure("text", "info", str(tmp_path))
