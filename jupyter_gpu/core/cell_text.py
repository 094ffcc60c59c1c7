"""What the text of a cell tells: how it sets the variable, and what in it initialises CUDA. Pure.

A cell may hold magics and lines for the shell, so it is not always Python; what cannot be read
tells nothing.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field

from jupyter_gpu.core.variables import VISIBLE

_LONGEST = 50_000
_ENV_MAGIC = re.compile(rf"^[ \t]*%(?:set_)?env[ \t]+{VISIBLE}\b", re.MULTILINE)
_USE_MAGIC = re.compile(r"^[ \t]*%gpu[ \t]+use\b", re.MULTILINE)
# A line for the shell that sets the variable and does nothing else: a command behind it would be
# given the variable, and such a line is in order.
_SHELL_EXPORT = re.compile(
    rf"^[ \t]*!{{1,2}}[ \t]*(?:(?:export|set)[ \t]+)?(?:\w+=[^\s;&|]*[ \t]+)*{VISIBLE}="
    r"(?:\"[^\"\n]*\"|'[^'\n]*'|[^\s;&|\"']*)"
    r"(?:[ \t]+\w+=[^\s;&|]*)*[ \t]*(?:;[ \t]*)?(?:#[^\n]*)?$",
    re.MULTILINE,
)
# A cell magic that runs the cell's text here; others give it to another program, or write it away.
_RUNS_HERE = re.compile(r"\s*%%(?:time|timeit|capture|prun|gpu|debug)\b")
_IPYTHON_LINE = re.compile(r"^([ \t]*)(?:[%!?].*|[\w.]+[ \t]*\?{1,2}[ \t]*)$", re.MULTILINE)
_IPYTHON_VALUE = re.compile(r"^([ \t]*[A-Za-z_][\w.,\[\] ]*=[ \t]*)[%!].*$", re.MULTILINE)
_INDENTED = re.compile(r"(?:[ \t]*\n)*([ \t]+)(?=\S)")
_COMMENT = re.compile(r"^[ \t]*#.*$", re.MULTILINE)
_MASK = "jupyter_gpu_masked"
# Python warns of an escape that it does not know, and has done so when the cell ran.
_ESCAPE = re.compile(r"\\[^\n]")

# What initialises the driver when it is called (measured on H200 with torch 2.11, jax 0.11, cupy
# and numba; TensorFlow's after its documentation).
_TORCH_CUDA = (
    *("is_available", "init", "current_device", "set_device", "mem_get_info", "synchronize"),
    *("get_device_properties", "get_device_name", "get_device_capability"),
    *("set_per_process_memory_fraction", "can_device_access_peer"),
)
_JAX_NUMPY = ("array", "asarray", "zeros", "ones", "full", "eye", "arange", "linspace")
_FREEZING = frozenset(
    {
        *(f"torch.cuda.{name}" for name in _TORCH_CUDA),
        *(f"jax.{name}" for name in ("devices", "local_devices", "device_count", "device_put")),
        *("jax.local_device_count", "jax.random.key", "jax.random.PRNGKey"),
        *(f"jax.numpy.{name}" for name in _JAX_NUMPY),
        "cupy.cuda.runtime.getDeviceCount",
        *(f"cupy.{name}" for name in _JAX_NUMPY),
        *(f"numba.cuda.{name}" for name in ("select_device", "get_current_device", "list_devices")),
        *("torch.nn.DataParallel", "torch.nn.parallel.DataParallel", "accelerate.Accelerator"),
        # As they are written where another cell has imported them.
        *("nn.DataParallel", "cuda.is_available", "cuda.set_device"),
        *("numba.cuda.is_available", "numba.cuda.to_device", "numba.cuda.device_array"),
        *(f"tensorflow.config.list_{kind}_devices" for kind in ("physical", "logical")),
        "tensorflow.test.is_gpu_available",
    }
)
# Those that make a tensor on the device that they are given.
_MAKES_TENSOR = re.compile(
    r"torch\.(?:(?:zeros|ones|empty|full|rand|randn|randint)(?:_like)?|tensor|as_tensor|arange|"
    r"linspace|eye|randperm)"
)
_PERHAPS, _LIKELY, _CERTAIN = range(3)
# What is known to leave CUDA alone, so that a call behind it can be named.
_HARMLESS = re.compile(
    r"print|len|str|repr|int|float|bool|range|list|dict|tuple|set|sorted|min|max|sum|abs|round|"
    r"enumerate|zip|isinstance|type|format|object|input|sys\.path\.\w+|"
    r"(?:os|time|math|json|random|logging|warnings|pathlib|itertools|numpy|np|pandas|pd)(?:\.\w+)+|"
    r"torch\.nn\.(?!DataParallel|parallel)\w+|nn\.(?!DataParallel|parallel)\w+|"
    r"torch\.(?:manual_seed|device|randn|rand|zeros|ones|empty|full|tensor|arange|eye|randint)|"
    r"torch\.(?:no_grad|enable_grad|inference_mode)|"
    r"torch\.cuda\.(?:device_count|is_initialized|empty_cache)"
)
# Lines for IPython that run code of which nothing is known.
_RUNS_MORE = re.compile(
    r"^[ \t]*%(?:run|time|timeit|prun|load|load_ext|reload_ext)\b", re.MULTILINE
)
_CUDA_NAME = re.compile(r"cuda(?::[0-9]+)?")
# What people write without having said so in the same cell.
_USUAL_NAMES = {"tf": "tensorflow", "jnp": "jax.numpy", "cp": "cupy"}


def how_set(source: str) -> str:
    """Return how a cell that changed the variable did it, such as ``"%env"``."""
    if _USE_MAGIC.search(source):
        return "%gpu use"
    if _ENV_MAGIC.search(source):
        return "%env"
    return "os.environ" if VISIBLE in _COMMENT.sub("", source) else "code that it called"


def sets(source: str, name: str) -> bool:
    """Return whether a cell's text sets an environment variable of this name."""
    word = re.escape(name)
    quoted = rf"[\"']{word}[\"'][ \t]*"
    written = (
        rf"%(?:set_)?env[ \t]+{word}[ \t]*[= \t][ \t]*\S|{quoted}\][ \t]*=(?!=)|"
        rf"\b(?:setdefault|putenv)\([ \t]*{quoted},|"
        rf"\bupdate\([^)]*(?:{quoted}:|\b{word}[ \t]*=(?!=))"
    )
    return re.search(written, source) is not None


