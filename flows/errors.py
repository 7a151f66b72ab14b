"""What can go wrong while running the pipeline and its local stack.

    FlowError
    ├── StackError              a server of the local stack did not start, stop or answer
    │   ├── PortInUseError      another program listens where a server should
    │   ├── MissingProgramError a program that is not installed
    │   └── ForeignServerError  a server that the environment names and that cannot be used
    ├── GateError               figures below what the recipe asks for
    ├── WrongAnswerError        an answer that is not the offline answer of the version it names
    ├── GuardError              a process of the stack did what none of them does
    └── StageError              a stage of the pipeline that did not end as it must

Each says the thing, what was found, what was expected and what to do next; the facts are attributes.
"""

from collections.abc import Sequence


class FlowError(Exception):
    """Anything this package raises by itself; ``facts`` holds what the message states."""

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.facts = facts


class StackError(FlowError):
    """A server of the local stack is not as it should be."""


class PortInUseError(StackError):
    """Another program listens where a server of the stack should."""

    def __init__(self, name: str, port: int, holder: str) -> None:
        super().__init__(
            f"{name} cannot listen on 127.0.0.1:{port}: {holder} does. Stop it, or start the stack on free ports with "
            "'python -m flows up --ports free' (make demo PORTS=free).",
            name=name,
            port=port,
            holder=holder,
        )


class MissingProgramError(StackError):
    """A program that has to be installed first."""


class ForeignServerError(StackError):
    """A server that the environment names cannot be used; the message holds no credential."""

    def __init__(self, variable: str, address: str, *, found: str, expected: str, next_step: str) -> None:
        super().__init__(
            f"{variable} names {address}: found {found}, expected {expected}. {next_step}; or unset {variable}, and "
            "the stack starts a server of its own.",
            variable=variable,
            address=address,
            found=found,
            expected=expected,
        )


class GateError(FlowError):
    """The release gate holds a model back."""

    def __init__(self, model: str, failures: tuple[str, ...]) -> None:
        super().__init__(
            f"'{model}' is not released: {'; '.join(failures)}. Train longer or on better data, or release it all the "
            "same with force='why'.",
            model=model,
            failures=failures,
        )


class WrongAnswerError(FlowError):
    """A worker answered with something else than the version it names computes offline."""


class GuardError(FlowError):
    """The guards recorded a refusal or a connection to another machine, or a process has no guard."""

    def __init__(self, findings: Sequence[str]) -> None:
        super().__init__(
            f"the guards found {len(findings)}, expected nothing: {'; '.join(findings[:5])}. 'python -m flows guard' "
            "shows all; docs/decisions/0006-the-guard.md says what it means.",
            findings=tuple(findings),
        )


class StageError(FlowError):
    """A stage of the pipeline did not end as it must."""
