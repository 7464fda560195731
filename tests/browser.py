"""A real Chromium for tests, driven over a pipe with the DevTools protocol.

``find_or_install`` returns the program; where there is none, root of a Debian gets it with apt.
Everything else is the standard library.
"""

from __future__ import annotations

import base64
import contextlib
import json
import os
import select
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

PACKAGE = "chromium-headless-shell"  # Debian's Chromium without windows: a third of the size
PROGRAMS = (PACKAGE, "chromium", "chromium-browser", "google-chrome")
PATIENCE = 20.0  # seconds for one answer


class Unavailable(Exception):
    """There is no Chromium, and why none could be installed."""


def find() -> str | None:
    """Return the path of a Chromium, None if there is none."""
    return next(filter(None, map(shutil.which, PROGRAMS)), None)


def find_or_install() -> str:
    """Return the path of a Chromium, installed first where that is possible."""
    found = find()
    if found:
        return found
    if os.getuid() != 0 or shutil.which("apt-get") is None:
        raise Unavailable(f"no Chromium on PATH; as root: apt-get install {PACKAGE}")
    for command in (["update"], ["install", "--yes", "--no-install-recommends", PACKAGE]):
        finished = subprocess.run(
            ["apt-get", "--quiet", *command],
            env=os.environ | {"DEBIAN_FRONTEND": "noninteractive"},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
        )
        if finished.returncode != 0:
            last = (finished.stderr.strip().splitlines() or ["no message"])[-1]
            raise Unavailable(f"no Chromium on PATH; apt-get {command[0]} failed: {last}")
    found = find()
    if found is None:
        raise Unavailable(f"no Chromium on PATH, though apt-get installed {PACKAGE}")
    return found


class Page:
    """One tab: open a file, look at it, press its buttons."""

    def __init__(self, write: int, read: int) -> None:
        self._write, self._read = write, read
        self._buffer = b""
        self._number = 0
        self._session = ""
        self.problems: list[str] = []  # errors and warnings of the console, uncaught exceptions
        self.requests: list[str] = []  # addresses that the page asked for
        self._loaded = False
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        attached = self.send("Target.attachToTarget", targetId=target, flatten=True)
        self._session = attached["sessionId"]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def send(self, method: str, **parameters: Any) -> dict[str, Any]:
        """Send one command and return its result."""
        self._number += 1
        message: dict[str, Any] = {"id": self._number, "method": method, "params": parameters}
        if self._session:
            message["sessionId"] = self._session
        data = json.dumps(message).encode() + b"\0"
        while data:
            data = data[os.write(self._write, data) :]
        deadline = time.monotonic() + PATIENCE
        while True:
            answer = self._receive(deadline)
            if answer.get("id") == self._number:
                if "error" in answer:
                    raise RuntimeError(f"{method}: {answer['error']}")
                result: dict[str, Any] = answer["result"]
                return result
            self._note(answer)

    def open(
        self, file: Path, *, width: int = 1400, height: int = 900, dark: bool = False
    ) -> float:
        """Open a file; return the seconds until its load event."""
        self.problems.clear()
        self.requests.clear()
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": False}
        self.send("Emulation.setDeviceMetricsOverride", **size)
        scheme = {"name": "prefers-color-scheme", "value": "dark" if dark else "light"}
        self.send("Emulation.setEmulatedMedia", features=[scheme])
        self._loaded = False
        began = time.monotonic()
        self.send("Page.navigate", url=file.resolve().as_uri())
        while not self._loaded:
            self._note(self._receive(began + PATIENCE))
        return time.monotonic() - began

    def run(self, script: str) -> Any:
        """Return the value of a JavaScript expression (JSON types)."""
        answer = self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in answer:
            raise RuntimeError(f"{script}: {answer['exceptionDetails']}")
        return answer["result"].get("value")

    def press(self, key: str) -> None:
        """Press and release one key."""
        code = {"Enter": 13, "Escape": 27, "Tab": 9, "ArrowLeft": 37, "ArrowDown": 40}[key]
        text = {"text": "\r"} if key == "Enter" else {}
        for kind in ("keyDown", "keyUp"):
            more = text if kind == "keyDown" else {}
            self.send(
                "Input.dispatchKeyEvent", type=kind, key=key, windowsVirtualKeyCode=code, **more
            )

    def screenshot(self, file: Path, *, whole: bool = False) -> None:
        """Write what is to be seen as PNG."""
        answer = self.send("Page.captureScreenshot", captureBeyondViewport=whole)
        file.write_bytes(base64.b64decode(answer["data"]))

    def _receive(self, deadline: float) -> dict[str, Any]:
        while b"\0" not in self._buffer:
            left = deadline - time.monotonic()
            if left <= 0 or not select.select([self._read], [], [], left)[0]:
                raise TimeoutError("the browser does not answer")
            data = os.read(self._read, 1 << 20)
            if not data:
                raise RuntimeError("the browser has ended")
            self._buffer += data
        message, _, self._buffer = self._buffer.partition(b"\0")
        received: dict[str, Any] = json.loads(message)
        return received

    def _note(self, event: dict[str, Any]) -> None:
        method, parameters = event.get("method"), event.get("params", {})
        if method == "Page.loadEventFired":
            self._loaded = True
        elif method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(parameters["exceptionDetails"]))
        elif method == "Runtime.consoleAPICalled":
            self.problems.append(f"console.{parameters['type']}: {parameters['args']}")
        elif method == "Log.entryAdded":
            self.problems.append(parameters["entry"]["text"])
        elif method == "Network.requestWillBeSent":
            self.requests.append(parameters["request"]["url"])


@contextlib.contextmanager
def browse(program: str, profile: Path) -> Iterator[Page]:
    """Start a Chromium with an empty profile; end it when the block is left."""
    to_read, to_write = os.pipe()
    from_read, from_write = os.pipe()
    command = [
        program,
        "--headless",
        "--disable-gpu",
        "--hide-scrollbars",
        "--remote-debugging-pipe",
        f"--user-data-dir={profile}",
        *(["--no-sandbox"] if os.getuid() == 0 else []),  # its sandbox refuses root
        "about:blank",
    ]
    # The protocol lies on the descriptors 3 and 4 of the browser.
    wiring = 'exec 3<&"$0" 4>&"$1"; shift; exec "$@"'
    process = subprocess.Popen(
        ["/bin/bash", "-c", wiring, str(to_read), str(from_write), *command],
        pass_fds=(to_read, from_write),
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    os.close(to_read)
    os.close(from_write)
    try:
        yield Page(to_write, from_read)
    finally:
        os.close(to_write)
        os.close(from_read)
        process.terminate()
        try:
            process.wait(10)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
