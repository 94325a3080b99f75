"""Pinned and open requirements, line by line; the files of which they consist."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from imagefs.deps.key import OpenEnd
from imagefs.deps.lock import LockedRequirement
from imagefs.deps.requirements import Reader, Requirements, RequirementSource
from stripefs.errors import ConfigError
from tests.support.deps.locks import PYLOCK, UV_LOCK

COMMIT = "0123456789abcdef0123456789abcdef01234567"
HASH = "sha256:" + "ab" * 32
LINUX = {"sys_platform": "linux", "python_version": "3.11", "python_full_version": "3.11.2", "platform_release": "6.1"}


class Files:
    """Files by absolute path, which go by the names that are wanted for them."""

    def __init__(self, **files: str) -> None:
        self.found: Mapping[str, str] = {f"/job/{name.replace('__', '/')}.txt": text for name, text in files.items()}
        self.read: list[str] = []

    def load(self, path: str, name: str) -> tuple[str, bytes]:
        if path not in self.found:
            raise ConfigError(f"{path} cannot be read")
        self.read.append(name)
        return name, self.found[path].encode()

    def reader(self, variables: Mapping[str, str | None] | None = None) -> Reader:
        return Reader("/job", self.load, self.found.__contains__, variables or {}, LINUX)


def ends(said: Requirements) -> list[OpenEnd]:
    return [*said.open_ends, *said.unpinned]


def read(text: str, variables: Mapping[str, str | None] | None = None, **others: str) -> Requirements:
    reader = Files(main=text, **others).reader(variables)
    reader.file("main.txt")
    return reader.finish()


@pytest.mark.parametrize(
    "line",
    [
        "numpy == 1.26.4  # a comment",
        "Num.Py[extra]==1 ; python_version >= '3'",
        f"numpy>=1 --hash={HASH}",
        f"numpy==1 \\\n  --hash={HASH} \\\n  --hash={HASH}",
        f"https://example/numpy-1-py3-none-any.whl#{HASH.replace(':', '=')}",
        f"numpy @ https://example/numpy-1.tar.gz --hash={HASH}",
        f"numpy @ git+https://example/numpy.git@{COMMIT}",
        f"git+ssh://git@example/numpy.git@{COMMIT}#egg=numpy",
        f"-e git+https://example/numpy.git@{COMMIT}#egg=numpy",
        "svn+https://example/numpy@2019#egg=numpy",
        "numpy ; sys_platform == 'win32'",
        "./wheels/numpy-1-py3-none-any.whl",
        "numpy @ file:///wheels/numpy-1-py3-none-any.whl",
        "./source",
        "--index-url https://${USER}:${TOKEN}@example/simple",
        "--no-index",
        "--find-links ./wheels",
        "",
        "six==1  # caf\u00e9 \u4e2d",
    ],
)
def test_closed(line: str) -> None:
    assert ends(read(line)) == []


@pytest.mark.parametrize(
    ("line", "why"),
    [
        ("numpy", "no one version"),
        ("numpy==1.*", "no one version"),
        ("numpy ; python_version >= '3'", "no one version"),
        ("numpy==1 ; platform_release >= '5'", "kernel"),
        ("numpy @ https://example/numpy-1.tar.gz", "#sha256"),
        ("numpy @ git+https://example/numpy.git", "commit"),
        ("numpy @ git+https://example/numpy.git@main", "commit"),
        (f"numpy @ git+https://example/numpy.git@{COMMIT[:12]}", "commit"),
        (f"bzr+https://example/numpy@{COMMIT}#egg=numpy", "commit"),
        ("--pre", "newest"),
        ("--find-links https://example/wheels", "may change"),
        ("-r https://example/requirements.txt", "not on this host"),
        ("numpy==${VERSION}", "--env VERSION"),
        ("numpy=1", "not understood"),
        ("--no-such-option", "not understood"),
        ("numpy==1 --index-url https://example", "not understood"),
        ("'numpy", "not understood"),
        ("numpy==1 ; no_such_marker == '1'", "not understood"),
        ("-e git+https://example/numpy.git", "commit"),
        ("numpy==1 ; python_version", "not understood"),
        ("https://[numpy", "not understood"),
    ],
)
def test_open(line: str, why: str) -> None:
    (open_end,) = ends(read(f"six==1\n{line}"))
    assert open_end.where == "main.txt:2"
    assert why in open_end.why
    assert str(open_end).startswith("main.txt:2: ")


def test_a_pin_counts_wherever_it_stands() -> None:
    said = read("numpy>=1\n-c constraints.txt\n-r more.txt", constraints="numpy==1.26.4\nscipy<2\ntorch", more="Scipy")
    assert [open_end.where for open_end in ends(said)] == ["more.txt:1"]
    assert said.pinned == {"numpy"}


def test_files_are_read_with_all_that_they_include_once_each_and_relative_to_one_another() -> None:
    files = Files(main="-r sub/a.txt\n-r sub/a.txt\n-c c.txt", sub__a="-r b.txt\n-r ../main.txt", sub__b="six==1", c="")
    reader = files.reader()
    reader.file("main.txt")
    assert ends(reader.finish()) == []
    assert files.read == ["main.txt", "sub/a.txt", "sub/b.txt", "c.txt"]


def test_a_file_that_is_not_there_or_no_text_is_an_error() -> None:
    with pytest.raises(ConfigError):
        read("-r other.txt")
    reader = Reader("/job", lambda path, name: (name, b"\xef\xbb\xbf\xff"), lambda path: True, {}, LINUX)
    with pytest.raises(ConfigError):
        reader.file("main.txt")


def test_variables_that_are_declared_are_replaced() -> None:
    said = read("numpy==${VERSION}\n${NAME}==1", {"VERSION": "1.26.4", "NAME": "six"})
    assert ends(said) == []
    assert said.pinned == {"numpy", "six"}


def test_no_secret_is_told() -> None:
    said = read("six @ https://user:secret@example/six.tar.gz\nhttps://secret@example/x?token=secret\n--secret x")
    assert len(ends(said)) == 3
    assert not any("user" in str(one) or "secret@" in str(one) or "=secret" in str(one) for one in ends(said))


def test_sources_are_found_from_where_the_installer_runs() -> None:
    reader = Files(sub__main="./a.whl-is-none\n./six-1-py2.py3-none-any.whl\n-e /src\n./six-1.tar.gz\n./plain").reader()
    reader.file("sub/main.txt")
    said = reader.finish()
    assert said.sources == [
        RequirementSource("/job/a.whl-is-none", "main.txt:1", False),
        RequirementSource("/job/six-1-py2.py3-none-any.whl", "main.txt:2", False),
        RequirementSource("/src", "main.txt:3", True),
        RequirementSource("/job/six-1.tar.gz", "main.txt:4", False),
        RequirementSource("/job/plain", "main.txt:5", False),
    ]
    assert (said.pinned, said.locked) == ({"six"}, None)


def test_links_are_looked_for_beside_their_file_first() -> None:
    reader = Files(sub__main="-f wheels.txt\n-f elsewhere", sub__wheels="").reader()
    reader.file("sub/main.txt")
    assert [one.path for one in reader.finish().find_links] == ["/job/sub/wheels.txt", "/job/elsewhere"]


def test_what_everything_has_hashes_for_may_come_from_anywhere() -> None:
    loose = "--pre\n--find-links https://example/wheels\n"
    assert len(ends(read(loose + "six==1"))) == 2
    assert len(ends(read(loose + f"six==1 --hash={HASH}\nnumpy==1"))) == 2
    assert ends(read(loose + f"six==1 --hash={HASH}")) == []
    assert ends(read(loose + "--require-hashes\nsix==1")) == []


@pytest.mark.parametrize("name", ["pyproject.toml", "setup.py", "setup.cfg"])
def test_files_of_projects_are_inputs_that_pin_nothing(name: str) -> None:
    assert [one.where for one in ends(read_named(name, 'dependencies = ["six==1"]'))] == [name]


MORE = f"""{PYLOCK}\
[[packages]]
name = "own"
directory = {{ path = "../own", editable = true }}
[[packages]]
name = "other"
vcs = {{ type = "git", url = "https://x/other", commit-id = "0123" }}
"""


def test_what_has_hashes_is_taken_as_it_is() -> None:
    (one, other) = read(f"Six==1.16 --hash={HASH}\nnumpy @ https://x/numpy.tar.gz --hash={HASH}").locked or ()
    assert one == LockedRequirement("six", "1.16", "sdist", [HASH])
    assert other == LockedRequirement("numpy", "", "sdist", [HASH], "https://x/numpy.tar.gz")
    assert read(f"six==1.16 --hash={HASH}\nnumpy==1").locked is None
    assert read("six==1.16\nnumpy==1").locked is None


def read_named(name: str, text: str) -> Requirements:
    reader = Reader("/job", lambda path, wanted: (wanted, text.encode()), lambda path: True, {}, LINUX)
    reader.file(f"locks/{name}") if name != "uv.lock" else reader.lock(f"/job/locks/{name}")
    return reader.finish()


@pytest.mark.parametrize("name", ["pylock.toml", "pylock.train.toml"])
def test_a_pylock_is_closed(name: str) -> None:
    said = read_named(name, MORE)
    assert [one.what for one in ends(said)] == ["own @ ../own"]
    assert said.sources == [RequirementSource("/job/own", name, True)]
    assert said.pinned == {"other", "own", "six"}
    assert said.locked == [
        LockedRequirement("six", "1.16", "wheel", ["sha256:ab"]),
        LockedRequirement("own", "", "editable", [], "/job/own"),
        LockedRequirement("other", "", "vcs", [], "git+https://x/other@0123"),
    ]


def test_a_lock_of_uv_is_closed() -> None:
    said = read_named("uv.lock", UV_LOCK)
    assert [one.what for one in ends(said)] == ["app @ ."]
    assert said.sources == [
        RequirementSource("/job/locks", "uv.lock", True),
        RequirementSource("/job/own", "uv.lock", False),
    ]
    assert said.locked is not None
    assert [(one.name, one.version, one.kind) for one in said.locked] == [
        ("app", "1", "editable"),
        ("six", "1.16", "wheel"),
        ("own", "", "local"),
    ]


@pytest.mark.parametrize("name", ["pylock.toml", "uv.lock"])
@pytest.mark.parametrize("text", ["", "[", "package = 7", "packages = 7", "[[package]]\nname = 7", "\0", PYLOCK[23:]])
def test_what_is_no_lock_is_an_error(name: str, text: str) -> None:
    with pytest.raises(ConfigError):
        read_named(name, text)


def test_what_takes_the_place_of_others_is_closed_by_nothing_else() -> None:
    files = Files(main="numpy==1.26.4", more="numpy>=2\nscipy==1\n./src")
    reader = files.reader()
    reader.file("main.txt")
    own = reader.apart()
    own.file("more.txt")
    reader.take(own)
    said = reader.finish()
    assert [str(one).split(": ")[:2] for one in ends(said)] == [["more.txt:1", "numpy>=2"]]
    assert (said.pinned, said.locked) == ({"numpy", "scipy"}, None)
    assert [one.path for one in said.sources] == ["/job/src"]


def test_without_a_python_every_requirement_counts() -> None:
    reader = Reader("/job", Files().load, lambda path: True, {}, None)
    reader.requirement("command", "six ; sys_platform == 'win32'")
    assert len(ends(reader.finish())) == 1


def test_files_that_include_ever_more_files_are_refused() -> None:
    reader = Reader("/job", lambda path, name: (name, b"-r deeper/more.txt"), lambda path: False, {}, LINUX)
    with pytest.raises(ConfigError, match="is included through more than 64 files"):
        reader.file("main.txt")


_words = st.sampled_from([
    *("numpy", "==", ">=1", "==1.*", ";", "@", "git+https://h/r", "https://h/x.whl", "./x", "-e", "-r", "-c", "-f"),
    *("--hash=", "--pre", "[x]", "#egg=", "python_version", "'3'", '"', "\\", "${X}", "file:", "#", "-", "--", "="),
    *("(", " "),
])  # fmt: skip
_lines = st.lists(_words | st.text(max_size=6), max_size=8).map("".join)


@given(st.lists(_lines, max_size=4).map("\n".join))
def test_any_text_is_read_or_refused(text: str) -> None:
    reader = Reader("/job", lambda path, name: (name, text.encode("utf-8", "replace")), lambda path: False, {}, LINUX)
    try:
        reader.file("main.txt")
    except ConfigError:
        return
    for open_end in ends(reader.finish()):
        assert "\n" not in str(open_end)
