"""A small web server on loopback, for tests that need one to answer as they say."""

import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

Answer = Callable[[str, Mapping[str, str]], tuple[int, str]]  # (path without query, headers) → (status, text)


class _Server(ThreadingHTTPServer):
    """With room for a burst: connections beyond the queue, 5 unless stated, are reset on a busy machine."""

    request_queue_size = 128
    daemon_threads = True


@contextmanager
def web_server(answer: Answer) -> Iterator[str]:
    """Answer every GET and POST by a function; give host:port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.do_GET()

        def do_GET(self) -> None:
            status, text = answer(self.path.partition("?")[0], self.headers)
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Keep the test output quiet."""

    server = _Server(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
