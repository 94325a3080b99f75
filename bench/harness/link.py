"""The link between the machine that starts jobs and what they need: rate, round trip time, servers, a byte count.

The servers (nginx for a directory, docker-registry for whole images) run in a network namespace. Its one way out
is a veth with a token bucket at both ends; in front of the servers stands the delaying proxy, because the kernel may
have no netem. All that, processes and namespace, goes when the `with` block ends, and what a killed benchmark left
behind when the next begins.
"""

from __future__ import annotations

import http.client
import statistics
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.harness import BenchError, netns
from bench.harness.environment import locked
from bench.harness.processes import cpu_seconds
from bench.harness.programs import inside, service, wait_until

__all__ = ["NAMESPACE", "RTT", "SERVER", "Link", "Measured", "linked"]

RTT = 0.010  # seconds
NAMESPACE = "bench-link"
_OUTSIDE, _INSIDE = "bench-link", "eth0"
_HELD = Path("/run/bench-link")  # there is one on a machine
SERVER = "198.19.255.254"
_NETWORK = ("198.19.255.253", SERVER)  # the last /30 of the networks set aside for benchmarks, RFC 2544
_HTTP, _REGISTRY = (8080, 80), (5000, 5001)  # as clients see them, and behind the proxy
_PROBE = ".probe"
_PROBE_SECONDS = 1.0
_STARTS_WITHIN = 15.0
_MEASUREMENTS = 4

_NGINX = r"""
daemon off;
user root;
worker_processes 2;
pid {work}/nginx.pid;
error_log {work}/nginx.log error;
events {{ worker_connections 512; }}
http {{
    access_log off;
    sendfile on;
    tcp_nodelay on;
    keepalive_requests 1000000;
    client_body_temp_path {work}/nginx-temp;
    proxy_temp_path {work}/nginx-temp;
    fastcgi_temp_path {work}/nginx-temp;
    uwsgi_temp_path {work}/nginx-temp;
    scgi_temp_path {work}/nginx-temp;
    server {{
        listen 127.0.0.1:{port};
        root {folder};
        # As the Python Package Index has it; without, installers do not trust what they kept.
        location ~ \.whl(\.metadata)?$ {{ add_header Cache-Control "max-age=365000000, immutable, public"; }}
    }}
}}
"""
_REGISTRY_CONFIG = """
version: 0.1
log: {{level: error, accesslog: {{disabled: true}}}}
storage: {{filesystem: {{rootdirectory: {work}/registry}}}}
http: {{addr: "127.0.0.1:{port}"}}
"""


@dataclass(frozen=True, slots=True)
class Measured:
    """The measured link: round trip in seconds, bytes a second over one connection and over eight together."""

    round_trip: float
    one: float
    eight: float
    proxy_cpu: float  # seconds of processor time for each second of the latter

    def __str__(self) -> str:
        return (
            f"{self.round_trip * 1000:.1f} ms round trip, {self.one / 1e6:.1f} MB/s over one connection, "
            f"{self.eight / 1e6:.1f} over eight, the proxy then takes {self.proxy_cpu:.0%} of a core"
        )


