"""A real Chromium for tests: driven over its DevTools protocol with the standard library alone."""

import base64
import json
import os
import shutil
import socket
import struct
import subprocess
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")

_START_SECONDS = 60.0


class Browser:
    """One page of a headless Chromium, and everything that it reports."""

    def __init__(self, url: str) -> None:
        _, _, rest = url.partition("://")
        address, _, path = rest.partition("/")
        host, _, port = address.partition(":")
        self._socket = socket.create_connection((host, int(port)), timeout=60)
        key = base64.b64encode(os.urandom(16)).decode()
        self._socket.sendall(
            f"GET /{path} HTTP/1.1\r\nHost: {address}\r\nUpgrade: websocket\r\n"
            f"Connection: Upgrade\r\nSec-WebSocket-Key: {key}\r\n"
            "Sec-WebSocket-Version: 13\r\n\r\n".encode()
        )
        self._file = self._socket.makefile("rb")
        while self._file.readline() not in (b"\r\n", b""):
            pass
        self._last = 0
        self.events: list[dict[str, Any]] = []
        for domain in ("Page", "Runtime", "Network", "Log"):
            self.call(f"{domain}.enable")

    def call(self, method: str, **params: Any) -> dict[str, Any]:
        """Call a method of the protocol; events that arrive meanwhile are kept."""
        self._last += 1
        self._send(json.dumps({"id": self._last, "method": method, "params": params}).encode())
        while True:
            message = json.loads(self._receive())
            if message.get("id") == self._last:
                if "error" in message:
                    raise RuntimeError(f"{method}: {message['error']}")
                result: dict[str, Any] = message["result"]
                return result
            self._keep(message)

    def open(self, url: str, *, width: int = 1600, height: int = 1000, dark: bool = False) -> None:
        """Open a page and wait until it has loaded."""
        self.call(
            "Emulation.setDeviceMetricsOverride",
            width=width,
            height=height,
            deviceScaleFactor=1,
            mobile=False,
        )
        scheme = "dark" if dark else "light"
        features = [{"name": "prefers-color-scheme", "value": scheme}]
        self.call("Emulation.setEmulatedMedia", features=features)
        self.events.clear()
        self.call("Page.navigate", url=url)
        self.wait_for("document.readyState === 'complete'")

    def evaluate(self, expression: str) -> Any:
        """The value of an expression; a promise is awaited."""
        found = self.call(
            "Runtime.evaluate", expression=expression, returnByValue=True, awaitPromise=True
        )
        if "exceptionDetails" in found:
            raise RuntimeError(str(found["exceptionDetails"]))
        return found["result"].get("value")

    def wait_for(self, expression: str, seconds: float = 60.0) -> None:
        """Wait until an expression is true."""
        deadline = time.monotonic() + seconds
        while not self.evaluate(expression):
            if time.monotonic() > deadline:
                raise TimeoutError(expression)
            time.sleep(0.05)

    def screenshot(self, path: Path, *, whole: bool = True) -> None:
        found = self.call("Page.captureScreenshot", format="png", captureBeyondViewport=whole)
        path.write_bytes(base64.b64decode(found["data"]))

    def key(self, key: str) -> None:
        """Press a key."""
        for kind in ("keyDown", "keyUp"):
            text = {"text": key} if len(key) == 1 and kind == "keyDown" else {}
            self.call("Input.dispatchKeyEvent", type=kind, key=key, **text)

    def complaints(self) -> list[str]:
        """Dialogs, console messages, errors and violations of the policy since the page opened."""
        self.evaluate("1")  # what is on its way arrives first
        bad = {
            "Page.javascriptDialogOpening",
            "Runtime.exceptionThrown",
            "Log.entryAdded",
            "Runtime.consoleAPICalled",
        }
        return [json.dumps(event) for event in self.events if event["method"] in bad]

    def requests(self) -> list[str]:
        """The addresses that the page has asked for."""
        sent = (e for e in self.events if e["method"] == "Network.requestWillBeSent")
        return [event["params"]["request"]["url"] for event in sent]

    def close(self) -> None:
        """Close the connection."""
        self._file.close()
        self._socket.close()

    def _keep(self, message: dict[str, Any]) -> None:
        self.events.append(message)
        if message["method"] == "Page.javascriptDialogOpening":
            self._last += 1
            dismiss = {"method": "Page.handleJavaScriptDialog", "params": {"accept": False}}
            self._send(json.dumps({"id": self._last, **dismiss}).encode())

    def _send(self, data: bytes) -> None:
        length = len(data)
        if length < 126:
            head = struct.pack("!BB", 0x81, 0x80 | length)
        elif length < 2**16:
            head = struct.pack("!BBH", 0x81, 0x80 | 126, length)
        else:
            head = struct.pack("!BBQ", 0x81, 0x80 | 127, length)
        self._socket.sendall(head + bytes(4) + data)  # a mask of zeros leaves the bytes as they are

    def _receive(self) -> bytes:
        whole = b""
        while True:
            first, second = self._file.read(2)
            length = second & 0x7F
            if length == 126:
                (length,) = struct.unpack("!H", self._file.read(2))
            elif length == 127:
                (length,) = struct.unpack("!Q", self._file.read(8))
            whole += self._file.read(length)
            if first & 0x80:
                return whole


@contextmanager
def chromium() -> Iterator[Browser]:
    """A headless Chromium with one empty page; it ends with the block."""
    if CHROMIUM is None:
        raise RuntimeError("Chromium is not installed; on Debian: apt-get install chromium")
    with tempfile.TemporaryDirectory(prefix="trimtab-chromium-") as folder:
        command = [
            CHROMIUM,
            "--headless=new",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--no-first-run",
            "--hide-scrollbars",
            "--remote-debugging-port=0",
            f"--user-data-dir={folder}",
            "about:blank",
        ]
        process = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        )
        try:
            with closing(Browser(_page_address(Path(folder)))) as browser:
                yield browser
        finally:
            process.terminate()
            process.wait(30)
            time.sleep(0.2)  # its children still write into the folder
            shutil.rmtree(folder, ignore_errors=True)
            Path(folder).mkdir(exist_ok=True)


def _page_address(folder: Path) -> str:
    deadline = time.monotonic() + _START_SECONDS
    while time.monotonic() < deadline:
        try:
            port = (folder / "DevToolsActivePort").read_text().split("\n")[0]
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/json", timeout=10) as answer:
                pages = [page for page in json.load(answer) if page["type"] == "page"]
            return str(pages[0]["webSocketDebuggerUrl"])
        except (OSError, ValueError, IndexError):
            time.sleep(0.1)
    raise TimeoutError("Chromium did not start")


def count_line_pixels(browser: Browser, chart: int, step: int, value: float) -> int:
    """Pixels in the colour of the line just below a point of a chart of a run's page."""
    found: int = browser.evaluate(
        f"""(() => {{
          const {{ u }} = trimtabRun.drawn[{chart}].entry;
          const x = Math.round(u.valToPos({step}, "x", true));
          const top = Math.round(u.valToPos({value}, "y", true));
          const pixels = u.ctx.getImageData(x - 2, top - 2, 5, 12).data;
          let seen = 0;
          for (let i = 0; i < pixels.length; i += 4)
            if (pixels[i + 3] > 60 && pixels[i + 2] > pixels[i] + 60) seen++;
          return seen;
        }})()"""
    )
    return found
