"""What other libraries write, and what pretends to be that: payload pickles, DCP folders of any content."""

import io
import os
import pickle
from pathlib import Path
from typing import Any

import torch
from torch.distributed.checkpoint import filesystem, metadata


class Payload:
    """Makes a folder when it is unpickled."""

    def __init__(self, marker: Path) -> None:
        self._marker = marker

    def __reduce__(self) -> tuple[Any, ...]:
        return os.mkdir, (str(self._marker),)


def saved(value: object) -> bytes:
    """The bytes that ``torch.save`` writes."""
    file = io.BytesIO()
    torch.save(value, file)
    return file.getvalue()


def dcp_metadata(folder: Path) -> metadata.Metadata:
    """Write the data file of a DCP folder by hand: ``w`` (4 × 6) in two pieces by column, ``n``, a number in a list.

    Returns:
        Its metadata; :func:`write_metadata` finishes the folder.
    """
    folder.mkdir()
    whole = torch.arange(24.0).reshape(4, 6)
    items = {("w", (0, 0)): whole[:, :4].clone(), ("w", (0, 4)): whole[:, 4:].clone(), ("n", None): 7}
    places, data = {}, b""
    for (key, offsets), value in items.items():
        encoded = saved(value)
        index = metadata.MetadataIndex(key, offsets)
        places[index] = filesystem._StorageInfo("__0_0.distcp", len(data), len(encoded))
        data += encoded
    (folder / "__0_0.distcp").write_bytes(data)
    chunks = [
        metadata.ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes))
        for offsets, sizes in (((0, 0), (4, 4)), ((0, 4), (4, 2)))
    ]
    properties = metadata.TensorProperties(dtype=torch.float32)
    return metadata.Metadata(
        state_dict_metadata={
            "w": metadata.TensorStorageMetadata(properties, torch.Size([4, 6]), chunks),
            "n": metadata.BytesStorageMetadata(),
        },
        planner_data={"w": ("model", "w"), "n": ("counts", 0)},
        storage_data=places,
    )


def write_metadata(folder: Path, stated: object) -> None:
    (folder / ".metadata").write_bytes(pickle.dumps(stated))
