"""Reading by WebHDFS: where a file's blocks lie, and its bytes from a DataNode of one's choice.

`where` is an HDFS path in plain text, of an inode mostly (`wire.inode_path`).
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from contextlib import closing

from stripefs.store.base import Block, Buffer, Watch
from stripefs.store.hdfs.datanode import Answer
from stripefs.store.hdfs.datanodes import DataNodes
from stripefs.store.hdfs.rest import NameNodeRest, RpcAddress
from stripefs.store.hdfs.stream import Ask, Streams
from stripefs.store.hdfs.wire import located_of, request_target

__all__ = ["WebReads"]


class WebReads:
    """`timeout`: seconds without a byte after which a DataNode counts as silent. Safe to use from many threads."""

    def __init__(self, rest: NameNodeRest, rpc: RpcAddress, datanodes: DataNodes, user: str, timeout: float) -> None:
        self._rest = rest
        self._rpc = rpc
        self._datanodes = datanodes
        self._user = user
        self._timeout = timeout
        self.streams = Streams()

    def blocks(self, where: str, offset: int, length: int) -> Sequence[Block]:
        """The blocks that overlap a range, in order, with all their replicas. Raises what NameNodeRest.ask does."""
        located = located_of(self._rest.ask("GET_BLOCK_LOCATIONS", where, offset=offset, length=length))
        for block in located:
            self._datanodes.learn(block.replicas)
        return [
            Block(block.offset, block.length, tuple(replica.name for replica in block.replicas)) for block in located
        ]

    def fetch(
        self, owner: Hashable, where: str, offset: int, length: int, end: int, host: str, watch: Watch | None
    ) -> Buffer:
        """`length` > 0 bytes from `offset`, from `host` alone. Raises what `datanode.Answer.take` raises.

        `owner` stands for the open file; `end`: up to where its reader will go on at this host, see `Streams.read`.
        """
        ask = self._asking(where, host, self._timeout)
        return self.streams.read((owner, host), ask, offset, length, end, watch)

    def fetch_once(self, where: str, offset: int, length: int, host: str, timeout: float) -> Buffer:
        """As `fetch`, by a request of its own; `timeout`: seconds without a byte after which the host is silent."""
        with closing(self._asking(where, host, timeout)(offset, length, 0)) as answer:
            return answer.take(length, None)

    def _asking(self, where: str, host: str, timeout: float) -> Ask:
        address = self._datanodes.address(host)
        rpc = self._rpc.get(lambda: self._rest.ask("OPEN", where, noredirect="true"))

        def ask(offset: int, length: int, window: int) -> Answer:
            parameters: dict[str, str | int] = {"namenoderpcaddress": rpc, "offset": offset, "length": length}
            target = request_target(where, "OPEN", self._user, parameters)
            return Answer(address, target, length, name=host, timeout=timeout, window=window)

        return ask

    def release(self, owner: Hashable) -> None:
        """The file is closed: end what is kept open for it."""
        self.streams.drop(owner)

    def close(self) -> None:
        self.streams.close()
