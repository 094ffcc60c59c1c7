"""Which of a person's variables hold torch's memory, found without running anything of theirs.

Objects are followed through the garbage collector's own list of references, so no method of the
person's is called, nothing is compared and nothing printed; a tensor is known by its type alone.
What only describes code (modules, classes, functions' globals) is not followed.
"""

from __future__ import annotations

import gc
import re
import sys
import types
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from jupyter_gpu.core.held import Held, Holder

LAST_ERROR = "the last error's traceback"
_LOOKED_AT_MOST = 1_000_000
_CODE = (types.ModuleType, types.CodeType, types.BuiltinFunctionType, types.FrameType)
# What IPython keeps under names of its own: the results, which stand in Out, and the inputs.
_OF_THE_SHELL = re.compile(r"_{1,3}|_i{1,3}|_i?[0-9]+|_[iod]h|In|Out")
_LAST = ("last_exc", "last_value", "last_traceback")


@dataclass(frozen=True, slots=True)
class _Storage:
    """A block of device memory, whichever tensors are views of it."""

    key: int
    number_bytes: int


def held_tensors(
    namespace: Mapping[str, object],
    outputs: Mapping[int, object],
    *,
    stops: Iterable[object] = (),
    modules: Mapping[str, ModuleType] = sys.modules,
    kind: str = "cuda",
) -> Held:
    """Return what holds torch's memory on devices of a kind.

    Parameters
    ----------
    namespace
        The person's variables by name.
    outputs
        The results that the shell keeps, by the number of their cell.
    stops
        Objects that are not followed: the shell, say, which reaches everything.
    modules
        The loaded modules; without torch among them nothing is held.
    kind
        The kind of device whose memory counts.
    """
    tensor_class = _class(modules.get("torch"), "Tensor")
    if tensor_class is None:
        return Held()
    walk = _Walk(_Reader(modules["torch"], tensor_class, kind), stops)
    names: dict[_Storage, list[str]] = {}
    about: dict[str, str] = {}
    for name, value in _roots(namespace, outputs):
        about.setdefault(name, _name_of(type(value)))
        for storage in walk.storages(value):
            holders = names.setdefault(storage, [])
            if name not in holders:
                holders.append(name)
    unnamed = [one for one in walk.everywhere() if one[1] not in names]
    return Held(
        _holders(names, about),
        len(unnamed),
        sum(storage.number_bytes for storage in {storage for _, storage in unnamed}),
        complete=walk.left > 0,
    )


def _roots(
    namespace: Mapping[str, object], outputs: Mapping[int, object]
) -> Iterator[tuple[str, object]]:
    for name, value in list(namespace.items()):
        if _OF_THE_SHELL.fullmatch(name) is None:
            yield name, value
    for number, value in list(outputs.items()):
        yield f"Out[{number}]", value
    for name in _LAST:
        value = getattr(sys, name, None)
        if value is not None:
            yield LAST_ERROR, value


def _holders(names: Mapping[_Storage, list[str]], about: Mapping[str, str]) -> tuple[Holder, ...]:
    """Return the holders, the biggest first; who shares a storage with others stands with them."""
    groups: dict[tuple[str, ...], list[_Storage]] = {}
    for storage, holders in names.items():
        groups.setdefault(tuple(holders), []).append(storage)
    found = [
        Holder(group, sum(one.number_bytes for one in storages), len(storages), about[group[0]])
        for group, storages in groups.items()
    ]
    return tuple(sorted(found, key=lambda holder: -holder.number_bytes))


