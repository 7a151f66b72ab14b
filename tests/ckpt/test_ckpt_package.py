"""``pip install ./ckpt`` gives a package that works alone, and its README is true, line by line."""

import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from ckpt.saving.writer import PRODUCER
from tests.test_repository import imported

REPOSITORY = Path(__file__).resolve().parent.parent.parent
PACKAGE = REPOSITORY / "ckpt"
README = (PACKAGE / "README.md").read_text()
DISTRIBUTIONS = {"google": "protobuf"}  # import name → distribution, where they differ


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package alone, as pip installs it."""
    folder = tmp_path_factory.mktemp("package")
    source = shutil.copytree(PACKAGE, folder / "ckpt", ignore=shutil.ignore_patterns("__pycache__"))
    install = ["install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index", "--target"]
    pip(*install, str(folder / "site"), str(source))
    return folder / "site"


def pip(*arguments: str) -> None:
    subprocess.run([sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments], check=True, timeout=300)


def run(installed: Path, work: Path, *command: str) -> str:
    """What a command prints that knows the installed package and no repository."""
    done = subprocess.run(
        [sys.executable, "-P", *command],
        cwd=work,
        env={"PYTHONPATH": str(installed), "PATH": "/usr/bin:/bin"},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, f"{command}: {done.stderr}"
    return done.stdout


def test_every_module_is_installed(installed: Path) -> None:
    def modules(folder: Path) -> set[str]:
        return {str(path.relative_to(folder)) for path in folder.rglob("*.py")}

    assert modules(installed / "ckpt") == modules(PACKAGE)
    place = run(installed, installed, "-c", "import ckpt; print(ckpt.__file__)")
    assert Path(place.strip()) == installed / "ckpt" / "__init__.py"


def test_the_command_is_installed(installed: Path, tmp_path: Path) -> None:
    shown = run(installed, tmp_path, str(installed / "bin" / "ckpt"), "--help")

    assert shown.startswith("usage: ckpt ")


def test_it_asks_for_what_it_imports_and_for_nothing_else() -> None:
    project = tomllib.loads((PACKAGE / "pyproject.toml").read_text())["project"]
    whole = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    names = set().union(*(imported(file) for file in PACKAGE.rglob("*.py"))) - {"ckpt"}
    foreign = {DISTRIBUTIONS.get(name, name) for name in names if name not in sys.stdlib_module_names}

    assert {re.split("[<>=]", line)[0] for line in project["dependencies"]} == foreign
    assert set(project["dependencies"]) <= set(whole["dependencies"])
    assert project["requires-python"] == whole["requires-python"]
    assert project["version"] == PRODUCER["ckpt"]


_COMMANDS = """
import ckpt
from ckpt.__main__ import main
for call in {calls}:
    assert main(call) == 0, call
"""


def test_the_readme_does_what_it_says(installed: Path, tmp_path: Path) -> None:
    """Its Python blocks as one program, then its commands in the folder that this leaves."""
    blocks = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
    later = [block for block in blocks if "trust=" in block or "ckpt.stage(" in block]
    commands = [line.split("#")[0].split() for line in re.findall(r"^    (ckpt .*)$", README, re.MULTILINE)]

    run(installed, tmp_path, "-c", "\n".join(block for block in blocks if block not in later))
    state = {"w": torch.arange(6.0)}
    save_file(state, tmp_path / "model.safetensors")
    (tmp_path / "llama").mkdir()
    save_file(state, tmp_path / "llama" / "model.safetensors")
    torch.save(state, tmp_path / "old.pt")
    shutil.copytree(tmp_path / "runs" / "1" / "step-10", tmp_path / "host")
    calls = [[str(tmp_path / "host") if word.startswith("https://") else word for word in one[1:]] for one in commands]
    run(installed, tmp_path, "-c", f"{_COMMANDS.format(calls=calls)}\n" + "\n".join(later))

    assert len(blocks) == 5
    assert {command[1] for command in commands} >= {"adopt", "convert", "verify", "repair", "sign", "diff", "apply"}
