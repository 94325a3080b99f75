"""WebHDFS at the NameNodes: small JSON questions over pooled connections.

One question is one GET. A pooled connection that the server closed meanwhile is replaced once, at once; then each
further NameNode is asked, the one that answered last first. Nothing sleeps here: waiting for a NameNode to come back is
the caller's business.
"""

from __future__ import annotations

import collections
import http.client
import json
import threading
from collections.abc import Sequence
from typing import Any

from stripefs.errors import PermissionDenied, ServiceDown
from stripefs.store.hdfs.probe import reason
from stripefs.store.hdfs.wire import remote_error, request_target

__all__ = ["NameNodeRest"]

_IDLE_CONNECTIONS = 32  # kept for each NameNode: one for each of the reader's threads
_LARGEST_ANSWER = 256 << 20  # a listing page holds 1000 entries; a segment of locations is below 1 MiB


class NameNodeRest:
    """`addresses` are the NameNodes' web addresses host:port; times in seconds. Safe to use from many threads."""

    def __init__(self, addresses: Sequence[str], user: str, timeout: float) -> None:
        self.addresses = tuple(addresses)
        self._user = user
        self._timeout = timeout
        self._active = 0
        self._idle = {address: collections.deque[http.client.HTTPConnection]() for address in addresses}
        self._lock = threading.Lock()

    @property
    def active(self) -> str:
        """The address that answered last."""
        return self.addresses[self._active]

    def ask(self, operation: str, path: str, **parameters: str | int) -> dict[str, Any]:
        """The document that `operation` on the HDFS path `path` answers.

        Raises ServiceDown when no NameNode serves, and what `wire.remote_error` makes of a refusal.
        """
        return self._first(request_target(path, operation, self._user, parameters), path)

    def jmx(self, bean: str) -> dict[str, Any]:
        """The attributes of the NameNode's JMX bean `Hadoop:service=NameNode,name=<bean>`; {} where it is refused."""
        document = self._first(f"/jmx?qry=Hadoop:service=NameNode,name={bean}", "/jmx")
        beans = document.get("beans")
        return beans[0] if isinstance(beans, list) and beans and isinstance(beans[0], dict) else {}

    def close(self) -> None:
        """Close the pooled connections."""
        for connections in self._idle.values():
            while connections:
                connections.pop().close()

    def _first(self, target: str, where: str) -> dict[str, Any]:
        """The answer of the first NameNode that serves."""
        failures: list[ServiceDown] = []
        start = self._active
        for step in range(len(self.addresses)):
            index = (start + step) % len(self.addresses)
            try:
                document = self._answer(self.addresses[index], target, where)
            except ServiceDown as failure:
                failures.append(failure)
                continue
            self._active = index
            return document
        if len(failures) == 1:
            raise failures[0]
        raise ServiceDown("; ".join(failure.message for failure in failures), hint=failures[-1].hint)

    def _answer(self, address: str, target: str, where: str) -> dict[str, Any]:
        status, kind, body = self._exchange(address, target)
        try:
            document = json.loads(body) if "json" in kind else None
        except ValueError:
            document = None
        if not isinstance(document, dict):
            if status == 401:
                raise PermissionDenied(f"http://{address} wants to know who we are", hint="it may use Kerberos")
            raise ServiceDown(
                f"http://{address} does not speak WebHDFS (it answered {status})",
                hint="--webhdfs-port N names the NameNode's web port",
            )
        if status == 200:
            return document
        remote = document.get("RemoteException")
        if not isinstance(remote, dict):
            raise ServiceDown(f"http://{address} answered {status} without a reason")
        raise remote_error(
            str(remote.get("javaClassName") or remote.get("exception")), str(remote.get("message")), where
        )

    def _exchange(self, address: str, target: str) -> tuple[int, str, bytes]:
        """One GET: status, content type, body. A connection that was idle may be dead: then once more on a new one."""
        while True:
            connection, reused = self._connection(address)
            try:
                connection.request("GET", target)
                response = connection.getresponse()
                body = response.read(_LARGEST_ANSWER)
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if reused and not isinstance(error, TimeoutError):
                    continue
                why = reason(error, self._timeout) if isinstance(error, OSError) else f"no HTTP answer ({error!r})"
                raise ServiceDown(
                    f"NameNode http://{address}: {why}", hint="is this its web port? --webhdfs-port N"
                ) from error
            if response.will_close or not response.isclosed():
                connection.close()
            else:
                self._keep(address, connection)
            return response.status, response.getheader("Content-Type", ""), body

    def _connection(self, address: str) -> tuple[http.client.HTTPConnection, bool]:
        with self._lock:
            if self._idle[address]:
                return self._idle[address].pop(), True
        host, _, port = address.rpartition(":")
        return http.client.HTTPConnection(host.strip("[]"), int(port), timeout=self._timeout), False

    def _keep(self, address: str, connection: http.client.HTTPConnection) -> None:
        with self._lock:
            if len(self._idle[address]) < _IDLE_CONNECTIONS:
                self._idle[address].append(connection)
                return
        connection.close()