def exports_in_vain(source: str) -> bool:
    """Return whether a ``!export`` of the variable stands there, whose shell ends with its line."""
    if VISIBLE not in source or len(source) > _LONGEST or _is_for_others(source.lstrip()):
        return False
    joined = source.replace("\\\n", "")
    tree = _read(joined) if _SHELL_EXPORT.search(joined) else None
    return tree is not None and _stand_for_themselves(_SHELL_EXPORT, joined, tree)


def freezing_call(
    source: str, *, line: int | None = None, harmless: Collection[str] = ()
) -> str | None:
    """Return the first call in a cell that initialises CUDA, as it is written, or None.

    Only calls that run with the cell count: none inside a function that it defines, or behind a
    condition.

    Parameters
    ----------
    source
        The cell's text.
    line
        The line to which it ran, as IPython counts: from the first that is not blank. None means
        to its end, 0 that it is not known.
    harmless
        Names of calls that do not initialise CUDA here.
    """
    text = re.sub(r"\A(?:[ \t]*\n)+", "", source)
    if line == 0 or len(source) > _LONGEST or _is_for_others(text):
        return None
    tree = None if text.startswith("%%") and line is not None else _read(text)
    if tree is None or _stand_for_themselves(_RUNS_MORE, text, tree):
        return None
    calls = _Calls(_aliases(tree))
    try:
        calls.visit(tree)
    except RecursionError:
        return None
    ran = [one for one in calls.found if line is None or one[0].lineno <= line]
    for number, (call, chance) in enumerate(ran):
        name = calls.freezes(call, harmless)
        if name is not None:
            # It has run for certain, or likely has and nothing else there could have done it.
            others = (other for other, _ in ran[number + 1 :])
            alone = chance and all(calls.is_known(other, harmless) for other in others)
            return name if chance == _CERTAIN or alone else None
        if not calls.is_harmless(call, harmless):
            return None  # nobody can tell what it has done
    return None


