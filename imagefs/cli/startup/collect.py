"""`imagefs startup collect [SPOOL] [URL]`."""

from __future__ import annotations

import contextlib
import math
import os
import select
import signal
import threading
from collections.abc import Callable, Iterator

import click

from imagefs.cli.common import flags, quiet_flag, settings_for
from imagefs.startup.collector import Collected, Collector
from stripefs.cli.commands import SettingsCommand
from stripefs.cli.output import tell
from stripefs.errors import ConfigError, StoreError, StripefsError
from stripefs.settings import StoreSettings
from stripefs.startup_events import ENV_FOLDER
from stripefs.store.url import open_store

__all__ = ["collect_command"]

ENV_COLLECTOR = "BOOTSEER_COLLECTOR"


def _number(_ctx: click.Context, _parameter: click.Parameter, value: float) -> float:
    if math.isnan(value):
        raise click.BadParameter("nan is no number of seconds")
    return value


@click.command("collect", cls=SettingsCommand)
@click.argument("words", nargs=-1, metavar="[SPOOL] [URL]")
@click.option("--follow", is_flag=True, help="Go on until SIGTERM, or until the process of --pid ends.")
@click.option("--pid", type=click.IntRange(1), help="With --follow: this process.", metavar="PID")
@click.option(
    "--interval",
    type=click.FloatRange(0.05, 1e9),
    callback=_number,
    default=5.0,
    show_default=True,
    metavar="SECONDS",
    help="With --follow: time between passes.",
)
@click.option(
    "--patience",
    type=click.FloatRange(0.1, 1e9),
    callback=_number,
    default=60.0,
    show_default=True,
    metavar="SECONDS",
    help="A pass that takes longer has failed.",
)
@quiet_flag
@flags("store")
@click.pass_context
def collect_command(
    ctx: click.Context, words: tuple[str, ...], follow: bool, pid: int | None, interval: float, patience: float,
    quiet: bool, config: str,
) -> None:  # fmt: skip
    """Copy the events of this node to the collector folder: a directory, HDFS or a bucket.

    SPOOL is $BOOTSEER_EVENTS unless given, and URL is $BOOTSEER_COLLECTOR. Only new events are copied, so
    this may run at any time, also while processes write; nothing in the spool is changed.
    """
    if pid is not None and not follow:
        raise ConfigError("--pid needs --follow")
    spool, url = _places(words)
    passes = _Passes(spool, settings_for(ctx, config, url).store, patience)
    try:
        if follow:
            _make(spool)
            _follow(passes, interval, pid)
        else:
            passes.run()
    except StripefsError as error:
        if not passes.stuck:
            raise
        tell(error.message, error.hint, program="imagefs")
        os._exit(error.exit_code)  # a thread that came back into an interpreter which is gone would abort the process
    if not quiet:
        total = passes.total
        told = f"{total.events} events are new, {total.objects} objects were written"
        told += f"; {total.unreadable} lines are no events" if total.unreadable else ""
        click.echo(told + (f"; {total.refused} files cannot be read" if total.refused else ""))


def _places(words: tuple[str, ...]) -> tuple[str, str]:
    if len(words) > 2:
        raise ConfigError("too many words", hint="give SPOOL and URL")
    if len(words) == 1:
        words = ("", words[0]) if "://" in words[0] else (words[0], "")
    spool, url = words or ("", "")
    spool, url = spool or os.environ.get(ENV_FOLDER, ""), url or os.environ.get(ENV_COLLECTOR, "")
    for given, what, variable in ((spool, "spool folder", ENV_FOLDER), (url, "collector", ENV_COLLECTOR)):
        if not given:
            raise ConfigError(f"no {what} is named", hint=f"give it, or set {variable}")
    return spool, url if "://" in url else os.path.abspath(url)


def _make(spool: str) -> None:
    """Have the folder, whose writers are yet to come."""
    try:
        os.makedirs(spool, exist_ok=True)
    except OSError as error:
        raise ConfigError(
            f"{spool} cannot be made: {error.strerror}", hint="name the one of BOOTSEER_EVENTS"
        ) from error


class _Passes:
    """Passes of a collector, each within a time. A store that never answers keeps a thread, which ends with us."""

    def __init__(self, spool: str, store: StoreSettings, patience: float) -> None:
        self._spool, self._store, self._patience = spool, store, patience
        self._collector: Collector | None = None
        self._busy: threading.Thread | None = None
        self.total = Collected()

    @property
    def stuck(self) -> bool:
        """True while a pass is at work."""
        return self._busy is not None and self._busy.is_alive()

    def run(self) -> None:
        """Raises ConfigError, and StoreErrors, also where the time is over."""
        if self._busy is None or not self.stuck:
            self._failure: Exception | None = None
            self._busy = threading.Thread(target=self._pass, daemon=True)
            self._busy.start()
        self._busy.join(self._patience)
        if self.stuck:
            raise StoreError(
                f"the collector takes longer than {self._patience:g} s", hint="the spool is as it was; try again"
            )
        if self._failure is not None:
            raise self._failure

    def _pass(self) -> None:
        try:
            if self._collector is None:
                self._collector = Collector(self._spool, open_store(self._store, make=True), patience=self._patience)
            found = self._collector.run()
            self.total = Collected(*map(sum, zip(self.total, found, strict=True)))
        except Exception as error:  # noqa: BLE001 the other thread raises it
            self._failure = error


def _follow(passes: _Passes, interval: float, pid: int | None) -> None:
    """A pass now and then, and a last one at the end, which alone must succeed."""
    with _ending(pid) as over:
        told = ""
        while True:
            last = over(0.0)
            try:
                passes.run()
                told = ""
            except StoreError as error:
                if last:
                    raise
                if str(error) != told:
                    tell(error.message, error.hint, program="imagefs")
                told = str(error)
            if last:
                return
            over(interval)


@contextlib.contextmanager
def _ending(pid: int | None) -> Iterator[Callable[[float], bool]]:
    """A function that waits so many seconds for SIGTERM, SIGINT or the end of a process; whether it came."""
    reader, writer = os.pipe2(os.O_CLOEXEC | os.O_NONBLOCK)
    watched = [reader]
    if pid is not None:
        try:
            watched.append(os.pidfd_open(pid))
        except OSError as error:
            if not isinstance(error, ProcessLookupError):
                raise ConfigError(f"process {pid} cannot be watched: {error.strerror}") from error
            os.write(writer, b"x")  # it has ended already
    previous = [
        (number, signal.signal(number, lambda *_: os.write(writer, b"x"))) for number in (signal.SIGTERM, signal.SIGINT)
    ]
    try:
        yield lambda seconds: bool(select.select(watched, [], [], seconds)[0])
    finally:
        for number, handler in previous:
            signal.signal(number, handler)
        for descriptor in (*watched, writer):
            os.close(descriptor)
