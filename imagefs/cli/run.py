"""Commands that use images on this host: `run`, `mount`, `umount`, `ready`, `status`, `podman`, `compare`.

`run` is here for lines that `imagefs.cli.fastpath` leaves to click.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from typing import Any, Literal

import click
from click.core import ParameterSource

from imagefs.cli.common import daemon_flags, image_and_settings, json_flag, plain_flags, print_json, settings_for
from imagefs.cli.fastpath import begin_run
from imagefs.cli.flags import CONFIG, DEPS, JOB, RECORDING, RUN, SECTIONS, TREE, WITHOUT, recording
from imagefs.cli.job import FLAGS, read_job
from imagefs.config import IMAGEFS, resolve
from imagefs.errors import RunError
from imagefs.reference import parse_reference
from stripefs.cli import commands as cli_commands
from stripefs.cli.commands import SettingsCommand, given, settings_flags
from stripefs.cli.output import columns, table, tell
from stripefs.startup_events import STAGES
from stripefs.units import format_size

__all__ = [
    "compare_command",
    "describe_start",
    "describe_status",
    "mount_command",
    "podman_command",
    "ready_command",
    "run_command",
    "status_command",
    "umount_command",
]

json_object = cli_commands.json_flag("Print a JSON object.")


def describe_start(figures: Mapping[str, Any]) -> str:
    """The figures of a start's replay, for people."""
    start = figures.get("start") or {}
    if not start:
        return "the start is not over"
    rows = [("start", f"{start['seconds']:g} s, ended by {start['ended_by']}")]
    if "precision" in start:
        rows.append(("fetched ahead", f"precision {start['precision']:.2f}, recall {start['recall']:.2f}"))
    rows.append(("readers waited", f"{start['waited_ms']:.0f} ms for the store"))
    return table(rows)


def describe_status(status: Mapping[str, Any]) -> str:
    """The daemon and its images."""
    blocks = status["blocks"]
    rows = [
        ("daemon", f"pid {status['supervisor_pid']}, worker {status['worker_pid']}, {status['restarts']} restarts"),
        ("cache", f"{format_size(blocks['used'])} of {format_size(blocks['limit'])} in {status['cache']}"),
    ]
    served = blocks.get("served", {})  # an older daemon tells none
    sources = {"the cache": sum(served.get(where, 0) for where in ("memory", "disk", "peer"))}
    sources |= blocks.get("upstreams", {})
    rows += [(f"from {where}", format_size(size)) for where, size in sources.items() if size]
    rows += [(f"not from {one['url']}", one["reason"]) for one in blocks.get("mirrors", ()) if one["reason"]]
    parts = [table(rows)]
    for image in status["images"]:
        present = sum(device.get("present", 0) for device in image["devices"])
        total = sum(device.get("blocks", 0) for device in image["devices"])
        share = f"{present} of {total} blocks" if present < total else f"all {total} blocks"
        shown = [
            ("image", image["name"]),
            ("digest", image["image"][:12]),
            ("mounted at", image["mountpoint"] or f"process {image['owner']}"),
            ("used by", _users(image)),
            ("plane", image["plane"]),
            ("local", share),
            ("recording", "yes" if image.get("recording") else image["unrecorded"] or "over"),
        ]
        parts.append(table(shown) + ("\n" + describe_start(image) if image.get("start") else ""))
    return "\n\n".join(parts)


def _users(image: Mapping[str, Any]) -> str:
    """Of a dependency snapshot or what leases hold: whose mount it is, or that it stays without anybody."""
    processes = ", ".join(str(process) for process, _ in image["users"])
    told = [f"process {processes}"] if processes else []
    for one in image.get("holders", ()):  # an older daemon tells none
        if one["kind"] == "lease":
            label = f" ({one['label']})" if one["label"] else ""
            told.append(f"lease {one['name']} of {one['client']}{label}")
    return " and ".join([*told, *(["whoever comes, until it is unmounted"] if image["kept"] else [])])


