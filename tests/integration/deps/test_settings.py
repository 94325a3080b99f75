"""Settings of pip and uv beside their command lines, as they themselves report them."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from imagefs.deps import facts
from imagefs.deps.environment import pip_settings, uv_files, uv_table
from imagefs.deps.lock import without_secrets
from stripefs.errors import ConfigError


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for folder in (".config/pip", ".config/uv", "xdg/pip", "xdg/uv", "job"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def environ(home: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(home), "XDG_CONFIG_DIRS": str(home / "xdg"), "PATH": os.environ["PATH"], **more}


def of_pip(variables: dict[str, str]) -> dict[str, list[str]]:
    command = facts.version_command([sys.executable, "-m", "pip"], variables, "/")
    return pip_settings(facts.ask(sys.executable, {"pip": command}, {}, "", variables, "/").pip_config, variables)


def test_pip_says_what_its_configuration_is(home: Path) -> None:
    (home / "xdg/pip/pip.conf").write_text(
        "[global]\nindex-url = https://global\nretries = 3\n[install]\nno-deps = yes\n"
    )
    (home / ".config/pip/pip.conf").write_text(
        "[global]\nindex-url = https://user:secret@index/simple\nextra_index_url =\n  https://a\n  https://b\n"
        "[install]\npre = no\n[freeze]\nall = yes\n"
    )
    variables = environ(home, PIP_CONSTRAINT="a.txt b.txt", PIP_TIMEOUT="3", PIP_PASSWORD="x", PIP_FIND_LINKS="")
    found = of_pip(variables)
    found.pop("cert", None)
    assert found == {
        "constraint": ["a.txt", "b.txt"],
        "extra-index-url": ["https://a", "https://b"],
        "index-url": ["https://index/simple"],
        "no-deps": ["yes"],
        "pre": ["no"],
    }


def test_the_files_that_pip_is_told_of(home: Path) -> None:
    (home / ".config/pip/pip.conf").write_text("[global]\nno-deps = yes\n")
    own = home / "own.conf"
    own.write_text("[install]\nuser = yes\n")
    assert of_pip(environ(home, PIP_CONFIG_FILE=str(own)))["user"] == ["yes"]
    assert of_pip(environ(home))["no-deps"] == ["yes"]
    assert of_pip(environ(home, PIP_CONFIG_FILE=os.devnull)) == {}


def test_a_file_that_pip_cannot_read_is_an_error(home: Path) -> None:
    (home / ".config/pip/pip.conf").write_text("index-url = https://x\n")
    with pytest.raises(ConfigError):
        of_pip(environ(home))


def test_the_files_that_uv_reads(home: Path) -> None:
    user, system, inner = home / ".config/uv/uv.toml", home / "xdg/uv/uv.toml", home / "job/inner"
    inner.mkdir()
    (home / "job/pyproject.toml").write_text('[project]\nname = "x"\n')
    for path in (user, system, home / "uv.toml"):
        path.write_text("no-build = true\n")
    assert list(uv_files(environ(home), str(inner))) == [str(home / "uv.toml"), str(user), str(system)]
    (home / "job/pyproject.toml").write_text('[tool.uv]\nconstraint-dependencies = ["a<1", "b<2"]\n')
    assert next(uv_files(environ(home), str(inner))) == str(home / "job/pyproject.toml")
    assert uv_table(str(home / "job/pyproject.toml")) == {"constraint-dependencies": ["a<1", "b<2"]}
    assert list(uv_files(environ(home, UV_CONFIG_FILE=str(user)), str(inner))) == [str(user)]
    assert list(uv_files(environ(home, UV_NO_CONFIG="1"), str(inner))) == []


@pytest.mark.parametrize("text", ["[", "a = ", '"'])
def test_a_file_that_uv_cannot_read_is_an_error(home: Path, text: str) -> None:
    (home / "job/uv.toml").write_text(text)
    with pytest.raises(ConfigError):
        uv_table(str(home / "job/uv.toml"))


@pytest.mark.parametrize(
    ("url", "clean"),
    [
        ("https://user:secret@host/simple", "https://host/simple"),
        ("https://secret@host", "https://host"),
        ("https://${USER}:${TOKEN}@host/x", "https://host/x"),
        ("--index-url=https://a:b@c/d # https://e:f@g", "--index-url=https://c/d # https://g"),
        ("git+ssh://git@host/team/repo@0123#egg=x", "git+ssh://host/team/repo@0123#egg=x"),
        ("https://host/x?private_token=secret&a=1#sha256=ab", "https://host/x?private_token=&a=1#sha256=ab"),
        ("https://host/x?X-Amz-Signature=secret", "https://host/x?X-Amz-Signature="),
        ("https://host/a@b", "https://host/a@b"),
        ("user@host", "user@host"),
    ],
)
def test_urls_without_secrets(url: str, clean: str) -> None:
    assert without_secrets(url) == clean
