"""A report as one HTML page: charts beside their tables, no script, no request, light and dark.

The page's Content-Security-Policy forbids everything but its own style sheet, which its digest names. Pictures are
inline SVG without references. Each chart has a table of the same figures; wide tables scroll and can be focused.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from datetime import UTC, datetime

from imagefs.startup import svg
from imagefs.startup.report import Lost, Report, Start
from imagefs.startup.svg import Chart, escape, seconds, unit_name

__all__ = ["to_html"]

_SHOWN = 6
"""So many starts have charts: the slowest. All are in the first table."""
_ROWS = 500

_STYLE = svg.STYLE + """\
:root{color-scheme:light dark}*{box-sizing:border-box}
body{margin:0 auto;max-width:76rem;padding:1rem;font:16px/1.45 system-ui,sans-serif;background:#fff;color:#1a1a1a}
h1{font-size:1.5rem}h2{font-size:1.25rem;margin:2rem 0 .5rem}h3,figure h2{font-size:1.05rem;margin:0}
h1,p,summary,dd{overflow-wrap:anywhere}th,td{overflow-wrap:break-word;max-width:20rem}
.pair{display:grid;gap:1rem 2rem;grid-template-columns:repeat(auto-fit,minmax(min(100%,26rem),1fr));margin:1rem 0 2rem;
align-items:start}
.pair figure{margin:0}.pair svg{display:block;width:100%;height:auto}.scroll{overflow:auto;max-height:34rem}
.scroll:focus-visible,summary:focus-visible{outline:3px solid #2266bb;outline-offset:2px}
table{border-collapse:collapse;width:100%;font-size:.875rem}caption{text-align:left;color:#595959;padding:.25rem 0}
th,td{text-align:left;padding:.3rem .6rem .3rem 0;border-bottom:1px solid #d5d5d5;vertical-align:top;min-width:4.5rem}
thead th{position:sticky;top:0;background:#fff}dl{display:flex;flex-wrap:wrap;gap:.5rem 2rem;margin:.5rem 0 1rem}
dt{color:#595959;font-size:.875rem}dd{margin:0;font-size:1.15rem}
summary{cursor:pointer;font-size:1.1rem;padding:.5rem 0}
@media (prefers-color-scheme:dark){body,thead th{background:#16181c;color:#ececec}caption,dt{color:#b3b3b3}
th,td{border-color:#4a4a4a}}
@media print{.scroll{max-height:none;overflow:visible}}
"""  # fmt: skip


def to_html(report: Report) -> str:
    """The page of a report."""
    digest = base64.b64encode(hashlib.sha256(_STYLE.encode()).digest()).decode()
    policy = f"default-src 'none'; style-src 'sha256-{digest}'; base-uri 'none'; form-action 'none'"
    slowest = sorted(report.starts, key=lambda start: -start.total_s)[:_SHOWN]
    parts = [
        f"<h1>Where {len(report.starts)} start{'' if len(report.starts) == 1 else 's'} spent time</h1>",
        _facts({"Events": str(report.events), "Files": str(report.files), **_lost(report.lost)}),
        _table("Problems of the events", ("Problem", "Count", "Meaning", "Example"),
               [[one.kind, str(one.count), one.meaning, one.example] for one in report.problems]),
        _table("Advice", ("Change", "Stage", "Saving", "Share", "Starts", "Basis"),
               [[one.action, one.stage, f"{'at most ' if one.at_most else ''}{seconds(one.saving_s)}",
                 f"{one.saving_share:.0%}", str(one.starts), one.basis] for one in report.advice]),
        _pair(svg.comparison(report.comparison), "h2") if report.comparison else "",
        _pair(svg.growth(report.growth), "h2") if report.growth else "",
        _table("Nodes and hosts that were slow in several starts",
               ("Name", "Kind", "Slow in", "Starts", "Time", "Causes"),
               [[one.name, one.kind, str(one.starts), str(one.seen), seconds(one.seconds),
                 ", ".join(f"{cause} {count}" for cause, count in one.causes.items())] for one in report.offenders]),
        _table("Modules imported and not used before the first step", ("Module", "Time", "Units"),
               [[one.module, seconds(one.seconds), str(one.units)] for one in report.unused]),
        _table("Starts", ("Job", "Run", "Attempt", "Began", "Nodes", "Total", "Ended by", "Complete"),
               [[one.job, one.run, str(one.attempt),
                 f"{datetime.fromtimestamp(one.begin_unix, UTC):%Y-%m-%d %H:%M:%S} UTC", str(one.nodes),
                 seconds(one.total_s), one.ended_by, "yes" if one.complete else "no"] for one in report.starts]),
        *(_start(start, opened=number == 0) for number, start in enumerate(slowest)),
    ]  # fmt: skip
    if len(slowest) < len(report.starts):
        parts.append(f"<p>The {len(slowest)} slowest of {len(report.starts)} starts have charts.</p>")
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
        '<meta name="viewport" content="width=device-width,initial-scale=1">'
        '<meta name="referrer" content="no-referrer">'
        f"<title>Starts of jobs</title><style>{_STYLE}</style></head>"
        f"<body><main>{''.join(parts)}</main></body></html>\n"
    )


def _start(start: Start, *, opened: bool) -> str:
    """A start: its figures, its charts, its stragglers."""
    title = " ".join(filter(None, (start.job or "job", start.run, f"attempt {start.attempt}", start.side)))
    facts = {
        "Total": seconds(start.total_s), "Without the queue": seconds(start.held_s), "Ended by": start.ended_by,
        "Nodes": str(start.nodes), "Ranks": str(start.ranks), "Median unit": seconds(start.unit_end_p50_s),
        "99% of units": seconds(start.unit_end_p99_s), "Last": start.last_unit,
        "Clock skew": f"{seconds(start.skew_max_s)} ({start.skew_method})", **_lost(start.lost),
    }  # fmt: skip
    charts = [svg.timeline(start), svg.breakdown(start), svg.spread(start)]
    charts += [svg.critical_path(start)] if start.critical_path else []
    late = [[one.node, one.stage or "clock", seconds(one.seconds), seconds(one.median_s),
             "; ".join(f"{cause.cause}: {cause.text}" for cause in one.causes) or "not known"]
            for one in start.stragglers]  # fmt: skip
    return (
        f"<details{' open' if opened else ''}>"
        f"<summary>Start of {escape(title)}: {escape(seconds(start.total_s))}</summary>"
        + _facts(facts)
        + "".join(map(_pair, charts))
        + _table("Stragglers", ("Node", "Stage", "Time", "Median", "Likely causes"), late)
        + _table("Causes over all nodes", ("Cause", "Time", "Why"),
                 [[one.cause, seconds(one.seconds), one.text] for one in start.causes])
        + _table("Spans without an end", ("Unit", "Stage", "Name", "Begin", "At least"),
                 [[unit_name(one.node, one.rank), one.stage, one.name, seconds(one.begin_s), seconds(one.at_least_s)]
                  for one in start.unfinished])
        + "</details>"
    )  # fmt: skip


def _pair(chart: Chart, heading: str = "h3") -> str:
    """A chart with the table of its figures."""
    table = _rows(chart.title, chart.about, chart.heads, chart.rows)
    figure = f'<figure class="chart"><{heading}>{escape(chart.title)}</{heading}>{chart.svg()}</figure>'
    return f'<section class="pair">{figure}{table}</section>'


def _table(title: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table under a title; nothing without rows."""
    return f"<section><h2>{escape(title)}</h2>{_rows(title, '', heads, rows)}</section>" if rows else ""


def _rows(label: str, about: str, heads: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    caption = about + (f" The first {_ROWS} of {len(rows)} rows." if len(rows) > _ROWS else "")
    head = "".join(f'<th scope="col">{escape(text)}</th>' for text in heads)
    body = "".join(
        f'<tr><th scope="row">{escape(row[0])}</th>{"".join(f"<td>{escape(text)}</td>" for text in row[1:])}</tr>'
        for row in rows[:_ROWS]
    )
    return (
        f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(label)}, table"><table>'
        + (f"<caption>{escape(caption)}</caption>" if caption else "")
        + f"<thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>"
    )


def _facts(facts: dict[str, str]) -> str:
    return (
        "<dl>"
        + "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(fact)}</dd></div>" for name, fact in facts.items())
        + "</dl>"
    )


def _lost(lost: Lost | None) -> dict[str, str]:
    if lost is None:
        return {}
    facts = {"GPU-hours lost": f"{lost.gpu_hours:.1f} ({lost.gpus:g} GPUs, {lost.assumed})"}
    if lost.cost is not None:
        facts["Cost"] = f"{lost.cost:.0f}"
    if lost.share_lost is not None:
        facts["Share of GPU time lost"] = f"{lost.share_lost:.1%}"
    return facts
