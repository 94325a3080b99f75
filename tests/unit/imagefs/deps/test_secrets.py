"""Content that others must not read."""

from __future__ import annotations

from pathlib import Path

import pytest

from imagefs.deps.check.tree import check_secrets, secret_content, secret_name
from imagefs.deps.inventory import take

KEY = "-----BEGIN {}PRIVATE KEY-----\nMIIE\n"


def test_names_that_say_enough_and_names_that_do_not() -> None:
    found = [".netrc", "a/b/.git-credentials", "pip.conf", "x/pip.ini", ".pypirc", "k/id_ed25519", "h/.aws/credentials"]
    others = ["netrc.py", "pip.conf.md", "id_ed25519.pub", "pip/__init__.py", "aws/credentials.py"]
    assert [path for path in (*found, *others) if secret_name(path)] == found


@pytest.mark.parametrize(
    "text",
    [
        "index-url = https://ci:hunter2@pypi.example.com/simple",
        '{"url": "git+https://bot:9f8e7d@git.example.com/x.git"}',
        "postgresql://app:pa55@db/x",
        "git+https://0123456789abcdef0123456789@git.example.com/x",
        KEY.format("OPENSSH "),
        "aws_access_key_id = AKIAIOSFODNN7ABCDEFG",
        "token: ghp_" + "a1" * 18,
        "hf_" + "aB3" * 12,
    ],
)
def test_content_that_others_must_not_read(text: str) -> None:
    assert secret_content(text.encode())
    assert secret_content(b"first line\n" + text.encode() + b"\nlast line")


@pytest.mark.parametrize(
    "text",
    [
        "https://pypi.example.com/simple",
        "git+ssh://git@example.com/x.git",
        "https://user:password@example.com/",
        "https://user:${TOKEN}@example.com/",
        "https://{user}:{password}@example.com/",
        "https://user:****@example.com/",
        "http://host:8080/a@b",
        "-----BEGIN PUBLIC KEY-----",
        "",
    ],
)
def test_content_that_everybody_may_read(text: str) -> None:
    assert not secret_content(text.encode())


def test_what_came_with_a_package_is_known_to_others_already(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "key.pem").write_text(KEY.format(""))
    (tmp_path / "tests" / "pip.conf").touch()
    inventory = take(str(tmp_path))
    assert check_secrets(inventory, {"tests/key.pem", "tests/pip.conf"}) == []
    assert {one.subject for one in check_secrets(inventory, set())} == {"tests/key.pem", "tests/pip.conf"}


def test_what_an_installer_notes_of_where_a_package_came_from_is_looked_into(tmp_path: Path) -> None:
    told = tmp_path / "alpha-1.0.dist-info/direct_url.json"
    told.parent.mkdir()
    told.write_text('{"url": "https://me:hunter2@git.example.com/alpha", "vcs_info": {}}')
    (found,) = check_secrets(take(str(tmp_path)), {"alpha-1.0.dist-info/direct_url.json"})
    assert found.what == "an address with a password"


def test_programs_and_large_files_are_not_looked_into(tmp_path: Path) -> None:
    (tmp_path / "library.so").write_bytes(b"\x7fELF\0\0" + KEY.format("").encode())
    (tmp_path / "large.txt").write_bytes(bytes(1) + KEY.format("").encode().ljust(2 << 20))
    assert check_secrets(take(str(tmp_path)), set()) == []
