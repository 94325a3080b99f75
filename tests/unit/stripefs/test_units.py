from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stripefs.errors import ConfigError
from stripefs.units import Pace, format_size, parse_duration, parse_rate, parse_size, shown


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        (parse_size, "0", 0),
        (parse_size, "512B", 512),
        (parse_size, " 8 mib ", 8 << 20),
        (parse_size, ".5k", 512),
        (parse_size, "1GB", 1_000_000_000),
        (parse_rate, "40MB/s", 40e6),
        (parse_rate, "1MiB/s", 1 << 20),
        (parse_rate, "7", 7),
        (parse_duration, "90", 90),
        (parse_duration, "250ms", 0.25),
        (parse_duration, "2min", 120),
        (parse_duration, "1h", 3600),
        (parse_duration, "1d", 86400),
        (parse_duration, "5us", 5e-6),
        (format_size, 999, "999 B"),
        (format_size, 1536, "1.5 KiB"),
        (format_size, 1 << 20, "1 MiB"),
        (format_size, 300 << 30, "300 GiB"),
        (format_size, 5000 << 40, "5000 TiB"),
        (shown, b"/a/b", "/a/b"),
        (shown, "/gr\u00fc\u00df".encode(), "/gr\u00fc\u00df"),
        (shown, b"/\xff\xfe", "/\\xff\\xfe"),
    ],
)
def test_read_and_shown(parse: Callable[[object], object], text: object, value: object) -> None:
    assert parse(text) == (pytest.approx(value) if isinstance(value, float) else value)


@pytest.mark.parametrize(
    ("parse", "text"),
    [
        *[(parse_size, text) for text in ("", "M", "8 apples", "-1", "1e6", "1,5M", "0x10", "8MiB/s", "\u0663")],
        *[(parse_duration, text) for text in ("", "soon", "-5s", "1w")],
    ],
)
def test_what_is_none(parse: Callable[[str], object], text: str) -> None:
    with pytest.raises(ConfigError, match=r"is not a (size|duration)") as caught:
        parse(text)
    assert repr(text) in caught.value.message


@given(st.integers(0, 1 << 60))
def test_a_printed_size_can_be_read_back(size: int) -> None:
    assert parse_size(format_size(size)) == pytest.approx(size, rel=0.06)


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
