from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Kind(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    KIND_UNSPECIFIED: _ClassVar[Kind]
    KIND_NONE: _ClassVar[Kind]
    KIND_BOOL: _ClassVar[Kind]
    KIND_INT: _ClassVar[Kind]
    KIND_FLOAT: _ClassVar[Kind]
    KIND_COMPLEX: _ClassVar[Kind]
    KIND_STR: _ClassVar[Kind]
    KIND_BYTES: _ClassVar[Kind]
    KIND_DTYPE: _ClassVar[Kind]
    KIND_DEVICE: _ClassVar[Kind]
    KIND_NUMPY_SCALAR: _ClassVar[Kind]
    KIND_LIST: _ClassVar[Kind]
    KIND_TUPLE: _ClassVar[Kind]
    KIND_SIZE: _ClassVar[Kind]
    KIND_DICT: _ClassVar[Kind]
    KIND_ORDERED_DICT: _ClassVar[Kind]
    KIND_COUNTER: _ClassVar[Kind]
    KIND_TENSOR: _ClassVar[Kind]
    KIND_PARAMETER: _ClassVar[Kind]
    KIND_NDARRAY: _ClassVar[Kind]
KIND_UNSPECIFIED: Kind
KIND_NONE: Kind
KIND_BOOL: Kind
KIND_INT: Kind
KIND_FLOAT: Kind
KIND_COMPLEX: Kind
KIND_STR: Kind
KIND_BYTES: Kind
KIND_DTYPE: Kind
KIND_DEVICE: Kind
KIND_NUMPY_SCALAR: Kind
KIND_LIST: Kind
KIND_TUPLE: Kind
KIND_SIZE: Kind
KIND_DICT: Kind
KIND_ORDERED_DICT: Kind
KIND_COUNTER: Kind
KIND_TENSOR: Kind
KIND_PARAMETER: Kind
KIND_NDARRAY: Kind

class Manifest(_message.Message):
    __slots__ = ("format_version", "storages", "tensors", "state", "files", "attachments", "metadata", "producer", "adopted", "pieces")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    STORAGES_FIELD_NUMBER: _ClassVar[int]
    TENSORS_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENTS_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    PRODUCER_FIELD_NUMBER: _ClassVar[int]
    ADOPTED_FIELD_NUMBER: _ClassVar[int]
    PIECES_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    storages: _containers.RepeatedCompositeFieldContainer[Storage]
    tensors: _containers.RepeatedCompositeFieldContainer[Tensor]
    state: _containers.RepeatedCompositeFieldContainer[Node]
    files: _containers.RepeatedCompositeFieldContainer[File]
    attachments: _containers.RepeatedCompositeFieldContainer[Attachment]
    metadata: _containers.RepeatedCompositeFieldContainer[Entry]
    producer: _containers.RepeatedCompositeFieldContainer[Entry]
    adopted: bool
    pieces: _containers.RepeatedCompositeFieldContainer[Piece]
    def __init__(self, format_version: _Optional[int] = ..., storages: _Optional[_Iterable[_Union[Storage, _Mapping]]] = ..., tensors: _Optional[_Iterable[_Union[Tensor, _Mapping]]] = ..., state: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., files: _Optional[_Iterable[_Union[File, _Mapping]]] = ..., attachments: _Optional[_Iterable[_Union[Attachment, _Mapping]]] = ..., metadata: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ..., producer: _Optional[_Iterable[_Union[Entry, _Mapping]]] = ..., adopted: _Optional[bool] = ..., pieces: _Optional[_Iterable[_Union[Piece, _Mapping]]] = ...) -> None: ...

class Storage(_message.Message):
    __slots__ = ("size", "crc32", "sha256", "file", "offset")
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    FILE_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    size: int
    crc32: bytes
    sha256: bytes
    file: int
    offset: int
    def __init__(self, size: _Optional[int] = ..., crc32: _Optional[bytes] = ..., sha256: _Optional[bytes] = ..., file: _Optional[int] = ..., offset: _Optional[int] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("name", "dtype", "shape", "strides", "offset", "storage")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    STRIDES_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    STORAGE_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    strides: _containers.RepeatedScalarFieldContainer[int]
    offset: int
    storage: int
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., strides: _Optional[_Iterable[int]] = ..., offset: _Optional[int] = ..., storage: _Optional[int] = ...) -> None: ...

class Piece(_message.Message):
    __slots__ = ("tensor", "offsets", "sizes", "storage")
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    OFFSETS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    STORAGE_FIELD_NUMBER: _ClassVar[int]
    tensor: int
    offsets: _containers.RepeatedScalarFieldContainer[int]
    sizes: _containers.RepeatedScalarFieldContainer[int]
    storage: int
    def __init__(self, tensor: _Optional[int] = ..., offsets: _Optional[_Iterable[int]] = ..., sizes: _Optional[_Iterable[int]] = ..., storage: _Optional[int] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("kind", "count", "data", "name", "requires_grad")
    KIND_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    REQUIRES_GRAD_FIELD_NUMBER: _ClassVar[int]
    kind: Kind
    count: int
    data: bytes
    name: str
    requires_grad: bool
    def __init__(self, kind: _Optional[_Union[Kind, str]] = ..., count: _Optional[int] = ..., data: _Optional[bytes] = ..., name: _Optional[str] = ..., requires_grad: _Optional[bool] = ...) -> None: ...

class File(_message.Message):
    __slots__ = ("name", "size", "header_size", "header_sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    HEADER_SIZE_FIELD_NUMBER: _ClassVar[int]
    HEADER_SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    header_size: int
    header_sha256: bytes
    def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ..., header_size: _Optional[int] = ..., header_sha256: _Optional[bytes] = ...) -> None: ...

class Attachment(_message.Message):
    __slots__ = ("path", "size", "crc32", "sha256")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    CRC32_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    path: str
    size: int
    crc32: bytes
    sha256: bytes
    def __init__(self, path: _Optional[str] = ..., size: _Optional[int] = ..., crc32: _Optional[bytes] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class Entry(_message.Message):
    __slots__ = ("key", "value")
    KEY_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    key: str
    value: str
    def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