def _stand_for_themselves(lines: re.Pattern[str], text: str, tree: ast.Module) -> bool:
    """Return whether such lines for IPython stand in the text, and not in a text of the cell's."""
    found = {text.count("\n", 0, match.start()) + 1 for match in lines.finditer(text)}
    if not found:
        return False
    masked = (node for node in ast.walk(tree) if isinstance(node, ast.Name) and node.id == _MASK)
    return any(node.lineno in found for node in masked)


def _is_for_others(text: str) -> bool:
    return text.startswith("%%") and _RUNS_HERE.match(text) is None


def _read(source: str) -> ast.Module | None:
    """Return the cell as Python, its lines for IPython masked; None where it is something else."""
    indented = _INDENTED.match(source)
    if indented is not None:  # IPython takes the first line's from every line
        source = re.sub(f"^{indented[1]}", "", source, flags=re.MULTILINE)
    masked = _IPYTHON_VALUE.sub(rf"\1{_MASK}", _IPYTHON_LINE.sub(rf"\1{_MASK}", source))
    try:
        return ast.parse(_ESCAPE.sub("xx", masked))
    except (SyntaxError, ValueError, RecursionError, MemoryError):
        return None


def _aliases(tree: ast.Module) -> Mapping[str, str]:
    """Return what the names stand for that the cell imports."""
    found = dict(_USUAL_NAMES)
    for node in tree.body:
        if isinstance(node, ast.Import):
            for alias in node.names:
                top = alias.name.partition(".")[0]
                found[alias.asname or top] = alias.name if alias.asname else top
        elif isinstance(node, ast.ImportFrom) and not node.level:
            for alias in node.names:
                found[alias.asname or alias.name] = f"{node.module}.{alias.name}"
    return found


