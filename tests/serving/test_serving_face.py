"""The package's one face."""

import subprocess
import sys

import serving


def test_the_exported_names() -> None:
    assert sorted(serving.__all__) == serving.__all__
    assert set(serving.__all__) == {
        "Bearer",
        "CallError",
        "Client",
        "QuarantinedError",
        "Reply",
        "ServingError",
        "Shot",
        "SourceError",
        "Standing",
        "Summary",
        "Token",
        "TokenError",
        "UnreachableError",
        "find_token",
        "run_load",
        "summarize",
    }
    assert all(hasattr(serving, name) for name in serving.__all__)


def test_talking_to_workers_imports_no_torch() -> None:
    code = "import sys, serving; print([name for name in ('torch', 'mlflow', 'fastapi') if name in sys.modules])"

    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)

    assert done.stdout.strip() == "[]"
