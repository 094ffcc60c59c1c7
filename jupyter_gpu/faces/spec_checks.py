"""Examines the kernelspecs that ask for GPUs: their Pythons, and what stands in their requests."""

from __future__ import annotations

import json
import os
import shlex
import shutil
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

from jupyter_gpu.adapters.machine import find_machine
from jupyter_gpu.core import kernelspec
from jupyter_gpu.core.checks import Check
from jupyter_gpu.core.devices import Inventory
from jupyter_gpu.core.errors import KernelspecError, RequestError
from jupyter_gpu.core.policy import leasable, require_possible
from jupyter_gpu.core.request import OPTIONS, Request
from jupyter_gpu.environments import ask
from jupyter_gpu.faces.kernelspecs import InstalledSpec, installed, place_arguments
from jupyter_gpu.kernel import Arguments, read_arguments

_NEEDED = ("jupyter_gpu", "ipykernel")
_FRAMEWORK = "--framework=torch"
_PROBE = """
import importlib.util, json
print(json.dumps({name: importlib.util.find_spec(name) is not None for name in %r}))
"""
_OUT_OF_SIGHT = "Some may just be out of sight here, in a container or a job"
# jupyter_client starts these as the Python that the server runs on.
_SERVERS_OWN = ("python", f"python{sys.version_info[0]}", "python{}.{}".format(*sys.version_info))


def examine_kernelspecs(inventory: Inventory) -> tuple[Check, ...]:
    """Return the checks of every kernelspec of ours that Jupyter finds."""
    specs = installed()
    if not specs:
        fix = "jupyter gpu install --gpus 1"
        return (Check("kernelspecs", "warn", "there is none that asks for GPUs", fix),)
    pythons = _Pythons()
    checks = [check for spec in specs for check in _examine(spec, inventory, pythons)]
    return (*checks, *_without_torch(pythons))


@dataclass(slots=True)
class _Pythons:
    """The Pythons of the kernelspecs, each asked once, and who misses PyTorch in which."""

    answers: dict[str, tuple[dict[str, object] | None, str]] = field(default_factory=dict)
    without_torch: dict[str, list[InstalledSpec]] = field(default_factory=dict)

    def ask(self, python: str) -> tuple[dict[str, object] | None, str]:
        """Return which packages a Python has, or None and why it cannot say."""
        if python not in self.answers:
            self.answers[python] = ask(python, _PROBE % ((*_NEEDED, "torch"),))
        return self.answers[python]


@dataclass(frozen=True, slots=True)
class _Case:
    """A kernelspec that is looked at: its kernel.json, and its wrapper's arguments if any."""

    spec: InstalledSpec
    data: Mapping[str, object]
    arguments: Arguments | None

    @property
    def ours(self) -> bool:
        """Whether our own provisioner starts it."""
        return self.spec.provisioner == kernelspec.PROVISIONER

    @property
    def edit(self) -> str:
        """What mends what no command can."""
        return f"edit {self.spec.path / 'kernel.json'}"

    def install(self, *more: str, **changes: object) -> str:
        """Return the command that writes it again in its place, as it is or for these options."""
        where = place_arguments(self.spec)
        if where is None or self.spec.provisioner not in (None, kernelspec.PROVISIONER):
            return self.edit
        given = kernelspec.config_of(self.data) if self.ours else {}
        if self.arguments is not None:
            given = {**self.arguments.options, **given}
        options = {name: given[name] for name in OPTIONS if name in given}
        plain = () if self.ours else ("--no-provisioner",)
        words = ("--from", self.spec.name, "--name", self.spec.name, *plain, *where, *more)
        request = kernelspec.request_arguments(changes or options)
        return shlex.join(("jupyter", "gpu", "install", *request, *words))


def _examine(spec: InstalledSpec, inventory: Inventory, pythons: _Pythons) -> Iterator[Check]:
    name = f"kernelspec {spec.name}"
    data = json.loads((spec.path / "kernel.json").read_text(encoding="utf-8"))
    arguments = None
    if spec.wrapper:
        argv = list(kernelspec.argv_of(data))
        arguments = read_arguments(argv[argv.index(kernelspec.WRAPPER) + 1 :])
    case = _Case(spec, data, arguments)
    problems = [
        *_misplaced(case),
        *_request_problems(case, inventory),
        *_python_problems(case, pythons),
    ]
    if not problems:
        yield Check(name, "ok", f'"{spec.display_name}", {spec.path}')
    for failed, found, fix in problems:
        yield Check(name, "fail" if failed else "warn", found, fix)


_Problem = tuple[bool, str, str]


