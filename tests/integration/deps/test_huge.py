"""Requirements that nobody has written by hand: they are read, or refused in a line. A parser of quadratic time would
never end here."""

from __future__ import annotations

import hashlib
import os
import re
from pathlib import Path

import pip_requirements_parser as pip
import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefs.deps.digest import LONGEST, Files, line_parser
from imagefs.deps.key import OpenEnd
from imagefs.deps.lock import without_secrets
from imagefs.deps.requirements import Reader, Requirements
from stripefs.errors import ConfigError

MANY = 20_000
LONG = 1_000_000


def read(folder: Path, name: str = "main.txt") -> Requirements:
    reader = Reader(str(folder), Files([]).text, os.path.exists, {}, None)
    reader.file(name)
    return reader.finish()


def ends(said: Requirements) -> list[OpenEnd]:
    return [*said.open_ends, *said.unpinned]


def read_text(folder: Path, text: str) -> Requirements:
    (folder / "main.txt").write_text(text)
    return read(folder)


def test_many_requirements_with_hashes(tmp_path: Path) -> None:
    digests = [hashlib.sha256(b"%d" % number).hexdigest() for number in range(MANY)]
    lines = (f"package-{one}==1.{one} \\\n    --hash=sha256:{digest}\n" for one, digest in enumerate(digests))
    found = read_text(tmp_path, "".join(lines))
    assert ends(found) == []
    assert len(found.pinned) == MANY
    assert found.locked is not None
    assert found.locked[-1].version == "1.19999"


def test_a_file_that_is_too_large(tmp_path: Path) -> None:
    with open(tmp_path / "main.txt", "wb") as file:
        file.truncate(50_000_000)
    with pytest.raises(ConfigError, match=r"main\.txt has more than 16 MiB"):
        read(tmp_path)


@pytest.mark.parametrize("line", ["x" * LONG + "==1", "x==1 \\\n" + f" --hash=sha256:{'ab' * 32} \\\n" * (LONG // 80)])
def test_a_line_that_is_too_long(tmp_path: Path, line: str) -> None:
    """The rest is read all the same."""
    found = read_text(tmp_path, f"first==1\n{line}\nlast==1\n")
    (one,) = ends(found)
    assert (one.where, one.why) == ("main.txt:2", f"it is longer than {LONGEST} characters; break it up")
    assert len(one.what) < 250
    assert found.pinned == {"first", "last"}


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("x==1" + " " * 50_000 + "y", "it has a thousand blanks in a row"),
        ("x==1; " + "(" * 50_000, "it is not understood: "),
        ("x @ https://example/" + "?" * 50_000, "what is there may change"),
    ],
)
def test_a_line_that_is_hard_to_read(tmp_path: Path, line: str, why: str) -> None:
    (one,) = ends(read_text(tmp_path, line))
    assert one.why.startswith(why)
    assert len(str(one)) < 600


def test_lines_leave_nothing_to_the_next() -> None:
    """They are read by one parser, where pip has a new one for each."""
    lines = ["-f a", "x==1 --hash=sha256:ab --hash=sha256:cd", "-f b --pre", "--no-binary y", "--no-binary z", "z==1"]
    parse, parse_alone = line_parser(), pip.get_line_parser()
    for line in lines:
        for ours, theirs in zip(parse(line), parse_alone(line), strict=True):
            assert str(ours) == str(theirs)


SECRET = re.compile(r"(?i)([?&][^=&#\s]*(?:auth|credential|key|passw|secret|signature|token)[^=&#\s]*=)[^&#\s\"'\\]*")


@given(st.lists(st.sampled_from(["?", "&", "=", "#", " ", '"', "a", "key", "TOKEN", "s"])).map("".join))
def test_secrets_among_parameters(text: str) -> None:
    """As the plain form of it has them, which takes the square of the time."""
    assert without_secrets(text) == SECRET.sub(r"\1", text)
