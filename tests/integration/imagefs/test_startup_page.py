"""The page and the charts of a report, seen by a real browser."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from imagefs.startup import svg
from imagefs.startup.html import to_html
from imagefs.startup.report import (
    Advice,
    Cause,
    Comparison,
    Growth,
    Interval,
    Lost,
    Offender,
    Overlap,
    Problem,
    Report,
    SizeGroup,
    SpanRow,
    Stage,
    Start,
    Step,
    Straggler,
    UnusedModule,
)
from stripefs.startup_events import STAGES
from tests.tools.chromium import Page, chromium

HOSTILE = "</title></style><script>pwned=1</script><img src=x onerror=pwned=1>\"'&]]>\0\x1b\u202e\ud800&lt;"


def report(name: str) -> Report:
    """A report on starts of a thousand nodes with names that would break a page that does not escape them."""
    stages = [
        Stage(stage, 8000, 10.0 + i, 9.0 + i, 6.0 + i, 3.0, 2.0, 8.0 + i, 12.0 + i, 15.0 + i, 1.9, f"n{i} {name}",
              [5.0 + i + 0.5 * k for k in range(21)])
        for i, stage in enumerate(STAGES[:8])
    ]  # fmt: skip
    lanes = [
        SpanRow(f"gpu-{unit:03} {name}", unit, one.stage, f"{name}{unit}", "wait" if i % 3 == 0 else "work", 3.0 * i,
                None if unit == 2 else 3.0 * i + 5, "job", "datanode", name, 4.0 if unit == 2 else None)
        for unit in range(30) for i, one in enumerate(stages)
    ]  # fmt: skip
    path = [
        Step(
            f"gpu-00{i} {name}", i, "" if i == 3 else one.stage, name, "work", 4.0 * i, 4.0 * i + 4, 4.0, 1.0, {}, name
        )
        for i, one in enumerate(stages)
    ]
    lost = Lost(8000.0, "8 a node", 123.4, {"image": 50.0}, 1000.0, 86400.0, 0.035, 0.96)
    cause = Cause("datanode", 12.0, f"slow {name}", {"host": name})
    straggler = Straggler(f"late {name}", "image", 30.0, 10.0, 20.0, 15.0, False, [cause])
    slow = Start(
        f"llm {name}", name, 0, "", 1772438400.0, 1000, 8000, 8000, 99_999, 61.25, 50.0, "ready", True, 40.0, 60.0,
        f"gpu-7 {name}", stages, Overlap(100.0, 50.0, 3.0, 60.0), path, [], "barrier", 0.01, 0.002, [straggler],
        [cause], [lanes[16]], lanes, lost,
    )  # fmt: skip
    empty = slow._replace(
        run="2",
        total_s=0.0,
        stages=[],
        critical_path=[],
        stragglers=[],
        causes=[],
        unfinished=[],
        lanes=[],
        lost=None,
    )
    growth = Growth([SizeGroup(1, 3, 20.0, 25.0), SizeGroup(8, 3, 30.0, 41.0), SizeGroup(1000, 3, 61.0, 80.0)], "power",
                    20.0, Interval(0.16, 0.1, 0.2))  # fmt: skip
    comparison = [
        Comparison("", 60.0, 30.0, Interval(0.5, 0.4, 0.6), 5, 5, "starts"),
        Comparison("image", 30.0, 5.0, None, 5, 5, ""),
        Comparison(name, 3.0, 2.0, Interval(0.66), 5, 5, "units"),
    ]
    return Report(
        99_999, 100_000, 12, {"1": 99_999}, [Problem("garbage", 3, "no JSON", name)], [empty, slow],
        [Offender("node", name, 5, 4, 100.0, {"disk": 3})], lost, growth, comparison, [UnusedModule(name, 2.0, 8)],
        [Advice(f"turn on {name}", "image", 20.0, 0.3, True, 2, 10.0, f"basis {name}")],
    )  # fmt: skip


REPORT = report(HOSTILE)
SLOWEST = REPORT.starts[1]


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Page]:
    with chromium(tmp_path_factory.mktemp("browser") / "profile") as page:
        yield page


@pytest.fixture(scope="module")
def file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("page") / "report.html"
    path.write_text(to_html(REPORT))
    assert [one.name for one in path.parent.iterdir()] == ["report.html"]
    return path


@pytest.fixture
def page(browser: Page, file: Path) -> Iterator[Page]:
    """The page in a window of 1280 pixels. No request but the one for the page, no error, no dialog come of it."""
    browser.call("Emulation.setDeviceMetricsOverride", width=1280, height=900, deviceScaleFactor=1, mobile=False)
    browser.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "light"}])
    browser.open(file)
    yield browser
    assert [one["request"]["url"] for one in browser.events("Network.requestWillBeSent")] == [file.as_uri()]
    assert not browser.events("Log.entryAdded", "Runtime.consoleAPICalled", "Runtime.exceptionThrown")
    assert not browser.events("Page.javascriptDialogOpening")


def test_names_of_users_are_text_and_nothing_else(page: Page) -> None:
    assert page.run("typeof pwned") == "undefined"
    assert page.run("document.querySelectorAll('script,img,iframe,object,link,a,form,input,[style]').length") == 0
    assert page.run("[...document.querySelectorAll('*')].flatMap(e => [...e.attributes]).filter(a => "
                    "/^on|href|src/i.test(a.name)).length") == 0  # fmt: skip
    shown = page.run("document.body.innerText")
    assert "<script>pwned=1</script>" in shown
    assert "&lt;" in shown  # as it is in the name
    assert not {"\0", "\x1b", "\u202e"} & set(shown)


def test_the_policy_of_the_page_forbids_what_could_be_added_to_it(browser: Page, file: Path) -> None:
    browser.open(file)
    asked = len(browser.events("Network.requestWillBeSent"))
    blocked = browser.run(
        """new Promise(done => {
            const found = [];
            document.addEventListener('securitypolicyviolation', e => {
                found.push(e.effectiveDirective); if (found.length == 3) done(found.sort());
            });
            for (const [tag, text] of [['script', 'pwned=1'], ['style', 'body{color:red}']]) {
                const element = document.createElement(tag); element.textContent = text; document.body.append(element);
            }
            document.body.append(Object.assign(new Image(), {src: 'http://127.0.0.1:9/x'}));
        })"""
    )
    assert blocked == ["img-src", "script-src-elem", "style-src-elem"]
    assert browser.events("Log.entryAdded")
    assert browser.run("typeof pwned") == "undefined"
    assert len(browser.events("Network.responseReceived")) == asked == 1


def bars(page: Page, title: str) -> list[dict[str, Any]]:
    """Class, place and width of the bars of a chart of the start that is shown, as shares of its width."""
    found: list[dict[str, Any]] = page.run(
        f"""(() => {{
            const figure = [...document.querySelectorAll('figure')].find(
                f => f.checkVisibility() && f.querySelector('h2,h3').textContent == {title!r});
            const all = figure.querySelector('svg').getBoundingClientRect();
            return [...figure.querySelectorAll('rect.b')].filter(r => r.querySelector('title')).map(r => {{
                const box = r.getBoundingClientRect();
                return {{kind: r.getAttribute('class'), from: (box.x - all.x) / all.width, wide: box.width / all.width,
                         top: box.y, color: getComputedStyle(r).fill, told: r.querySelector('title').textContent}};
            }});
        }})()"""
    )
    return found


def test_charts_show_the_figures_of_the_report(page: Page) -> None:
    longest = max(stage.union_s for stage in SLOWEST.stages)
    drawn = bars(page, "Breakdown by stage")
    for stage, work, wait in zip(SLOWEST.stages, drawn[::2], drawn[1::2], strict=True):
        assert work["wide"] == pytest.approx(stage.work_s / longest, abs=0.01)
        assert wait["wide"] == pytest.approx(stage.wait_s / longest, abs=0.01)
        assert wait["from"] == pytest.approx(work["wide"], abs=0.01)
        assert (work["kind"], wait["kind"]) == (f"b s-{stage.stage}", f"b s-{stage.stage} wait")
    assert len({one["color"] for one in drawn}) == len(SLOWEST.stages)

    spread = bars(page, "Spread over nodes")
    high = max(stage.max_s for stage in SLOWEST.stages)
    for stage, box in zip(SLOWEST.stages, spread, strict=True):
        first, third = stage.quantiles_s[5], stage.quantiles_s[15]
        assert (box["from"], box["wide"]) == pytest.approx((first / high, (third - first) / high), abs=0.01)

    steps = bars(page, "Critical path")
    begins = [one.begin_s / SLOWEST.total_s for one in SLOWEST.critical_path]
    assert [one["from"] for one in steps] == pytest.approx(begins, abs=0.01)
    assert [one["kind"] == "b gap" for one in steps] == [not one.stage for one in SLOWEST.critical_path]

    before, after = bars(page, "Before and after")[:2]
    assert after["wide"] / before["wide"] == pytest.approx(0.5, abs=0.01)

    timeline = bars(page, "Timeline")
    for one, span in zip(timeline, SLOWEST.lanes, strict=True):
        assert one["from"] == pytest.approx(span.begin_s / SLOWEST.total_s, abs=0.01)
        assert ("open" in one["kind"]) == (span.end_s is None)
        assert span.stage in one["told"]
    overlapping = [(a, b) for a in timeline for b in timeline if a is not b and a["top"] == b["top"]
                   and a["from"] < b["from"] < a["from"] + a["wide"] - 0.001]  # fmt: skip
    assert not overlapping


def test_every_chart_has_a_table_of_its_figures(page: Page) -> None:
    cells = page.run(
        "Object.fromEntries([...document.querySelectorAll('.pair')].filter(p => p.checkVisibility()).map(p => "
        "[p.querySelector('h2,h3').textContent, "
        "[...p.querySelectorAll('tr')].map(r => [...r.cells].map(c => c.innerText))]))"
    )
    made = [svg.comparison(REPORT.comparison), svg.timeline(SLOWEST), svg.breakdown(SLOWEST), svg.spread(SLOWEST),
            svg.critical_path(SLOWEST)]  # fmt: skip
    for chart in made:
        heads, *rows = cells[chart.title]
        assert heads == list(chart.heads)
        assert len(rows) == len(chart.rows) > 0
    assert cells["Growth with job size"][1:] == [["1", "3", "20.0 s", "25.0 s"], ["8", "3", "30.0 s", "41.0 s"],
                                                 ["1000", "3", "61.0 s", "80.0 s"]]  # fmt: skip


def test_screen_readers_find_charts_tables_and_headings(page: Page) -> None:
    nodes = [node for node in page.call("Accessibility.getFullAXTree")["nodes"] if not node["ignored"]]
    by_role: dict[str, list[str]] = {}
    for node in nodes:
        by_role.setdefault(node["role"]["value"], []).append(node.get("name", {}).get("value", ""))
    images = by_role["image"]
    assert len(images) == 6
    assert all(len(name) > 20 for name in images)
    assert all(by_role["region"])
    assert by_role["columnheader"]
    assert by_role["rowheader"]
    assert by_role["main"]
    assert sum("Start of" in name for name in by_role["DisclosureTriangle"]) == 2


def test_the_page_is_used_by_keyboard_alone(page: Page) -> None:
    page.run("document.body.focus()")
    reached = []
    for _ in range(100):
        page.press("Tab")
        place = page.run("document.activeElement.tagName + document.activeElement.className")
        if place == "BODY":
            break
        reached.append(place)
        assert page.run("getComputedStyle(document.activeElement).outlineWidth") == "3px"
        if place == "SUMMARY":
            before = page.run("document.activeElement.parentNode.open")
            page.press("Enter")
            assert page.run("document.activeElement.parentNode.open") is not before
            page.press("Enter")
    assert reached.count("SUMMARY") == 2
    regions = page.run("[...document.querySelectorAll('.scroll')].filter(e => e.checkVisibility()).length")
    assert reached.count("DIVscroll") == regions


@pytest.mark.parametrize("width", [360, 768, 1920])
def test_it_fits_every_screen(page: Page, width: int) -> None:
    page.call("Emulation.setDeviceMetricsOverride", width=width, height=800, deviceScaleFactor=2, mobile=width < 500)
    assert page.run("document.documentElement.scrollWidth") <= width
    small = page.run(
        "Math.min(...[...document.querySelectorAll('svg text')].filter(t => t.getClientRects().length).map("
        "t => parseFloat(getComputedStyle(t).fontSize) * t.ownerSVGElement.getBoundingClientRect().width / 400))"
    )
    assert small >= 9.5
    outside = page.run(
        "[...document.querySelectorAll('svg')].filter(s => s.getClientRects().length).flatMap(s => { const all = "
        "s.getBoundingClientRect(); return [...s.querySelectorAll('text,rect,circle')].filter(e => { const b = "
        "e.getBoundingClientRect(); "
        "return b.right > all.right + 2 || b.left < all.left - 2 || b.bottom > all.bottom + 2; "
        "}).map(e => e.textContent) })"
    )
    assert outside == []


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_texts_have_contrast(page: Page, scheme: str) -> None:
    """At least 4.5 to 1, as WCAG's level AA asks."""
    page.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": scheme}])
    colors = page.run(
        "[...new Set([...document.querySelectorAll('h1,h2,h3,td,th,dt,dd,caption,summary,svg text')].map(e => "
        "e.closest('svg') ? getComputedStyle(e).fill : getComputedStyle(e).color))]"
    )
    (back,) = page.run("[getComputedStyle(document.body).backgroundColor]")

    def luminance(color: str) -> float:
        parts = [int(part) / 255 for part in color[color.index("(") + 1 : -1].split(",")[:3]]
        linear = [part / 12.92 if part <= 0.03928 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
        return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]

    assert (luminance(back) < 0.1) == (scheme == "dark")
    for color in colors:
        low, high = sorted((luminance(color), luminance(back)))
        assert (high + 0.05) / (low + 0.05) >= 4.5, color


def test_a_chart_is_a_file_of_its_own(browser: Page, tmp_path: Path) -> None:
    for chart in (svg.timeline(SLOWEST), svg.breakdown(SLOWEST), svg.growth(REPORT.growth)):  # type: ignore[arg-type]
        path = tmp_path / "chart.svg"
        path.write_text(svg.standalone(chart), encoding="utf-8")
        ElementTree.parse(path)  # well-formed
        browser.open(path)
        assert browser.run("document.documentElement.tagName") == "svg"
        assert browser.run("getComputedStyle(document.querySelector('text')).fontSize") in ("13px", "12px")
        assert len(browser.events("Network.requestWillBeSent")) == 1
        assert not browser.events("Log.entryAdded", "Runtime.exceptionThrown")
