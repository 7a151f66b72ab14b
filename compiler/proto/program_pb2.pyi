from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class DType(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DTYPE_UNSPECIFIED: _ClassVar[DType]
    DTYPE_BOOL: _ClassVar[DType]
    DTYPE_UINT8: _ClassVar[DType]
    DTYPE_INT8: _ClassVar[DType]
    DTYPE_INT16: _ClassVar[DType]
    DTYPE_INT32: _ClassVar[DType]
    DTYPE_INT64: _ClassVar[DType]
    DTYPE_FLOAT16: _ClassVar[DType]
    DTYPE_BFLOAT16: _ClassVar[DType]
    DTYPE_FLOAT32: _ClassVar[DType]
    DTYPE_FLOAT64: _ClassVar[DType]

class Operation(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    OPERATION_UNSPECIFIED: _ClassVar[Operation]
    OPERATION_TENSOR: _ClassVar[Operation]
    OPERATION_LITERAL: _ClassVar[Operation]
    OPERATION_ADD: _ClassVar[Operation]
    OPERATION_SUBTRACT: _ClassVar[Operation]
    OPERATION_MULTIPLY: _ClassVar[Operation]
    OPERATION_RSQRT: _ClassVar[Operation]
    OPERATION_OFFSET: _ClassVar[Operation]
    OPERATION_RESHAPE: _ClassVar[Operation]
    OPERATION_NEGATE: _ClassVar[Operation]
    OPERATION_DIVIDE: _ClassVar[Operation]
    OPERATION_SCALE: _ClassVar[Operation]
    OPERATION_SQRT: _ClassVar[Operation]
    OPERATION_EXP: _ClassVar[Operation]
    OPERATION_SUM: _ClassVar[Operation]
    OPERATION_PERMUTE: _ClassVar[Operation]
    OPERATION_NARROW: _ClassVar[Operation]
    OPERATION_CAT: _ClassVar[Operation]

class MemoryFormat(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEMORY_FORMAT_UNSPECIFIED: _ClassVar[MemoryFormat]
    MEMORY_FORMAT_CONTIGUOUS_FORMAT: _ClassVar[MemoryFormat]
    MEMORY_FORMAT_PRESERVE_FORMAT: _ClassVar[MemoryFormat]
    MEMORY_FORMAT_CHANNELS_LAST: _ClassVar[MemoryFormat]
    MEMORY_FORMAT_CHANNELS_LAST_3D: _ClassVar[MemoryFormat]

class Device(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DEVICE_UNSPECIFIED: _ClassVar[Device]
    DEVICE_CPU: _ClassVar[Device]
    DEVICE_CUDA: _ClassVar[Device]

class MemoryLayout(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    MEMORY_LAYOUT_UNSPECIFIED: _ClassVar[MemoryLayout]
    MEMORY_LAYOUT_NONE: _ClassVar[MemoryLayout]
    MEMORY_LAYOUT_ROW_MAJOR: _ClassVar[MemoryLayout]
    MEMORY_LAYOUT_CHANNELS_LAST: _ClassVar[MemoryLayout]
    MEMORY_LAYOUT_STRIDED: _ClassVar[MemoryLayout]

class Phase(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    PHASE_UNSPECIFIED: _ClassVar[Phase]
    PHASE_CONSTANT: _ClassVar[Phase]
    PHASE_REQUEST: _ClassVar[Phase]

class SyncMode(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    SYNC_MODE_UNSPECIFIED: _ClassVar[SyncMode]
    SYNC_MODE_INLINE: _ClassVar[SyncMode]
    SYNC_MODE_STREAM: _ClassVar[SyncMode]
DTYPE_UNSPECIFIED: DType
DTYPE_BOOL: DType
DTYPE_UINT8: DType
DTYPE_INT8: DType
DTYPE_INT16: DType
DTYPE_INT32: DType
DTYPE_INT64: DType
DTYPE_FLOAT16: DType
DTYPE_BFLOAT16: DType
DTYPE_FLOAT32: DType
DTYPE_FLOAT64: DType
OPERATION_UNSPECIFIED: Operation
OPERATION_TENSOR: Operation
OPERATION_LITERAL: Operation
OPERATION_ADD: Operation
OPERATION_SUBTRACT: Operation
OPERATION_MULTIPLY: Operation
OPERATION_RSQRT: Operation
OPERATION_OFFSET: Operation
OPERATION_RESHAPE: Operation
OPERATION_NEGATE: Operation
OPERATION_DIVIDE: Operation
OPERATION_SCALE: Operation
OPERATION_SQRT: Operation
OPERATION_EXP: Operation
OPERATION_SUM: Operation
OPERATION_PERMUTE: Operation
OPERATION_NARROW: Operation
OPERATION_CAT: Operation
MEMORY_FORMAT_UNSPECIFIED: MemoryFormat
MEMORY_FORMAT_CONTIGUOUS_FORMAT: MemoryFormat
MEMORY_FORMAT_PRESERVE_FORMAT: MemoryFormat
MEMORY_FORMAT_CHANNELS_LAST: MemoryFormat
MEMORY_FORMAT_CHANNELS_LAST_3D: MemoryFormat
DEVICE_UNSPECIFIED: Device
DEVICE_CPU: Device
DEVICE_CUDA: Device
MEMORY_LAYOUT_UNSPECIFIED: MemoryLayout
MEMORY_LAYOUT_NONE: MemoryLayout
MEMORY_LAYOUT_ROW_MAJOR: MemoryLayout
MEMORY_LAYOUT_CHANNELS_LAST: MemoryLayout
MEMORY_LAYOUT_STRIDED: MemoryLayout
PHASE_UNSPECIFIED: Phase
PHASE_CONSTANT: Phase
PHASE_REQUEST: Phase
SYNC_MODE_UNSPECIFIED: SyncMode
SYNC_MODE_INLINE: SyncMode
SYNC_MODE_STREAM: SyncMode

class Program(_message.Message):
    __slots__ = ("definition", "backend", "targets", "passes", "figures", "captured")
    DEFINITION_FIELD_NUMBER: _ClassVar[int]
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    TARGETS_FIELD_NUMBER: _ClassVar[int]
    PASSES_FIELD_NUMBER: _ClassVar[int]
    FIGURES_FIELD_NUMBER: _ClassVar[int]
    CAPTURED_FIELD_NUMBER: _ClassVar[int]
    definition: Definition
    backend: str
    targets: _containers.RepeatedCompositeFieldContainer[Target]
    passes: _containers.RepeatedCompositeFieldContainer[Pass]
    figures: _containers.RepeatedCompositeFieldContainer[Figure]
    captured: Drawing
    def __init__(self, definition: _Optional[_Union[Definition, _Mapping]] = ..., backend: _Optional[str] = ..., targets: _Optional[_Iterable[_Union[Target, _Mapping]]] = ..., passes: _Optional[_Iterable[_Union[Pass, _Mapping]]] = ..., figures: _Optional[_Iterable[_Union[Figure, _Mapping]]] = ..., captured: _Optional[_Union[Drawing, _Mapping]] = ...) -> None: ...

class Drawing(_message.Message):
    __slots__ = ("text", "dot")
    TEXT_FIELD_NUMBER: _ClassVar[int]
    DOT_FIELD_NUMBER: _ClassVar[int]
    text: str
    dot: str
    def __init__(self, text: _Optional[str] = ..., dot: _Optional[str] = ...) -> None: ...

class Definition(_message.Message):
    __slots__ = ("dims", "inputs", "requires", "literals", "constants", "nodes", "outputs")
    DIMS_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    REQUIRES_FIELD_NUMBER: _ClassVar[int]
    LITERALS_FIELD_NUMBER: _ClassVar[int]
    CONSTANTS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    OUTPUTS_FIELD_NUMBER: _ClassVar[int]
    dims: _containers.RepeatedCompositeFieldContainer[Dim]
    inputs: _containers.RepeatedCompositeFieldContainer[TensorSpec]
    requires: _containers.RepeatedCompositeFieldContainer[TensorSpec]
    literals: _containers.RepeatedCompositeFieldContainer[Literal]
    constants: _containers.RepeatedCompositeFieldContainer[Constant]
    nodes: _containers.RepeatedCompositeFieldContainer[Node]
    outputs: _containers.RepeatedCompositeFieldContainer[Output]
    def __init__(self, dims: _Optional[_Iterable[_Union[Dim, _Mapping]]] = ..., inputs: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ..., requires: _Optional[_Iterable[_Union[TensorSpec, _Mapping]]] = ..., literals: _Optional[_Iterable[_Union[Literal, _Mapping]]] = ..., constants: _Optional[_Iterable[_Union[Constant, _Mapping]]] = ..., nodes: _Optional[_Iterable[_Union[Node, _Mapping]]] = ..., outputs: _Optional[_Iterable[_Union[Output, _Mapping]]] = ...) -> None: ...

class Dim(_message.Message):
    __slots__ = ("name", "min", "max")
    NAME_FIELD_NUMBER: _ClassVar[int]
    MIN_FIELD_NUMBER: _ClassVar[int]
    MAX_FIELD_NUMBER: _ClassVar[int]
    name: str
    min: int
    max: int
    def __init__(self, name: _Optional[str] = ..., min: _Optional[int] = ..., max: _Optional[int] = ...) -> None: ...

class TensorSpec(_message.Message):
    __slots__ = ("name", "dtype", "axes")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    AXES_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: DType
    axes: _containers.RepeatedCompositeFieldContainer[Axis]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[_Union[DType, str]] = ..., axes: _Optional[_Iterable[_Union[Axis, _Mapping]]] = ...) -> None: ...

class Axis(_message.Message):
    __slots__ = ("fixed", "dim", "computed")
    FIXED_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    COMPUTED_FIELD_NUMBER: _ClassVar[int]
    fixed: int
    dim: str
    computed: bool
    def __init__(self, fixed: _Optional[int] = ..., dim: _Optional[str] = ..., computed: _Optional[bool] = ...) -> None: ...

class Literal(_message.Message):
    __slots__ = ("name", "dtype", "shape", "data")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: DType
    shape: _containers.RepeatedScalarFieldContainer[int]
    data: bytes
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[_Union[DType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., data: _Optional[bytes] = ...) -> None: ...

class Constant(_message.Message):
    __slots__ = ("name", "dtype", "shape", "strides", "steps")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    STRIDES_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: DType
    shape: _containers.RepeatedScalarFieldContainer[int]
    strides: _containers.RepeatedScalarFieldContainer[int]
    steps: _containers.RepeatedCompositeFieldContainer[Step]
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[_Union[DType, str]] = ..., shape: _Optional[_Iterable[int]] = ..., strides: _Optional[_Iterable[int]] = ..., steps: _Optional[_Iterable[_Union[Step, _Mapping]]] = ...) -> None: ...

class Step(_message.Message):
    __slots__ = ("operation", "operands", "name", "value", "shape", "axes", "start", "length")
    OPERATION_FIELD_NUMBER: _ClassVar[int]
    OPERANDS_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    AXES_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    LENGTH_FIELD_NUMBER: _ClassVar[int]
    operation: Operation
    operands: _containers.RepeatedScalarFieldContainer[int]
    name: str
    value: float
    shape: _containers.RepeatedScalarFieldContainer[int]
    axes: _containers.RepeatedScalarFieldContainer[int]
    start: int
    length: int
    def __init__(self, operation: _Optional[_Union[Operation, str]] = ..., operands: _Optional[_Iterable[int]] = ..., name: _Optional[str] = ..., value: _Optional[float] = ..., shape: _Optional[_Iterable[int]] = ..., axes: _Optional[_Iterable[int]] = ..., start: _Optional[int] = ..., length: _Optional[int] = ...) -> None: ...

class Node(_message.Message):
    __slots__ = ("operator", "arguments", "device_set", "memory_layout", "phase", "sync_mode")
    OPERATOR_FIELD_NUMBER: _ClassVar[int]
    ARGUMENTS_FIELD_NUMBER: _ClassVar[int]
    DEVICE_SET_FIELD_NUMBER: _ClassVar[int]
    MEMORY_LAYOUT_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    SYNC_MODE_FIELD_NUMBER: _ClassVar[int]
    operator: str
    arguments: _containers.RepeatedCompositeFieldContainer[Argument]
    device_set: _containers.RepeatedScalarFieldContainer[Device]
    memory_layout: MemoryLayout
    phase: Phase
    sync_mode: SyncMode
    def __init__(self, operator: _Optional[str] = ..., arguments: _Optional[_Iterable[_Union[Argument, _Mapping]]] = ..., device_set: _Optional[_Iterable[_Union[Device, str]]] = ..., memory_layout: _Optional[_Union[MemoryLayout, str]] = ..., phase: _Optional[_Union[Phase, str]] = ..., sync_mode: _Optional[_Union[SyncMode, str]] = ...) -> None: ...

class Argument(_message.Message):
    __slots__ = ("name", "atom", "list")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ATOM_FIELD_NUMBER: _ClassVar[int]
    LIST_FIELD_NUMBER: _ClassVar[int]
    name: str
    atom: Atom
    list: AtomList
    def __init__(self, name: _Optional[str] = ..., atom: _Optional[_Union[Atom, _Mapping]] = ..., list: _Optional[_Union[AtomList, _Mapping]] = ...) -> None: ...

class AtomList(_message.Message):
    __slots__ = ("atoms",)
    ATOMS_FIELD_NUMBER: _ClassVar[int]
    atoms: _containers.RepeatedCompositeFieldContainer[Atom]
    def __init__(self, atoms: _Optional[_Iterable[_Union[Atom, _Mapping]]] = ...) -> None: ...

class Atom(_message.Message):
    __slots__ = ("ref", "none", "flag", "integer", "real", "text", "dtype", "memory_format")
    REF_FIELD_NUMBER: _ClassVar[int]
    NONE_FIELD_NUMBER: _ClassVar[int]
    FLAG_FIELD_NUMBER: _ClassVar[int]
    INTEGER_FIELD_NUMBER: _ClassVar[int]
    REAL_FIELD_NUMBER: _ClassVar[int]
    TEXT_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_FORMAT_FIELD_NUMBER: _ClassVar[int]
    ref: int
    none: bool
    flag: bool
    integer: int
    real: float
    text: str
    dtype: DType
    memory_format: MemoryFormat
    def __init__(self, ref: _Optional[int] = ..., none: _Optional[bool] = ..., flag: _Optional[bool] = ..., integer: _Optional[int] = ..., real: _Optional[float] = ..., text: _Optional[str] = ..., dtype: _Optional[_Union[DType, str]] = ..., memory_format: _Optional[_Union[MemoryFormat, str]] = ...) -> None: ...

class Output(_message.Message):
    __slots__ = ("value", "spec")
    VALUE_FIELD_NUMBER: _ClassVar[int]
    SPEC_FIELD_NUMBER: _ClassVar[int]
    value: int
    spec: TensorSpec
    def __init__(self, value: _Optional[int] = ..., spec: _Optional[_Union[TensorSpec, _Mapping]] = ...) -> None: ...

class Target(_message.Message):
    __slots__ = ("backend", "requirement", "torch_version", "path", "size_bytes", "sha256")
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    REQUIREMENT_FIELD_NUMBER: _ClassVar[int]
    TORCH_VERSION_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    SIZE_BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    backend: str
    requirement: str
    torch_version: str
    path: str
    size_bytes: int
    sha256: bytes
    def __init__(self, backend: _Optional[str] = ..., requirement: _Optional[str] = ..., torch_version: _Optional[str] = ..., path: _Optional[str] = ..., size_bytes: _Optional[int] = ..., sha256: _Optional[bytes] = ...) -> None: ...

class Pass(_message.Message):
    __slots__ = ("name", "changes", "refusals")
    NAME_FIELD_NUMBER: _ClassVar[int]
    CHANGES_FIELD_NUMBER: _ClassVar[int]
    REFUSALS_FIELD_NUMBER: _ClassVar[int]
    name: str
    changes: _containers.RepeatedCompositeFieldContainer[Change]
    refusals: _containers.RepeatedCompositeFieldContainer[Refusal]
    def __init__(self, name: _Optional[str] = ..., changes: _Optional[_Iterable[_Union[Change, _Mapping]]] = ..., refusals: _Optional[_Iterable[_Union[Refusal, _Mapping]]] = ...) -> None: ...

class Change(_message.Message):
    __slots__ = ("site", "what")
    SITE_FIELD_NUMBER: _ClassVar[int]
    WHAT_FIELD_NUMBER: _ClassVar[int]
    site: str
    what: str
    def __init__(self, site: _Optional[str] = ..., what: _Optional[str] = ...) -> None: ...

class Refusal(_message.Message):
    __slots__ = ("site", "reason", "detail")
    SITE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    site: str
    reason: str
    detail: str
    def __init__(self, site: _Optional[str] = ..., reason: _Optional[str] = ..., detail: _Optional[str] = ...) -> None: ...

class Figure(_message.Message):
    __slots__ = ("backend", "checkpoint", "inputs", "sizes", "error", "eager_error", "bound")
    BACKEND_FIELD_NUMBER: _ClassVar[int]
    CHECKPOINT_FIELD_NUMBER: _ClassVar[int]
    INPUTS_FIELD_NUMBER: _ClassVar[int]
    SIZES_FIELD_NUMBER: _ClassVar[int]
    ERROR_FIELD_NUMBER: _ClassVar[int]
    EAGER_ERROR_FIELD_NUMBER: _ClassVar[int]
    BOUND_FIELD_NUMBER: _ClassVar[int]
    backend: str
    checkpoint: str
    inputs: str
    sizes: _containers.RepeatedCompositeFieldContainer[DimSize]
    error: float
    eager_error: float
    bound: float
    def __init__(self, backend: _Optional[str] = ..., checkpoint: _Optional[str] = ..., inputs: _Optional[str] = ..., sizes: _Optional[_Iterable[_Union[DimSize, _Mapping]]] = ..., error: _Optional[float] = ..., eager_error: _Optional[float] = ..., bound: _Optional[float] = ...) -> None: ...

class DimSize(_message.Message):
    __slots__ = ("dim", "size")
    DIM_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    dim: str
    size: int
    def __init__(self, dim: _Optional[str] = ..., size: _Optional[int] = ...) -> None: ...