@click.command("run", cls=SettingsCommand)
@click.argument("words", nargs=-1, type=click.UNPROCESSED, metavar="STORE#TAG|FILE.toml [-- COMMAND…]")
@plain_flags((*RUN, *DEPS, *JOB))
@settings_flags(*SECTIONS, without=[WITHOUT], options=IMAGEFS)
@click.pass_context
def run_command(ctx: click.Context, /, words: tuple[str, ...], **values: Any) -> int:
    """Run a container from an image, by runc or crun, and end with the status of its command.

    COMMAND takes the place of the image's own. A job that says when it has started
    creates the file $IMAGEFS_READY; else the start is over when the command ends, or after --record-seconds.
    With --deps, pip of the image first installs the requirements, once; later starts, here and on other hosts,
    have the packages above the image. With --checkpoint, files of a store are fetched while the image starts.
    A job file holds the same flags, the image and the command (docs/jobs.md).
    """
    said = frozenset(name for name in values if ctx.get_parameter_source(name) is ParameterSource.COMMANDLINE)
    return begin_run(words, values, given(ctx), said)


@click.command("mount", cls=SettingsCommand)
@click.argument("image", metavar="STORE#TAG")
@click.argument("mountpoint", type=click.Path())
@click.option(
    "--plane",
    type=click.Choice(["auto", "erofs", "tree"]),
    default="auto",
    help="Server of the tree: the kernel's EROFS (auto for root), or a process, which needs no root.",
)
@plain_flags([CONFIG, *RECORDING, *TREE])
@settings_flags("store", "daemon", options=IMAGEFS)
@click.pass_context
def mount_command(
    ctx: click.Context,
    image: str,
    mountpoint: str,
    plane: Literal["auto", "erofs", "tree"],
    rw: bool,
    backing: Literal["auto", "file", "loop"],
    workload: str,
    ready_file: str,
    no_record: bool,
    config: str,
) -> None:
    """Show the tree of an image below the empty directory MOUNTPOINT.

    STORE#TAG or STORE#DIGEST names the image. Comes back when the tree is there; its bytes come when they are touched.
    The daemon behind it is started when none runs. `imagefs umount` takes the mount away.
    """
    from imagefs import mounts
    from imagefs.daemon.client import Client
    from imagefs.settings import TreeOptions

    name, settings = image_and_settings(ctx, image, config)
    record = recording(workload, ready_file, no_record)
    options = TreeOptions(rw=rw, plane=plane, backing=backing)
    mounts.mount(Client(settings.daemon, settings.asked), settings.store, name, mountpoint, options, record)


@click.command("umount", cls=SettingsCommand)
@click.argument("mountpoint", type=click.Path())
@click.option("-l", "--lazy", is_flag=True, help="Hide the mount now; it ends when the last file is closed.")
@daemon_flags
@click.pass_context
def umount_command(ctx: click.Context, mountpoint: str, lazy: bool) -> None:
    """Unmount the image at MOUNTPOINT; with --rw its written files are removed.

    Also clears a mount whose daemon has died.
    """
    from imagefs import mounts
    from imagefs.daemon.client import Client

    mounts.umount(Client(settings_for(ctx).daemon), mountpoint, lazy=lazy)


@click.command("ready", cls=SettingsCommand)
@click.argument("mount", metavar="MOUNTPOINT|ID")
@json_object
@daemon_flags
@click.pass_context
def ready_command(ctx: click.Context, mount: str, as_json: bool) -> None:
    """Say that the job in the image mounted at MOUNTPOINT (or attached as ID) has started.

    The blocks that it touched until now become a trace for the next starts, and prefetched ones are judged.
    """
    from imagefs.daemon.client import Client
    from imagefs.startup.emission import events

    which = os.path.realpath(mount) if os.sep in mount or os.path.isdir(mount) else mount
    figures = Client(settings_for(ctx).daemon).ready(which)
    events().instant("ready")
    click.echo(json.dumps(figures, indent=2) if as_json else describe_start(figures))


