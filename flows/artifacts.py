"""The keys of Prefect artifacts: one series of pages for each kind and model."""

import re


def artifact_key(kind: str, model: str) -> str:
    """``pipeline-my-model`` for ``My_Model``: Prefect takes lower-case letters, digits and dashes."""
    return re.sub(r"[^a-z0-9]+", "-", f"{kind}-{model}".lower()).strip("-")
