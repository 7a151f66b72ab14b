from ckpt.proto import checkpoint_pb2 as _checkpoint_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Action(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    ACTION_UNSPECIFIED: _ClassVar[Action]
    ACTION_COPY: _ClassVar[Action]
    ACTION_PATCH: _ClassVar[Action]
    ACTION_NEW: _ClassVar[Action]
ACTION_UNSPECIFIED: Action
ACTION_COPY: Action
ACTION_PATCH: Action
ACTION_NEW: Action

class Delta(_message.Message):
    __slots__ = ("format_version", "base_root", "target_root", "target_seal", "sequence", "target", "storages", "attachments", "patches")
    FORMAT_VERSION_FIELD_NUMBER: _ClassVar[int]
    BASE_ROOT_FIELD_NUMBER: _ClassVar[int]
    TARGET_ROOT_FIELD_NUMBER: _ClassVar[int]
    TARGET_SEAL_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    STORAGES_FIELD_NUMBER: _ClassVar[int]
    ATTACHMENTS_FIELD_NUMBER: _ClassVar[int]
    PATCHES_FIELD_NUMBER: _ClassVar[int]
    format_version: int
    base_root: bytes
    target_root: bytes
    target_seal: bytes
    sequence: int
    target: _checkpoint_pb2.Manifest
    storages: _containers.RepeatedCompositeFieldContainer[Operation]
    attachments: _containers.RepeatedCompositeFieldContainer[Operation]
    patches: _containers.RepeatedCompositeFieldContainer[Patch]
    def __init__(self, format_version: _Optional[int] = ..., base_root: _Optional[bytes] = ..., target_root: _Optional[bytes] = ..., target_seal: _Optional[bytes] = ..., sequence: _Optional[int] = ..., target: _Optional[_Union[_checkpoint_pb2.Manifest, _Mapping]] = ..., storages: _Optional[_Iterable[_Union[Operation, _Mapping]]] = ..., attachments: _Optional[_Iterable[_Union[Operation, _Mapping]]] = ..., patches: _Optional[_Iterable[_Union[Patch, _Mapping]]] = ...) -> None: ...

class Operation(_message.Message):
    __slots__ = ("action", "base", "frames")
    ACTION_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    FRAMES_FIELD_NUMBER: _ClassVar[int]
    action: Action
    base: int
    frames: _containers.RepeatedCompositeFieldContainer[Frame]
    def __init__(self, action: _Optional[_Union[Action, str]] = ..., base: _Optional[int] = ..., frames: _Optional[_Iterable[_Union[Frame, _Mapping]]] = ...) -> None: ...

class Frame(_message.Message):
    __slots__ = ("codec", "offset", "size", "base_offset", "base_size", "width", "patch", "patch_offset", "encoded_size", "sha256", "reversible")
    CODEC_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    BASE_OFFSET_FIELD_NUMBER: _ClassVar[int]
    BASE_SIZE_FIELD_NUMBER: _ClassVar[int]
    WIDTH_FIELD_NUMBER: _ClassVar[int]
    PATCH_FIELD_NUMBER: _ClassVar[int]
    PATCH_OFFSET_FIELD_NUMBER: _ClassVar[int]
    ENCODED_SIZE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    REVERSIBLE_FIELD_NUMBER: _ClassVar[int]
    codec: str
    offset: int
    size: int
    base_offset: int
    base_size: int
    width: int
    patch: int
    patch_offset: int
    encoded_size: int
    sha256: bytes
    reversible: bool
    def __init__(self, codec: _Optional[str] = ..., offset: _Optional[int] = ..., size: _Optional[int] = ..., base_offset: _Optional[int] = ..., base_size: _Optional[int] = ..., width: _Optional[int] = ..., patch: _Optional[int] = ..., patch_offset: _Optional[int] = ..., encoded_size: _Optional[int] = ..., sha256: _Optional[bytes] = ..., reversible: _Optional[bool] = ...) -> None: ...

class Patch(_message.Message):
    __slots__ = ("name", "size")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...