@click.command("status", cls=SettingsCommand)
@json_object
@daemon_flags
@click.pass_context
def status_command(ctx: click.Context, as_json: bool) -> None:
    """Show the images of this host: where they are mounted, how much of them is here, how their starts went."""
    from imagefs.daemon.client import Client

    status = Client(settings_for(ctx).daemon).status()
    click.echo(json.dumps(status, indent=2) if as_json else describe_status(status))


_root = click.option(
    "--root",
    default="/var/lib/bootseer/podman",
    show_default=True,
    metavar="DIR",
    help="The image store that storage.conf names in additionalimagestores.",
)
_WORKLOAD = tuple(flag for flag in RECORDING if flag.name == "workload")


@click.group("podman", context_settings={"help_option_names": ["-h", "--help"]})
def podman_command() -> None:
    """Show images to podman and buildah, which run them and build on them as if they had pulled them.

    For root. storage.conf names the directory of these images: additionalimagestores = ["/var/lib/bootseer/podman"].
    """


@podman_command.command("add", cls=SettingsCommand)
@click.argument("image", metavar="STORE#TAG")
@click.argument("name")
@_root
@plain_flags([CONFIG, *_WORKLOAD])
@settings_flags("store", "daemon", options=IMAGEFS)
@click.pass_context
def podman_add(ctx: click.Context, image: str, name: str, root: str, workload: str, config: str) -> None:
    """Let podman and buildah have the image as NAME.

    Comes back when containers can be started; their bytes come when they are touched. To be done again after a restart
    of the machine, or after ten minutes without a daemon.
    """
    from imagefs.daemon.client import Client
    from imagefs.podman import ImageStore

    tag, settings = image_and_settings(ctx, image, config)
    client = Client(settings.daemon, settings.asked)
    click.echo(ImageStore(client, root).add(settings.store, tag, name, workload=workload))


@podman_command.command("rm", cls=SettingsCommand)
@click.argument("name")
@_root
@daemon_flags
@click.pass_context
def podman_remove(ctx: click.Context, name: str, root: str) -> None:
    """Take NAME away. Containers of the image have to be gone."""
    from imagefs.daemon.client import Client
    from imagefs.podman import ImageStore

    ImageStore(Client(settings_for(ctx).daemon), root).remove(name)


@click.command("compare")
@click.argument("job", metavar="JOB.toml")
@click.option("--rounds", type=click.IntRange(1, 1000), default=3, show_default=True, help="Starts in each way.")
@json_flag
def compare_command(job: str, rounds: int, as_json: bool) -> None:
    """Start a job cold without and with each technique, and print the time of each stage: median, least and most.

    Each start has caches and a daemon of its own in a temporary folder. The kernel's page cache is dropped before, the
    one of the whole machine. Needs root, and the disk that the image and the checkpoint take.
    """
    from imagefs.jobs.compare import compare, drop_page_cache, variants

    if os.geteuid() != 0:
        raise RunError("a comparison needs root: whole images are copied with the owners of their files", hint="sudo")
    file = read_job(job)
    with file.locating_errors(()):
        ways = variants(file, FLAGS, DEPS)
        store = resolve(
            file.given, url=parse_reference(file.words[0]).store, config=file.values.get("config", "")
        ).store
    cold = drop_page_cache()
    if not cold:
        tell("the page cache is not dropped, which takes a host's root: starts are not quite cold", program="imagefs")
    figures = compare(file, ways, rounds, store, lambda line: tell(line, program="imagefs"))
    if as_json:
        print_json({"rounds": rounds, "page_cache_dropped": cold, "ways": [one.as_dict() for one in figures]})
        return
    stages = [stage for stage in STAGES if any(any(one.of(stage)) for one in figures)]
    base = figures[0].as_dict()["median"]
    rows = []
    for one in figures:
        found = one.as_dict()
        cells = [_cell(found), f"{found['median'] / base:.2f}" if base else ""]
        rows.append([found["name"], *cells, *(_cell(found["stages"].get(stage)) for stage in stages)])
    click.echo(columns(["techniques", "seconds", "of none", *stages], rows))


def _cell(found: dict[str, float] | None) -> str:
    return f"{found['median']:.2f} ({found['least']:.2f}-{found['most']:.2f})" if found else "-"
