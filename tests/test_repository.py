"""What the documents and configuration say is so: faces, generated code, deployments, commands, the README's recipe."""

import ast
import importlib
import importlib.metadata
import inspect
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parent.parent
PACKAGES = ("ckpt", "compiler", "ingest", "monitors", "recipes", "registry", "serving")


@pytest.mark.parametrize("name", PACKAGES)
def test_a_package_exports_what_its_face_lists(name: str) -> None:
    package = importlib.import_module(name)

    listed = sorted(package.__all__)
    own = {
        key
        for key, value in vars(package).items()
        if not key.startswith("_")
        and not inspect.ismodule(value)
        and (getattr(value, "__module__", name) or "").startswith(name)
    }

    assert listed == sorted(set(listed))
    assert all(hasattr(package, key) for key in listed)
    assert own - set(listed) == set()
    assert package.__doc__ is not None
    assert len(package.__doc__.splitlines()) > 5


def test_ckpt_exports_these_names() -> None:
    """The names that others build on; adding one is a decision, losing one breaks them."""
    package = importlib.import_module("ckpt")

    functions = {key for key in package.__all__ if key[0].islower()}

    assert functions == {
        "adopt",
        "apply",
        "consolidate",
        "convert",
        "diff",
        "inspect",
        "invert",
        "keep",
        "keygen",
        "latest",
        "load",
        "load_into",
        "open",
        "read_delta",
        "read_manifest",
        "repair",
        "reshard",
        "save",
        "save_async",
        "sign",
        "signer",
        "squash",
        "stage",
        "staged",
        "steps_to_keep",
        "unsign",
        "verify",
    }


def test_generated_code_is_what_its_source_gives(tmp_path: Path) -> None:
    sources = [str(path.relative_to(REPOSITORY)) for path in sorted(REPOSITORY.glob("*/proto/*.proto"))]
    command = [sys.executable, "-m", "grpc_tools.protoc", f"-I{REPOSITORY}", f"--python_out={tmp_path}"]
    subprocess.run([*command, f"--pyi_out={tmp_path}", *sources], cwd=REPOSITORY, check=True)

    made = sorted(path.relative_to(tmp_path) for path in tmp_path.rglob("*.py*"))

    assert len(made) == 2 * len(sources) > 0
    for path in made:
        assert (REPOSITORY / path).read_text() == (tmp_path / path).read_text(), f"run 'make proto': {path} has drifted"


def test_every_deployment_names_a_flow_by_module() -> None:
    document = yaml.safe_load((REPOSITORY / "prefect.yaml").read_text())

    entrypoints = [deployment["entrypoint"] for deployment in document["deployments"]]

    assert document["pull"]
    for entrypoint in entrypoints:
        module, _, name = entrypoint.partition(":")
        flow = getattr(importlib.import_module(module), name)
        assert flow.name == name, "so that 'prefect deployment run' reads <flow>/default"
    assert {"flows.pipeline:pipeline", "flows.rollback:rollback"} <= set(entrypoints)


def test_only_flows_knows_prefect_and_only_registry_knows_mlflow() -> None:
    for package, owner in (("prefect", "flows"), ("mlflow", "registry")):
        pattern = re.compile(rf"^\s*(from|import) {package}\b", re.MULTILINE)
        folders = [*PACKAGES, "flows"]
        users = {
            folder
            for folder in folders
            for file in (REPOSITORY / folder).rglob("*.py")
            if pattern.search(file.read_text())
        }
        assert users == {owner}


def test_every_import_is_a_declared_dependency() -> None:
    """What another package happens to install today is not ours to rely on."""
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"].values()
    declared = [*project["dependencies"], *(line for extra in extras for line in extra)]
    names = {re.split(r"[<>=\[]", line)[0].lower().replace("_", "-") for line in declared}
    owners = importlib.metadata.packages_distributions()
    missing = set()

    for file in (file for folder in [*PACKAGES, "flows"] for file in (REPOSITORY / folder).rglob("*.py")):
        for top in imported(file):
            found = {name.lower().replace("_", "-") for name in owners.get(top, [])}
            if found and not found & names:
                missing.add(f"{file.relative_to(REPOSITORY)} imports {top} of {sorted(found)}")

    assert missing == set()


def imported(file: Path) -> set[str]:
    """The top-level names that a module imports, at its head or inside functions."""
    nodes = list(ast.walk(ast.parse(file.read_text())))
    plain = {alias.name.partition(".")[0] for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    origins = [node for node in nodes if isinstance(node, ast.ImportFrom) and node.level == 0 and node.module]
    return plain | {str(node.module).partition(".")[0] for node in origins}


README = (REPOSITORY / "README.md").read_text()


def test_every_make_target_of_the_readme_exists() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (REPOSITORY / "Makefile").read_text(), re.MULTILINE))

    used = set(re.findall(r"\bmake ([a-z][a-z-]*)", README))

    assert used <= targets
    assert {"demo", "test"} <= used


# In one process: to import everything for each command took a minute.
_HELP = """
import runpy, sys
for command in sys.argv[1:]:
    module, *words = command.split()
    sys.argv = [module, *words, "--help"]
    try:
        runpy.run_module(module, run_name="__main__", alter_sys=True)
    except SystemExit as ended:
        assert not ended.code, f"{command} --help ends with {ended.code}"
    else:
        raise AssertionError(f"{command} --help does not end")
    print("answered:", command)
"""


def test_every_command_of_the_readme_answers() -> None:
    commands = sorted(set(re.findall(r"python -m ([a-z]+(?: (?!COMMAND)[a-z]+)?)", README)))

    done = subprocess.run(
        [sys.executable, "-c", _HELP, *commands], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )

    assert done.returncode == 0, done.stderr
    assert re.findall(r"answered: (.*)", done.stdout) == commands
    assert len(commands) >= 5


def test_every_file_of_the_documents_exists() -> None:
    for document in ("README.md", "ARCHITECTURE.md", "CONTRIBUTING.md"):
        text = (REPOSITORY / document).read_text()
        for target in re.findall(r"\]\(([^)#:]+)\)", text):
            assert (REPOSITORY / target).exists(), f"{document} links {target}"


def test_the_readme_shows_the_wine_recipe_as_it_is() -> None:
    shown = re.search(r"```python\n(\"\"\".*?)```", README, re.DOTALL)

    assert shown is not None
    assert shown.group(1) == (REPOSITORY / "recipes" / "wine.py").read_text()
    assert len(shown.group(1).splitlines()) < 60
