"""Zip files, held to what their directory states before an entry is read."""

import errno
import zipfile
from collections.abc import Collection
from typing import BinaryIO

from ckpt.errors import FormatError
from ckpt.format.bounds import MAX_RECORDS

_ENCRYPTED = 1  # bit of the flags


def checked_archive(
    file: BinaryIO, where: str, *, methods: Collection[int], most_bytes: int
) -> tuple[zipfile.ZipFile, list[zipfile.ZipInfo]]:
    """An archive and its entries.

    Args:
        file: The file.
        where: Its name, for messages.
        methods: Ways of compression that an entry may have.
        most_bytes: What all entries together may come to.

    Raises:
        FormatError: cut short, encrypted, compressed otherwise, a name twice, or larger than that.
    """
    try:
        archive = zipfile.ZipFile(file)
    except (zipfile.BadZipFile, NotImplementedError, ValueError, OSError) as error:
        said = error if isinstance(error, OSError) else error.__context__  # zipfile makes a BadZipFile of any of them
        if isinstance(said, OSError) and said.errno not in (None, errno.EINVAL):  # EINVAL: a place that is none
            raise said from None
        raise FormatError(where, f"no whole zip file ({error})", "one with its directory at the end") from None
    entries = archive.infolist()
    if len(entries) > MAX_RECORDS // 4 or len({entry.filename for entry in entries}) != len(entries):
        raise FormatError(where, f"{len(entries)} entries", f"at most {MAX_RECORDS // 4}, each name once")
    for entry in entries:
        if entry.compress_type not in methods or entry.flag_bits & _ENCRYPTED:
            raise FormatError(f"{where}, '{entry.filename[:80]}'", "a compressed or encrypted entry", "a plain one")
    total = sum(entry.file_size for entry in entries)
    if total > most_bytes:
        raise FormatError(where, f"entries of {total} bytes together", f"at most {most_bytes}")
    return archive, entries