class Link:
    """A link that stands. `folder` is what nginx serves, at `url`; `registry` is HOST:PORT."""

    def __init__(self, folder: Path, proxy: int) -> None:
        self.folder = folder
        self.url = f"http://{_NETWORK[1]}:{_HTTP[0]}"
        self.registry = f"{_NETWORK[1]}:{_REGISTRY[0]}"
        self._proxy = proxy

    def set_rate(self, rate: float) -> None:
        """Bytes a second in each direction, 0 for no limit."""
        netns.set_rate(NAMESPACE, _INSIDE, rate)
        netns.set_rate("", _OUTSIDE, rate)

    def moved(self) -> int:
        """Bytes that have come from the servers so far, headers included."""
        return int(Path(f"/sys/class/net/{_OUTSIDE}/statistics/rx_bytes").read_text())

    def measure(self, rate: float) -> Measured:
        """Find out what the link does when set to `rate`, several times where something else kept the machine busy.
        Raises BenchError where that is never what was asked for."""
        self.set_rate(rate)
        for _ in range(_MEASUREMENTS):
            found = self._measure(rate)
            if RTT <= found.round_trip < 1.3 * RTT and (not rate or 0.9 < found.eight / rate < 1.1):
                return found
        raise BenchError(f"the link does not do what it should at {rate / 1e6:g} MB/s: {found}")

    def _measure(self, rate: float) -> Measured:
        trips = self._round_trips()
        one = self._throughput(1, rate)
        begin, cpu = time.monotonic(), cpu_seconds(self._proxy)
        eight = self._throughput(8, rate)
        share = (cpu_seconds(self._proxy) - cpu) / (time.monotonic() - begin)
        return Measured(statistics.median(trips), one, eight, share)

    def _round_trips(self) -> list[float]:
        connection = http.client.HTTPConnection(*_host_port(self.url), timeout=10)
        trips = []
        for _ in range(11):
            begin = time.monotonic()
            connection.request("HEAD", f"/{_PROBE}")
            connection.getresponse().read()
            trips.append(time.monotonic() - begin)
        connection.close()
        return trips[1:]  # the first one had the handshake to wait for

    def _throughput(self, connections: int, rate: float) -> float:
        """Bytes a second of so many connections that share one file by ranges."""
        probe = self.folder / _PROBE
        size = int((rate or 500e6) * _PROBE_SECONDS)
        with probe.open("wb") as file:
            file.truncate(size)
        step = -(-size // connections)

        def fetch(begin: int) -> int:
            wanted = {"Range": f"bytes={begin}-{min(begin + step, size) - 1}"}
            request = urllib.request.Request(f"{self.url}/{_PROBE}", headers=wanted)
            with urllib.request.urlopen(request, timeout=60) as answer:
                return sum(len(piece) for piece in iter(lambda: answer.read(1 << 20), b""))

        begin = time.monotonic()
        with ThreadPoolExecutor(connections) as pool:
            read = sum(pool.map(fetch, range(0, size, step)))
        seconds = time.monotonic() - begin - 2 * RTT  # a handshake and a request
        if read != size:
            raise BenchError(f"the link brought {read} of {size} bytes")
        return read / seconds


@contextmanager
def linked(work: Path, folder: Path, *, registry: bool = False) -> Iterator[Link]:
    """A link without a limit yet, to an nginx that serves `folder` and a registry that keeps its images in `work`.

    Raises BenchError where another benchmark has the link, and where a server does not answer.
    """
    folder.mkdir(parents=True, exist_ok=True)
    (work / "nginx-temp").mkdir(exist_ok=True)
    (work / "nginx.conf").write_text(_NGINX.format(work=work, folder=folder, port=_HTTP[1]))
    (work / "registry.yml").write_text(_REGISTRY_CONFIG.format(work=work, port=_REGISTRY[1]))
    servers = [["nginx", "-p", str(work), "-e", str(work / "nginx.log"), "-c", str(work / "nginx.conf")]]
    if registry:
        servers.append(["docker-registry", "serve", str(work / "registry.yml")])
    pairs = [f"{_NETWORK[1]}:{outer}=127.0.0.1:{inner}" for outer, inner in (_HTTP, _REGISTRY)[: len(servers)]]
    with locked(_HELD), ExitStack() as stack:
        netns.remove(NAMESPACE)
        stack.callback(netns.remove, NAMESPACE)
        netns.add(NAMESPACE)
        netns.veth("", _OUTSIDE, NAMESPACE, _INSIDE)
        netns.bring_up("", _OUTSIDE, f"{_NETWORK[0]}/30")
        netns.bring_up(NAMESPACE, _INSIDE, f"{_NETWORK[1]}/30")
        pids = []
        for server in [*servers, [sys.executable, "-m", "bench.harness.delay", str(RTT), *pairs]]:
            name = Path(server[0]).name
            pids.append(stack.enter_context(service(name, [*inside(NAMESPACE), *server], work / f"{name}.out")))
        link = Link(folder, proxy=pids[-1])
        (folder / _PROBE).write_bytes(b"")
        for url in (f"{link.url}/{_PROBE}", *([f"http://{link.registry}/v2/"] if registry else [])):
            wait_until(partial(_answers, url), _STARTS_WITHIN, f"{url} does not answer", 0.05)
        yield link


def _answers(url: str) -> bool:
    with suppress(OSError, http.client.HTTPException):
        urllib.request.urlopen(url, timeout=5).close()
        return True
    return False


def _host_port(url: str) -> tuple[str, int]:
    host, _, port = url.removeprefix("http://").partition(":")
    return host, int(port)
