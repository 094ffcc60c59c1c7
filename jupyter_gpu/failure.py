"""Explains an error about GPUs that a cell ended with, and is silent about every other one.

It reads exceptions, tracebacks and frames without running any of the person's code: attributes
come through Python's own descriptors, and only values of Python's own types are looked into.
"""

from __future__ import annotations

import argparse
import builtins
import linecache
import opcode
import sys
import types
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from jupyter_gpu.adapters.loaded import is_torch_without_gpus
from jupyter_gpu.core.failures import (
    CELL,
    Failure,
    Origin,
    Raised,
    candidates,
    confirmed,
    passed_on,
)

if TYPE_CHECKING:
    from jupyter_gpu.core.asked_ids import Frame
    from jupyter_gpu.core.overview import Overview
    from jupyter_gpu.core.plain_values import Plain, Step
    from jupyter_gpu.core.view import View

_MOST_ERRORS = 32  # of a chain or a group
_MOST_FRAMES = 2000  # more than Python's own limit of recursion
_LAST_FRAMES = 100  # of a deep traceback, its cell's first ones apart
_MOST_ITEMS = 64
_MOST_KEYS = 10_000
_DEEPEST = 3
_RAISES = frozenset(
    opcode.opmap[name] for name in ("RAISE_VARARGS", "RERAISE") if name in opcode.opmap
)
_OPTIMIZED = 1  # CO_OPTIMIZED: the frame of a function, whose names are Python's own to give


def explain(error: BaseException, source: str, read: Callable[[], Overview]) -> View | None:
    """Return the hint on the error that a cell has ended with; None where it is not about GPUs.

    Parameters
    ----------
    error
        What the cell ended with. Its causes, contexts and members count as well.
    source
        The cell's text.
    read
        Reads the machine, as the kernel that asks; called only for an error about GPUs.
    """
    for one in _chain(error):
        raised = _raised(one)
        rules = candidates(raised)
        if not rules:
            continue
        trace = _trace(one)
        failure = confirmed(rules, raised, _origin(trace), cpu_build=is_torch_without_gpus())
        if failure is not None:
            # What follows from an error of another machine, or is followed by one, repeats it.
            if any(passed_on(_raised(each), _origin(_trace(each))) for each in _chain(error)):
                return None
            return _hint(failure, trace, source, read)
    return None


def _hint(
    failure: Failure,
    trace: tuple[types.TracebackType, ...],
    source: str,
    read: Callable[[], Overview],
) -> View | None:
    # Only now: most errors are none of ours, and cost nothing.
    from jupyter_gpu.core.asked_ids import asked_ids  # noqa: PLC0415
    from jupyter_gpu.core.failure_words import failure_view  # noqa: PLC0415

    overview = read()
    visible = None if overview.process is None else overview.process.set_now
    return failure_view(
        failure,
        overview,
        lambda: asked_ids(failure.message, _frames(trace, source), visible),
    )


def _chain(error: BaseException) -> Iterator[BaseException]:
    """Yield an error, the members of a group, and what led to them, as a traceback shows them."""
    group = getattr(builtins, "BaseExceptionGroup", None)  # from Python 3.11 on
    waiting, seen = [error], set[int]()
    while waiting and len(seen) < _MOST_ERRORS:
        one = waiting.pop(0)
        if id(one) in seen:
            continue
        seen.add(id(one))
        yield one
        if group is not None and issubclass(type(one), group):
            waiting.extend(group.exceptions.__get__(one))
        cause, context = _own_value(one, "__cause__"), _own_value(one, "__context__")
        shown = None if _own_value(one, "__suppress_context__") else context
        waiting.extend(other for other in (cause, shown) if other is not None)


def _own_value(error: BaseException, name: str) -> Any:  # noqa: ANN401 - as Python keeps it
    """Return an attribute that every exception has, whatever its class makes of the name."""
    return BaseException.__dict__[name].__get__(error)


def _raised(error: BaseException) -> Raised:
    """Return an exception as text, without asking it for that text."""
    classes = tuple(
        (module, type.__dict__["__name__"].__get__(kind))
        for kind in _mro(type(error))
        if not _is_one_of(kind, object, BaseException, Exception)
        and type(module := type.__dict__["__module__"].__get__(kind)) is str
    )
    arguments = _own_value(error, "args")
    parts = [str(one) for one in arguments if _is_one_of(type(one), str, int) and _short(one)]
    # TensorFlow's errors keep their text in an attribute.
    kept = _own_value(error, "__dict__").get("_message")
    if type(kept) is str:
        parts.append(kept)
    return Raised(classes, " ".join(parts))


def _is_one_of(kind: type, *others: type) -> bool:
    """Return whether a type is one of these: by identity, as a metaclass may compare by itself."""
    return any(kind is other for other in others)


def _mro(kind: type) -> tuple[type, ...]:
    found: tuple[type, ...] = type.__dict__["__mro__"].__get__(kind)
    return found


def _own(kind: type) -> Mapping[str, object]:
    found: Mapping[str, object] = type.__dict__["__dict__"].__get__(kind)
    return found


def _short(value: object) -> bool:
    """Return whether a value is worth its text: Python refuses to write endless numbers."""
    return not isinstance(value, int) or abs(value) < 1 << 63


