import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripefs.cli.mounting import expand, split
from stripefs.errors import ConfigError


@given(st.lists(st.text(alphabet=st.characters(exclude_categories=("Cs",)), min_size=1)))
def test_escaped_words_come_back(words: list[str]) -> None:
    text = ",".join(w.replace("\\", "\\\\").replace(",", r"\,").replace('"', r"\"") for w in words)
    assert split(text) == words


FSTAB = "defaults,_netdev,nofail,auto,noauto,user,users,x-systemd.automount,X-mount.mkdir,comment=mine"


@pytest.mark.parametrize(
    ("texts", "given", "kernel"),
    [
        (
            ["range_size=16M,no-hedge", "per-host=2,nouse_datanode_hostname,allow_other"],
            {"range-size": "16M", "hedge": "false", "per-host": "2", "use-datanode-hostname": "false",
             "allow-other": "true"},
            [],
        ),
        ([r"layout_for=*.pt=striped\,a/*=plain,layout_for=*.log=plain"],  # which may be said several times
         {"layout-for": "*.pt=striped,a/*=plain,*.log=plain"}, []),
        ([FSTAB], {}, []),
        (["noexec,nodev", 'context="a:s0:c1,c2",fscontext=b'], {},
         ["noexec", "nodev", 'context="a:s0:c1,c2"', "fscontext=b"]),
    ],
    ids=["both spellings", "several times", "fstab", "kernel"],
)  # fmt: skip
def test_options_and_words_for_the_kernel(texts: list[str], given: dict[str, str], kernel: list[str]) -> None:
    found = expand(texts)
    assert ({name: text for name, (text, _) in found.given.items()}, found.kernel) == (given, kernel)


def test_the_last_word_wins() -> None:
    options = expand(["threads=1,rw", "threads=2,ro"])
    assert options.given["threads"] == ("2", "-o threads")
    assert options.read_write is False
    assert expand(["ro,rw"]).read_write is True
    assert expand(["threads=1"]).read_write is None
    assert expand(["config=/etc/other.toml"]).config == "/etc/other.toml"


@pytest.mark.parametrize(
    ("text", "what", "hint"),
    [
        ("rnage_size=1", "-o rnage_size: unknown mount option", "did you mean range_size?"),
        ("defaultz", "-o defaultz: unknown mount option", "did you mean defaults?"),
        ("threads", "-o threads needs a value", "threads=N"),
        ("nothreads", "-o nothreads: unknown", ""),
        ("nohedge=1", "-o nohedge: unknown", ""),
        ("remount,ro", "-o remount is not supported", "unmount"),
        ("context", "-o context: unknown", ""),
    ],
)
def test_refusals(text: str, what: str, hint: str) -> None:
    with pytest.raises(ConfigError) as caught:
        expand([text])
    assert what in caught.value.message
    assert hint in caught.value.hint
