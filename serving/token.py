"""The token of control calls: where it comes from, and that nobody else can read it.

Promises: it comes from a file or the environment, never from a command line, where every user of the machine could
read it. A file is read anew at each call, so who replaces it (in one rename) needs to tell nobody: from then on the old
token is refused, and :class:`Bearer`, which had read the old one just before, asks again with the new one. A file that
others can read or write, or that another user owns, is refused: its token is not a secret.
"""

import os
import stat
from collections.abc import Generator
from dataclasses import dataclass, field
from pathlib import Path

import httpx

from serving.errors import TokenError

TOKEN_VARIABLE = "TREERING_TOKEN"
MIN_CHARACTERS = 16
MAX_CHARACTERS = 4096
OTHERS = stat.S_IRWXG | stat.S_IRWXO


@dataclass(frozen=True, slots=True)
class Token:
    """A token: a value, or the file that holds it."""

    value: str = field(default="", repr=False)
    file: Path | None = None

    def current(self) -> str:
        """What it is now.

        Raises:
            TokenError: The file cannot be read, others can read it, or what it holds is too short.
        """
        thing = f"the environment variable {TOKEN_VARIABLE}" if self.file is None else f"token file '{self.file}'"
        token = self.value if self.file is None else _read(self.file, thing=thing)
        if not (len(token) >= MIN_CHARACTERS and token.isascii() and token.isprintable()):
            raise TokenError(
                thing,
                found=f"{len(token)} characters",
                expected=f"at least {MIN_CHARACTERS}, on one line of ASCII",
                next_step="Write one with: python -c 'import secrets; print(secrets.token_urlsafe(32))' > FILE",
            )
        return token


def find_token(file: Path | None) -> Token | None:
    """The token in ``file``, or in the environment variable ``TREERING_TOKEN``; None when neither is given.

    Raises:
        TokenError: It is none now; see :meth:`Token.current`.
    """
    if file is None and TOKEN_VARIABLE not in os.environ:
        return None
    token = Token(file=file.absolute()) if file is not None else Token(os.environ[TOKEN_VARIABLE])
    token.current()
    return token


def _read(file: Path, *, thing: str) -> str:
    try:
        with open(file, encoding="ascii") as opened:
            _refuse_shared(os.fstat(opened.fileno()), file, thing=thing)
            return opened.read(MAX_CHARACTERS).strip()
    except (OSError, UnicodeDecodeError) as error:
        raise TokenError(thing, found=str(error), expected="a readable line of ASCII") from error


def _refuse_shared(status: os.stat_result, file: Path, *, thing: str) -> None:
    if status.st_uid not in (0, os.geteuid()):
        raise TokenError(
            thing,
            found=f"a file of user {status.st_uid}",
            expected=f"one of user {os.geteuid()}, who runs this",
            next_step=f"Who owns it knows the token: write another to a file of your own, or chown {os.geteuid()} it.",
        )
    if status.st_mode & OTHERS:
        raise TokenError(
            thing,
            found=f"mode {stat.S_IMODE(status.st_mode):o}, so that others may read or write it",
            expected="mode 600",
            next_step=f"chmod 600 '{file}', and give it another token if others may have read this one.",
        )


class Bearer(httpx.Auth):
    """Adds the token to each call; a call that is refused for a token replaced meanwhile is made once more."""

    def __init__(self, token: Token) -> None:
        self._token = token

    def auth_flow(self, request: httpx.Request) -> Generator[httpx.Request, httpx.Response, None]:
        """See httpx."""
        sent = self._token.current()
        request.headers["Authorization"] = f"Bearer {sent}"
        response = yield request
        if response.status_code == httpx.codes.UNAUTHORIZED and (now := self._token.current()) != sent:
            request.headers["Authorization"] = f"Bearer {now}"
            yield request
