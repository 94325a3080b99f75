"""`imagefs startup mark STAGE [begin|end|instant]`: the page; `stripefs.startup_events` reads the line and writes."""

from __future__ import annotations

import click

from stripefs import startup_events

__all__ = ["command"]


@click.command("mark")
@click.argument("stage")
@click.argument("event", type=click.Choice(["begin", "end", "instant"]), default="instant")
@click.option("--name", default="", help="The part of the stage, such as a file or a package.")
@click.option("--fact", "facts", multiple=True, metavar="KEY=VALUE", help="A number, true, false or text.")
@click.option("--events", default=None, metavar="DIR", help="The spool folder.  [$BOOTSEER_EVENTS]")
def command(stage: str, event: str, name: str, facts: tuple[str, ...], events: str | None) -> int:
    """Write that a stage of this start begins or ends, or that something happened.

    Begin and end may come from two processes: of one start, node, rank, stage and name they make one span. An event
    that cannot be written is told on standard error; the exit status is 0 all the same.
    """
    line = ["mark", stage, event, f"--name={name}", *(f"--fact={fact}" for fact in facts)]
    return startup_events.main([*line, *([] if events is None else [f"--events={events}"])], "imagefs startup")
