"""What is set for pip and uv beside their command lines, against what they themselves say."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from imagefs.deps.settings import pip_settings, uv_settings
from imagefs.deps.urls import names_place, without_secrets
from stripefs.errors import ConfigError


@pytest.fixture
def home(tmp_path: Path) -> Path:
    for folder in (".config/pip", ".config/uv", ".pip", "xdg/pip", "xdg/uv", "job"):
        (tmp_path / folder).mkdir(parents=True)
    return tmp_path


def environ(home: Path, **more: str) -> dict[str, str]:
    return {"HOME": str(home), "XDG_CONFIG_DIRS": str(home / "xdg"), "PATH": os.environ["PATH"], **more}


def test_files_and_variables_of_pip_are_combined_as_pip_does(home: Path) -> None:
    (home / "xdg/pip/pip.conf").write_text(
        "[global]\nindex-url = https://global\nretries = 3\n[install]\nno-deps = yes\n"
    )
    (home / ".pip/pip.conf").write_text("[global]\nindex-url = https://legacy\npre = yes\n")
    (home / ".config/pip/pip.conf").write_text(
        "[global]\nindex-url = https://user:secret@index/simple\nextra_index_url =\n  https://a\n  https://b\n"
        "[install]\npre = no\n[freeze]\nall = yes\n"
    )
    variables = environ(home, PIP_CONSTRAINT="a.txt b.txt", PIP_TIMEOUT="3", PIP_PASSWORD="x", PIP_FIND_LINKS="")
    found = pip_settings(variables, "")
    assert found == {
        "constraint": ["a.txt", "b.txt"],
        "extra-index-url": ["https://a", "https://b"],
        "index-url": ["https://index/simple"],
        "no-deps": ["yes"],
        "pre": ["no"],
    }
    told = subprocess.run(
        [sys.executable, "-m", "pip", "config", "list"], env=variables, capture_output=True, text=True, check=True
    ).stdout
    assert "global.index-url='https://user:secret@index/simple'" in told
    assert "install.pre='no'" in told


def test_the_files_that_pip_is_told_of(home: Path) -> None:
    (home / ".config/pip/pip.conf").write_text("[global]\nno-deps = yes\n")
    (home / "pip.conf").write_text("[install]\npre = yes\n")
    own = home / "own.conf"
    own.write_text("[install]\nuser = yes\n")
    assert pip_settings(environ(home), str(home)) == {"no-deps": ["yes"], "pre": ["yes"]}
    assert pip_settings(environ(home, PIP_CONFIG_FILE=str(own)), "") == {"user": ["yes"]}
    assert pip_settings(environ(home, PIP_CONFIG_FILE=os.devnull), str(home)) == {}


def test_a_file_that_pip_cannot_read_is_an_error(home: Path) -> None:
    (home / ".config/pip/pip.conf").write_text("index-url = https://x\n")
    with pytest.raises(ConfigError):
        pip_settings(environ(home), "")


def test_files_and_variables_of_uv(home: Path) -> None:
    (home / ".config/uv/uv.toml").write_text('no-build = true\ncache-dir = "/c"\n[pip]\nindex-url = "https://u:s@i"\n')
    (home / "xdg/uv/uv.toml").write_text('[[index]]\nurl = "https://s"\n[[index]]\nurl = "https://t"\n')
    (home / "job/pyproject.toml").write_text('[tool.uv]\nconstraint-dependencies = ["a<1", "b<2"]\n')
    variables = environ(home, UV_CACHE_DIR="/x", UV_INDEX_NAME_PASSWORD="s", UV_TORCH_BACKEND="cu124")
    assert uv_settings(variables, str(home / "job")) == {
        "project.constraint-dependencies": ["a<1", "b<2"],
        "system.index.url": ["https://s", "https://t"],
        "torch-backend": ["cu124"],
        "user.no-build": ["true"],
        "user.pip.index-url": ["https://i"],
    }


def test_the_files_that_uv_is_told_of(home: Path) -> None:
    (home / ".config/uv/uv.toml").write_text("no-build = true\n")
    (home / "job/pyproject.toml").write_text('[project]\nname = "x"\n')
    (home / "uv.toml").write_text("no-binary = true\n")
    inner = home / "job/inner"
    inner.mkdir()
    assert uv_settings(environ(home), str(inner)) == {"project.no-binary": ["true"], "user.no-build": ["true"]}
    own = environ(home, UV_CONFIG_FILE=str(home / ".config/uv/uv.toml"))
    assert uv_settings(own, str(inner)) == {"file.no-build": ["true"]}
    assert uv_settings(environ(home, UV_NO_CONFIG="1"), str(inner)) == {}


@pytest.mark.parametrize("text", ["[", "a = ", '"'])
def test_a_file_that_uv_cannot_read_is_an_error(home: Path, text: str) -> None:
    (home / "job/uv.toml").write_text(text)
    with pytest.raises(ConfigError):
        uv_settings(environ(home), str(home / "job"))


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


@pytest.mark.parametrize("text", ["https://x", "a=s3://b/c", "git@host:team/repo", "pkg @ git+https://x"])
def test_places(text: str) -> None:
    assert names_place(text)


@pytest.mark.parametrize("text", ["", "a/b", "user@host", "C:/x", "numpy==1"])
def test_no_places(text: str) -> None:
    assert not names_place(text)