def _misplaced(case: _Case) -> Iterator[_Problem]:
    """Yield the options that are written where nothing reads them."""
    for place, option in kernelspec.misplaced_options(case.data):
        homes = []
        if case.spec.provisioner is not None:
            homes.append("metadata.kernel_provisioner.config")
        if case.arguments is not None:
            homes.append(f"argv, as --{option.replace('_', '-')}=…")
        found = f"{option!r} stands in {place} of its kernel.json, where nothing reads it"
        yield False, f"{found}; it belongs in {' and in '.join(homes)}", case.edit


def _request_problems(case: _Case, inventory: Inventory) -> Iterator[_Problem]:
    config = kernelspec.config_of(case.data)
    options = None if case.arguments is None else case.arguments.options
    try:
        requests = [Request.parse(config)] if case.ours else []
        requests += [] if options is None else [Request.parse(options)]
    except RequestError as error:
        yield True, str(error), case.edit
        return
    mend = case.install()
    for request in requests if inventory.gpus else ():
        why_not = _why_impossible(request, inventory)
        if why_not is not None:
            mend = case.install(**_nearest_possible(request, inventory))
            yield False, f"{why_not} {_OUT_OF_SIGHT}", mend
            break
    if case.ours and options is not None:
        yield from _differences(config, options, mend)


def _why_impossible(request: Request, inventory: Inventory) -> str | None:
    """Return why this machine can never meet a request, or None where it can."""
    topology = None
    if request.topology == "require":
        with find_machine(os.environ) as machine:
            topology = machine.topology()
    try:
        require_possible(request, inventory, inventory.devices, topology=topology)
    except RequestError as error:
        return str(error)
    return None


def _nearest_possible(request: Request, inventory: Inventory) -> dict[str, object]:
    """Return the options that ask for what is most like an impossible request here."""
    if request.topology == "require":
        wish = replace(request, topology="any")
        if _why_impossible(wish, inventory) is None:
            return {**wish.as_options(), "topology": "prefer"}
    profiles = sorted({device.profile for device in inventory.devices if device.profile})
    if request.profile is not None and profiles:
        return {"gpus": f"mig:{profiles[0].lower()}"}
    there = sum(leasable(gpu) and gpu.problem is None for gpu in inventory.gpus)
    return {"gpus": min(request.gpus, there) if isinstance(request.gpus, int) else there}


def _differences(
    config: Mapping[str, object], options: Mapping[str, object], mend: str
) -> Iterator[_Problem]:
    """Yield where the wrapper asks for something else than the provisioner."""
    names = kernelspec.unequal_options(config, options)
    if not names:
        return
    say = kernelspec.option_text
    words = "; ".join(f"{n}: {say(options.get(n))} in argv, {say(config.get(n))}" for n in names)
    found = f"{words} in config. Front ends that start argv themselves (VS Code) read only argv"
    yield False, found, mend


def _python_problems(case: _Case, pythons: _Pythons) -> Iterator[_Problem]:
    try:
        argv = kernelspec.argv_of(case.data)
    except KernelspecError as error:
        yield True, str(error), case.edit
        return
    interpreter = kernelspec.interpreter_of(argv)
    python = sys.executable if argv[0] in _SERVERS_OWN else shutil.which(argv[0])
    if python is None:
        mend = case.edit if interpreter is None else case.install("--python", sys.executable)
        # A server may have another PATH, but a whole path is the same for everybody.
        certain = Path(argv[0]).is_absolute()
        where = "cannot be run" if os.path.exists(argv[0]) else "is not there"  # noqa: PTH110
        yield certain, f"{argv[0]} {where if certain else 'is not on the PATH here'}", mend
        return
    if interpreter is None or len(interpreter) > 1:
        return  # another language, or a Python behind another program: nothing to ask here
    answer, problem = pythons.ask(python)
    if answer is None:
        mend = case.install("--python", sys.executable)
        yield True, f"{python} does not run: {problem}", mend
        return
    wanted = _NEEDED if kernelspec.runs_wrapper(case.data) else ("ipykernel",)
    missing = [name.replace("_", "-") for name in wanted if not answer.get(name)]
    if missing:
        fix = f"{shlex.quote(python)} -m pip install {' '.join(missing)}"
        yield True, f"{python} lacks {' and '.join(missing)}", fix
    if _FRAMEWORK in argv and not answer.get("torch"):
        pythons.without_torch.setdefault(python, []).append(case.spec)


def _without_torch(pythons: _Pythons) -> Iterator[Check]:
    """Yield one check for each Python that lacks PyTorch, unless no kernelspec there has GPUs."""
    for python, specs in pythons.without_torch.items():
        if any(spec.gpus != 0 for spec in specs):
            names = ", ".join(spec.name for spec in specs)
            fix = f"{shlex.quote(python)} -m pip install torch"
            yield Check("PyTorch", "warn", f"{python} lacks it, and runs {names}", fix)
