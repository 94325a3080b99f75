"""`imagefs inspect STORE#TAG`."""

from __future__ import annotations

import json
import sys
from dataclasses import asdict
from typing import Any

import click

from imagefs.cli.common import flags, images_of, json_flag, print_json
from imagefs.reference import parse_reference
from stripefs.cli.flags import SettingsCommand
from stripefs.cli.output import columns, table
from stripefs.units import format_size

__all__ = ["command"]


@click.command("inspect", cls=SettingsCommand)
@click.argument("image", metavar="STORE#TAG")
@click.option("--sharing/--no-sharing", default=True, help="Compare with all other images of the store.  [on]")
@json_flag
@flags("store")
@click.pass_context
def command(ctx: click.Context, image: str, sharing: bool, as_json: bool, config: str) -> None:
    """Say what an image is made of: documents, devices, blocks, packs, the config, and what it shares with others."""
    from imagefs.housekeeping import listing

    reference = parse_reference(image)
    with images_of(ctx, config, reference.store) as images:
        digest = images.resolve(reference.name)
        facts = listing.describe(images, digest)
        if sharing and images.repository.capabilities.list:
            facts["sharing"] = [asdict(share) for share in listing.sharing(images, digest)]
    if as_json:
        print_json(facts)
    else:
        sys.stdout.write(_text(facts))


def _text(facts: dict[str, Any]) -> str:
    blocks, metadata, packs = facts["blocks"], facts["metadata"], facts["packs"]
    rows = [
        ("store", facts["store"]),
        ("image", facts["digest"]),
        ("built from", facts["source"]),
        ("optimized from", facts["base"]),
        ("metadata", f"{format_size(metadata['size'])} ({metadata['object']})"),
        ("extents", facts["extents"]),
        ("blocks", f"{blocks['total']}: {blocks['stored']} stored, {blocks['zeros']} of zeros"),
        ("stored", f"{format_size(blocks['stored_bytes'])} in {len(packs)} packs"),
    ]
    devices = columns(
        ["DEVICE", "SIZE", "BLOCKS", "STORED", "INDEX"],
        [
            [
                device["tag"],
                format_size(device["size"]),
                str(device["blocks"]["stored"]),
                format_size(device["blocks"]["stored_bytes"]),
                device["index"],
            ]
            for device in facts["devices"]
        ],
    )
    used = columns(
        ["PACK", "SIZE", "USED", "BLOCKS"],
        [
            [pack["digest"], format_size(pack["size"]), format_size(pack["used_bytes"]), str(pack["blocks"])]
            for pack in packs
        ],
    )
    parts = [table(rows), devices, used]
    if "sharing" in facts:
        shares = [
            [share["image"], format_size(share["bytes"]), str(share["blocks"]), " ".join(share["tags"])]
            for share in facts["sharing"]
        ]
        parts.append(columns(["SHARED WITH", "STORED", "BLOCKS", "TAGS"], shares) if shares else "shares no blocks")
    parts.append("config\n" + json.dumps(facts["config"], indent=2, ensure_ascii=False))
    return "\n\n".join(parts) + "\n"
