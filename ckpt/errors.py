"""What can go wrong with a checkpoint or a delta.

    CheckpointError
    ├── UnsupportedStateError   (ValueError)  a value that cannot be stored; names its path and the remedy
    ├── DestinationError        (ValueError)  the place cannot be written as asked
    ├── NotACheckpointError     (ValueError)  nothing, or something else, stands at the path
    ├── FormatError             (ValueError)  a manifest, delta or adopted file that breaks its format's rules
    │   └── VersionError                      written by a newer format, or for another torch
    ├── StateMismatchError      (ValueError)  a state to be loaded into asks for something else than is stored
    ├── LiveMemoryError         (ValueError)  live tensors that do not lie as those of the checkpoint
    ├── ConversionError         (ValueError)  a foreign file that cannot become a checkpoint
    ├── SourceError                           a copy, here or behind an address, that cannot be read
    ├── IntegrityError                        bytes differ from what the manifest states
    │   ├── CorruptChunkError                 one chunk of a storage or attachment
    │   │   └── LiveChunkError                of a storage in live memory
    │   ├── CorruptFileError                  a file's size, header or name
    │   └── RootMismatchError                 the whole is not the one that was asked for
    ├── KeyFileError            (ValueError)  a file that holds no key of the kind that is needed
    ├── SignatureError                        nobody who is trusted vouches for it
    │   ├── UnsignedError                     no signature lies beside it
    │   ├── UntrustedKeyError                 signed by other keys only
    │   ├── BadSignatureError                 not what the key it names has signed
    │   ├── WrongKindError                    a statement about another kind of thing
    │   ├── WrongSubjectError                 a statement about another checkpoint or delta
    │   ├── WrongLineError                    a statement for another line of versions
    │   └── ExpiredSignatureError             its time is over
    └── DeltaError                            a delta that cannot be applied
        ├── WrongBaseError                    made for another base
        ├── NotInPlaceError                   tensors come, go, or lie otherwise: no memory can stay what it is
        ├── BaseNeededError                   what is asked for is not in the deltas alone
        └── CorruptFrameError                 a frame's bytes are not those that were written

Each error says the thing, what was found, what was expected and what to do next, and carries the same facts
as attributes.
"""

from pathlib import Path


class CheckpointError(Exception):
    """Anything this package raises by itself; ``facts`` holds what the message states."""

    def __init__(self, message: str, **facts: object) -> None:
        super().__init__(message)
        self.facts = facts

    def __getattr__(self, name: str) -> object:
        try:
            return self.__dict__["facts"][name]
        except KeyError:
            raise AttributeError(name) from None

    def __reduce__(self) -> tuple[object, ...]:
        # Processes that save or load together hand their errors to each other.
        return _again, (type(self), self.args, self.__dict__)


def _again(kind: type[CheckpointError], arguments: tuple[object, ...], state: dict[str, object]) -> CheckpointError:
    error = kind.__new__(kind)
    error.args = arguments
    error.__dict__.update(state)
    return error


class UnsupportedStateError(CheckpointError, ValueError):
    """A value of the state has no faithful form on disk."""

    def __init__(self, path: str, found: str, remedy: str) -> None:
        where = f"the value at '{path}'" if path else "the state itself"
        super().__init__(f"{where} is {found}, which a checkpoint cannot hold; {remedy}.", path=path, found=found)


class DestinationError(CheckpointError, ValueError):
    """The destination exists, is foreign, or its file system cannot do what atomic replacement needs."""


class NotACheckpointError(CheckpointError, ValueError):
    """There is no manifest where a checkpoint was expected, or no ``delta.pb`` where a delta was."""

    def __init__(
        self, path: Path, found: str, *, expected: str = "manifest.pb", remedy: str = "Check the path."
    ) -> None:
        kind = "delta" if expected == "delta.pb" else "checkpoint"
        super().__init__(
            f"'{path}' is not a {kind}: expected a folder with {expected}, found {found}. {remedy}",
            path=path,
            found=found,
            expected=expected,
        )


class FormatError(CheckpointError, ValueError):
    """A manifest, delta or adopted file breaks a rule of its format; ``where`` is the path to the fault inside it."""

    def __init__(self, where: str, found: str, expected: str) -> None:
        super().__init__(
            f"{where}: found {found}, expected {expected}. The file is not of this format, or was altered; "
            "fetch it again from where it came.",
            where=where,
            found=found,
            expected=expected,
        )


class VersionError(FormatError):
    """Written by a format version that this reader does not know, or for a torch that has more dtypes."""

    def __init__(self, where: str, found: str, expected: str) -> None:
        CheckpointError.__init__(
            self,
            f"{where}: found {found}, expected {expected}. Read it with the version that wrote it, or a newer one.",
            where=where,
            found=found,
            expected=expected,
        )


