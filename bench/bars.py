"""The charts of the README: one bar for each system, medians with the lowest and highest round."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.results import Row

__all__ = ["Bar", "draw"]


@dataclass(frozen=True, slots=True)
class Bar:
    """`ours`: in the colour of this project's own."""

    label: str
    row: Row
    ours: bool


def draw(
    file: Path,
    bars: Sequence[Bar],
    *,
    of: str,
    size: tuple[float, float],
    digits: int,
    scale: str,
    title: str,
    wide: bool = False,
) -> None:
    """Draw `bars` from the top down; the ending of `file` says as what (svg, png). Needs matplotlib.

    size: inches across, and down for each bar. digits: after the point, of the figures beside the bars. scale: what
    they measure. wide: the title is as wide as the picture, not as the bars. Raises ValueError where there are no
    bars, `of` what there are none then.
    """
    if not bars:
        raise ValueError(f"this document holds no {of} to draw")
    import matplotlib

    matplotlib.use("Agg")
    matplotlib.rcParams["svg.hashsalt"] = "bench"  # else its ids are drawn at random: same numbers, same file
    import matplotlib.pyplot as plt

    bars = bars[::-1]  # barh draws from the bottom up
    rows = [bar.row for bar in bars]
    errors = [[row.median - row.min for row in rows], [row.max - row.median for row in rows]]
    colours = ["#d95f02" if bar.ours else "#9aa5b1" for bar in bars]
    figure, axes = plt.subplots(figsize=(size[0], size[1] * len(bars) + (1.4 if wide else 1.2)))
    drawn = axes.barh(
        [bar.label for bar in bars], [row.median for row in rows], xerr=errors, color=colours, ecolor="#444444"
    )
    axes.bar_label(drawn, fmt=f"%.{digits}f", padding=6)
    axes.set_xlabel(scale, loc="right")
    if wide:
        figure.suptitle(title, fontsize=10)
    else:
        axes.set_title(title, fontsize=10)
    axes.set_xlim(0, max(row.max for row in rows) * 1.12)
    axes.spines[["top", "right"]].set_visible(False)
    figure.tight_layout()
    figure.savefig(file, metadata={"Date": None} if file.suffix == ".svg" else None)
    plt.close(figure)