def _trace(error: BaseException) -> tuple[types.TracebackType, ...]:
    """Return the levels of a traceback, the outermost first; a deep one's first and last."""
    levels: list[types.TracebackType] = []
    level = _own_value(error, "__traceback__")
    while level is not None and len(levels) < _MOST_FRAMES:
        levels.append(level)
        level = level.tb_next
    if len(levels) > 2 * _LAST_FRAMES:
        levels[_LAST_FRAMES:-_LAST_FRAMES] = []
    return tuple(levels)


def _origin(trace: tuple[types.TracebackType, ...]) -> Origin:
    if not trace:
        return Origin(())
    last = trace[-1]
    modules = tuple(_module(level.tb_frame) for level in trace)
    code = last.tb_frame.f_code.co_code
    raises = 0 <= last.tb_lasti < len(code) and code[last.tb_lasti] in _RAISES
    return Origin(modules, by_cell=raises and modules[-1] == CELL)


def _module(frame: types.FrameType) -> str:
    name = dict.get(frame.f_globals, "__name__")
    return name if type(name) is str else ""


def _frames(trace: tuple[types.TracebackType, ...], source: str) -> tuple[Frame, ...]:
    """Return the levels from the cell on: what runs cells is not the person's."""
    from jupyter_gpu.core.asked_ids import Frame  # noqa: PLC0415 - as above

    cells = [n for n, level in enumerate(trace) if _module(level.tb_frame) == CELL]
    return tuple(
        Frame(
            _module(level.tb_frame),
            level.tb_frame.f_code.co_name,
            level.tb_lineno,
            _look(level.tb_frame),
            _text_of(level.tb_frame, source),
        )
        for level in trace[cells[0] if cells else 0 :]
    )


def _text_of(frame: types.FrameType, source: str) -> str | None:
    """Return the text of the cell that a frame belongs to, None for a library's."""
    if _module(frame) != CELL:
        return None
    # IPython keeps every cell's text there, without its magics, so that tracebacks show it.
    lines = linecache.getlines(frame.f_code.co_filename)
    return "".join(lines) or source


def _look(frame: types.FrameType) -> Callable[[str, tuple[Step, ...]], Plain | None]:
    """Return the function that gives the plain value of a name in a frame."""

    def look(name: str, steps: tuple[Step, ...]) -> Plain | None:
        value = _named(frame, name)
        for step in steps:
            value = _stepped(value, step)
        return _plain(value)

    return look


def _named(frame: types.FrameType, name: str) -> object:
    """Return what a name means in a frame, None where it means nothing."""
    own = frame.f_locals if frame.f_code.co_flags & _OPTIMIZED else None
    if own is not None and name in own:
        return own[name]
    if own is None and type(frame.f_locals) is dict and name in frame.f_locals:
        return frame.f_locals[name]
    return dict.get(frame.f_globals, name)


def _stepped(value: object, step: Step) -> object:
    """Return an attribute or an item, where getting it runs nothing of the person's."""
    how, key = step
    if how == ".":
        return _attributes(value, str(key)).get(str(key))
    if type(value) is dict:
        # A key of another type may have a comparison of its own.
        plain = len(value) <= _MOST_KEYS and all(_is_one_of(type(one), str, int) for one in value)
        return value.get(key) if plain else None
    if _is_one_of(type(value), list, tuple) and type(key) is int:
        items: list[object] | tuple[object, ...] = value  # type: ignore[assignment] # just checked
        return items[key] if -len(items) <= key < len(items) else None
    return None


def _attributes(value: object, name: str) -> Mapping[str, object]:
    """Return an object's own attributes; none where its class has a say in the one asked for."""
    if _is_one_of(type(value), types.ModuleType, types.SimpleNamespace, argparse.Namespace):
        found: Mapping[str, object] = object.__getattribute__(value, "__dict__")
        return found
    for kind in _mro(type(value)):
        names = _own(kind)
        if name in names or ("__getattribute__" in names and kind is not object):
            return {}
    for kind in _mro(type(value)):
        store = _own(kind).get("__dict__")
        if type(store) is types.GetSetDescriptorType:
            own = store.__get__(value)
            return own if type(own) is dict else {}
        if store is not None:
            return {}
    return {}


def _plain(value: object, depth: int = 0) -> Plain | None:
    """Return a value of Python's own types, or a torch device by its name; else None."""
    kind = type(value)
    if kind is int or kind is str:
        return value if _short(value) else None  # type: ignore[return-value] # just checked
    if depth > _DEEPEST:
        return None
    if _is_one_of(kind, list, tuple, range, dict):
        items = list(value.values() if isinstance(value, dict) else value)  # type: ignore[call-overload] # just checked
        known = [_plain(item, depth + 1) for item in items[:_MOST_ITEMS]]
        whole = tuple(item for item in known if item is not None)
        return whole if len(whole) == len(known) else None
    return _torch_device(value)


def _torch_device(value: object) -> str | None:
    """Return ``"cuda:3"`` of such a device; torch's own type answers in C."""
    torch = sys.modules.get("torch")
    if type(torch) is not types.ModuleType:
        return None
    kind = object.__getattribute__(torch, "__dict__").get("device")
    if type(kind) is not type or type(value) is not kind:
        return None
    name, index = value.type, value.index  # type: ignore[attr-defined] # a torch.device
    return f"{name}:{index}" if type(name) is str and type(index) is int else None
