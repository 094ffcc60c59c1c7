"""What an expression in a cell came to, read from its text and from plain values of its names.

Nothing is called and nothing of the person's is evaluated: numbers, texts, lists, a little
arithmetic, and the few ways in which people write device ids (``range(2)``,
``int(os.environ["CUDA_VISIBLE_DEVICES"])``, ``torch.device("cuda", 3)``). The rest is unknown.
Pure.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import TypeAlias

from jupyter_gpu.core.variables import VISIBLE

Plain: TypeAlias = "int | str | tuple[Plain, ...]"
# What leads from a name to a value: ``(".", "gpu")`` for an attribute, ``("[", 0)`` for an item.
Step: TypeAlias = tuple[str, int | str]
Look: TypeAlias = Callable[[str, tuple[Step, ...]], "Plain | None"]

_LARGEST = 2**31
_LONGEST = 64  # items of a list, and as deep as an expression may be
_PERCENT = re.compile(r"[^%]*%[dsi][^%]*")
_LISTS = frozenset({"list", "tuple", "sorted"})


@dataclass(frozen=True, slots=True)
class Scope:
    """Where an expression stands: how its names are looked up, and the variable's value now.

    ``bound`` are the names that a comprehension around it has given a value.
    """

    look: Look
    visible: str | None = None
    bound: Mapping[str, Plain] = field(default_factory=dict)
    depth: int = 0


def value_of(node: ast.expr, scope: Scope) -> Plain | None:
    """Return what an expression came to, None where that cannot be told without running it."""
    read = _READERS.get(type(node))
    if read is None or scope.depth > _LONGEST:
        return None
    value = read(node, replace(scope, depth=scope.depth + 1))
    return None if isinstance(value, int) and abs(value) > _LARGEST else value


def dotted(node: ast.expr) -> str:
    """Return ``"torch.cuda.set_device"`` for such an expression, else what it ends with."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    parts.append(node.id if isinstance(node, ast.Name) else "")
    return ".".join(reversed(parts))


def _all(nodes: list[ast.expr], scope: Scope) -> tuple[Plain, ...] | None:
    if len(nodes) > _LONGEST:
        return None
    values = [value_of(node, scope) for node in nodes]
    known = tuple(value for value in values if value is not None)
    return known if len(known) == len(values) else None


def _formatted(node: ast.JoinedStr, scope: Scope) -> str | None:
    parts: list[str] = []
    for part in node.values:
        inner = part.value if isinstance(part, ast.FormattedValue) else part
        if isinstance(part, ast.FormattedValue) and part.format_spec is not None:
            return None
        value = value_of(inner, scope)
        if not isinstance(value, (int, str)):
            return None
        parts.append(str(value))
    return "".join(parts)


def _constant(node: ast.Constant, _scope: Scope) -> Plain | None:
    value = node.value
    if isinstance(value, (int, str)) and not isinstance(value, bool):
        return value
    return None


def _list(node: ast.List | ast.Tuple, scope: Scope) -> Plain | None:
    return _all(node.elts, scope)


def _named(node: ast.NamedExpr, scope: Scope) -> Plain | None:
    return value_of(node.value, scope)


def _signed(node: ast.UnaryOp, scope: Scope) -> Plain | None:
    number = value_of(node.operand, scope)
    if not isinstance(number, int):
        return None
    return {ast.USub: -number, ast.UAdd: number}.get(type(node.op))


def _computed(node: ast.BinOp, scope: Scope) -> Plain | None:
    left, right = value_of(node.left, scope), value_of(node.right, scope)
    if isinstance(left, int) and isinstance(right, int):
        return _arithmetic(node.op, left, right)
    if isinstance(left, str) and isinstance(node.op, ast.Mod):
        return _percent(left, right)
    if isinstance(left, str) and isinstance(right, str) and isinstance(node.op, ast.Add):
        return left + right
    if isinstance(left, tuple) and isinstance(right, tuple) and isinstance(node.op, ast.Add):
        return (left + right)[:_LONGEST]
    return None


def _percent(text: str, right: Plain | None) -> str | None:
    one = right[0] if isinstance(right, tuple) and len(right) == 1 else right
    if not isinstance(one, (int, str)) or _PERCENT.fullmatch(text) is None:
        return None
    return re.sub(r"%[dsi]", lambda _: str(one), text)


def _arithmetic(operator: ast.operator, left: int, right: int) -> int | None:
    if max(abs(left), abs(right)) > _LARGEST:
        return None
    if isinstance(operator, ast.Add):
        return left + right
    if isinstance(operator, ast.Sub):
        return left - right
    if isinstance(operator, ast.Mult):
        return left * right
    if isinstance(operator, ast.FloorDiv) and right:
        return left // right
    return left % right if isinstance(operator, ast.Mod) and right else None


def _called(node: ast.Call, scope: Scope) -> Plain | None:
    name = dotted(node.func)
    if name in ("os.getenv", "os.environ.get", "environ.get", "getenv"):
        return _variable(node.args[0], scope) if node.args else None
    arguments = tuple(value_of(argument, scope) for argument in node.args[:3])
    if name == "map" and len(arguments) > 1:
        values = arguments[1] if isinstance(arguments[1], tuple) else ()
        return _converted_all(dotted(node.args[0]), values)
    found = _plain_call(name, arguments)
    if found is None and isinstance(node.func, ast.Attribute):
        return _method(node.func, arguments[0] if arguments else None, scope)
    return found


