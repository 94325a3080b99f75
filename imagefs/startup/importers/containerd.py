"""containerd: the lines that `ctr events` prints, of one node a file.

A line is a time, a namespace, a topic and a JSON object. No line names the node: it is --node, or else the file's name.
"""

from __future__ import annotations

import json
import re

from imagefs.startup.importers.events import Imported, time_ns

__all__ = ["read"]

_LINE = re.compile(r"(\d{4}-\d\d-\d\d \S+ [+-]\d{4} \S+) (\S+) (/\S+) (\{.*\})")


def read(text: str, imported: Imported) -> None:
    """A layer's unpacking is the span from its `/snapshot/prepare` to `/snapshot/commit`, a container's start that from
    the first event with its id to `/tasks/start`; `/images/create` is an instant."""
    node = imported.file.stem
    prepared: dict[str, tuple[int, int]] = {}
    images: dict[str, str] = {}
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        found = _LINE.fullmatch(line.strip())
        with imported.row(number):
            if not found:
                raise ValueError("not TIME NAMESPACE TOPIC {…}, as `ctr events` prints it")
            at, fields = time_ns(found[1]), json.loads(found[4])
            topic = found[3]
            if topic == "/snapshot/prepare":
                prepared[fields["key"]] = at, number
            elif topic == "/snapshot/commit":
                begun = prepared.pop(fields["key"], None)
                if begun is None:
                    raise ValueError(f"the beginning of snapshot {fields['key']} is not in the file")
                imported.span("image", f"unpack {fields['name']}", begun[0], at, node=node)
            elif topic == "/images/create":
                imported.event("instant", "image", "created", at, node=node, facts={"image": fields["name"]})
            elif topic == "/containers/create":
                images[fields["id"]] = fields.get("image", "")
                prepared.setdefault(fields["id"], (at, number))
            elif topic == "/tasks/start":
                container = fields["container_id"]
                begun = prepared.pop(container, None)
                if begun is None:
                    raise ValueError(f"the creation of container {container} is not in the file")
                imported.span("container", container, begun[0], at, node=node,
                              facts={"image": images.get(container, "")})  # fmt: skip
            else:
                imported.pass_over(topic)
                if topic in ("/snapshot/remove", "/containers/delete"):  # given up, or over
                    prepared.pop(fields.get("key", fields.get("id", "")), None)
    for key, (_, number) in prepared.items():
        imported.reject(number, f"{key} began and has no end in the file")
