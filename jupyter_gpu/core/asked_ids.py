"""Which device ids were asked for: from the message, the libraries' frames, and the cell's text.

The ids may be computed, so a text alone does not tell: a name's value is looked up in the frame
that failed, and the way to it is never run again. Pure: a frame gives plain values only.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType

from jupyter_gpu.core.plain_values import Look, Plain, Scope, dotted, value_of

_NAMED = re.compile(r"(?i)(?:[^:]*/)?(?:cuda|gpu|device:gpu):([0-9]{1,6})")
_NUMBERS = re.compile(r"\s*[0-9]{1,6}\s*(?:,\s*[0-9]{1,6}\s*)*")
_IPYTHON_LINE = re.compile(r"^(\s*)[%!?].*$", re.MULTILINE)

# What the messages themselves tell: the pattern, how it is written, and the call that mends it.
_IN_MESSAGES = (
    (r"on CUDA device ([0-9]+) but", "cuda:{}", 'torch.load(…, map_location="cuda:{}")'),
    (r"requested GPUs?: (\[[0-9, ]+\])", "devices={}", "devices={}"),
    (r"'device=([0-9, ]+)' requested", "device={}", "device={}"),
    (r"device:GPU:([0-9]+)", "GPU:{}", 'tf.device("GPU:{}")'),
)
# The names by which libraries hold the ids that they were given, the most telling first.
_IN_FRAMES = (
    *("device_ids", "gpu_ids", "device_id", "devnum", "device", "device_index", "gpu"),
    *("output_device", "map_location", "device_map", "local_rank"),
)
# Keywords that take ids; those of the second line take a count as well, so a number there is none.
_KEYWORDS = frozenset(
    {*_IN_FRAMES, "device_num", "gpu_id", "cuda_device", "main_gpu", "peer_device"}
)
_LISTS_ONLY = frozenset({"devices", "gpus"})
# Functions that take an id by position, and where.
_POSITIONS: Mapping[str, int] = MappingProxyType(
    {
        **dict.fromkeys(("cuda", "to", "set_device", "select_device", "device", "Device"), 0),
        **dict.fromkeys(("get_device_properties", "get_device_name", "mem_get_info"), 0),
        **dict.fromkeys(("get_device_capability", "memory_allocated", "synchronize"), 0),
        **dict.fromkeys(("DataParallel", "DistributedDataParallel"), 1),
        "data_parallel": 2,
    }
)
_SPELLED_AS_CALLS = frozenset(_POSITIONS) - {"to", "device", "DataParallel", "data_parallel"}
_PARALLEL = ("DataParallel", "DistributedDataParallel", "data_parallel")


@dataclass(frozen=True, slots=True)
class Frame:
    """One level of a traceback: ``look`` gives plain values of the names that are seen there.

    ``source`` is the text of the cell that it belongs to, None for a library's frame.
    """

    module: str
    function: str
    line: int
    look: Look
    source: str | None = None


@dataclass(frozen=True, slots=True)
class Asked:
    """Device ids that were asked for, and how: ``spelling`` has ``{}`` in their place.

    ``call`` is the same as one would write it to mend it.
    """

    ids: tuple[int, ...]
    spelling: str = "device {}"
    call: str = ""
    listed: bool = False

    def words(self, ids: tuple[int, ...] | None = None) -> str:
        """Return what was asked, ``"device_ids=[1, 2]"``, or the same with other ids."""
        return _filled(self.spelling, self.ids if ids is None else ids, listed=self.listed)

    def mended(self, ids: tuple[int, ...]) -> str:
        """Return the call with other ids."""
        return _filled(self.call or self.spelling, ids, listed=self.listed)


def asked_ids(message: str, frames: tuple[Frame, ...], visible: str | None) -> Iterator[Asked]:
    """Yield what may have been asked for, the surest first.

    Parameters
    ----------
    message
        The error's.
    frames
        Its traceback's, the cell first.
    visible
        The value of CUDA_VISIBLE_DEVICES now.
    """
    for pattern, spelling, call in _IN_MESSAGES:
        found = re.search(pattern, message, re.IGNORECASE)
        if found is not None:
            numbers = tuple(int(number) for number in re.findall(r"[0-9]{1,6}", found[1]))
            yield Asked(numbers, spelling, call, found[1].startswith("["))
    yield from _from_libraries(frames)
    for frame in reversed(frames):
        if frame.source is not None:
            yield from _from_text(frame, Scope(frame.look, visible))


def _filled(spelling: str, ids: tuple[int, ...], *, listed: bool) -> str:
    numbers = f"[{', '.join(map(str, ids))}]" if listed else ",".join(map(str, ids))
    return spelling.replace("{}", numbers)


def _from_libraries(frames: tuple[Frame, ...]) -> Iterator[Asked]:
    outside = [frame for frame in reversed(frames) if frame.source is None]
    parallel = next((f for f in outside if f.module.startswith("torch.nn.parallel.")), None)
    for name in _IN_FRAMES:
        for frame in outside:
            of_self = frame.look("self", ((".", name),))
            for value in (frame.look(name, ()), of_self):
                if value is None:
                    continue
                function = frame.function if frame.function in _SPELLED_AS_CALLS else ""
                call = "DataParallel" if parallel is not None and name == "device_ids" else ""
                yield from _asked(value, name, call or function)


def _from_text(frame: Frame, scope: Scope) -> Iterator[Asked]:
    statement = _statement(frame.source or "", frame.line)
    if statement is None:
        return
    nodes = [node for part in _own_parts(statement) for node in ast.walk(part)]
    calls = [node for node in nodes if isinstance(node, ast.Call)]
    for call in calls:
        yield from _from_call(call, scope)
    for call in calls:
        for argument in (*call.args, *(word.value for word in call.keywords)):
            value = value_of(argument, scope)
            if isinstance(value, str) and _NAMED.fullmatch(value):
                yield from _asked(value, "", "")


def _from_call(call: ast.Call, scope: Scope) -> Iterator[Asked]:
    name = dotted(call.func).rpartition(".")[2]
    for word in call.keywords:
        keyword = word.arg or ""
        value = value_of(word.value, scope) if keyword in _KEYWORDS | _LISTS_ONLY else None
        if value is None or (keyword in _LISTS_ONLY and isinstance(value, int)):
            continue
        yield from _asked(value, keyword, name if name in _PARALLEL else "")
    position = _POSITIONS.get(name, len(call.args))
    if position < len(call.args):
        value = value_of(call.args[position], scope)
        if value is not None:
            yield from _asked(value, "device_ids" if position else "", name)


def _asked(value: Plain, name: str, function: str) -> Iterator[Asked]:
    """Yield the ids in a value: given by a name, as an argument of a function, or both."""
    ids = _ids(value)
    if not ids:
        return
    listed = isinstance(value, tuple)
    if isinstance(value, str) and (named := _NAMED.fullmatch(value)):
        yield Asked(ids, f"{value[: named.start(1)]}{{}}"[-40:])
    elif function in _PARALLEL:
        begin = {"data_parallel": "data_parallel(model, inputs"}.get(function, f"{function}(model")
        yield Asked(ids, f"{name}={{}}", f"{begin}, {name}={{}})", listed)
    elif function:
        dot = "." if function in ("cuda", "to") else ""
        yield Asked(ids, f"{dot}{function}({{}})", listed=listed)
    elif name:
        yield Asked(ids, f"{name}={{}}", listed=listed)
    else:
        yield Asked(ids, listed=listed)


def _ids(value: Plain) -> tuple[int, ...]:
    """Return the ids in a value, none where it holds anything else."""
    if isinstance(value, int):
        return (value,) if value >= 0 else ()
    if isinstance(value, str):
        named = _NAMED.fullmatch(value)
        if named is not None:
            return (int(named[1]),)
        numbers = value.split(",") if _NUMBERS.fullmatch(value) else []
        return tuple(map(int, numbers))
    each = [_ids(item) for item in value]
    if not all(len(ids) == 1 for ids in each):
        return ()
    return tuple(ids[0] for ids in each)


def _statement(source: str, line: int) -> ast.stmt | None:
    """Return the innermost statement of a text that a line belongs to."""
    tree = _parsed(source)
    if tree is None:
        return None
    around = (
        node
        for node in ast.walk(tree)
        if isinstance(node, ast.stmt) and node.lineno <= line <= (node.end_lineno or node.lineno)
    )
    return max(around, key=lambda node: (node.lineno, node.col_offset), default=None)


def _parsed(source: str) -> ast.Module | None:
    """Return a text as Python, without its magics and lines for the shell if it has any."""
    unreadable = (SyntaxError, ValueError, RecursionError, MemoryError)
    try:
        return ast.parse(source)
    except unreadable:
        pass_lines = _IPYTHON_LINE.sub(r"\1pass", source)
    try:
        return ast.parse(pass_lines)
    except unreadable:
        return None


def _own_parts(statement: ast.stmt) -> Iterator[ast.AST]:
    """Yield a statement's own expressions, without the statements that stand inside it."""
    for child in ast.iter_child_nodes(statement):
        if not isinstance(child, (ast.stmt, ast.ExceptHandler)):
            yield child
