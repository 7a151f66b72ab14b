"""What can go wrong while serving.

    ServingError                       500
    ├── RequestError (ValueError)      400   the request cannot be answered as it stands
    │   ├── UnauthorizedError          401
    │   ├── UnknownNameError           404   no such model, version or path
    │   ├── MethodError                405
    │   ├── BodyTooLargeError          413
    │   └── EncodingError              415
    ├── ModelFailedError               500   the program raised on these rows
    ├── UnavailableError               503   try again later
    │   ├── OverloadedError            503   the predicted wait is beyond the bound
    │   └── NotReadyError              503   loading, stalled or draining
    ├── UpdateError                    409   an update was refused; what served before still serves
    │   ├── ReleaseRefusedError        409   the checkpoint folder does not verify, or is not what was asked for
    │   ├── NotStagedError             409   flip without the stage it names
    │   └── NothingToUndoError         409   no previous generation is held
    ├── SourceError                          the wanted version cannot be resolved or fetched
    │   └── QuarantinedError                 it was rolled back, and nobody cleared it
    ├── CallError                            a worker answered a call of ours with another status than 200
    ├── UnreachableError                     a worker did not answer a call of ours
    ├── TokenError                           the token of control calls cannot be had, or is no secret
    └── StartError                           a worker or fleet cannot start
        └── PortInUseError

Each names the thing, what was found, what was expected and the next step, and carries these as attributes; the
status is what the HTTP face answers. Messages may quote names and shapes, never values of tensors.
"""

from typing import ClassVar

QUOTED_CHARACTERS = 80


def quote(value: object) -> str:
    """Quote a value from outside for a message, cut to ``QUOTED_CHARACTERS``."""
    text = repr(value)
    return text if len(text) <= QUOTED_CHARACTERS else text[:QUOTED_CHARACTERS] + "…"


class ServingError(Exception):
    """An error of the serving package; see the tree at the head of this module."""

    status: ClassVar[int] = 500

    def __init__(self, thing: str, *, found: str, expected: str, next_step: str = "") -> None:
        """Say what is wrong with ``thing``.

        Args:
            thing: What the error is about, as its user names it.
            found: What is there.
            expected: What should be there.
            next_step: A sentence on what to do, where there is something to do.
        """
        self.thing = thing
        self.found = found
        self.expected = expected
        self.next_step = next_step
        super().__init__(f"{thing}: found {found}, expected {expected}. {next_step}".rstrip())


class RequestError(ServingError, ValueError):
    """The request cannot be answered as it stands."""

    status = 400


class UnauthorizedError(RequestError):
    """A control call without the bearer token."""

    status = 401


class UnknownNameError(RequestError):
    """No model, version or path of that name."""

    status = 404


class MethodError(RequestError):
    """The path exists; the method does not."""

    status = 405


class BodyTooLargeError(RequestError):
    """The body is larger than the worker takes."""

    status = 413


class EncodingError(RequestError):
    """The body comes in an encoding that is not understood."""

    status = 415


class ModelFailedError(ServingError):
    """The program raised on the rows of one request, run alone."""


class UnavailableError(ServingError):
    """Not now; ``retry_after_s`` says when to come back, in whole seconds."""

    status = 503

    def __init__(self, thing: str, *, found: str, expected: str, retry_after_s: int, next_step: str = "") -> None:
        super().__init__(thing, found=found, expected=expected, next_step=next_step)
        self.retry_after_s = retry_after_s


class OverloadedError(UnavailableError):
    """The predicted wait is beyond the worker's bound."""


class NotReadyError(UnavailableError):
    """The worker is loading, stalled or draining."""


class UpdateError(ServingError):
    """An update was refused; what served before still serves."""

    status = 409


class ReleaseRefusedError(UpdateError):
    """The checkpoint folder does not verify, or is not what was asked for."""


class NotStagedError(UpdateError):
    """A flip names a root that is not staged."""


class NothingToUndoError(UpdateError):
    """No previous generation is held."""


class SourceError(ServingError):
    """The wanted version cannot be resolved or fetched."""


class QuarantinedError(SourceError):
    """The wanted root was rolled back, and nobody cleared it."""


class CallError(ServingError):
    """A worker or fleet answered another status than 200; ``status_code`` and ``retry_after_s`` are what it said."""

    def __init__(
        self, thing: str, *, found: str, expected: str, status_code: int, retry_after_s: int | None = None
    ) -> None:
        super().__init__(thing, found=found, expected=expected)
        self.status_code = status_code
        self.retry_after_s = retry_after_s


class UnreachableError(ServingError):
    """A worker or fleet did not answer."""


class TokenError(ServingError):
    """The token of control calls cannot be had, or is no secret."""


class StartError(ServingError):
    """A worker or a fleet cannot start."""


class PortInUseError(StartError):
    """Another process listens on the port."""
