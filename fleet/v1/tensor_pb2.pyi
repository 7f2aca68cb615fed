from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class TensorSpec(_message.Message):
    __slots__ = ("shape", "dtype")
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    shape: _containers.RepeatedScalarFieldContainer[int]
    dtype: str
    def __init__(self, shape: _Optional[_Iterable[int]] = ..., dtype: _Optional[str] = ...) -> None: ...

class Tensor(_message.Message):
    __slots__ = ("spec", "content")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    CONTENT_FIELD_NUMBER: _ClassVar[int]
    spec: TensorSpec
    content: bytes
    def __init__(self, spec: _Optional[_Union[TensorSpec, _Mapping]] = ..., content: _Optional[bytes] = ...) -> None: ...

class Argument(_message.Message):
    __slots__ = ("fill", "tensor", "output", "int_value", "float_value")
    FILL_FIELD_NUMBER: _ClassVar[int]
    TENSOR_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    INT_VALUE_FIELD_NUMBER: _ClassVar[int]
    FLOAT_VALUE_FIELD_NUMBER: _ClassVar[int]
    fill: TensorSpec
    tensor: Tensor
    output: TensorSpec
    int_value: int
    float_value: float
    def __init__(self, fill: _Optional[_Union[TensorSpec, _Mapping]] = ..., tensor: _Optional[_Union[Tensor, _Mapping]] = ..., output: _Optional[_Union[TensorSpec, _Mapping]] = ..., int_value: _Optional[int] = ..., float_value: _Optional[float] = ...) -> None: ...
