"""Commands for the services of a host: `daemon`, `snapshotter`, `install`, `doctor`."""

from __future__ import annotations

import os
import subprocess
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Literal

import click

from imagefs.cli.common import daemon_flags, print_json, settings_for
from imagefs.config import IMAGEFS
from imagefs.reference import Platform
from imagefs.settings import DaemonSettings
from imagefs.snapshotter.containerd_config import ROOT, SOCKET, Wanted, containerd_config, parse_version
from stripefs.cli.commands import SettingsCommand, config_flag, json_flag, settings_flags
from stripefs.errors import ConfigError, MountError

if TYPE_CHECKING:
    from imagefs.doctor import CheckResult
    from stripefs.settings import StoreSettings

__all__ = ["config_command", "daemon_command", "doctor_command", "install_command", "snapshotter_command"]

_ENDS_WITHIN = 10.0
"""Seconds for a daemon to be gone after it was stopped."""


@click.command("daemon", cls=SettingsCommand)
@click.option(
    "--stop",
    is_flag=True,
    help="End the daemon that runs; mounts that read through it wait ten minutes for the next one.",
)
@click.option("--force", is_flag=True, help="With --stop: such mounts answer EIO from then on.")
@config_flag
@settings_flags("daemon", "services", options=IMAGEFS)
@click.pass_context
def daemon_command(ctx: click.Context, stop: bool, force: bool, config: str) -> int:
    """Serve the images of this host, in the foreground, until SIGTERM; for systemd (Type=notify).

    `imagefs mount` and `imagefs run` start one in the background when none runs.
    """
    settings = settings_for(ctx, config).daemon
    from imagefs.daemon import launcher

    if stop:
        return _stop(settings, force=force)
    if force:
        raise ConfigError("--force says how to stop", hint="imagefs daemon --stop --force")
    from stripefs import logs
    from stripefs.systemd import notify

    logs.configure(settings.log_format, settings.log_level, settings.log_file, "imagefs")

    def ready() -> None:
        notify("READY=1")

    return launcher.serve(settings, ready=ready)


def _stop(settings: DaemonSettings, *, force: bool) -> int:
    from imagefs.daemon import launcher
    from imagefs.daemon.client import Client, NoDaemon

    try:
        Client(settings).stop(force=force)
    except NoDaemon:
        if not (force and launcher.end_kept(settings)):
            raise
        return 0
    end = time.monotonic() + _ENDS_WITHIN
    while launcher.running(settings) is not None and time.monotonic() < end:
        time.sleep(0.05)
    if not force and launcher.is_kept(settings):
        click.echo(
            f"mounts still read through it: they wait up to {launcher.KEEP / 60:g} minutes for the next daemon, "
            "which `imagefs daemon` starts; --stop --force ends them",
            err=True,
        )
    return 0


@click.command("config")
@click.option(
    "--containerd",
    "major",
    type=click.Choice(["auto", "1", "2"]),
    default="auto",
    help="For containerd 1.6 and 1.7, or for 2.x.  [what `containerd --version` says]",
)
@click.option("--socket", default=SOCKET, show_default=True, metavar="PATH", help="The snapshotter's socket.")
@click.option("--root", default=ROOT, show_default=True, metavar="DIR", help="The snapshotter's folder.")
@click.option(
    "--runtime-class", is_flag=True, help="Only for pods whose RuntimeClass has the handler imagefs (1.7 and later)."
)
@click.option(
    "--systemd-cgroup/--no-systemd-cgroup",
    default=None,
    help="With --runtime-class: cgroups by systemd, as kubelet has them.  [whether systemd runs here]",
)
def config_command(
    major: Literal["auto", "1", "2"], socket: str, root: str, runtime_class: bool, systemd_cgroup: bool | None
) -> None:
    """Print the lines for containerd's configuration, /etc/containerd/config.toml."""
    if systemd_cgroup is None:
        systemd_cgroup = os.path.isdir("/run/systemd/system")
    folders = os.path.abspath(socket), os.path.abspath(root)
    wanted = Wanted(*folders, str(Platform.current()), runtime_class, systemd_cgroup)
    click.echo(containerd_config(_installed_major() if major == "auto" else int(major), wanted), nl=False)


def _installed_major() -> int:
    """Raises ConfigError where no containerd is installed."""
    hint = "say which: --containerd 1 or --containerd 2"
    try:
        printed = subprocess.run(["containerd", "--version"], capture_output=True, text=True, timeout=30).stdout
    except (OSError, subprocess.TimeoutExpired) as error:
        raise ConfigError(f"containerd --version does not run: {error}", hint=hint) from error
    version = parse_version(printed)
    if version is None:
        raise ConfigError(f"containerd --version printed {printed.strip()!r}", hint=hint)
    return version[0]


class _Group(SettingsCommand, click.Group):
    """A service that has commands too; its page lists flags by section, then the commands."""

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        super().format_options(ctx, formatter)
        self.format_commands(ctx, formatter)


@click.group("snapshotter", cls=_Group, invoke_without_command=True)
@config_flag
@settings_flags("snapshotter", "services", also=["runtime", "log-format", "log-level", "log-file"], options=IMAGEFS)
@click.pass_context
def snapshotter_command(ctx: click.Context, config: str) -> int:
    """Start containerd's containers from lazy images: serve its snapshots service, in the foreground, until SIGTERM.

    For systemd (Type=notify) or a DaemonSet. `imagefs daemon` mounts the images; either may be restarted alone.
    """
    if ctx.invoked_subcommand is not None:
        return 0
    settings = settings_for(ctx, config)
    from imagefs.snapshotter.server import run
    from stripefs import logs

    daemon = settings.daemon
    logs.configure(daemon.log_format, daemon.log_level, daemon.log_file, "imagefs")
    return run(settings.snapshotter, daemon, settings.store_at, settings.deps.store)


