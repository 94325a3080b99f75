"""WebHDFS at the NameNodes: small JSON questions over pooled connections, changes over fresh ones.

One question is one GET. A pooled connection that the server closed meanwhile is replaced once, at once; then each
further NameNode is asked, the one that answered last first (`namenode_failover`). Nothing sleeps here: waiting for a
NameNode to come back is the caller's business.

A change must not be asked for twice by accident, so it never goes over a connection that may be dead already, and one
whose answer is lost is not repeated but raises Unanswered: the caller checks if it took effect (see `namespace`).
"""

from __future__ import annotations

import base64
import contextlib
import http.client
import json
from collections.abc import Callable, Iterator, Sequence
from typing import Any
from urllib.parse import parse_qs, urlsplit

from stripefs.errors import NotADirectory, NotFound, PermissionDenied, ServiceDown, StoreError, Transient
from stripefs.store.base import Status
from stripefs.store.hdfs.connection import IdlePool, reason
from stripefs.store.hdfs.namenode_failover import Unanswered, first_serving
from stripefs.store.hdfs.wire import error_in, page_of, request_target

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
        self._idle = IdlePool[http.client.HTTPConnection](_IDLE_CONNECTIONS)
        self._defaults: dict[str, Any] | None = None
        self._rpc: dict[str, str] = {}

    @property
    def active(self) -> str:
        """The address that answered last."""
        return self.addresses[self._active]

    def ask(self, operation: str, path: str, **parameters: str | int) -> dict[str, Any]:
        """The document that `operation` on the HDFS path `path` answers.

        Raises ServiceDown when no NameNode serves, and what `wire.remote_error` makes of a refusal.
        """
        return self._first("GET", request_target(path, operation, self._user, parameters), path)

    def change(self, method: str, operation: str, path: str, **parameters: str | int) -> dict[str, Any]:
        """As `ask` for an operation that changes something, by PUT, POST or DELETE; {} where there is no document.

        Raises Unanswered besides. Any other ServiceDown means that no NameNode did it.
        """
        return self._first(method, request_target(path, operation, self._user, parameters), path)

    def attribute(self, path: str, name: str) -> bytes | None:
        """The extended attribute of this name that an entry has; None where it has none. Raises what `ask` raises."""
        try:
            found = self.ask("GETXATTRS", path, **{"xattr.name": name, "encoding": "base64"})["XAttrs"]
        except (NotFound, NotADirectory, Transient):
            raise
        except StoreError:  # in words of its own where there is no such attribute
            return None
        return base64.b64decode(found[0]["value"].removeprefix("0s"))

    def set_attribute(self, path: str, name: str, value: bytes) -> None:
        """Give an entry that extended attribute, in place of the one that it has. Raises what `change` raises."""
        text = f"0s{base64.b64encode(value).decode()}"
        self.change("PUT", "SETXATTR", path, **{"xattr.name": name, "xattr.value": text, "flag": "CREATE,REPLACE"})

    def defaults(self) -> dict[str, Any] | None:
        """FsServerDefaults, asked for once; None where the NameNode does not tell, before Hadoop 3.3.

        Raises ServiceDown.
        """
        if self._defaults is None:
            try:
                self._defaults = self.ask("GETSERVERDEFAULTS", "/").get("FsServerDefaults") or {}
            except ServiceDown:
                raise
            except StoreError:
                self._defaults = {}
        return self._defaults or None

    def listing(self, path: str) -> Iterator[Sequence[Status]]:
        """The entries of a directory, in pages, in the NameNode's own order. Raises what `ask` raises,
        NotADirectory."""
        last: dict[str, str | int] = {}
        while True:
            page, more = page_of(self.ask("LISTSTATUS_BATCH", path, **last))
            if page and not page[0].name:
                raise NotADirectory(f"{path} is a file")
            if page:
                yield page
            if not page or not more:
                return
            last = {"startAfter": page[-1].name.decode()}

    def jmx(self, bean: str) -> dict[str, Any]:
        """The attributes of the NameNode's JMX bean `Hadoop:service=NameNode,name=<bean>`; {} where it is refused."""
        document = self._first("GET", f"/jmx?qry=Hadoop:service=NameNode,name={bean}", "/jmx")
        beans = document.get("beans")
        return beans[0] if isinstance(beans, list) and beans and isinstance(beans[0], dict) else {}

    def rpc_address(self, ask: Callable[[], dict[str, Any]]) -> str:
        """Address of the active NameNode for DataNodes, as it tells clients that it sends to a DataNode.

        `ask` makes a request that the NameNode answers with a DataNode's address, where it is not known yet.
        """
        active = self.active
        if active not in self._rpc:
            told = parse_qs(urlsplit(str(ask().get("Location", ""))).query).get("namenoderpcaddress")
            if not told:
                raise ServiceDown(f"NameNode http://{active} did not say how DataNodes reach it")
            self._rpc[active] = told[0]
        return self._rpc[active]

    def forget_rpc_address(self) -> None:
        """Ask again: the active NameNode may be another when they are back."""
        self._rpc.clear()

    def close(self) -> None:
        """Close the pooled connections; those in use are closed when their answers have come."""
        self._idle.close()

    def _first(self, method: str, target: str, where: str) -> dict[str, Any]:
        """The answer of the first NameNode that serves."""
        self._active, document = first_serving(
            self.addresses, self._active, lambda address: self._answer(address, method, target, where)
        )
        return document

    def _answer(self, address: str, method: str, target: str, where: str) -> dict[str, Any]:
        exchange = self._exchange if method == "GET" else self._exchange_once
        status, kind, body = exchange(address, method, target)
        if method != "GET" and status == 200 and not body:
            return {}
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
        raise error_in(document, where) or ServiceDown(f"http://{address} answered {status} without a reason")

    def _exchange_once(self, address: str, method: str, target: str) -> tuple[int, str, bytes]:
        """One request over a connection of its own: status, content type, body."""
        with contextlib.closing(self._fresh(address)) as connection:
            try:
                connection.connect()
            except OSError as error:
                raise self._down(address, error) from error
            try:
                return _answer_over(connection, method, target)[0]
            except (OSError, http.client.HTTPException) as error:
                why = reason(error, self._timeout) if isinstance(error, OSError) else repr(error)
                raise Unanswered(f"NameNode http://{address} did not answer a change: {why}") from error

    def _exchange(self, address: str, method: str, target: str) -> tuple[int, str, bytes]:
        """One GET: status, content type, body. A connection that was idle may be dead: then once more on a new one."""
        while True:
            idle = self._idle.take(address)
            connection = idle or self._fresh(address)
            try:
                answer, reusable = _answer_over(connection, method, target)
            except (OSError, http.client.HTTPException) as error:
                connection.close()
                if idle is not None and not isinstance(error, TimeoutError):
                    continue
                raise self._down(address, error) from error
            if reusable:
                self._idle.keep(address, connection)
            else:
                connection.close()
            return answer

    def _fresh(self, address: str) -> http.client.HTTPConnection:
        host, _, port = address.rpartition(":")
        return http.client.HTTPConnection(host.strip("[]"), int(port), timeout=self._timeout)

    def _down(self, address: str, error: Exception) -> ServiceDown:
        why = reason(error, self._timeout) if isinstance(error, OSError) else f"no HTTP answer ({error!r})"
        return ServiceDown(f"NameNode http://{address}: {why}", hint="is this its web port? --webhdfs-port N")


def _answer_over(
    connection: http.client.HTTPConnection, method: str, target: str
) -> tuple[tuple[int, str, bytes], bool]:
    """Status, content type and body; and True if the connection may be used again."""
    connection.request(method, target)
    # Closed in any case: it holds the socket too, and would leave it to the collector.
    with contextlib.closing(connection.getresponse()) as response:
        answer = response.status, response.getheader("Content-Type", ""), response.read(_LARGEST_ANSWER)
        return answer, response.isclosed() and not response.will_close