@dataclass
class _Calls(ast.NodeVisitor):
    """The calls of a cell in the order in which they run, and how likely each has run."""

    aliases: Mapping[str, str]
    found: list[tuple[ast.Call, int]] = field(default_factory=list)
    _chance: int = _CERTAIN

    def visit_Call(self, node: ast.Call) -> None:
        self.generic_visit(node)  # arguments run before the call itself
        self.found.append((node, self._chance))

    def visit_FunctionDef(self, node: ast.FunctionDef | ast.AsyncFunctionDef) -> None:
        self._each(node.decorator_list)
        self._each((*node.args.defaults, *filter(None, node.args.kw_defaults)))

    visit_AsyncFunctionDef = visit_FunctionDef  # noqa: N815

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._each((*node.args.defaults, *filter(None, node.args.kw_defaults)))

    def visit_GeneratorExp(self, node: ast.GeneratorExp) -> None:
        self.visit(node.generators[0].iter)  # the rest runs when somebody asks for it

    def visit_If(self, node: ast.If | ast.IfExp | ast.While) -> None:
        self.visit(node.test)
        branches = (node.body, node.orelse)
        for branch in branches:
            self._perhaps(branch if isinstance(branch, list) else [branch])

    visit_IfExp = visit_While = visit_If  # noqa: N815

    def visit_For(self, node: ast.For | ast.AsyncFor) -> None:
        self.visit(node.iter)
        self._likely((*node.body, *node.orelse))

    visit_AsyncFor = visit_For  # noqa: N815

    def visit_ListComp(self, node: ast.ListComp | ast.SetComp | ast.DictComp) -> None:
        self.visit(node.generators[0].iter)
        self._likely([one for one in ast.iter_child_nodes(node) if one is not node.generators[0]])

    visit_SetComp = visit_DictComp = visit_ListComp  # noqa: N815

    def visit_With(self, node: ast.With | ast.AsyncWith) -> None:
        self._each(node.items)
        self._likely(node.body)  # it may swallow an error before the call

    visit_AsyncWith = visit_With  # noqa: N815

    def visit_Try(self, node: ast.Try) -> None:
        self._likely((*node.body, *node.handlers, *node.orelse, *node.finalbody))

    def visit_BoolOp(self, node: ast.BoolOp) -> None:
        self.visit(node.values[0])
        self._perhaps(node.values[1:])

    def visit_ExceptHandler(self, node: ast.ExceptHandler) -> None:
        self._perhaps(node.body)

    def visit_Match(self, node: ast.Match) -> None:
        self.visit(node.subject)
        self._perhaps(node.cases)

    def visit_Assert(self, node: ast.Assert) -> None:
        self.visit(node.test)

    def freezes(self, call: ast.Call, harmless: Collection[str]) -> str | None:
        """Return how a call that initialises CUDA is written, None for any other."""
        written = _dotted(call.func)
        name = self._name(written)
        if self._is_excused(name, harmless):
            return None
        if name in _FREEZING:
            return written
        method = call.func.attr if isinstance(call.func, ast.Attribute) else ""
        if method == "cuda" and name != "torch.cuda":
            return ".cuda()"
        by_keyword = [word.value for word in call.keywords if word.arg == "device"]
        if method == "to":
            devices = [device for device in map(_cuda, (*call.args, *by_keyword)) if device]
            return f'.to("{devices[0]}")' if devices else None
        devices = [device for device in map(_cuda, by_keyword) if device]
        if _MAKES_TENSOR.fullmatch(name) and devices:
            return f'{written}(device="{devices[0]}")'
        return None

    def is_known(self, call: ast.Call, harmless: Collection[str]) -> bool:
        """Return whether it is known what a call does to CUDA."""
        return self.freezes(call, harmless) is not None or self.is_harmless(call, harmless)

    def is_harmless(self, call: ast.Call, harmless: Collection[str]) -> bool:
        """Return whether a call is known to leave CUDA alone."""
        name = self._name(_dotted(call.func))
        return _HARMLESS.fullmatch(name) is not None or self._is_excused(name, harmless)

    def _is_excused(self, name: str, harmless: Collection[str]) -> bool:
        return name in harmless or name.partition(".")[0] in harmless

    def _name(self, written: str) -> str:
        first, dot, rest = written.partition(".")
        return f"{self.aliases.get(first, first)}{dot}{rest}"

    def _each(self, nodes: Collection[ast.AST]) -> None:
        for node in nodes:
            self.visit(node)

    def _likely(self, nodes: Collection[ast.AST]) -> None:
        self._with_chance(_LIKELY, nodes)

    def _perhaps(self, nodes: Collection[ast.AST]) -> None:
        self._with_chance(_PERHAPS, nodes)

    def _with_chance(self, chance: int, nodes: Collection[ast.AST]) -> None:
        before, self._chance = self._chance, min(self._chance, chance)
        self._each(nodes)
        self._chance = before


def _cuda(node: ast.expr) -> str | None:
    """Return ``"cuda:0"`` for that text, also inside ``torch.device(…)``, None for all else."""
    if isinstance(node, ast.Call) and _dotted(node.func) == "torch.device" and node.args:
        node = node.args[0]
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value if _CUDA_NAME.fullmatch(node.value) else None
    return None


def _dotted(node: ast.AST) -> str:
    """Return ``"torch.cuda.is_available"`` for such an expression, else an empty text."""
    parts: list[str] = []
    while isinstance(node, ast.Attribute):
        parts.append(node.attr)
        node = node.value
    return ".".join((node.id, *reversed(parts))) if isinstance(node, ast.Name) else ""