def _plain_call(name: str, arguments: tuple[Plain | None, ...]) -> Plain | None:
    """Return what ``range(2)``, ``list(…)``, ``int("3")`` and ``torch.device("cuda", 3)`` give."""
    if name == "range":
        return _range(arguments)
    first = arguments[0] if arguments else None
    if name in _LISTS:
        return first if isinstance(first, tuple) else None
    if name in ("int", "str"):
        return None if first is None else _converted(name, first)
    if name.endswith("device") and isinstance(first, str):
        index = arguments[1] if len(arguments) > 1 else None
        return f"{first}:{index}" if isinstance(index, int) else first
    return None


def _method(function: ast.Attribute, first: Plain | None, scope: Scope) -> Plain | None:
    """Return what ``"0,1".split(",")`` and ``"cuda:{}".format(3)`` come to."""
    text = value_of(function.value, scope)
    if not isinstance(text, str):
        return None
    if function.attr == "split" and isinstance(first, str) and first:
        return tuple(text.split(first)[:_LONGEST])
    if function.attr == "strip" and first is None:
        return text.strip()
    if function.attr == "format" and text.count("{") == text.count("{}") == 1:
        return text.replace("{}", str(first)) if isinstance(first, (int, str)) else None
    return None


def _range(arguments: tuple[Plain | None, ...]) -> tuple[int, ...] | None:
    numbers = [one for one in arguments if isinstance(one, int) and abs(one) <= _LARGEST]
    if not numbers or len(numbers) != len(arguments) or numbers[2:] == [0]:
        return None
    return tuple(range(*numbers)[:_LONGEST])


def _converted(name: str, value: Plain) -> Plain | None:
    if isinstance(value, tuple):
        return None
    if name == "str":
        return str(value)
    return value if isinstance(value, int) else _number(value)


def _converted_all(name: str, values: tuple[Plain, ...]) -> tuple[Plain, ...] | None:
    converted = (_converted(name, value) for value in values if name in ("int", "str"))
    known = tuple(value for value in converted if value is not None)
    return known if values and len(known) == len(values) else None


def _number(text: str) -> int | None:
    return int(text) if re.fullmatch(r"\s*[+-]?[0-9]{1,9}\s*", text, re.ASCII) else None


def _comprehension(node: ast.ListComp, scope: Scope) -> tuple[Plain, ...] | None:
    (generator, *more) = node.generators
    if more or generator.ifs or not isinstance(generator.target, ast.Name):
        return None
    items = value_of(generator.iter, scope)
    if not isinstance(items, tuple) or scope.depth > _LONGEST // 8:
        return None
    values = []
    for item in items[:_LONGEST]:
        inner = replace(scope, bound={**scope.bound, generator.target.id: item})
        values.append(value_of(node.elt, inner))
    known = tuple(value for value in values if value is not None)
    return known if len(known) == len(values) else None


def _looked_up(node: ast.Name | ast.Attribute | ast.Subscript, scope: Scope) -> Plain | None:
    if isinstance(node, ast.Subscript) and dotted(node.value) in ("os.environ", "environ"):
        return _variable(node.slice, scope)
    way = _way(node, scope)
    if way is not None and way[0] not in scope.bound:
        return scope.look(*way)
    if isinstance(node, ast.Name):
        return scope.bound.get(node.id)
    base = value_of(node.value, scope) if isinstance(node, ast.Subscript) else None
    if isinstance(node, ast.Subscript) and isinstance(base, tuple):
        return _item(base, node.slice, scope)
    return None


def _way(node: ast.expr, scope: Scope) -> tuple[str, tuple[Step, ...]] | None:
    """Return the name that an expression begins with and the steps from there; None for others."""
    steps: list[Step] = []
    while not isinstance(node, ast.Name):
        if isinstance(node, ast.Attribute):
            steps.append((".", node.attr))
        elif isinstance(node, ast.Subscript):
            key = None if isinstance(node.slice, ast.Slice) else value_of(node.slice, scope)
            if not isinstance(key, (int, str)):
                return None
            steps.append(("[", key))
        else:
            return None
        node = node.value
    return node.id, tuple(reversed(steps))


def _item(base: tuple[Plain, ...], index: ast.expr, scope: Scope) -> Plain | None:
    if isinstance(index, ast.Slice):
        ends = (index.lower, index.upper, index.step)
        numbers = [None if end is None else value_of(end, scope) for end in ends]
        whole = [n for n in numbers if n is None or isinstance(n, int)]
        unknown = any(n is None and end is not None for n, end in zip(numbers, ends, strict=True))
        return None if unknown or len(whole) < len(ends) or whole[2] == 0 else base[slice(*whole)]
    number = value_of(index, scope)
    if not isinstance(number, int) or not -len(base) <= number < len(base):
        return None
    return base[number]


def _variable(name: ast.expr, scope: Scope) -> str | None:
    """Return the value of the only environment variable that is known here."""
    return scope.visible if value_of(name, scope) == VISIBLE else None


_READERS: Mapping[type[ast.expr], Callable[..., Plain | None]] = MappingProxyType(
    {
        ast.Attribute: _looked_up,
        ast.BinOp: _computed,
        ast.Call: _called,
        ast.Constant: _constant,
        ast.JoinedStr: _formatted,
        ast.List: _list,
        ast.ListComp: _comprehension,
        ast.Name: _looked_up,
        ast.NamedExpr: _named,
        ast.Subscript: _looked_up,
        ast.Tuple: _list,
        ast.UnaryOp: _signed,
    }
)
