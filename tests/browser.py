"""A person at a browser: headless Chromium that opens pages, clicks on words and reads what shows."""

import base64
import json
import re
import shutil
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
from websockets.sync.client import ClientConnection, connect

CHROMIUM = shutil.which("chromium")
OPTIONS = (
    *("--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking"),
    *("--disable-component-update", "--disable-sync", "--disable-quic", "--window-size=1280,1000"),
    *("--remote-debugging-port=0", "--disable-features=IsolateSandboxedIframes"),  # frames are read with their page
)
PATIENCE_S = 60.0
CLICK = """(words => {
  const all = [...document.querySelectorAll('a, button, [role=tab], [role=treeitem], li, span, div')];
  const found = all.filter(e => e.textContent.trim() === words && e.getClientRects().length);
  if (!found.length) return false;
  found.at(-1).click();
  return true;
})"""


class Browser:
    """One page."""

    def __init__(self, line: ClientConnection) -> None:
        self._line = line
        self._number = 0

    def open(self, url: str, *words: str) -> str:
        """Go to an address; return what shows once all the words do."""
        self._do("Page.navigate", url=url)
        return self.see(*words)

    def click(self, label: str, *words: str) -> str:
        """Click on what carries exactly this label; return what shows once all the words do."""
        self._until(lambda: bool(self._run(f"{CLICK}({json.dumps(label)})")), f"nothing to click reads '{label}'")
        return self.see(*words)

    def choose(self, selector: str, file: Path) -> None:
        """Pick a file, as with its file chooser."""
        root = self._do("DOM.getDocument")["root"]["nodeId"]
        node = self._do("DOM.querySelector", nodeId=root, selector=selector)["nodeId"]
        assert node, f"no element is {selector}"
        self._do("DOM.setFileInputFiles", nodeId=node, files=[str(file)])

    def type(self, selector: str, value: str) -> None:
        """Replace what stands in a field."""
        field = f"document.querySelector({json.dumps(selector)})"
        self._run(f"{field}.value = {json.dumps(value)}; {field}.dispatchEvent(new Event('change'))")

    def table(self, selector: str) -> list[list[str]]:
        """The rows of a table's body, cell by cell, as they read."""
        rows = f"[...document.querySelectorAll({json.dumps(selector + ' tbody tr')})]"
        found: list[list[str]] = self._run(f"{rows}.map(row => [...row.cells].map(cell => cell.innerText))")
        return found

    def see(self, *words: str) -> str:
        """What shows, frames included, once all the words do."""
        text = ""

        def all_there() -> bool:
            nonlocal text
            text = _text(self._do("DOM.getDocument", depth=-1, pierce=True)["root"])
            return all(word in text for word in words)

        self._until(all_there, f"expected {words}")
        return text

    def photograph(self, file: Path) -> None:
        """What a person sees, as PNG."""
        file.write_bytes(base64.b64decode(self._do("Page.captureScreenshot", format="png")["data"]))

    def _until(self, holds: Any, otherwise: str) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while not holds():
            if time.monotonic() > deadline:
                raise AssertionError(f"{otherwise}; the page reads:\n{self.see()[:3000]}")
            time.sleep(0.2)

    def _run(self, script: str) -> Any:
        return self._do("Runtime.evaluate", expression=script, returnByValue=True)["result"].get("value")

    def _do(self, method: str, **parameters: Any) -> Any:
        self._number += 1
        self._line.send(json.dumps({"id": self._number, "method": method, "params": parameters}))
        while True:
            message = json.loads(self._line.recv(timeout=PATIENCE_S))
            if message.get("id") == self._number:
                assert "error" not in message, message
                return message["result"]


def _text(node: dict[str, Any]) -> str:
    """The text of a document, without scripts and styles."""
    if node["nodeName"] in ("SCRIPT", "STYLE", "NOSCRIPT"):
        return ""
    own = node.get("nodeValue", "") if node["nodeType"] == 3 else ""
    inside = [*node.get("children", ()), *filter(None, [node.get("contentDocument")]), *node.get("shadowRoots", ())]
    return " ".join(filter(None, [own, *map(_text, inside)]))


@contextmanager
def browser(profile: Path) -> Iterator[Browser]:
    """Start Chromium with an empty profile; end it with the block."""
    assert CHROMIUM is not None
    command = [CHROMIUM, *OPTIONS, f"--user-data-dir={profile}", "about:blank"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stderr is not None
        port = next(found[1] for line in process.stderr if (found := re.search(r"ws://127.0.0.1:(\d+)/", line)))
        pages = httpx.get(f"http://127.0.0.1:{port}/json", trust_env=False).json()
        address = next(page["webSocketDebuggerUrl"] for page in pages if page["type"] == "page")
        with connect(address, max_size=None, proxy=None) as line:
            yield Browser(line)
    finally:
        process.terminate()
        process.communicate(timeout=30)
