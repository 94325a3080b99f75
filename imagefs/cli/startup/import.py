"""`imagefs startup import KIND FILE…`."""

from __future__ import annotations

import hashlib
import json
import sys
from datetime import UTC, tzinfo
from pathlib import Path
from typing import TYPE_CHECKING, Any
from zoneinfo import ZoneInfo

import click

from imagefs.errors import FormatError
from stripefs.errors import ConfigError
from stripefs.osutil import write_output
from stripefs.startup_events import STAGES

if TYPE_CHECKING:
    from imagefs.startup.importers import Imported

__all__ = ["command"]

_KINDS = ("containerd", "csv", "kubernetes", "otlp", "slurm", "systemd")
_SHOWN = 10


@click.command("import")
@click.argument("kind", metavar="KIND", type=click.Choice(_KINDS))
@click.argument("files", metavar="FILE...", nargs=-1, required=True)
@click.option("--out", default="", metavar="DIR", help="Write a file of events there.  [standard output]")
@click.option("--job", default="", help="The job of all events, in place of the one in the data.")
@click.option("--run", default="", help="The run of all events, in place of the one in the data.")
@click.option("--node", default="", help="The node of all events, in place of the one in the data.")
@click.option(
    "--zone", default="", metavar="NAME", help="Zone of times that name none: UTC, Europe/Berlin.  [this host's]"
)
@click.option(
    "--origin", default="", metavar="TIME", help="When the kernel started, for systemd: 2026-01-31T12:00:00Z."
)
@click.option(
    "--stage", "stages", multiple=True, metavar="NAME=STAGE", help="The stage of spans so named; NAME may have *."
)
@click.option(
    "--map", "columns", multiple=True, metavar="COLUMN=FIELD", help="The field that a column of a CSV file holds."
)
@click.option(
    "--set", "constants", multiple=True, metavar="FIELD=VALUE", help="A field that is the same in all rows of CSV."
)
@click.option(
    "--time-format", default="", metavar="FORMAT", help="iso, unix, unix_ms, unix_us, unix_ns, or as strptime.  [iso]"
)
@click.option("--delimiter", default="", metavar="CHARACTER", help="Between the fields of CSV.  [,]")
@click.option(
    "--mapping", default="", metavar="FILE", help="A TOML file with [columns], [constants], [stages] and the others."
)
def command(kind: str, files: tuple[str, ...], out: str, mapping: str, **given: Any) -> None:
    """Turn data of other tools into events: containerd, csv, kubernetes, otlp, slurm, systemd. FILE may be -.

    Rows that cannot be used are counted and shown. docs/startup-import.md has an example of each kind.
    """
    from imagefs.startup.importers import Given, events, read

    known = _document(mapping) if mapping else {}
    tables = {
        name: {**known.pop(name, {}), **_pairs(given.pop(name), name)} for name in ("columns", "constants", "stages")
    }
    plain = {name: value or known.pop(name.replace("_", "-"), "") for name, value in given.items()}
    unknown = next(iter(known.keys() - {name.replace("_", "-") for name in given}), "")
    if unknown:
        raise ConfigError(f"{mapping} has the unknown key {unknown}", hint="docs/startup-import.md lists the keys")
    for stage in tables["stages"].values():
        if stage not in STAGES:
            raise ConfigError(f"{stage!r} is no stage", hint=f"stages are {', '.join(STAGES)}")
    delimiter = plain["delimiter"].replace("\\t", "\t") or ","
    if len(delimiter) != 1:
        raise ConfigError(f"the delimiter {delimiter!r} is not one character")
    zone = _zone(plain["zone"])
    try:
        origin = events.time_ns(plain["origin"], zone) if plain["origin"] else None
    except ValueError as error:
        raise ConfigError(f"--origin: {error}", hint="write it like 2026-01-31T12:00:00Z") from error
    wanted = Given(
        job=plain["job"], run=plain["run"], node=plain["node"], zone=zone, origin=origin,
        time_format=plain["time_format"] or "iso", delimiter=delimiter, **tables,
    )  # fmt: skip
    imported = read(kind, [Path("/dev/stdin" if file == "-" else file) for file in files], wanted)
    _tell(imported, files)
    nameless = sum("run" not in event for event in imported.events)
    if nameless:
        sys.stderr.write(f"{nameless} events name no run; --run makes them a start\n")
    if not imported.events:
        raise FormatError(f"nothing of {' '.join(files)} tells of a start", hint=f"is it of the kind {kind}?")
    text = "".join(json.dumps(event, separators=(",", ":")) + "\n" for event in imported.events)
    if out:
        _write(Path(out), f"import-{kind}", text)
    else:
        sys.stdout.write(text)


def _tell(imported: Imported, files: tuple[str, ...]) -> None:
    """Counts, and the first rejected rows, on standard error."""
    lines = [f"{len(imported.events)} events from {len(files)} files, {len(imported.rejected)} rows rejected"]
    lines += [f"{one.file}:{one.line}: {one.why}" for one in imported.rejected[:_SHOWN]]
    if len(imported.rejected) > _SHOWN:
        lines.append(f"and {len(imported.rejected) - _SHOWN} more rejected")
    over = sorted(imported.passed_over.items(), key=lambda item: -item[1])
    if over:
        named = ", ".join(f"{count} {what}" for what, count in over[:_SHOWN])
        lines.append(f"{sum(imported.passed_over.values())} rows say nothing about a start: {named}")
    shown = ("".join(one if one.isprintable() else "?" for one in line) for line in lines)
    sys.stderr.writelines(f"{line}\n" for line in shown)


def _write(folder: Path, stem: str, text: str) -> None:
    """A file named after its content, so that data imported twice are there once."""
    path = folder / f"{stem}-{hashlib.blake2b(text.encode(), digest_size=8).hexdigest()}.jsonl"
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_output(path, [text])
    except OSError as error:
        raise ConfigError(f"{path} cannot be written: {error.strerror}", hint="check --out") from error
    sys.stderr.write(f"{path}\n")


def _document(file: str) -> dict[str, Any]:
    import tomllib

    try:
        document = tomllib.loads(Path(file).read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{file} cannot be read: {error.strerror}", hint="check --mapping") from error
    except ValueError as error:
        raise ConfigError(f"{file} is not TOML: {error}") from error
    for name, value in document.items():
        pairs = value.values() if isinstance(value, dict) else [value]
        if isinstance(value, dict) != (name in ("columns", "constants", "stages")) or not all(
            isinstance(one, str) for one in pairs
        ):
            raise ConfigError(f"{name} in {file} is not what it must be", hint="docs/startup-import.md has an example")
    return document


def _pairs(texts: tuple[str, ...], what: str) -> dict[str, str]:
    pairs = {}
    for text in texts:
        name, equals, value = text.rpartition("=") if what != "constants" else text.partition("=")
        if not (name and equals and value):
            raise ConfigError(f"{text!r} is not of the form NAME=VALUE")
        pairs[name] = value
    return pairs


def _zone(name: str) -> tzinfo | None:
    if not name:
        return None
    try:
        return UTC if name == "UTC" else ZoneInfo(name)
    except (OSError, ValueError) as error:  # ZoneInfoNotFoundError is a KeyError
        raise ConfigError(f"{name!r} is no time zone: {error}") from error
    except KeyError:
        raise ConfigError(
            f"{name!r} is no time zone of this host", hint="write it like Europe/Berlin, or UTC"
        ) from None