class StateMismatchError(CheckpointError, ValueError):
    """What a state asks for is not stored, or is stored in another form; nothing was loaded.

    Attributes: ``path``, ``key``, ``found`` and ``expected`` of the first mismatch, ``others`` how many more there are.
    """

    def __init__(self, path: Path, key: str, found: str, expected: str, *, others: int = 0) -> None:
        more = f" {others} more of its values do not fit." if others else ""
        super().__init__(
            f"'{path}' has {found} at '{key}', expected {expected}; nothing was loaded.{more} Build the state as it "
            "was when it was saved; ckpt.inspect and ckpt.open tell what is there.",
            path=path,
            key=key,
            found=found,
            expected=expected,
            others=others,
        )


class LiveMemoryError(CheckpointError, ValueError):
    """A tensor in memory does not lie as the checkpoint's tensor of that name; nothing was written.

    Attributes: ``name``, ``found``, ``expected``.
    """

    def __init__(self, name: str, found: str, expected: str) -> None:
        super().__init__(
            f"live tensor '{name}' is {found}, expected {expected}; nothing was written. Pass the tensors of the "
            "checkpoint under their names, laid out as ckpt.load gives them; or apply the delta to a folder with "
            "ckpt.apply and load that.",
            name=name,
            found=found,
            expected=expected,
        )


class ConversionError(CheckpointError, ValueError):
    """A file in a foreign format cannot become a checkpoint; ``reason`` says why. Nothing was written."""

    def __init__(self, path: Path, reason: str) -> None:
        super().__init__(f"'{path}' was not converted: {reason.rstrip('.')}.", path=path, reason=reason)


class SourceError(CheckpointError):
    """A copy that bytes are to be taken from cannot be read, or answers otherwise than asked."""

    def __init__(self, source: str, found: str, expected: str) -> None:
        super().__init__(
            f"source '{source}': found {found}, expected {expected}. What was fetched before is in place; "
            "try again, or name another copy.",
            source=source,
            found=found,
            expected=expected,
        )


class IntegrityError(CheckpointError):
    """Bytes on disk are not those that the manifest names."""


class CorruptChunkError(IntegrityError):
    """One chunk does not have the digest that the manifest gives it.

    Attributes: ``owner`` (tensor names or attachment path), ``chunk``, ``file``, ``start`` and ``end`` (bytes of
    that file, end excluded), ``algorithm``, ``found``, ``expected``.
    """

    def __init__(
        self,
        *,
        owner: str,
        chunk: int,
        folder: Path,
        file: str,
        start: int,
        end: int,
        algorithm: str,
        found: str,
        expected: str,
    ) -> None:
        super().__init__(
            f"chunk {chunk} of {owner} in '{folder}' does not match its manifest: expected {algorithm} {expected}, "
            f"found {found} (bytes {start}–{end - 1} of {file}). 'python -m ckpt repair {folder} --from COPY' fetches "
            "only this chunk, from a folder or an address.",
            owner=owner,
            chunk=chunk,
            folder=folder,
            file=file,
            start=start,
            end=end,
            algorithm=algorithm,
            found=found,
            expected=expected,
        )


class LiveChunkError(CorruptChunkError):
    """One chunk in live memory does not have the digest that a manifest gives it; this call wrote nothing.

    Attributes: ``owner``, ``chunk``, ``start`` and ``end`` (bytes of the storage, end excluded), ``root`` (of the
    checkpoint that was expected), ``algorithm``, ``found``, ``expected``.
    """

    def __init__(self, *, owner: str, chunk: int, start: int, end: int, root: str, found: str, expected: str) -> None:
        CheckpointError.__init__(
            self,
            f"chunk {chunk} of {owner} in live memory (bytes {start}–{end - 1}) is not that of the checkpoint {root}: "
            f"expected {expected}, found {found}; this call wrote nothing. After an update that was broken off "
            "ckpt.staged(RECORD, tensors) takes it up again; else load a checkpoint into that memory.",
            owner=owner,
            chunk=chunk,
            start=start,
            end=end,
            root=root,
            algorithm="sha256",
            found=found,
            expected=expected,
        )


class CorruptFileError(IntegrityError):
    """A file is missing, or has another size or header than the manifest states."""

    def __init__(
        self, *, folder: Path, file: str, what: str, found: str, expected: str, remedy: str | None = None
    ) -> None:
        repair = f"'python -m ckpt repair {folder} --from COPY' restores what is bad, from a folder or an address."
        super().__init__(
            f"{what} of '{file}' in '{folder}': found {found}, expected {expected}. {remedy or repair}",
            folder=folder,
            file=file,
            what=what,
            found=found,
            expected=expected,
        )


class RootMismatchError(IntegrityError):
    """The content is sound but is not the content that was asked for."""

    def __init__(self, *, path: Path, found: str, expected: str) -> None:
        super().__init__(
            f"'{path}' holds {found}, expected {expected}; nothing of it was used.",
            path=path,
            found=found,
            expected=expected,
        )


class KeyFileError(CheckpointError, ValueError):
    """A file does not hold an Ed25519 key of the kind that was asked for, or not under this passphrase.

    Attributes: ``path`` (of a key that was no file its bytes in hex), ``found``, ``expected``.
    """

    def __init__(self, path: Path | str, found: str, expected: str) -> None:
        super().__init__(
            f"'{path}': found {found}, expected {expected}. 'python -m ckpt keygen NAME.pem' writes NAME.pem, which "
            "signs, and NAME.pub.pem, which is trusted.",
            path=path,
            found=found,
            expected=expected,
        )


