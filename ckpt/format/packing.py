"""Bytes as one zstd frame that states how many they are: who unpacks them knows it before anything is allocated."""

import zstandard


def pack(data: bytes, *, level: int) -> bytes:
    """The frame."""
    return zstandard.ZstdCompressor(level=level).compress(data)


def stated_size(packed: bytes | memoryview) -> int:
    """How many bytes a frame says that it holds.

    Raises:
        ValueError: it is no zstd frame, or does not say.
    """
    try:
        size: int = zstandard.frame_content_size(packed)
    except zstandard.ZstdError as error:
        raise ValueError(f"no zstd frame ({error})") from None
    if size < 0:
        raise ValueError("a zstd frame that does not state its size")
    return size


def unpack(packed: bytes | memoryview, *, size: int) -> bytes:
    """What exactly one frame holds, ``size`` bytes as it states; zstd itself stops there.

    Raises:
        ValueError: it is broken, or states another size.
    """
    if stated_size(packed) != size:
        raise ValueError(f"a zstd frame of {stated_size(packed)} bytes where {size} belong")
    try:
        return zstandard.ZstdDecompressor().decompress(packed, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise ValueError(f"a broken zstd frame ({error})") from None
