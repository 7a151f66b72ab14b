"""The same two files in WebAssembly: under Node, and on the page, in a real browser."""

import json
import os
import shutil
import subprocess
import threading
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional

import compiler
from compiler import page
from compiler.backends.onnx_files import write_files
from tests.browser import CHROMIUM, Browser, browser

for needed in ("onnx", "onnxruntime", "onnxscript"):
    pytest.importorskip(needed)

NODE = shutil.which("node")
needs_runtime = pytest.mark.skipif(
    NODE is None or not page.RUNTIME.exists(), reason="node or onnxruntime-web is missing; make system-deps web"
)
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="chromium is missing; SYSTEM_DEPS=1 make system-deps")
HERE = Path(__file__).parent


class Encoder(nn.Module):
    """Words, attention with a mask, a norm and gelu: what becomes of each word, and how many are no padding."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(11, 8)
        self.norm = nn.LayerNorm(8)
        self.wide = nn.Linear(8, 12)

    def forward(self, ids: Tensor) -> dict[str, Tensor]:
        x = self.norm(self.table(ids))
        heads = x.unflatten(2, (2, 4)).transpose(1, 2)
        bias = (ids == 0)[:, None, None, :].to(x.dtype) * -1e4
        mixed = functional.scaled_dot_product_attention(heads, heads, heads, attn_mask=bias)
        wide = functional.gelu(self.wide(mixed.transpose(1, 2).flatten(2)))
        return {"wide": wide, "kept": (ids != 0).sum(1)}


def small_net() -> nn.Module:
    torch.manual_seed(0)
    layers = [nn.Conv2d(1, 8, 3), nn.BatchNorm2d(8), nn.ReLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 10)]
    return nn.Sequential(*layers).eval()


def written(program: compiler.Program, model: nn.Module, x: Tensor, folder: Path) -> Path:
    """The files of a program, and an input beside them."""
    memory = program.allocate()
    program.evaluate(model.state_dict(), memory)
    write_files(program.packages["targets/onnx-any.onnx"], program.constants, memory, folder)
    np.save(folder / "x.npy", x.numpy())
    return folder


@pytest.fixture(scope="module")
def images_folder(images: Tensor, tmp_path_factory: pytest.TempPathFactory) -> Path:
    model, dynamic = small_net(), {"input": {0: compiler.Dim(name="batch", max=16)}}
    program = compiler.compile(model, (images[:2],), dynamic=dynamic, backend="onnx")
    folder = written(program, model, images[:7], tmp_path_factory.mktemp("images") / "web")
    np.save(folder / "expected.npy", model(images[:7]).detach().numpy())
    return folder


@pytest.fixture(scope="module")
def words_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    torch.manual_seed(0)
    model, ids = Encoder().eval(), torch.randint(0, 11, (3, 5))
    dynamic = {"ids": {0: compiler.Dim(name="rows", max=8)}}
    program = compiler.compile(model, (ids,), dynamic=dynamic, backend="onnx")
    folder = written(program, model, ids, tmp_path_factory.mktemp("words") / "web")
    expected = {name: value.tolist() for name, value in model(ids).items()}
    (folder / "ids.json").write_text(json.dumps(ids.tolist()))
    (folder / "expected.json").write_text(json.dumps(expected))
    return folder


def in_node(script: Path, *arguments: str) -> Any:
    assert NODE is not None
    done = subprocess.run([NODE, str(script), *arguments], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def off(found: dict[str, Any], expected: Any) -> float:
    values = np.array(found["data"]).reshape(found["dims"])
    assert values.shape == np.asarray(expected).shape
    return float(np.abs(values - expected).max()) / max(1.0, float(np.abs(expected).max()))


@needs_runtime
def test_under_node_two_networks_answer_as_in_eager_mode(images_folder: Path, words_folder: Path) -> None:
    images = in_node(HERE / "run.mjs", str(images_folder), "1")["outputs"]
    words = in_node(HERE / "run.mjs", str(words_folder), "1")["outputs"]

    expected = json.loads((words_folder / "expected.json").read_text())
    assert off(images["output"], np.load(images_folder / "expected.npy")) <= 1e-4
    assert off(words["wide"], expected["wide"]) <= 1e-4
    assert words["kept"]["type"] == "int64"
    assert off(words["kept"], expected["kept"]) == 0


@needs_runtime
def test_modules_read_arrays_and_refuse_what_is_none() -> None:
    command = [str(NODE), "--test", str(HERE / "modules.test.mjs")]

    done = subprocess.run(command, capture_output=True, text=True, check=False)

    assert done.returncode == 0, done.stdout
    assert "# fail 0" in done.stdout


# --- what a person sees -----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def at_the_page(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Browser, str]]:
    with browser(tmp_path_factory.mktemp("profile")) as one, page.make_server(0) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            yield one, f"http://127.0.0.1:{server.server_port}/"
        finally:
            server.shutdown()


@needs_runtime
@needs_chromium
def test_on_the_page_files_are_picked_and_tables_read(at_the_page: tuple[Browser, str], images_folder: Path) -> None:
    person, url = at_the_page

    person.open(url, "Choose a graph.")
    person.choose("#graph", images_folder / "model.onnx")
    person.see("Choose constants.bin.")
    person.choose("#data", images_folder / "constants.bin")
    person.see("Ready.")
    person.choose("[data-input=input]", images_folder / "x.npy")
    person.choose("#expected", images_folder / "expected.npy")
    person.type("#times", "3")
    person.click("Run", "Done.")

    (output,), (timing,) = person.table("#outputs"), person.table("#timings")
    expected = np.load(images_folder / "expected.npy")
    assert output[:3] == ["output", "float32", "[7, 10]"]
    assert float(output[6]) == pytest.approx(expected.mean(), rel=1e-3)
    assert float(output[7]) <= 1e-4 * max(1.0, float(np.abs(expected).max()))
    assert all(cell.endswith(" ms") for cell in timing[:5])
    assert timing[5:] == ["3", str(os.cpu_count())]


class Plain(SimpleHTTPRequestHandler):
    """A static server as others have it: nothing isolates its pages."""

    def log_message(self, format: str, *arguments: object) -> None: ...


@needs_runtime
@needs_chromium
def test_any_static_server_does_and_sizes_are_asked_for_and_values_come_from_json_or_a_seed(
    at_the_page: tuple[Browser, str], words_folder: Path
) -> None:
    person, _ = at_the_page
    with ThreadingHTTPServer(("127.0.0.1", 0), partial(Plain, directory=str(page.FOLDER))) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        person.open(f"http://127.0.0.1:{server.server_port}/", "Choose a graph.")
        person.choose("#graph", words_folder / "model.onnx")
        person.choose("#data", words_folder / "constants.bin")
        person.see("Size of rows", "Ready.")
        person.type("[data-size=rows]", "4")
        person.click("Run", "Done.")
        random = person.table("#outputs")
        person.choose("[data-input=ids]", words_folder / "ids.json")
        person.choose("#expected", words_folder / "expected.json")
        person.click("Run", "[3, 5, 12]", "Done.")
        given, (timing,) = person.table("#outputs"), person.table("#timings")
        server.shutdown()

    assert [row[:3] for row in random] == [["wide", "float32", "[4, 5, 12]"], ["kept", "int64", "[4]"]]
    assert float(given[0][7]) <= 1e-4
    assert float(given[1][7]) == 0
    assert timing[6] == "1"


@needs_runtime
@needs_chromium
def test_a_wrong_file_is_told_in_words(
    at_the_page: tuple[Browser, str], images_folder: Path, words_folder: Path, tmp_path: Path
) -> None:
    person, url = at_the_page
    size = (images_folder / "constants.bin").stat().st_size
    (tmp_path / "short.bin").write_bytes((images_folder / "constants.bin").read_bytes()[: size // 2])
    (tmp_path / "cut.onnx").write_bytes((images_folder / "model.onnx").read_bytes()[:-100])

    person.open(url, "Choose a graph.")
    person.choose("#graph", words_folder / "ids.json")
    person.see("graph: it is no ONNX model")
    person.choose("#graph", tmp_path / "cut.onnx")
    person.see("graph: it ends in the middle of a field: cut off")
    person.choose("#graph", images_folder / "model.onnx")
    person.see("Choose constants.bin.")
    person.choose("#data", tmp_path / "short.bin")
    person.see("Ready.")
    person.click("Run", f"run: the file of weights has {size // 2} bytes, but the graph reads")


def test_without_its_runtime_the_page_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(page, "RUNTIME", tmp_path / "runtime" / "ort.wasm.min.mjs")

    with pytest.raises(compiler.BackendRefusedError, match=r"onnxruntime-web is not in '.*runtime'. Run: make web"):
        page.make_server(0)
