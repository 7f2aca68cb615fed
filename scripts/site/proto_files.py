"""The protos' reference: their own comments, in the order of the files."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import grpc_tools
from google.protobuf.descriptor_pb2 import (
    DescriptorProto,
    EnumDescriptorProto,
    FieldDescriptorProto,
    FileDescriptorProto,
    FileDescriptorSet,
    ServiceDescriptorProto,
)
from grpc_tools import protoc
from words import plain

_WELL_KNOWN = Path(grpc_tools.__file__).parent / "_proto"
_PACKAGE = ".fleet.v1."
_SERVICE, _MESSAGE, _ENUM = 6, 4, 5
_FIELD, _VALUE, _METHOD, _NESTED = 2, 2, 2, 3
"""Field numbers of descriptor.proto, of which the places of comments are made."""


def as_markdown(folder: Path) -> str:
    """Return a section for each file, with its services, messages and enums."""
    lines: list[str] = []
    for file in _read(folder):
        lines += _File(file).section()
    return "\n".join(lines)


def _read(folder: Path) -> list[FileDescriptorProto]:
    paths = sorted(folder.glob("fleet/v1/*.proto"))
    with tempfile.TemporaryDirectory() as scratch:
        out = Path(scratch) / "all.binpb"
        code = protoc.main(
            ["protoc", f"-I{folder}", f"-I{_WELL_KNOWN}", "--include_source_info", f"--descriptor_set_out={out}"]
            + [str(path) for path in paths]
        )
        if code != 0:
            raise SystemExit(f"protoc failed with exit code {code}")
        return sorted(FileDescriptorSet.FromString(out.read_bytes()).file, key=lambda file: file.name)


class _File:
    """One file with its comments by their places."""

    def __init__(self, file: FileDescriptorProto) -> None:
        self._file = file
        self._comments = {tuple(place.path): place for place in file.source_code_info.location}

    def section(self) -> Iterator[str]:
        yield from (f"## {Path(self._file.name).name}", "", self._head(), "")
        for index, service in enumerate(self._file.service):
            yield from self._service(service, (_SERVICE, index))
        for index, message in enumerate(self._file.message_type):
            yield from self._message(message, message.name, (_MESSAGE, index))
        for index, enum in enumerate(self._file.enum_type):
            yield from self._enum(enum, (_ENUM, index))

    def _head(self) -> str:
        syntax = self._comments.get((12,))  # the comment at a file's top belongs to its `syntax` line
        return plain(syntax.leading_comments) if syntax else ""

    def _service(self, service: ServiceDescriptorProto, place: tuple[int, ...]) -> Iterator[str]:
        yield from (f"### {service.name}", "", self._comment(place), "")
        for index, method in enumerate(service.method):
            asked = ("stream " if method.client_streaming else "") + _short(method.input_type)
            answered = ("stream " if method.server_streaming else "") + _short(method.output_type)
            yield from (f"`{method.name}({asked}) returns ({answered})`",)
            yield from (f":   {self._comment((*place, _METHOD, index))}", "")

    def _message(self, message: DescriptorProto, name: str, place: tuple[int, ...]) -> Iterator[str]:
        yield from (f"### {name}", "", self._comment(place), "")
        maps = {nested.name for nested in message.nested_type if nested.options.map_entry}
        for index, field in enumerate(message.field):
            entry = next(
                (nested for nested in message.nested_type if field.type_name.endswith("." + nested.name)), None
            )
            kind = _kind(field) if entry is None or entry.name not in maps else _map_kind(entry)
            one_of = ""
            if field.HasField("oneof_index") and not field.proto3_optional:
                one_of = f" (one of `{message.oneof_decl[field.oneof_index].name}`)"
            yield f"`{kind} {field.name} = {field.number}`{one_of}"
            yield from (f":   {self._comment((*place, _FIELD, index))}", "")
        for index, nested in enumerate(message.nested_type):
            if nested.name not in maps:
                yield from self._message(nested, f"{name}.{nested.name}", (*place, _NESTED, index))

    def _enum(self, enum: EnumDescriptorProto, place: tuple[int, ...]) -> Iterator[str]:
        yield from (f"### {enum.name}", "", self._comment(place), "")
        for index, value in enumerate(enum.value):
            yield from (f"`{value.name} = {value.number}`", f":   {self._comment((*place, _VALUE, index))}", "")

    def _comment(self, place: tuple[int, ...]) -> str:
        found = self._comments.get(place)
        return plain(found.leading_comments) if found else ""


def _kind(field: FieldDescriptorProto) -> str:
    named = _short(field.type_name) or FieldDescriptorProto.Type.Name(field.type).removeprefix("TYPE_").lower()
    if field.label == FieldDescriptorProto.LABEL_REPEATED:
        return f"repeated {named}"
    return f"optional {named}" if field.proto3_optional else named


def _map_kind(entry: DescriptorProto) -> str:
    return f"map<{_kind(entry.field[0])}, {_kind(entry.field[1])}>"


def _short(name: str) -> str:
    return name.removeprefix(_PACKAGE).removeprefix(".google.protobuf.")
