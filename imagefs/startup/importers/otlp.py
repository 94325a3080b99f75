"""OTLP in JSON lines: traces, as the file exporter of OpenTelemetry and `imagefs startup export --format otlp` write.

A span's stage is its attribute `bootseer.stage`, else the one that --stage gives its name, else the one of that name;
a span without a stage is passed over. Spans of one trace are one run, unless `bootseer.run` says otherwise.
"""

from __future__ import annotations

import re
from typing import Any

from imagefs.startup.exports import RESOURCE, plain_values
from imagefs.startup.importers.events import Imported, json_objects

__all__ = ["read"]

_FALLBACK = {"node": ("k8s.node.name", "host.id"), "job": ("k8s.job.name", "k8s.pod.name")}


def read(text: str, imported: Imported) -> None:
    for line, document in json_objects(text, imported):
        if not isinstance(document.get("resourceSpans"), list):
            imported.reject(line, "no resourceSpans: not the traces of OTLP")
            continue
        for batch in document["resourceSpans"]:
            try:
                known = plain_values((batch.get("resource") or {}).get("attributes"))
                rows = [row for scope in batch.get("scopeSpans") or () for row in scope.get("spans") or ()]
            except (AttributeError, KeyError, TypeError, ValueError):
                imported.reject(line, "a resource is not what OTLP says")
                continue
            for row in rows:
                with imported.row(line, " of a span", "a span is not what OTLP says: "):
                    _span(row, known, imported)


def _span(row: dict[str, Any], process: dict[str, Any], imported: Imported) -> None:
    own = plain_values(row.get("attributes"))
    stage = own.get("bootseer.stage") or imported.stage_of(row["name"])
    if not stage:
        imported.pass_over(f"span {row['name']} without a stage")
        return
    trace, span, parent = row.get("traceId", ""), row["spanId"].lower(), row.get("parentSpanId", "").lower()
    if not re.fullmatch(r"[0-9a-f]{16}", span):
        raise ValueError(f"the spanId {span!r} is not 16 hexadecimal digits")
    begin, end = int(row["startTimeUnixNano"]), int(row["endTimeUnixNano"])
    if not 0 < begin <= end:
        raise ValueError("it ends before it begins, or has no time")
    fields: dict[str, Any] = {name: process.get(key) for name, key in RESOURCE.items() if name != "source"}
    for name, keys in _FALLBACK.items():
        fields[name] = fields[name] or next((process[key] for key in keys if key in process), None)
    if "bootseer.stage" not in own:  # of another program
        fields |= {"run": fields["run"] or trace, "trace": trace}
        status = row.get("status") or {}
        error = status.get("message") or "error" if status.get("code") in (2, "STATUS_CODE_ERROR") else ""
        imported.span(stage, row["name"], begin, end, span=span, parent=parent,
                      facts={"error": error} if error else None, **fields)  # fmt: skip
        return
    fields |= {"kind": own.get("bootseer.kind"), "span": own.get("bootseer.span"), "trace": own.get("bootseer.trace")}
    for event, at in {"begin": begin, "end": end, "instant": begin}.items():
        side = "end" if event == "end" else "begin"
        if event == own.get("bootseer.event", event) and (event != "instant" or "bootseer.event" in own):
            facts = {key.partition(".facts.")[2]: value for key, value in own.items()
                     if key.startswith(f"bootseer.{side}.facts.")}  # fmt: skip
            more = {"parent": own.get("bootseer.parent")} if side == "begin" else {}
            if event == "end" and "bootseer.end.pid" in own:
                more["pid"] = own["bootseer.end.pid"]
            imported.event(event, stage, own.get("bootseer.name", ""), at, facts=facts,
                           mono_ns=own.get(f"bootseer.{side}.mono_ns"), **(fields | more))  # fmt: skip
