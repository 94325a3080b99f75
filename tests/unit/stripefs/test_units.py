import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripefs.errors import ConfigError
from stripefs.units import Pace, format_size, parse_duration, parse_rate, parse_size, shown


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("512", 512),
        ("512B", 512),
        ("8M", 8 << 20),
        ("8MiB", 8 << 20),
        ("8mib", 8 << 20),
        (" 8 MiB ", 8 << 20),
        ("1.5K", 1536),
        (".5k", 512),
        ("8MB", 8_000_000),
        ("1GB", 1_000_000_000),
        ("2TiB", 2 << 40),
        ("1P", 1 << 50),
    ],
)
def test_sizes(text: str, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize("text", ["", "M", "8 apples", "-1", "1e6", "1,5M", "0x10", "8MiB/s", "٣"])
def test_what_is_no_size(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a size") as caught:
        parse_size(text)
    assert repr(text) in caught.value.message


@pytest.mark.parametrize(("text", "rate"), [("40MB/s", 40e6), ("40MBps", 40e6), ("1MiB/s", 1 << 20), ("7", 7)])
def test_rates(text: str, rate: float) -> None:
    assert parse_rate(text) == rate


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("90", 90), ("90s", 90), ("250ms", 0.25), ("2m", 120), ("2min", 120), ("1h", 3600), ("1d", 86400), ("5us", 5e-6)],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == pytest.approx(seconds)


@pytest.mark.parametrize("text", ["", "soon", "-5s", "1w"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ConfigError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1536, "1.5 KiB"),
        (1 << 20, "1 MiB"),
        (300 << 30, "300 GiB"),
        (5000 << 40, "5000 TiB"),
    ],
)
def test_sizes_as_text(size: float, text: str) -> None:
    assert format_size(size) == text


@given(st.integers(0, 1 << 60))
def test_a_printed_size_can_be_read_back(size: int) -> None:
    assert parse_size(format_size(size)) == pytest.approx(size, rel=0.06)


@pytest.mark.parametrize(
    ("path", "text"),
    [(b"/a/b", "/a/b"), ("/gr\u00fc\u00df".encode(), "/gr\u00fc\u00df"), (b"/\xff\xfe", "/\\xff\\xfe"), (b"", "")],
)
def test_paths_of_any_bytes_can_be_shown(path: bytes, text: str) -> None:
    assert shown(path) == text


def test_a_pace_follows_the_last_seconds() -> None:
    pace = Pace()
    pace.tick(1.0, 1000)
    assert pace.rate == 0.0
    pace.tick(2.0, 3000)
    assert pace.rate == 1000.0
    pace.tick(4.0, 7000)
    assert pace.rate == 1500.0
    for second in range(20):
        pace.tick(5.0 + second, 7000)
    assert pace.rate == 0.0