class _Reader:
    """Reads tensors by torch's own functions, with everything of a subclass's own switched off."""

    def __init__(self, torch: Any, tensor_class: type, kind: str) -> None:  # noqa: ANN401 - untyped
        self._tensor_class, self._kind = tensor_class, kind
        inner = getattr(torch, "_C", None)
        # The second is its name before torch 2.0.
        self._plainly: Any = getattr(inner, "DisableTorchFunctionSubclass", None) or getattr(
            inner, "DisableTorchFunction", None
        )
        # By identity, because a class may have a hash and an equality of the person's own.
        self._known: dict[int, tuple[type, bool]] = {}

    def is_tensor(self, value: object) -> bool:
        """Return whether this is a tensor that torch itself can read."""
        cls = type(value)
        known = self._known.get(id(cls))
        if known is None:
            known = self._known[id(cls)] = (cls, self._derives(cls))
        return known[1]

    def _derives(self, cls: type) -> bool:
        # A subclass with a dispatch of its own answers for itself: its parts are followed instead.
        for one in _bases(cls):
            if one is self._tensor_class:
                return True
            if "__torch_dispatch__" in type.__dict__["__dict__"].__get__(one):
                return False
        return False

    def storage(self, tensor: Any) -> _Storage | None:  # noqa: ANN401 - torch's own
        """Return the memory of a tensor, None where it has none on a device of this kind."""
        base = self._tensor_class
        try:
            with self._plainly():
                if base.device.__get__(tensor).type != self._kind:  # type: ignore[attr-defined] # torch's
                    return None
                storage = base.untyped_storage(tensor)  # type: ignore[attr-defined] # torch's
                found = _Storage(int(storage.data_ptr()), int(storage.nbytes()))
                return found if found.number_bytes else None
        except Exception:  # noqa: BLE001 - a tensor without memory of its own, in many ways
            return None

    def gradient(self, tensor: Any) -> object:  # noqa: ANN401 - as above
        """Return the gradient that a leaf keeps, or None."""
        base = self._tensor_class
        try:
            with self._plainly():
                # Asking anything but a leaf makes torch warn.
                leaf = base.is_leaf.__get__(tensor)  # type: ignore[attr-defined] # torch's
                return base.grad.__get__(tensor) if leaf else None  # type: ignore[attr-defined] # as above
        except Exception:  # noqa: BLE001 - as above
            return None


class _Walk:
    """Follows references; ``left`` is how many objects it may still look at."""

    def __init__(self, reader: _Reader, stops: Iterable[object]) -> None:
        self._reader = reader
        self._stops = {id(one) for one in (*stops, sys.modules)}
        self.left = _LOOKED_AT_MOST

    def storages(self, root: object) -> set[_Storage]:
        """Return the memory of every tensor that an object leads to."""
        found: set[_Storage] = set()
        seen: dict[int, object] = {}  # keeps what it has seen, so that no id comes twice
        todo = [root]
        while todo and self.left > 0:
            value = todo.pop()
            if id(value) in seen or id(value) in self._stops:
                continue
            seen[id(value)] = value
            self.left -= 1
            if self._reader.is_tensor(value):
                storage = self._reader.storage(value)
                if storage is not None:
                    found.add(storage)
                todo.append(self._reader.gradient(value))
            todo.extend(one for one in _leads_to(value) if gc.is_tracked(one))
        return found

    def everywhere(self) -> list[tuple[object, _Storage]]:
        """Return every tensor that the garbage collector knows, with its memory."""
        found = []
        for value in gc.get_objects():
            if self._reader.is_tensor(value):
                storage = self._reader.storage(value)
                if storage is not None:
                    found.append((value, storage))
        return found


def _leads_to(value: object) -> list[Any]:
    """Return what an object refers to, as far as it is data."""
    cls = type(value)
    if cls is types.FunctionType:
        closure = types.FunctionType.__closure__.__get__(value)
        return list(closure or ())
    if cls is types.TracebackType:
        # A frame alone would lead to its callers, which are the shell's and reach everything.
        step: Any = value
        inside = gc.get_referents(step.tb_frame)
        return [step.tb_next, *(one for one in inside if not _is_code(type(one)))]
    if _is_code(cls):
        return []
    return gc.get_referents(value)


def _is_code(cls: type) -> bool:
    return any(one is code for code in (*_CODE, type) for one in _bases(cls))


def _bases(cls: type) -> tuple[type, ...]:
    # As in _name_of: a metaclass of the person's may have its own idea of every attribute.
    bases: tuple[type, ...] = type.__dict__["__mro__"].__get__(cls)
    return bases


def _name_of(cls: type) -> str:
    return str(type.__dict__["__name__"].__get__(cls))


def _class(module: object, name: str) -> type | None:
    found = getattr(module, name, None)
    return found if type.__instancecheck__(type, found) else None
