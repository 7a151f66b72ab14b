"""Ranges of bytes of files: in a folder, or behind an address that speaks HTTP.

Neither is believed: who asks checks what comes by its digest. What is made sure of here is that a source costs no more
than was asked of it: answers have exactly the bytes of the range, redirects are few and never take credentials to
another host, and an answer that trickles is given up.
"""

import base64
import contextlib
import http.client
import os
import re
import socket
import threading
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol
from urllib.parse import SplitResult, quote, unquote, urljoin, urlsplit

from ckpt.disk.commit import naming
from ckpt.disk.folder import open_regular
from ckpt.errors import SourceError

_REDIRECTS = 5
_SILENCE_S = 30.0
_PATIENCE_S, _LEAST_BYTES_PER_S = 60.0, 64 << 10  # an answer that takes longer than both together is given up
_BLOCK_BYTES = 1 << 20
_CONTENT_RANGE = re.compile(r"bytes (\d+)-(\d+)/(\d+)")


class ByteRanges(Protocol):
    """Files that can be read in part."""

    def size(self, name: str) -> int: ...

    def read(self, name: str, start: int, end: int) -> bytes:
        """Exactly the bytes from ``start`` to ``end`` (excluded).

        Raises:
            SourceError: they cannot be had.
        """
        ...

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class LocalFiles:
    """Files of a folder; a link to it is followed, links in it are not."""

    folder: Path
    _opened: dict[str, int] = field(default_factory=dict)

    def size(self, name: str) -> int:
        return os.fstat(self._descriptor(name)).st_size

    def read(self, name: str, start: int, end: int) -> bytes:
        data = b""
        while len(data) < end - start:
            try:
                more = os.pread(self._descriptor(name), end - start - len(data), start + len(data))
            except OSError as error:
                raise SourceError(str(self.folder / name), str(error.strerror), f"bytes up to {end}") from None
            if not more:
                raise SourceError(str(self.folder / name), f"its end at {start + len(data)}", f"bytes up to {end}")
            data = data + more if data else more
        return data

    def _descriptor(self, name: str) -> int:
        if name not in self._opened:
            try:
                folder = os.open(self.folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
                try:
                    self._opened[name] = open_regular(name, folder, self.folder)
                finally:
                    os.close(folder)
            except OSError as error:
                raise SourceError(str(self.folder / name), str(error.strerror), "a regular file") from None
        return self._opened[name]

    def close(self) -> None:
        while self._opened:
            name, descriptor = self._opened.popitem()
            with naming(self.folder / name):
                os.close(descriptor)


class RemoteFiles:
    """Files below an ``http(s)`` address; ``user:password@`` in it is sent to that host alone."""

    def __init__(self, url: str) -> None:
        """``url`` ends with ``/``; a query is sent along with every name."""
        self._base = urlsplit(url)
        self._connection: http.client.HTTPConnection | None = None
        self._origin: tuple[str, str, int | None] | None = None
        self._sizes: dict[str, int] = {}
        self._etags: dict[str, str] = {}
        self._given_up = False

    def size(self, name: str) -> int:
        if name not in self._sizes:
            self.read(name, 0, 1)
        return self._sizes[name]

    def read(self, name: str, start: int, end: int) -> bytes:
        headers = {"Range": f"bytes={start}-{end - 1}", "Accept-Encoding": "identity"}
        if name in self._etags:
            headers["If-Range"] = self._etags[name]
        url = self._base._replace(path=self._base.path + quote(name), fragment="")
        self._given_up = False
        watch = threading.Timer(_PATIENCE_S + (end - start) / _LEAST_BYTES_PER_S, self._give_up)
        watch.start()
        try:
            response = self._follow(url, headers)
            self._check(url, name, response, start, end)
            return self._body(url, response, end - start)
        except (OSError, http.client.HTTPException) as error:
            self.close()
            raise SourceError(_shown(url), f"{type(error).__name__} {error}".strip(), "an answer") from None
        except SourceError:
            self.close()  # the rest of the answer is not waited for
            raise
        finally:
            watch.cancel()

    def _give_up(self) -> None:
        """Ends an answer that takes too long, wherever it is."""
        self._given_up = True
        if self._connection is not None and self._connection.sock is not None:
            with contextlib.suppress(OSError):  # it has ended by itself
                self._connection.sock.shutdown(socket.SHUT_RDWR)

    def _follow(self, url: SplitResult, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        """The answer to a request, behind redirects."""
        for _ in range(_REDIRECTS + 1):
            response = self._ask(url, headers)
            if response.status not in (301, 302, 303, 307, 308):
                return response
            response.read(_BLOCK_BYTES)
            target = urlsplit(urljoin(url.geturl(), response.getheader("Location", "")))
            if target.scheme not in ("http", "https") or (url.scheme, target.scheme) == ("https", "http"):
                raise SourceError(_shown(url), f"a redirect to {_shown(target)}", "one to a place no less safe")
            url = target
        raise SourceError(_shown(url), f"more than {_REDIRECTS} redirects", "the file")

    def _ask(self, url: SplitResult, headers: Mapping[str, str]) -> http.client.HTTPResponse:
        origin = _origin(url)
        sent = dict(headers)
        if self._base.username is not None and origin == _origin(self._base):
            pair = f"{unquote(self._base.username)}:{unquote(self._base.password or '')}"
            sent["Authorization"] = f"Basic {base64.b64encode(pair.encode()).decode()}"
        target = (url.path or "/") + (f"?{url.query}" if url.query else "")
        if self._connection is not None and self._origin == origin:
            try:
                self._connection.request("GET", target, headers=sent)
                return self._connection.getresponse()
            except (http.client.RemoteDisconnected, ConnectionError):
                if self._given_up:
                    raise  # otherwise the server closed the kept connection meanwhile: once more, on a new one
        self.close()
        kind = http.client.HTTPSConnection if url.scheme == "https" else http.client.HTTPConnection
        self._connection, self._origin = kind(url.hostname or "", url.port, timeout=_SILENCE_S), origin
        self._connection.request("GET", target, headers=sent)
        return self._connection.getresponse()

    def _check(self, url: SplitResult, name: str, response: http.client.HTTPResponse, start: int, end: int) -> None:
        if response.status != 206:
            found = f"status {response.status}"
            if response.status == 200:
                found += " with the whole file: it changed, or the server knows no ranges"
            raise SourceError(_shown(url), found, "status 206 with the bytes asked for")
        stated = response.getheader("Content-Range", "")
        match = _CONTENT_RANGE.fullmatch(stated)
        if match is None or (int(match[1]), int(match[2])) != (start, end - 1):
            raise SourceError(_shown(url), f"the range '{stated[:80]}'", f"'bytes {start}-{end - 1}/…'")
        if response.getheader("Content-Encoding", "identity") != "identity":
            raise SourceError(_shown(url), "an encoded answer", "the bytes as they are")
        etag = response.getheader("ETag", "")
        if self._sizes.setdefault(name, int(match[3])) != int(match[3]) or self._etags.get(name, etag) != etag:
            raise SourceError(_shown(url), "another file than before", "one that does not change meanwhile")
        if etag.startswith('"'):  # a weak one says nothing about bytes
            self._etags[name] = etag

    def _body(self, url: SplitResult, response: http.client.HTTPResponse, size: int) -> bytes:
        data = response.read(size + 1)
        if len(data) != size:
            found = "more bytes" if len(data) > size else f"{len(data)} bytes"
            late = ", for too long" if self._given_up else ""
            raise SourceError(_shown(url), found + late, f"{size}, as the range says")
        return data

    def close(self) -> None:
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def _origin(url: SplitResult) -> tuple[str, str, int | None]:
    return url.scheme, url.hostname or "", url.port


def _shown(url: SplitResult) -> str:
    """Without what may be secret: name, password and query."""
    port = f":{url.port}" if url.port else ""
    return f"{url.scheme}://{url.hostname}{port}{url.path}"
