"""A report on starts of a thousand nodes with names that would break a page that does not escape them."""

from __future__ import annotations

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

HOSTILE = "</title></style><script>pwned=1</script><img src=x onerror=pwned=1>\"'&]]>\0\x1b\u202e\ud800&lt;"


def report(name: str = HOSTILE) -> Report:
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
