"""One tensor of more than 2³¹ elements and 4 GiB: ``python -m tests.ckpt.soak_large --work FOLDER``; not run by pytest.

Needs 14 GB of memory, as much of disk, and a minute or two.
"""

import argparse
import shutil
from pathlib import Path

import torch
from safetensors import safe_open

import ckpt

ELEMENTS = 2**31 + 5  # of int16: 4 GiB and 10 bytes


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--work", type=Path, required=True, help="a new folder")
    work = parser.parse_args().work
    large = torch.empty(ELEMENTS, dtype=torch.int16).random_(generator=torch.Generator().manual_seed(0))
    state = {"large": large, "tail": large[-7:], "every": large[:: 2**29]}

    manifest = ckpt.save(state, work)
    loaded = ckpt.load(work)
    assert loaded["large"].shape == (ELEMENTS,)
    assert loaded["large"].equal(large)
    assert loaded["tail"].data_ptr() == loaded["large"].data_ptr() + 2 * (ELEMENTS - 7)
    assert loaded["every"].tolist() == large[:: 2**29].tolist()
    assert manifest.payload_bytes == 2 * ELEMENTS
    del loaded
    with ckpt.open(work) as checkpoint:
        assert checkpoint.slice("large", slice(ELEMENTS - 3, ELEMENTS)).equal(large[-3:])
    (weights,) = work.glob("weights-*.safetensors")
    with safe_open(weights, "pt") as theirs:
        assert theirs.get_slice("large")[ELEMENTS - 3 :].equal(large[-3:])

    changed = large.clone()
    changed[2**31 + 1] ^= 1
    ckpt.save({"large": changed, "tail": changed[-7:], "every": changed[:: 2**29]}, work.with_name("target"))
    delta = ckpt.diff(work, work.with_name("target"), work.with_name("delta"))
    applied = ckpt.apply(work, work.with_name("delta"), work.with_name("applied"))
    assert applied.root == delta.target_root
    print(
        f"{manifest.payload_bytes:,} bytes in one tensor: saved, loaded, sliced, patched by {delta.size_bytes:,} bytes"
    )
    for folder in (work, *(work.with_name(name) for name in ("target", "delta", "applied"))):
        shutil.rmtree(folder)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
