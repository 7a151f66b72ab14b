from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class StatementKind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STATEMENT_KIND_UNSPECIFIED: _ClassVar[StatementKind]
    STATEMENT_KIND_CHECKPOINT: _ClassVar[StatementKind]
    STATEMENT_KIND_DELTA: _ClassVar[StatementKind]
    STATEMENT_KIND_PROMOTION: _ClassVar[StatementKind]
STATEMENT_KIND_UNSPECIFIED: StatementKind
STATEMENT_KIND_CHECKPOINT: StatementKind
STATEMENT_KIND_DELTA: StatementKind
STATEMENT_KIND_PROMOTION: StatementKind

class Signatures(_message.Message):
    __slots__ = ("signatures", "target")
    SIGNATURES_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    signatures: _containers.RepeatedCompositeFieldContainer[Signature]
    target: _containers.RepeatedCompositeFieldContainer[Signature]
    def __init__(self, signatures: _Optional[_Iterable[_Union[Signature, _Mapping]]] = ..., target: _Optional[_Iterable[_Union[Signature, _Mapping]]] = ...) -> None: ...

class Signature(_message.Message):
    __slots__ = ("key_id", "statement", "signature")
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    STATEMENT_FIELD_NUMBER: _ClassVar[int]
    SIGNATURE_FIELD_NUMBER: _ClassVar[int]
    key_id: bytes
    statement: bytes
    signature: bytes
    def __init__(self, key_id: _Optional[bytes] = ..., statement: _Optional[bytes] = ..., signature: _Optional[bytes] = ...) -> None: ...

class Statement(_message.Message):
    __slots__ = ("format_version", "kind", "subject", "line", "issued_at_ms", "not_after_ms", "key_id")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    SUBJECT_FIELD_NUMBER: _ClassVar[int]
    LINE_FIELD_NUMBER: _ClassVar[int]
    ISSUED_AT_MS_FIELD_NUMBER: _ClassVar[int]
    NOT_AFTER_MS_FIELD_NUMBER: _ClassVar[int]
    KEY_ID_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    kind: StatementKind
    subject: bytes
    line: str
    issued_at_ms: int
    not_after_ms: int
    key_id: bytes
    def __init__(self, format_version: _Optional[int] = ..., kind: _Optional[_Union[StatementKind, str]] = ..., subject: _Optional[bytes] = ..., line: _Optional[str] = ..., issued_at_ms: _Optional[int] = ..., not_after_ms: _Optional[int] = ..., key_id: _Optional[bytes] = ...) -> None: ...
