"""Servers of other people: named by the environment, used as they are, never started and never stopped.

Promises: each is asked before anything is started whether it answers, lets these credentials in, and is what its
variable says. A user and a password that stand in an address are taken out of it once, at the edge, and go by the
variables from which its client reads them; so an address may be shown, logged and written down.
"""

import base64
import re
import socket
from collections.abc import Callable, Mapping, MutableMapping
from dataclasses import dataclass
from urllib.parse import unquote, urlsplit

import httpx

from flows.errors import ForeignServerError
from flows.settings import victoria_auth

OLDEST_MLFLOW = 3  # has logged models
PREFECT = 3
CHECK_S = 10.0

Environment = Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One of the servers that a user may bring.

    Attributes:
        title: For people.
        variable: Holds its address.
        secrets: The variables that let one in, in words.
        credentials: What a user and a password become, by variable.
        authorization: The header that its client will send, or None.
        probe: A path that needs the same permission as everything else.
        refuse: What is wrong with the answer to that, in words, and what was expected; None when all is well.
    """

    title: str
    variable: str
    secrets: str
    credentials: Callable[[str, str], dict[str, str]]
    authorization: Callable[[Environment], str | None]
    probe: str
    refuse: Callable[[httpx.Response], tuple[str, str] | None]


def given(environment: Environment) -> dict[str, str]:
    """The addresses that an environment names, by the field of ``Addresses``, without their credentials."""
    return {name: part(environment[kind.variable])[0] for name, kind in KINDS.items() if environment.get(kind.variable)}


def take_credentials(environment: MutableMapping[str, str]) -> None:
    """Move users and passwords out of addresses, to the variables that the clients read."""
    for kind in KINDS.values():
        address, user, password = part(environment.get(kind.variable, ""))
        if user:
            environment.update({kind.variable: address, **kind.credentials(user, password)})


def part(address: str) -> tuple[str, str, str]:
    """An address without credentials and without a slash at its end, the user, and the password."""
    parts = urlsplit(address)
    plain = parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl().rstrip("/")
    return plain, unquote(parts.username or ""), unquote(parts.password or "")


def listens(address: str) -> bool:
    """Whether somebody takes connections at an address."""
    parts = urlsplit(address)
    try:
        with socket.create_connection((parts.hostname, parts.port), timeout=CHECK_S):
            return True
    except OSError:
        return False


def check(name: str, address: str, environment: Environment) -> None:
    """Ask a server whether it can be used.

    Args:
        name: A field of ``Addresses``.
        address: Without credentials.
        environment: Holds the credentials.

    Raises:
        ForeignServerError: it cannot; says why and what to do. It never holds a credential.
    """
    kind = KINDS[name]
    authorization = kind.authorization(environment)
    try:
        answer = httpx.get(
            address + kind.probe,
            headers={"Authorization": authorization} if authorization else {},
            timeout=CHECK_S,
            follow_redirects=True,
        )
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ForeignServerError(
            kind.variable,
            address,
            found=f"no answer ({error or type(error).__name__})",
            expected=f"a running {kind.title} server",
            next_step="Start it, or correct the variable",
        ) from None
    if answer.status_code in (httpx.codes.UNAUTHORIZED, httpx.codes.FORBIDDEN):
        raise ForeignServerError(
            kind.variable,
            address,
            found=f"status {answer.status_code} with {'the credentials given' if authorization else 'no credentials'}",
            expected="to be let in",
            next_step=f"Set {kind.secrets} to what it knows",
        )
    wrong = kind.refuse(answer)
    if wrong is not None:
        raise ForeignServerError(
            kind.variable, address, found=wrong[0], expected=wrong[1], next_step="Correct the variable, or the server"
        )


def _basic(pair: str) -> str:
    """As HTTP writes USER:PASSWORD."""
    return "Basic " + base64.b64encode(pair.encode()).decode()


def _mlflow_authorization(environment: Environment) -> str | None:
    user, password = environment.get("MLFLOW_TRACKING_USERNAME"), environment.get("MLFLOW_TRACKING_PASSWORD")
    token = environment.get("MLFLOW_TRACKING_TOKEN")
    if user and password:  # as MLflow's client does
        return _basic(f"{user}:{password}")
    return f"Bearer {token}" if token else None


def _prefect_authorization(environment: Environment) -> str | None:
    pair, key = environment.get("PREFECT_API_AUTH_STRING"), environment.get("PREFECT_API_KEY")
    if pair:  # as Prefect's client does
        return _basic(pair)
    return f"Bearer {key}" if key else None


def _victoria_authorization(environment: Environment) -> str | None:
    auth = victoria_auth(environment)
    return _basic(":".join(auth)) if auth else None


def _refuse_mlflow(answer: httpx.Response) -> tuple[str, str] | None:
    return _refuse_version(answer, title="MLflow", works=lambda major: major >= OLDEST_MLFLOW)


def _refuse_prefect(answer: httpx.Response) -> tuple[str, str] | None:
    return _refuse_version(answer, title="Prefect", works=lambda major: major == PREFECT)


def _refuse_version(answer: httpx.Response, *, title: str, works: Callable[[int], bool]) -> tuple[str, str] | None:
    form = "http://HOST:PORT/api" if title == "Prefect" else "http://HOST:PORT or http://HOST/PREFIX"
    version = re.fullmatch(r'"?(\d+)\.\d+[^\s"]*"?', answer.text.strip()) if answer.is_success else None
    if version is None:
        return f"status {answer.status_code} and no version", f"the version of a {title} server; its address is {form}"
    if not works(int(version[1])):
        return f"{title} {answer.text.strip()[:40]}", f"{title} {OLDEST_MLFLOW if title == 'MLflow' else PREFECT}"
    return None


def _refuse_victoria(answer: httpx.Response) -> tuple[str, str] | None:
    if answer.is_success and not answer.text.strip():
        return None
    return f"status {answer.status_code} to /api/v1/export", "VictoriaMetrics, single-node"


KINDS = {
    "mlflow": Kind(
        title="MLflow",
        variable="MLFLOW_TRACKING_URI",
        secrets="MLFLOW_TRACKING_USERNAME and MLFLOW_TRACKING_PASSWORD",
        credentials=lambda user, password: {
            "MLFLOW_TRACKING_USERNAME": user,
            "MLFLOW_TRACKING_PASSWORD": password,
        },
        authorization=_mlflow_authorization,
        probe="/version",
        refuse=_refuse_mlflow,
    ),
    "prefect": Kind(
        title="Prefect",
        variable="PREFECT_API_URL",
        secrets="PREFECT_API_AUTH_STRING ('USER:PASSWORD') or PREFECT_API_KEY",
        credentials=lambda user, password: {"PREFECT_API_AUTH_STRING": f"{user}:{password}"},
        authorization=_prefect_authorization,
        probe="/admin/version",
        refuse=_refuse_prefect,
    ),
    "victoria": Kind(
        title="VictoriaMetrics",
        variable="TREERING_VICTORIAMETRICS_URL",
        secrets="TREERING_VICTORIAMETRICS_USERNAME and TREERING_VICTORIAMETRICS_PASSWORD",
        credentials=lambda user, password: {
            "TREERING_VICTORIAMETRICS_USERNAME": user,
            "TREERING_VICTORIAMETRICS_PASSWORD": password,
        },
        authorization=_victoria_authorization,
        probe="/api/v1/export?match[]=treering_nothing",
        refuse=_refuse_victoria,
    ),
}
