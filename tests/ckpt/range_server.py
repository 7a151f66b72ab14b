"""A web server on loopback that gives files by ranges of bytes, well or as a test says."""

import hashlib
import re
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from email.message import Message
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


@dataclass
class Asked:
    """What the server was asked for: path, headers, and the first byte and end of the range."""

    path: str
    headers: Message
    start: int
    end: int


@dataclass
class Answer:
    """What is sent; a test may change any of it, or send something else and set ``sent``."""

    status: int
    headers: dict[str, str]
    body: bytes
    handler: BaseHTTPRequestHandler
    sent: bool = False


Twist = Callable[[Asked, Answer], object]


@dataclass
class RangeServer:
    """``url`` ends without a slash; ``asked`` has every request in order."""

    url: str
    asked: list[Asked] = field(default_factory=list)

    def bytes_of(self, suffix: str) -> int:
        """Bytes that were asked for, of files with a name like this."""
        return sum(item.end - item.start for item in self.asked if item.path.endswith(suffix))


@contextmanager
def range_server(folder: Path, twist: Twist = lambda asked, answer: None) -> Iterator[RangeServer]:
    """Serve a folder; ``twist`` sees each answer before it is sent."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            file = folder / path.lstrip("/")
            data = file.read_bytes() if file.is_file() else b""
            match = re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("Range", ""))
            start, end = (int(match[1]), int(match[2]) + 1) if match else (0, len(data))
            asked = Asked(path, self.headers, start, end)
            seen.asked.append(asked)
            tag = f'"{hashlib.sha256(data).hexdigest()[:16]}"'
            headers = {"ETag": tag, "Content-Range": f"bytes {start}-{min(end, len(data)) - 1}/{len(data)}"}
            answer = Answer(206 if file.is_file() else 404, headers, data[start:end], self)
            if self.headers.get("If-Range", tag) != tag:
                answer.status, answer.body = 200, data
            twist(asked, answer)
            if not answer.sent:
                self.send_response(answer.status)
                for name, value in ({"Content-Length": str(len(answer.body))} | answer.headers).items():
                    self.send_header(name, value)
                self.end_headers()
                self.wfile.write(answer.body)

        def log_message(self, *_: object) -> None:
            """Keep the test output quiet."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    seen = RangeServer(f"http://127.0.0.1:{server.server_port}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield seen
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
