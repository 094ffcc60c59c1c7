"""Examines the kernelspecs that ask for GPUs: their Pythons, and what stands in their requests."""

from __future__ import annotations

import json
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping

from jupyter_gpu.core import kernelspec
from jupyter_gpu.core.checks import Check
from jupyter_gpu.core.devices import Inventory
from jupyter_gpu.core.errors import KernelspecError, RequestError
from jupyter_gpu.core.policy import require_possible
from jupyter_gpu.core.request import Request
from jupyter_gpu.environments import ask
from jupyter_gpu.faces.kernelspecs import InstalledSpec, installed
from jupyter_gpu.kernel import read_arguments

_NEEDED = ("jupyter_gpu", "ipykernel")
_FRAMEWORK = "--framework=torch"
_PROBE = """
import importlib.util, json
print(json.dumps({name: importlib.util.find_spec(name) is not None for name in %r}))
"""


def examine_kernelspecs(inventory: Inventory) -> tuple[Check, ...]:
    """Return the checks of every kernelspec of ours that Jupyter finds."""
    specs = installed()
    if not specs:
        fix = "jupyter gpu install --gpus 1"
        return (Check("kernelspecs", "warn", "there is none that asks for GPUs", fix),)
    return tuple(check for spec in specs for check in _examine(spec, inventory))


def _examine(spec: InstalledSpec, inventory: Inventory) -> Iterator[Check]:
    name = f"kernelspec {spec.name}"
    file = spec.path / "kernel.json"
    data = json.loads(file.read_text(encoding="utf-8"))
    problems = [*_request_problems(spec, data, inventory, f"edit {file}"), *_python_problems(data)]
    if not problems:
        yield Check(name, "ok", f'"{spec.display_name}", {spec.path}')
    for status, found, fix in problems:
        yield Check(name, "fail" if status else "warn", found, fix)


_Problem = tuple[bool, str, str]


def _request_problems(
    spec: InstalledSpec, data: Mapping[str, object], inventory: Inventory, edit: str
) -> Iterator[_Problem]:
    try:
        requests = []
        if spec.provisioner == kernelspec.PROVISIONER:
            requests.append(Request.parse(kernelspec.config_of(data)))
        if spec.wrapper:
            argv = list(kernelspec.argv_of(data))
            arguments = read_arguments(argv[argv.index(kernelspec.WRAPPER) + 1 :])
            requests.append(Request.parse(arguments.options))
    except RequestError as error:
        yield True, str(error), edit
        return
    try:
        for request in requests if inventory.gpus else ():
            require_possible(request, inventory, inventory.devices)
    except RequestError as error:
        yield False, str(error), f"jupyter gpu remove {spec.name}"


def _python_problems(data: Mapping[str, object]) -> Iterator[_Problem]:
    try:
        argv = kernelspec.argv_of(data)
    except KernelspecError as error:
        yield True, str(error), "install it again"
        return
    interpreter = kernelspec.interpreter_of(argv)
    if interpreter is None or len(interpreter) > 1:
        return  # another language, or a Python behind another program: nothing to ask here
    # A server reads "python" as the Python it runs on itself.
    python = sys.executable if interpreter[0] == "python" else shutil.which(interpreter[0])
    if python is None:
        yield True, f"{interpreter[0]} is not there any more", "install it again"
        return
    wanted = [*_NEEDED] if kernelspec.runs_wrapper(data) else ["ipykernel"]
    wanted += ["torch"] if _FRAMEWORK in argv else []
    answer, problem = ask(python, _PROBE % (tuple(wanted),))
    if answer is None:
        yield True, f"{python} does not run: {problem}", "install it again"
        return
    pip = f"{shlex.quote(python)} -m pip install"
    missing = [name for name in wanted if not answer.get(name)]
    if needed := [name.replace("_", "-") for name in missing if name != "torch"]:
        yield True, f"{python} lacks {' and '.join(needed)}", f"{pip} {' '.join(needed)}"
    if "torch" in missing:
        yield False, f"{python} lacks PyTorch", f"{pip} torch"
