"""HDFS's bytes through libhdfs, Hadoop's own client in a JVM inside this process, by way of pyarrow.

It needs libhdfs.so ($ARROW_LIBHDFS_DIR, $HADOOP_HOME/lib/native, or what ./scripts/build-libhdfs made), a Java
runtime ($JAVA_HOME, else that of `java`) and Hadoop's jars ($CLASSPATH, where `DIR/*` means all jars in DIR, else what
`hadoop classpath` says).

Every call into the JVM is made on a thread that never ends: a thread that does detaches itself from the JVM, which can
deadlock (apache/arrow#36432). An option lets the JVM leave signals alone, since SIGTERM and SIGINT are this process's.

A file is opened with the locations of all its blocks, not those of the first ten as Hadoop does; otherwise the client
would ask for later ones by path, and find those of a file that took its place.
"""

from __future__ import annotations

import glob
import os
import queue
import re
import shutil
import subprocess
import threading
import weakref
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any, TypeVar

from stripefs.errors import Abandoned, ConfigError, HostFailed, StaleVersion, StoreError
from stripefs.store.base import Buffer, Watch
from stripefs.store.common import exact
from stripefs.store.hdfs.connection import check_rpc
from stripefs.store.hdfs.hadoop_conf import Target, read_properties
from stripefs.store.object_store import errors

__all__ = ["LibhdfsClient", "LibhdfsFile", "find_classpath", "find_java_home", "find_library", "on_permanent_thread"]

try:
    from pyarrow import fs as arrow_fs
except ModuleNotFoundError as error:
    raise ConfigError("libhdfs is reached through pyarrow", hint="pip install 'bootseer[arrow]'") from error

_T = TypeVar("_T")

_BUILT = "libhdfs-0.3.1"
_BEYOND = re.compile("[\U00010000-\U0010ffff]")
_ALL_BLOCKS = str(1 << 62)

_JVM_OPTIONS = ("-Xrs", "-Xmx256m")
"""Leave signals alone; and a heap within bounds, since a JVM would take a quarter of the machine. 48 reads of 8 MiB at
once were served with 64 MiB: the bytes themselves do not pass through the heap."""

_KEPT: list[arrow_fs.HadoopFileSystem] = []
"""Every connection made: dropping one would call into the JVM on whatever thread does it."""


class LibhdfsClient:
    """A data path that picks replicas by itself: `PinnedClient` of the hdfs room.

    timeout in seconds is that of one silent DataNode or NameNode. Raises ConfigError where libhdfs or its jars are
    missing, ServiceDown where no NameNode answers.
    """

    name = "libhdfs"

    def __init__(self, target: Target, *, timeout: float, by_hostname: bool) -> None:
        self._addresses = [namenode.rpc for namenode in target.namenodes]
        self._timeout = timeout
        self._look()
        _prepare_environment()
        host, _, port = target.authority.rpartition(":") if ":" in target.authority else (target.authority, "", "0")
        options = _options(target, timeout, by_hostname)
        with errors(f"hdfs://{target.authority}"):
            self._filesystem = on_permanent_thread(
                lambda: arrow_fs.HadoopFileSystem(host, int(port), user=target.user, extra_conf=options)
            )
        _KEPT.append(self._filesystem)

    def open(self, path: str, length: int) -> LibhdfsFile:
        """Pin the file of `length` bytes at the HDFS path. Raises StaleVersion when it is longer or shorter."""
        self._look()
        with errors(path):
            file = on_permanent_thread(lambda: self._filesystem.open_input_file(_modified_utf8(path)))
            size = on_permanent_thread(file.size)
        if size != length:
            on_permanent_thread(file.close)
            raise StaleVersion(f"{path} has {size} bytes by now")
        return LibhdfsFile(file, path)

    def _look(self) -> None:
        """ServiceDown when no NameNode answers: Hadoop's client would try for most of a minute."""
        failures: list[StoreError] = []
        for address in self._addresses:
            try:
                check_rpc(address, self._timeout)
            except StoreError as failure:
                failures.append(failure)
            else:
                return
        raise failures[-1]


class LibhdfsFile:
    """An open file whose block list does not change. Safe to use from many threads; closed when it is dropped."""

    def __init__(self, file: Any, path: str) -> None:
        self._file = file
        self._path = path
        # The file's own destructor would call into the JVM on whatever thread drops the last reference.
        weakref.finalize(self, _later, file.close).atexit = False

    def read(self, offset: int, length: int, watch: Watch | None) -> Buffer:
        """Bytes inside the file. Raises HostFailed, and Abandoned before it begins."""
        if watch is not None and watch.cancelled:
            raise Abandoned("the read was cancelled before it began")
        try:
            data: bytes = on_permanent_thread(lambda: self._file.read_at(length, offset))
        except OSError as error:
            # libhdfs tells no more than that it failed; Java's reason went to standard error.
            raise HostFailed(f"libhdfs cannot read {self._path} at {offset}: {error}") from error
        exact(data, length, where=f"libhdfs, {self._path} at {offset}")
        if watch is not None:
            watch.progress(length)
        return data


