"""The page that runs ONNX files in a browser, served on this machine alone.

The folder ``web`` is plain files, and any static server will do (``python -m http.server -d compiler/web``). This one
also sends the two headers that isolate the page from other sites, without which browsers let WebAssembly have one
thread only. ``web/runtime`` is onnxruntime-web, which ``make web`` fetches.
"""

from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Final

from compiler.errors import BackendRefusedError

FOLDER: Final = Path(__file__).parent / "web"
RUNTIME: Final = FOLDER / "runtime" / "ort.wasm.min.mjs"
_TYPES: Final = {".mjs": "text/javascript", ".wasm": "application/wasm"}  # what a machine's own table may lack
_HEADERS: Final = {
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Embedder-Policy": "require-corp",
    "Cache-Control": "no-cache",
    "X-Content-Type-Options": "nosniff",
}


class _Handler(SimpleHTTPRequestHandler):
    extensions_map = SimpleHTTPRequestHandler.extensions_map | _TYPES

    def end_headers(self) -> None:
        for name, value in _HEADERS.items():
            self.send_header(name, value)
        super().end_headers()

    def log_message(self, format: str, *arguments: object) -> None:
        """Says nothing: the address was printed, and a page's requests are of no interest."""


def make_server(port: int) -> ThreadingHTTPServer:
    """A server of the page on loopback; port 0 takes a free one. Serve with ``serve_forever``, end with ``with``.

    Raises:
        BackendRefusedError: onnxruntime-web is not there.
        OSError: The port is taken.
    """
    if not RUNTIME.exists():
        raise BackendRefusedError(
            backend="onnx", reason=f"onnxruntime-web is not in '{RUNTIME.parent}'", next_step="Run: make web"
        )
    try:
        return ThreadingHTTPServer(("127.0.0.1", port), partial(_Handler, directory=str(FOLDER)))
    except OSError as error:
        raise OSError(error.errno, f"port {port}: {error.strerror}; choose another by --port") from error
