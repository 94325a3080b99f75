"""A headless Chromium that tests drive over the pipes of the DevTools protocol."""

from __future__ import annotations

import fcntl
import json
import os
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

Message = dict[str, Any]


class Page:
    """One tab. `seen` has the events that the browser sent, in their order."""

    def __init__(self, read: int, write: int) -> None:
        self._read, self._write, self._rest, self._number = read, write, b"", 0
        self.seen: list[Message] = []
        self._session = ""
        target = self.call("Target.createTarget", url="about:blank")["targetId"]
        self._session = self.call("Target.attachToTarget", targetId=target, flatten=True)["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network", "Accessibility"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **parameters: Any) -> Message:
        """The browser's answer to a command of the protocol."""
        self._number += 1
        message: Message = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        os.write(self._write, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                return dict(answer["result"])

    def open(self, file: Path) -> None:
        """Show a file; return when it and all that it asks for have loaded."""
        self.seen.clear()
        self.call("Page.navigate", url=file.as_uri())
        self.wait(lambda event: event["method"] == "Page.loadEventFired")

    def wait(self, wanted: Callable[[Message], bool]) -> Message:
        """The first event that is wanted, of those that were seen or come."""
        for event in self.seen:
            if wanted(event):
                return event
        while True:
            event = self._next()
            if wanted(event):
                return event

    def run(self, script: str) -> Any:
        """The value of an expression, or of a promise, in the page."""
        answer = self.call("Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        codes = {"Tab": 9, "Enter": 13}
        for kind in ("rawKeyDown", "char", "keyUp") if key == "Enter" else ("rawKeyDown", "keyUp"):
            text = {"text": "\r"} if kind == "char" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, code=key, windowsVirtualKeyCode=codes[key], **text)

    def events(self, *methods: str) -> list[Message]:
        return [event["params"] for event in self.seen if event["method"] in methods]

    def _next(self) -> Message:
        while b"\0" not in self._rest:
            piece = os.read(self._read, 1 << 20)
            assert piece, "the browser has ended"
            self._rest += piece
        line, _, self._rest = self._rest.partition(b"\0")
        message: Message = json.loads(line)
        if "method" in message:
            self.seen.append(message)
        return message


@contextmanager
def chromium(profile: Path) -> Iterator[Page]:
    """A page of a browser of its own, which ends with this."""
    pipes = [*os.pipe(), *os.pipe()]
    theirs_in, write, read, theirs_out = (fcntl.fcntl(one, fcntl.F_DUPFD_CLOEXEC, 10) for one in pipes)
    for one in pipes:
        os.close(one)
    command = ["chromium-headless-shell", "--no-sandbox", "--disable-gpu", "--no-first-run", "--remote-debugging-pipe",
               f"--user-data-dir={profile}", "about:blank"]  # fmt: skip
    # The protocol is spoken on descriptors 3 and 4.
    script = f'exec "$@" 3<&{theirs_in} 4>&{theirs_out} {theirs_in}<&- {theirs_out}>&-'
    with (profile.parent / "chromium.log").open("wb") as log:
        process = subprocess.Popen(
            ["bash", "-c", script, "bash", *command], pass_fds=(theirs_in, theirs_out), stdout=log, stderr=log
        )
    os.close(theirs_in)
    os.close(theirs_out)
    try:
        yield Page(read, write)
    finally:
        os.close(write)  # which ends it
        process.wait(30)
        os.close(read)