class _PermanentThreads:
    """Runs work on daemon threads that never end; there are as many as were ever busy at once."""

    def __init__(self) -> None:
        self._work: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]]] = queue.SimpleQueue()
        self._idle = threading.Semaphore(0)

    def submit(self, work: Callable[[], _T]) -> Future[_T]:
        future: Future[_T] = Future()
        self._work.put((future, work))
        if not self._idle.acquire(blocking=False):
            threading.Thread(target=self._serve, name="libhdfs", daemon=True).start()
        return future

    def _serve(self) -> None:
        while True:
            future, work = self._work.get()
            try:
                future.set_result(work())
            except BaseException as error:  # noqa: BLE001  # handed to the caller, who raises it
                future.set_exception(error)
            del future, work
            self._idle.release()


_THREADS = _PermanentThreads()


def on_permanent_thread(work: Callable[[], _T]) -> _T:
    """Run `work` where calls into the JVM may be made; its result or error."""
    return _THREADS.submit(work).result()


def _later(close: Callable[[], None]) -> None:
    _THREADS.submit(close)


def _modified_utf8(path: str) -> bytes:
    """`path` as JNI reads strings: characters beyond U+FFFF as two surrogates of three bytes each."""

    def pair(match: re.Match[str]) -> str:
        beyond = ord(match[0]) - 0x10000
        return chr(0xD800 + (beyond >> 10)) + chr(0xDC00 + (beyond & 0x3FF))

    return _BEYOND.sub(pair, path).encode("utf-8", "surrogatepass")


def find_library() -> Path:
    """The folder that holds libhdfs.so. Raises ConfigError."""
    folders = [os.environ.get("ARROW_LIBHDFS_DIR", "")]
    if os.environ.get("HADOOP_HOME"):
        folders.append(f"{os.environ['HADOOP_HOME']}/lib/native")
    folders.append(str(Path.home() / ".cache" / "bootseer" / _BUILT))
    for folder in folders:
        if folder and Path(folder, "libhdfs.so").exists():
            return Path(folder)
    raise ConfigError(
        "libhdfs.so is in none of $ARROW_LIBHDFS_DIR, $HADOOP_HOME/lib/native and ~/.cache/bootseer",
        hint="./scripts/build-libhdfs builds it; --hdfs-transport auto needs none",
    )


def find_classpath() -> str:
    """Hadoop's jars, each by name as JNI wants it. Raises ConfigError."""
    given = os.environ.get("CLASSPATH", "")
    hadoop = shutil.which("hadoop") or f"{os.environ.get('HADOOP_HOME', '')}/bin/hadoop"
    if "hadoop-common" not in _expanded(given) and os.access(hadoop, os.X_OK):
        try:
            done = subprocess.run([hadoop, "classpath", "--glob"], capture_output=True, check=True, text=True)
        except (OSError, subprocess.CalledProcessError) as error:
            raise ConfigError(f"`{hadoop} classpath --glob` failed: {error}", hint="set CLASSPATH") from error
        given = ":".join(filter(None, [given, done.stdout.strip()]))
    jars = _expanded(given)
    if "hadoop-common" not in jars:
        raise ConfigError("CLASSPATH names no Hadoop jars", hint="export CLASSPATH=$(hadoop classpath --glob)")
    return jars


def find_java_home() -> str:
    """The home of a Java runtime with a JVM as a library: $JAVA_HOME, else that of `java`. Raises ConfigError."""
    homes = [os.environ.get("JAVA_HOME", "")]
    java = shutil.which("java")
    if java:
        homes.append(str(Path(java).resolve().parent.parent))
    for home in homes:
        # Java 8 keeps it below lib/ARCHITECTURE, and below jre/ in a JDK.
        if home and glob.glob(f"{home}/**/server/libjvm.so", recursive=True):
            return home
    raise ConfigError("no Java runtime is there", hint="apt-get install default-jre-headless, or set JAVA_HOME")


def _expanded(classpath: str) -> str:
    entries: list[str] = []
    for entry in classpath.split(":"):
        entries += sorted(glob.glob(f"{entry[:-1]}*.jar")) if entry.endswith("/*") else [entry]
    return ":".join(filter(None, entries))


def _prepare_environment() -> None:
    """Say where things are, before the first call makes the JVM."""
    os.environ["ARROW_LIBHDFS_DIR"] = str(find_library())
    os.environ["JAVA_HOME"] = find_java_home()
    os.environ["CLASSPATH"] = find_classpath()
    given = os.environ.get("LIBHDFS_OPTS", "").split()
    added = [each for each in _JVM_OPTIONS if not any(option.startswith(each[:4]) for option in given)]
    os.environ["LIBHDFS_OPTS"] = " ".join([*given, *added])


def _options(target: Target, timeout: float, by_hostname: bool) -> dict[str, str]:
    """Hadoop's configuration, with the short time-outs and few tries that leave deciding to the reader."""
    milliseconds = str(int(timeout * 1000))
    given = read_properties(Path(target.conf_dir)) if target.conf_dir else {}
    return given | {
        "dfs.client.read.prefetch.size": _ALL_BLOCKS,
        "dfs.client.socket-timeout": milliseconds,
        "dfs.client.use.datanode.hostname": str(by_hostname).lower(),
        "dfs.client.max.block.acquire.failures": "1",
        "dfs.client.retry.window.base": "500",  # milliseconds before replicas are asked for anew
        "dfs.client.failover.max.attempts": "2",
        "ipc.client.connect.timeout": milliseconds,
        "ipc.client.connect.max.retries": "1",
        "ipc.client.connect.max.retries.on.timeouts": "1",
    }
