"""The demo where no other machine can be reached, with every connection of every process counted.

A network namespace of its own has a loopback and no route; strace sees what C and Go do as well as Python. A missing
route alone would only hide attempts, so they are counted; and whoever asks a name server is counted too, be it one on
loopback, since that one would ask others.
"""

import ipaddress
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parent.parent.parent
CALLS = "trace=connect,sendto,sendmsg,sendmmsg"
STRACE = ["strace", "-f", "--seccomp-bpf", "-qq", "-s", "0", "-e", "signal=none", "-e", CALLS, "-o"]
DNS_PORT = 53
_ADDRESS = re.compile(
    r'sin_port=htons\((\d+)\), sin_addr=inet_addr\("([^"]+)"\)'
    r'|sin6_port=htons\((\d+)\).*?inet_pton\(AF_INET6, "([^"]+)"'
)


def destinations(trace: str) -> list[tuple[str, int]]:
    """(address, port) of every connection and datagram over IP."""
    return [(four or six, int(port or port6)) for port, four, port6, six in _ADDRESS.findall(trace)]


def services(stack: Path) -> set[int]:
    """The ports of a stack that has ended: three servers, the fleet and its two workers."""
    servers = json.loads((stack / "addresses.last.json").read_text())
    text = " ".join(str(servers[name]) for name in ("mlflow", "prefect", "victoria"))
    ports = {int(port) for port in re.findall(r"127\.0\.0\.1:(\d+)", text + (stack / "fleet-wine.log").read_text())}
    assert len(ports) == 6, f"not the ports of a whole stack: {ports}"
    return ports


def leaves(address: str, port: int) -> bool:
    """Whether something sent there leaves this machine, by itself or through a name server on it."""
    ip = ipaddress.ip_address(address)
    mapped = ip.ipv4_mapped if isinstance(ip, ipaddress.IPv6Address) else None
    here = (mapped or ip).is_loopback or (mapped or ip).is_unspecified
    return not here or port == DNS_PORT


def works(*command: str) -> bool:
    return (
        shutil.which(command[0]) is not None
        and subprocess.run(command, capture_output=True, check=False, timeout=30).returncode == 0
    )


can_trace = pytest.mark.skipif(
    not works(*STRACE, os.devnull, "true"), reason="strace is missing or may not trace: SYSTEM_DEPS=1 make system-deps"
)

KNOCK = """
import asyncio, socket, uvloop

async def main():
    loop = asyncio.get_running_loop()
    await asyncio.gather(loop.create_connection(asyncio.Protocol, "192.0.2.1", 80), return_exceptions=True)

uvloop.run(asyncio.wait_for(main(), 1))
"""
LOOK_UP = """
import socket
for address in (("192.0.2.2", 9), ("127.0.0.1", 9)):
    try:
        socket.socket(socket.AF_INET, socket.SOCK_DGRAM).sendto(b"x", address)
    except OSError:
        pass
try:
    socket.create_connection(("::ffff:127.0.0.1", 1))
except OSError:
    pass
try:
    socket.create_connection(("2001:db8::1", 80), timeout=1)
except OSError:
    pass
"""


@can_trace
@pytest.mark.parametrize(
    ("code", "expected"),
    [
        (KNOCK, {("192.0.2.1", 80)}),
        (LOOK_UP, {("192.0.2.2", 9), ("2001:db8::1", 80)}),
    ],
)
def test_the_count_sees_what_leaves(code: str, expected: set[tuple[str, int]], tmp_path: Path) -> None:
    """Also what is done in C, which no audit hook of Python sees: uvloop's own connect."""
    trace = tmp_path / "trace"

    subprocess.run([*STRACE, str(trace), sys.executable, "-c", code], capture_output=True, check=False, timeout=60)

    assert {found for found in destinations(trace.read_text()) if leaves(*found)} == expected


@pytest.mark.parametrize(("address", "port"), [("127.0.0.53", 53), ("10.0.0.1", 80), ("fe80::1", 80), ("1.1.1.1", 443)])
def test_what_leaves(address: str, port: int) -> None:
    assert leaves(address, port)


@pytest.mark.parametrize(
    ("address", "port"), [("127.0.0.1", 5000), ("::1", 80), ("0.0.0.0", 80), ("::ffff:127.0.0.1", 1)]
)
def test_what_stays(address: str, port: int) -> None:
    assert not leaves(address, port)


@can_trace
@pytest.mark.slow
@pytest.mark.integration
@pytest.mark.timeout(900)
@pytest.mark.skipif(not works("unshare", "-n", "ip", "link"), reason="a network namespace needs root, and iproute2")
def test_the_demo_needs_no_network_and_looks_for_none(tmp_path: Path) -> None:
    trace = tmp_path / "trace"
    own = {key: value for key, value in os.environ.items() if not key.startswith(("PREFECT_", "MLFLOW_", "TREERING_"))}
    demo = [sys.executable, "-m", "flows", "demo", "--recipe", "recipes.wine", "--backend", "eager", "--ports", "free"]
    alone = ["unshare", "-n", "sh", "-c", 'ip link set lo up && exec "$@"', "sh"]

    done = subprocess.run(
        [*alone, *STRACE, str(trace), *demo],
        cwd=REPOSITORY,
        env={**own, "TREERING_HOME": str(tmp_path / "home")},
        capture_output=True,
        text=True,
        check=False,
        timeout=880,
    )

    found = destinations(trace.read_text())
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    assert "0 connections to other machines" in done.stdout
    assert services(tmp_path / "home" / "stack") <= {port for _, port in found}
    assert [where for where in found if leaves(*where)] == []
