"""Calls to Prefect by a client of their own, such as artifacts: made again while the server is away.

Prefect's client repeats a call for about a minute when the answer is lost or says 'try again', and when a connection is
refused only if it was connected before; a client that is made for one call never was. Such a call was not carried out,
so that it may be made again.
"""

import logging
import time
from collections.abc import Callable
from typing import TypeVar

import httpx
from prefect import get_client

from flows.settings import patience_s

PAUSE_S = 0.5

T = TypeVar("T")
log = logging.getLogger(__name__)


def await_prefect() -> None:
    """Return when Prefect's server answers: a subflow that begins while it is away would end the run.

    Raises:
        httpx.ConnectError: it did not for ``TREERING_PATIENCE_S``.
    """

    def greet() -> None:
        with get_client(sync_client=True) as client:
            client.hello()

    patiently(greet)


def patiently(call: Callable[[], T]) -> T:
    """The answer to a call that connects anew; waits for a server that refuses connections.

    Raises:
        httpx.ConnectError: it did for ``TREERING_PATIENCE_S``.
    """
    deadline = time.monotonic() + patience_s()
    while True:
        try:
            return call()
        except httpx.ConnectError:
            if time.monotonic() >= deadline:
                raise
            log.warning("Prefect refuses connections; trying again")
            time.sleep(PAUSE_S)
