"""Commands on the images of a store: `ls`, `inspect`, `verify`, `rm`, `gc`; and those that copy an image with its
traces: `push` into a container registry, `pull` from one."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from imagefs.cli.common import flags, images_of, json_flag, opened, print_json, progress_bar, quiet_flag, settings_for
from imagefs.errors import DamagedObject
from imagefs.format import is_digest
from imagefs.reference import Reference, parse_reference, parse_store
from imagefs.repository.store import is_registry
from stripefs.cli.commands import SettingsCommand
from stripefs.cli.output import columns, ended_by_sigterm, table, tell
from stripefs.errors import ConfigError
from stripefs.settings import redact
from stripefs.units import format_size, parse_duration

if TYPE_CHECKING:
    from imagefs.housekeeping.verify import VerifyResult

__all__ = [
    "gc_command",
    "inspect_command",
    "ls_command",
    "pull_command",
    "push_command",
    "report_damage",
    "rm_command",
    "verify_command",
]

_SHORT = 12  # digits of a digest, which are enough to name an image


@click.command("ls", cls=SettingsCommand)
@click.argument("store")
@json_flag
@flags("store")
@click.pass_context
def ls_command(ctx: click.Context, store: str, as_json: bool, config: str) -> None:
    """List the images in STORE: those with a tag by name, then the others, the newest first.

    SIZE is that of the devices and the metadata, before compression and with padding.
    """
    from imagefs.housekeeping.listing import ImageRow, list_images

    with images_of(ctx, config, parse_store(store)) as images:
        rows = list_images(images)
    if as_json:
        print_json([asdict(row) for row in rows])
        return

    def cells(tag: str, row: ImageRow) -> list[str]:
        stored = time.strftime("%Y-%m-%d %H:%M", time.localtime(row.stored_at))
        if row.error:
            return [tag, row.digest[:_SHORT], stored, "", "", row.error]
        return [tag, row.digest[:_SHORT], stored, format_size(row.size), row.platform, _origin(row.source, row.base)]

    if rows:
        table = columns(
            ["TAG", "IMAGE", "STORED", "SIZE", "PLATFORM", "FROM"],
            [cells(tag, row) for row in rows for tag in row.tags or ("-",)],
        )
        sys.stdout.write(table + "\n")


def _origin(source: str, base: str) -> str:
    """The origin of an image, short."""
    if base:
        return f"{base[:_SHORT]} (optimized)"
    return source[: len("sha256:") + _SHORT] or "a directory"


@click.command("inspect", cls=SettingsCommand)
@click.argument("image", metavar="STORE#TAG")
@click.option("--sharing/--no-sharing", default=True, help="Compare with all other images of the store.  [on]")
@json_flag
@flags("store")
@click.pass_context
def inspect_command(ctx: click.Context, image: str, sharing: bool, as_json: bool, config: str) -> None:
    """Show documents, devices, blocks, packs and config of an image, and blocks that it shares with others."""
    from imagefs.housekeeping import listing

    reference = parse_reference(image)
    with images_of(ctx, config, reference.store) as images:
        digest = images.resolve(reference.name)
        facts = listing.describe(images, digest)
        if sharing and images.repository.capabilities.list:
            facts["sharing"] = listing.sharing(images, digest)
    if as_json:
        print_json(facts)
    else:
        sys.stdout.write(_inspected(facts))


def _inspected(facts: dict[str, Any]) -> str:
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


@click.command("verify", cls=SettingsCommand)
@click.argument("image", metavar="STORE[#TAG]")
@click.option("--remove", is_flag=True, help="Remove damaged objects, so that the next build stores them again.")
@json_flag
@quiet_flag
@flags("store")
@click.pass_context
def verify_command(ctx: click.Context, image: str, remove: bool, as_json: bool, quiet: bool, config: str) -> int:
    """Read all objects of an image, or of a store, and check them against their digests.

    Each damage is printed on a line: its place, its kind, and the images that need it. The exit code is then 5.
    """
    from imagefs.housekeeping.verify import remove_damaged, verify

    reference = parse_reference(image, name=None)
    with images_of(ctx, config, reference.store) as images:
        digest = images.resolve(reference.name) if reference.name else ""
        with progress_bar(quiet=quiet) as progress:
            result = verify(images, digest, progress)
        removed = remove_damaged(images, result.damage) if remove else []
    hint = "" if remove else "--remove takes damaged objects away; building their images again stores them anew"
    return report_damage(result, removed, str(reference), hint, as_json=as_json, quiet=quiet)


def report_damage(
    result: VerifyResult, removed: Sequence[str], subject: str, hint: str, *, as_json: bool = False, quiet: bool = False
) -> int:
    """Print what was found wrong; the exit code. hint: what to do about it, "" where that was done."""
    if as_json:
        print_json({**asdict(result), "removed": removed})
    else:
        for damage in result.damage:
            users = f" (needed by {', '.join(name[:12] for name in damage.images)})" if damage.images else ""
            gone = "; removed" if damage.path in removed else ""
            sys.stdout.write(f"{damage.path}: {damage.what}{users}{gone}\n")
        if not quiet:
            sys.stdout.write(
                f"{result.images} images, {result.objects} objects, {result.blocks} blocks, "
                f"{format_size(result.bytes)} of packs: "
                + (f"{len(result.damage)} things are wrong\n" if result.damage else "all is well\n")
            )
    if not result.damage:
        return 0
    sys.stdout.flush()
    if hint:
        tell(f"{subject} is damaged", hint, program="imagefs")
    return DamagedObject.exit_code


@click.command("rm", cls=SettingsCommand)
@click.argument("image", metavar="STORE#TAG")
@json_flag
@flags("store")
@click.pass_context
def rm_command(ctx: click.Context, image: str, as_json: bool, config: str) -> None:
    """Take a tag away, and the image when it has no other tag; with STORE#DIGEST the image and all its tags.

    The bytes stay until `imagefs gc`. Hosts that have the image mounted go on as long as those are there.
    """
    from imagefs.housekeeping.listing import remove_image

    reference = parse_reference(image)
    with images_of(ctx, config, reference.store) as images:
        tags, digests = remove_image(images, reference.name)
    if as_json:
        print_json({"tags": tags, "images": digests})
        return
    sys.stdout.writelines([f"tag {tag}\n" for tag in tags] + [f"image {digest}\n" for digest in digests])


@click.command("gc", cls=SettingsCommand)
@click.argument("store")
@click.option("-n", "--dry-run", is_flag=True, help="List the objects to be removed, and remove nothing.")
@click.option("--older-than", default="1d", metavar="TIME", help="Spare younger objects.  [1d]")
@click.option("--force", is_flag=True, help="Take a time below a day, or none; wrong while an image is being built.")
@click.option("--untagged", is_flag=True, help="Remove images that no tag names as well.")
@json_flag
@quiet_flag
@flags("store")
@click.pass_context
def gc_command(
    ctx: click.Context,
    store: str,
    dry_run: bool,
    older_than: str,
    force: bool,
    untagged: bool,
    as_json: bool,
    quiet: bool,
    config: str,
) -> None:
    """Remove objects that no image in STORE needs and that are older than a day.

    Builds may go on meanwhile, as long as none takes more than half a day: their objects are younger. --force spares no
    object for its age, unless --older-than is given; let no build run then.

    In a registry, images are removed that were attached to a container image which is gone or has a newer one; the
    registry has to allow that, and frees their bytes by its own garbage collection.
    """
    from imagefs.housekeeping.gc import collect
    from imagefs.repository.images import GRACE

    given = ctx.get_parameter_source("older_than") is not click.core.ParameterSource.DEFAULT
    try:
        age = parse_duration(older_than) if given or not force else 0.0
    except ConfigError as error:
        raise ConfigError(f"--older-than: {error.message}") from error
    if age < GRACE and not force:
        raise ConfigError(
            f"--older-than {older_than} is less than a day, which a build may take",
            hint="give --force when nothing is being built",
        )
    with images_of(ctx, config, parse_store(store)) as images, progress_bar(quiet=quiet) as progress:
        found = collect(images, older_than=age, untagged=untagged, dry_run=dry_run, progress=progress)
    if as_json:
        print_json(asdict(found))
        return
    if dry_run:
        sys.stdout.writelines(f"{path}\n" for path in found.removed)
    if not quiet:
        what = "would go" if dry_run else "removed"
        young = f"; {found.young} ({format_size(found.young_bytes)}) are too young" if found.young else ""
        sys.stdout.write(f"{len(found.removed)} objects ({format_size(found.bytes)}) {what}{young}\n")


def _run_copy(
    ctx: click.Context, config: str, source: Reference, target: Reference, *, as_json: bool, quiet: bool
) -> None:
    """Copy the image `source` to the store of `target`, where its name is the tag, "" for that of the source; print
    what moved. Raises ConfigError, and what `imagefs.build.transfer.copy_image` does."""
    from imagefs.build.transfer import copy_image

    if is_digest(target.name):
        raise ConfigError(
            f"{target.name} is a digest where a tag belongs", hint="an image has its digest wherever it lies"
        )
    here, there = (settings_for(ctx, config, one.store) for one in (source, target))
    began = time.monotonic()
    with (
        ended_by_sigterm(),
        opened(here) as images,
        opened(there, make=True) as others,
        progress_bar(quiet=quiet) as progress,
    ):
        found = copy_image(images, others, source.name, tag=target.name, progress=progress)
    took = time.monotonic() - began
    if as_json:
        print_json({"source": str(source), "store": str(target._replace(name="")), **asdict(found), "seconds": took})
    elif quiet:
        sys.stdout.write(found.digest + "\n")
    else:
        linked = f", {found.linked} linked" if found.linked else ""
        moved = f"{found.objects} objects ({format_size(found.bytes)}) sent{linked}, {found.present} there already"
        rows = [
            ("image", str(target._replace(name=found.tag or found.digest))),
            ("digest", found.digest),
            ("copied", moved),
            ("traces", f"{found.traces} traces, {found.plans} plans"),
            ("time", f"{took:.1f} s"),
        ]
        sys.stdout.write(table(rows) + "\n")


@click.command("push", cls=SettingsCommand)
@click.argument("image", metavar="STORE#TAG")
@click.argument("target", metavar="oci://HOST/NAME[:TAG]")
@json_flag
@quiet_flag
@flags("store")
@click.pass_context
def push_command(ctx: click.Context, image: str, target: str, as_json: bool, quiet: bool, config: str) -> None:
    """Copy an image with its traces and plans into a repository of a container registry.

    Blobs that the repository has are not sent again, and those of another repository of the same registry are linked
    where the registry does that. Without a TAG the image keeps its own. A push that is interrupted publishes nothing,
    and the next one continues from its objects.
    """
    place = parse_reference(target, name=None)
    if not is_registry(place.store):
        raise ConfigError(
            f"{redact(target)!r} names no repository of a registry", hint="write oci://HOST/NAME or oci://HOST/NAME:TAG"
        )
    _run_copy(ctx, config, parse_reference(image), place, as_json=as_json, quiet=quiet)


@click.command("pull", cls=SettingsCommand)
@click.argument("image", metavar="oci://HOST/NAME:TAG")
@click.argument("target", metavar="STORE[#TAG]")
@json_flag
@quiet_flag
@flags("store")
@click.pass_context
def pull_command(ctx: click.Context, image: str, target: str, as_json: bool, quiet: bool, config: str) -> None:
    """Copy a lazy image with its traces and plans from a container registry into STORE, which may be new.

    TAG may also be that of a container image with a lazy image attached. Objects of the store are not fetched again.
    Without #TAG the image keeps its name. An interrupted pull publishes nothing, and the next one continues from its
    objects.
    """
    reference = parse_reference(image)
    if not is_registry(reference.store):
        raise ConfigError(
            f"{redact(image)!r} names no image of a registry",
            hint="write oci://HOST/NAME:TAG; `imagefs push` copies into one",
        )
    _run_copy(ctx, config, reference, parse_reference(target, name=None), as_json=as_json, quiet=quiet)