class SignatureError(CheckpointError):
    """Nobody who is trusted vouches for a checkpoint or delta: nothing of it was used.

    Attributes: ``path``, ``found``, ``expected``.
    """

    def __init__(self, path: Path, message: str, *, found: str, expected: str) -> None:
        super().__init__(f"'{path}' {message}", path=path, found=found, expected=expected)


class UnsignedError(SignatureError):
    """No signature lies beside it."""

    def __init__(self, path: Path, *, expected: str) -> None:
        message = (
            f"has no signature, expected one of a trusted key ({expected}). Fetch it again, with its signatures.pb, "
            f"from who published it, or sign it yourself: 'python -m ckpt sign {path} KEY.pem'."
        )
        super().__init__(path, message, found="no signature", expected=expected)


class UntrustedKeyError(SignatureError):
    """Other keys than the trusted ones have signed it."""

    def __init__(self, path: Path, *, found: str, expected: str) -> None:
        message = (
            f"is signed by {found} only, expected a trusted key ({expected}). Ask its publisher, by a way that you "
            "trust, whether the key was replaced, before you trust another."
        )
        super().__init__(path, message, found=found, expected=expected)


class BadSignatureError(SignatureError):
    """A signature is not what the key that it names makes of its statement."""

    def __init__(self, path: Path, *, found: str, expected: str) -> None:
        message = (
            f"has {found}, expected {expected}. Signature or statement were altered, or the signer does not have the "
            "key it claims; fetch signatures.pb again, or have it signed again."
        )
        super().__init__(path, message, found=found, expected=expected)


class WrongKindError(SignatureError):
    """A signature of a delta lies beside a checkpoint, or the like."""

    def __init__(self, path: Path, *, found: str, expected: str) -> None:
        message = f"has the signature of a {found}, expected that of a {expected}. Fetch signatures.pb again."
        super().__init__(path, message, found=found, expected=expected)


class WrongSubjectError(SignatureError):
    """A sound signature of something else: of another version, or of this one before it was edited."""

    def __init__(self, path: Path, *, found: str, expected: str) -> None:
        message = (
            f"has a signature of {found}, expected one of {expected}, which is what lies there. It was altered after "
            "it was signed, or the signature is another one's; fetch both again from who published them."
        )
        super().__init__(path, message, found=found, expected=expected)


class WrongLineError(SignatureError):
    """It was signed as a version of another line."""

    def __init__(self, path: Path, *, found: str, expected: str) -> None:
        message = (
            f"is signed for the line '{found}', expected '{expected}'. Somebody gave it another name than its "
            "publisher did; fetch the one that was meant."
        )
        super().__init__(path, message, found=found, expected=expected)


class ExpiredSignatureError(SignatureError):
    """The time in which it may be accepted anew is over."""

    def __init__(self, path: Path, *, found: str, expected: str) -> None:
        message = (
            f"has a signature that was good until {found}, expected one that is good at {expected}. Fetch a newer "
            "version, or have this one signed again."
        )
        super().__init__(path, message, found=found, expected=expected)


class DeltaError(CheckpointError):
    """A delta cannot be applied; the base and the destination are as they were."""


class WrongBaseError(DeltaError):
    """The delta was made for a base with another root."""

    def __init__(self, *, delta: Path, found: str, expected: str, base: str = "the base") -> None:
        super().__init__(
            f"delta '{delta}' applies to a checkpoint with root {expected}, but {base} has root {found}; "
            "apply the deltas of a chain in order, each to the checkpoint it was made from.",
            delta=delta,
            found=found,
            expected=expected,
        )


class NotInPlaceError(DeltaError):
    """Base and target of a delta do not have the same tensors in the same places.

    Attributes: ``delta``, ``found``, ``expected``.
    """

    def __init__(self, *, delta: Path, found: str, expected: str) -> None:
        super().__init__(
            f"delta '{delta}' cannot be applied in live memory: found {found}, expected {expected}; nothing was "
            "written. Apply it to a folder with ckpt.apply, and load that into memory of its own.",
            delta=delta,
            found=found,
            expected=expected,
        )


class BaseNeededError(DeltaError):
    """What is to be made of a delta does not follow from deltas alone.

    Attributes: ``delta``, ``found`` (what only the base can tell), ``expected`` (the base's root).
    """

    def __init__(self, *, delta: Path, found: str, expected: str) -> None:
        super().__init__(
            f"delta '{delta}' is not enough: {found}. Pass base=, the checkpoint with root {expected} "
            "(--base on the command line).",
            delta=delta,
            found=found,
            expected=expected,
        )


class CorruptFrameError(DeltaError):
    """A frame of a delta is not what was written, or decodes to something else than it declares."""

    def __init__(self, *, delta: Path, frame: str, found: str, expected: str) -> None:
        super().__init__(
            f"{frame} of delta '{delta}': found {found}, expected {expected}. Nothing was applied; 'python -m "
            "ckpt repair' fetches the bad frames from a good copy, or fetch the delta again.",
            delta=delta,
            frame=frame,
            found=found,
            expected=expected,
        )
