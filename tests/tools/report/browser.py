"""A headless Chromium, spoken to over a pipe: no dependency, no port."""

from __future__ import annotations

import json
import os
import select
import shutil
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import Any

import pytest

_NAMES = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
_SECONDS = 60.0
# Chromium reads commands from descriptor 3 and answers on 4.
_EXEC = """
import fcntl, os, sys
ends = [fcntl.fcntl(int(fd), fcntl.F_DUPFD, 10) for fd in sys.argv[1:3]]
os.dup2(ends[0], 3); os.dup2(ends[1], 4)
os.execvp(sys.argv[3], sys.argv[3:])
"""


def find_chromium() -> str:
    """The test is skipped where there is none."""
    found = next(filter(None, map(shutil.which, _NAMES)), None)
    if found is None:
        pytest.skip("no Chromium here; on Debian: apt-get install chromium")
    return found


class Browser:
    """Not thread-safe."""

    def __init__(self, profile: Path) -> None:
        commands, self._send = os.pipe()
        self._receive, answers = os.pipe()
        chromium = [
            find_chromium(), "--headless=new", "--no-sandbox", "--disable-gpu", "--no-first-run",
            "--disable-dev-shm-usage", f"--user-data-dir={profile}", "--remote-debugging-pipe",
        ]  # fmt: skip
        self._process = subprocess.Popen(
            [sys.executable, "-c", _EXEC, str(commands), str(answers), *chromium],
            pass_fds=(commands, answers), stderr=subprocess.DEVNULL,
        )  # fmt: skip
        os.close(commands)
        os.close(answers)
        self._pending = b""
        self._number = 0
        self.events: list[dict[str, Any]] = []

    def __enter__(self) -> Browser:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._process.terminate()
        self._process.wait(_SECONDS)
        os.close(self._send)
        os.close(self._receive)

    def call(self, method: str, session: str | None = None, **params: Any) -> dict[str, Any]:
        self._number += 1
        message = {"id": self._number, "method": method, "params": params}
        if session is not None:
            message["sessionId"] = session
        os.write(self._send, json.dumps(message).encode() + b"\0")
        while True:
            answer = self._next()
            if answer.get("id") == self._number:
                assert "error" not in answer, answer
                result: dict[str, Any] = answer["result"]
                return result
            self.events.append(answer)

    def wait_for(self, method: str) -> None:
        while not any(event.get("method") == method for event in self.events):
            self.events.append(self._next())

    def _next(self) -> dict[str, Any]:
        end = time.monotonic() + _SECONDS
        while b"\0" not in self._pending:
            ready, _, _ = select.select([self._receive], [], [], max(end - time.monotonic(), 0))
            assert ready, "Chromium did not answer"
            read = os.read(self._receive, 1 << 20)
            assert read, "Chromium has ended"
            self._pending += read
        message, _, self._pending = self._pending.partition(b"\0")
        answer: dict[str, Any] = json.loads(message)
        return answer


class Page:
    """A page at a width and in a colour scheme, loaded."""

    def __init__(self, browser: Browser, path: Path, width: int, scheme: str) -> None:
        target = browser.call("Target.createTarget", url="about:blank")["targetId"]
        attached = browser.call("Target.attachToTarget", targetId=target, flatten=True)
        self._browser, self._session = browser, attached["sessionId"]
        browser.events.clear()
        for domain in ("Page", "Runtime", "Log", "Network"):
            self._call(f"{domain}.enable")
        self._call("Emulation.setDeviceMetricsOverride", width=width, height=900,
                   deviceScaleFactor=1, mobile=width < 600)  # fmt: skip
        scheme_feature = {"name": "prefers-color-scheme", "value": scheme}
        self._call("Emulation.setEmulatedMedia", features=[scheme_feature])
        self._call("Page.navigate", url=path.as_uri())
        browser.wait_for("Page.loadEventFired")

    def _call(self, method: str, **params: Any) -> dict[str, Any]:
        return self._browser.call(method, self._session, **params)

    def evaluate(self, expression: str) -> Any:
        answer = self._call("Runtime.evaluate", expression=expression, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    def move_to(self, selector: str) -> None:
        """The pointer, to the middle of an element."""
        x, y = self.evaluate(
            f"(() => {{ const e = document.querySelector({json.dumps(selector)});"
            "e.scrollIntoView({block: 'center'}); const b = e.getBoundingClientRect();"
            "return [b.x + b.width / 2, b.y + b.height / 2]; })()"
        )
        self._call("Input.dispatchMouseEvent", type="mouseMoved", x=x, y=y)

    @property
    def complaints(self) -> list[dict[str, Any]]:
        """What the console shows."""
        kinds = ("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded")
        return [event for event in self._browser.events if event.get("method") in kinds]

    @property
    def requests(self) -> list[str]:
        return [
            event["params"]["request"]["url"]
            for event in self._browser.events
            if event.get("method") == "Network.requestWillBeSent"
        ]
