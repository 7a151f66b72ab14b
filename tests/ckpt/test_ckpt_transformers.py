"""``from_pretrained`` reads a folder of ours as it reads one of its own: no name is missing, none unexpected."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file

import ckpt


def tied_model() -> Any:
    """A causal model whose head is its embedding."""
    torch.manual_seed(0)
    config = transformers.GPT2Config(n_layer=2, n_head=2, n_embd=32, vocab_size=300, n_positions=16)
    return transformers.GPT2LMHeadModel(config).eval()


def encoder() -> Any:
    torch.manual_seed(0)
    config = transformers.BertConfig(
        num_hidden_layers=2, num_attention_heads=2, hidden_size=32, intermediate_size=48, vocab_size=300
    )
    return transformers.BertModel(config).eval()


def loaded(model: Any, folder: Path) -> Any:
    """What transformers makes of a folder; nothing may be missing or left over."""
    again, told = type(model).from_pretrained(folder, output_loading_info=True)
    assert {name: list(found) for name, found in told.items() if found} == {}
    return again.eval()


@pytest.mark.parametrize("make", [tied_model, encoder])
@pytest.mark.parametrize("shard_bytes", [1 << 30, 20_000])
def test_a_folder_of_ours_is_read_by_transformers(make: Any, shard_bytes: int, tmp_path: Path) -> None:
    model = make()
    model.config.save_pretrained(tmp_path)
    ckpt.save(
        model.state_dict(),
        tmp_path / "c",
        attachments={"config.json": tmp_path / "config.json"},
        shard_bytes=shard_bytes,
    )

    again = loaded(model, tmp_path / "c")

    tokens = torch.arange(10)[None]
    assert torch.equal(again(tokens)[0], model(tokens)[0])
    shards = [*(tmp_path / "c").glob("weights-*")]
    assert (len(shards) > 1) == (shard_bytes == 20_000)


@pytest.mark.parametrize("make", [tied_model, encoder])
@pytest.mark.parametrize("shard_size", ["1GB", "20KB"])
def test_what_transformers_saves_is_adopted_and_still_read_by_it(make: Any, shard_size: str, tmp_path: Path) -> None:
    model = make()
    model.save_pretrained(tmp_path / "t", max_shard_size=shard_size)
    files = sorted((tmp_path / "t").glob("*.safetensors"))

    manifest = ckpt.adopt(tmp_path / "t")

    expected = {name: tensor for file in files for name, tensor in load_file(file).items()}
    assert manifest.root == ckpt.save(expected, tmp_path / "saved").root
    assert all(torch.equal(tensor, expected[name]) for name, tensor in ckpt.load(tmp_path / "t").items())
    tokens = torch.arange(10)[None]
    assert torch.equal(loaded(model, tmp_path / "t")(tokens)[0], model(tokens)[0])
    assert (len(files) > 1) == (shard_size == "20KB")
    assert json.loads((tmp_path / "t" / "config.json").read_text())["model_type"] == model.config.model_type