snapshotter_command.add_command(config_command)


@click.command("install", cls=SettingsCommand)
@click.option("--print", "only_print", is_flag=True, help="Print the units, and change nothing.")
@click.option("--enable", is_flag=True, help="Start the services now and with every boot.")
@click.option("--remove", "removing", is_flag=True, help="Stop the services and remove their units.")
@click.option("--force", is_flag=True, help="Also units that were edited; with --remove also while containers run.")
@click.option(
    "--prefix", default="/", show_default=True, metavar="DIR", help="Write below this folder, and leave systemd alone."
)
@click.option(
    "--bin", "commands", default="", metavar="DIR", help="The commands' folder.  [where this program was installed]"
)
@daemon_flags
@click.pass_context
def install_command(
    ctx: click.Context, only_print: bool, enable: bool, removing: bool, force: bool, prefix: str, commands: str
) -> None:
    """Have systemd run `imagefs daemon` and `imagefs snapshotter`, and know of mounts of stripefs (stripefs@NAME).

    Their settings are in /etc/bootseer/imagefs.toml. The services are up before containerd. The next version writes the
    units anew; `systemctl edit` keeps changes.
    """
    from imagefs import install
    from imagefs.install import units

    elsewhere = os.path.abspath(prefix) != "/"
    if enable and (elsewhere or removing):
        raise ConfigError(f"--enable and --{'prefix' if elsewhere else 'remove'} contradict each other")
    paths = [os.path.join(os.path.abspath(commands), name) if commands else install.command_path(name)
             for name in ("imagefs", "stripefs")]  # fmt: skip
    made = units(*paths)
    if only_print:
        click.echo("\n".join(f"# /{install.FOLDER}/{name}\n{text}" for name, text in made.items()), nl=False)
        return
    if removing:
        if not elsewhere and not force:
            _refuse_while_used(ctx)
        if not elsewhere and _any_there(prefix, list(made)):
            install.reload("disable")
        outcomes = install.remove(list(made), prefix, force=force)
    else:
        outcomes = install.install(made, prefix, force=force)
    for name, outcome in outcomes.items():
        click.echo(f"{os.path.join(prefix, install.FOLDER, name)}: {outcome}")
    if not elsewhere:
        install.reload("enable" if enable else "")


def _any_there(prefix: str, names: list[str]) -> bool:
    from imagefs.install import FOLDER

    return any(os.path.exists(os.path.join(prefix, FOLDER, name)) for name in names)


def _refuse_while_used(ctx: click.Context) -> None:
    """Raises ConfigError while containers are on images of the daemon, which would end under them."""
    from imagefs.daemon.client import Client

    try:
        held = Client(settings_for(ctx).daemon).leases()
    except MountError:
        return  # none runs
    if held:
        raise ConfigError(
            f"{len(held)} containers or snapshots hold images of the daemon, which end with it",
            hint="drain the node first, or --force",
        )


@click.command("doctor", cls=SettingsCommand)
@click.argument("stores", metavar="[STORE]...", nargs=-1)
@json_flag("Print a JSON object.")
@click.option("--no-write", is_flag=True, help="Make no file in the stores, not for a moment.")
@click.option(
    "--containerd-config",
    "containerd",
    default="/etc/containerd/config.toml",
    show_default=True,
    metavar="FILE",
    help="containerd's configuration.",
)
@config_flag
@settings_flags("store", also=["cache", "cache-size", "runtime", "log-level"], options=IMAGEFS)
@click.pass_context
def doctor_command(
    ctx: click.Context, stores: tuple[str, ...], as_json: bool, no_write: bool, containerd: str, config: str
) -> int:
    """Examine this host and each STORE: missing features, their cost, and remedies.

    Without a STORE those are looked at that the configuration names (snapshotter.stores, deps.store).

    Exit code 1 where something that was asked for does not work.
    """
    from imagefs.doctor import exit_code, lines

    settings = settings_for(ctx, config)
    configured = dict.fromkeys(url for url in (*settings.snapshotter.stores, settings.deps.store) if url)
    named = [settings.store_at(url) for url in stores or configured]
    findings = []
    for finding in examine(settings.daemon, named, containerd, write=not no_write):
        findings.append(finding)
        if not as_json:
            for line in lines([finding]):
                click.echo(line)
    code = exit_code(findings)
    if as_json:
        print_json({"v": 1, "ok": code == 0, "findings": [one.to_json() for one in findings]})
    return code


def examine(
    daemon: DaemonSettings, stores: Sequence[StoreSettings], containerd: str, *, write: bool
) -> Iterator[CheckResult]:
    """The findings, each as soon as it is known, in the order in which somebody would mend them.

    stores: of either kind, with how each is reached. containerd: its configuration. write: whether stores may be
    written to for a moment.
    """
    from imagefs.doctor import host, services
    from imagefs.doctor import stores as checks
    from imagefs.repository.store import is_registry

    yield from host.rights_findings()
    yield from host.kernel_findings(daemon.cache)
    yield from host.cache_findings(daemon.cache, daemon.cache_size)
    yield from host.runtime_findings()
    facts = services.containerd_facts(containerd)
    yield from services.judge_containerd(facts, SOCKET, ROOT)
    needed = facts.config is not None and services.uses_snapshotter(facts.config)
    yield from services.daemon_findings(daemon, needed=needed)
    yield from services.snapshotter_findings(SOCKET, needed=needed)
    for store in stores:
        find = checks.registry_findings if is_registry(store.url) else checks.store_findings
        yield from find(store, write=write)
