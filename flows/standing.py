"""How a served model stands: what its alias names, who serves that, and whether a monitor watches."""

from pathlib import Path
from typing import Any

import httpx

from flows.stack import Record
from flows.stack.fleet import PREFIX
from flows.stack.monitor import PREFIX as MONITOR
from flows.stack.process import find

PATIENCE_S = 5.0


def standing(record: Record, home: Path) -> dict[str, Any] | None:
    """What a fleet's record stands for; None for a record of something else, and for a fleet that has ended."""
    model = record.name.removeprefix(PREFIX)
    if record.name == model or record.process() is None:
        return None
    facts: dict[str, Any] = {"model": model, "monitored": find(home, MONITOR + model) is not None}
    try:
        status = httpx.get(record.url, timeout=PATIENCE_S, trust_env=False).raise_for_status().json()
    except httpx.HTTPError as error:
        return {**facts, "alias": None, "version": None, "root": None, "workers": [], "problem": str(error)}
    return {
        **facts,
        "alias": status["alias"],
        **status["desired"],
        "workers": [worker["version"] for worker in status["workers"]],
        "problem": status["problem"],
    }


def as_line(facts: dict[str, Any]) -> str:
    """``mnist@champion     v3 on 2 of 2 workers, monitored``"""
    where = f"{facts['model']}@{facts['alias'] or '?'}"
    serving = facts["workers"].count(facts["version"])
    served = f"v{facts['version']} on {serving} of {len(facts['workers'])} workers" if facts["alias"] else "no answer"
    watched = "monitored" if facts["monitored"] else "not monitored"
    problem = f": {facts['problem']}" if facts["problem"] else ""
    return f"{where:<18} {served}, {watched}{problem}"
