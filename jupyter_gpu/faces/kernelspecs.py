"""Kernelspecs on disk: install, remove and list those that ask for GPUs.

What goes into a kernel.json is ``jupyter_gpu.core.kernelspec``; this module finds the folders,
asks the Pythons that are to run the kernels, and writes. A kernel.json that is not ours is read
and never written.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Literal

from jupyter_gpu.core import kernelspec
from jupyter_gpu.core.errors import KernelspecError
from jupyter_gpu.core.logo import logo

if TYPE_CHECKING:
    from jupyter_client.kernelspec import KernelSpecManager

Where = Literal["user", "sys-prefix"] | Path

PROBE = "import ipykernel, jupyter_gpu.kernel"
PROBE_SECONDS = 120  # the first import on a network file system can take a minute
_BARE_PYTHON = re.compile(r"python(3(\.\d+)?)?")


@dataclass(frozen=True, slots=True)
class InstalledSpec:
    """One kernelspec of ours on disk.

    ``provisioner`` is None where only the wrapper leases. ``wrapper`` is false where only the
    provisioner does: front ends that start ``argv`` themselves then lease nothing. ``path`` is the
    folder; ``hidden_by`` is another folder of the same name that Jupyter finds first.
    """

    name: str
    display_name: str
    gpus: int | str
    provisioner: str | None
    wrapper: bool
    path: Path
    hidden_by: Path | None = None


@dataclass(frozen=True, slots=True)
class _Source:
    """An existing kernelspec: its name, its folder and what its kernel.json says."""

    name: str
    folder: Path
    spec: Mapping[str, object]


def install(
    options: Mapping[str, object],
    *,
    name: str | None = None,
    display_name: str | None = None,
    source: str | None = None,
    python: str | None = None,
    env: Iterable[str] = (),
    where: Where = "user",
    provisioner: bool = True,
) -> InstalledSpec:
    """Install a kernelspec that asks for GPUs.

    Parameters
    ----------
    options
        The request's options by their names, already validated: ``{"gpus": 2}``.
    name, display_name
        What to call it; by default after the source and the number of GPUs.
    source
        An existing kernelspec of any language to start from; None for our PyTorch kernelspec.
    python
        The Python that runs the kernel; None for this one, or the source's.
    env
        Variables to set in the kernel, as ``"NAME=VALUE"``.
    where
        The folder of this user, that of this Python's environment, or a prefix.
    provisioner
        False leaves the lease to the wrapper, for servers that do not have this package.

    Raises
    ------
    KernelspecError
        With the reason and what to do.
    """
    manager = _manager()
    original = None if source is None else _read(manager, source)
    if original is None:
        executable = sys.executable if python is None else _checked(python)
        spec = kernelspec.pytorch(options, executable=executable, provisioner=provisioner)
        stem = kernelspec.STEM
    else:
        spec = _derived(original, options, python, provisioner=provisioner)
        stem = kernelspec.stem_of(original.name, original.spec)
    if display_name is not None:
        spec["display_name"] = display_name
    variables = _variables(env)
    if variables:
        present = spec.get("env")
        spec["env"] = {**(present if isinstance(present, dict) else {}), **variables}
    name = kernelspec.check_name(name or kernelspec.default_name(stem, options))
    _refuse_to_replace(_folder(manager, where) / name, name)
    folder = _write(manager, spec, name, where, original.folder if original else None)
    found = Path(manager.find_kernel_specs().get(name, folder))
    is_searched = str(folder.parent) in manager.kernel_dirs
    hidden_by = found if is_searched and found != folder else None
    return replace(_describe(name, folder, spec), hidden_by=hidden_by)


def remove(name: str) -> Path:
    """Remove a kernelspec of ours and return the folder that is gone.

    Raises
    ------
    KernelspecError
        When there is none by that name, when it is not ours, or when it may not be deleted.
    """
    manager = _manager()
    found = _read(manager, name)
    if not kernelspec.is_ours(found.spec):
        raise KernelspecError(
            f"The kernelspec {found.name!r} does not ask for GPUs through jupyter-gpu, so it\n"
            f"stays. To remove it all the same: jupyter kernelspec remove {found.name}"
        )
    try:
        return Path(manager.remove_kernel_spec(found.name))
    except OSError as error:
        raise KernelspecError(f"{found.folder} cannot be removed: {error.strerror}") from error


def folder_of(name: str) -> Path | None:
    """Return the folder of the kernelspec that Jupyter uses by a name, or None."""
    found = _manager().find_kernel_specs().get(name.lower())
    return None if found is None else Path(found)


def place_arguments(spec: InstalledSpec) -> tuple[str, ...] | None:
    """Return the arguments of ``install`` that put a kernelspec where this one is, if any do."""
    place, manager = spec.path.parent, _manager()
    if place == _folder(manager, "user"):
        return ()
    if place == _folder(manager, "sys-prefix"):
        return ("--sys-prefix",)
    prefix = place.parent.parent.parent
    return ("--prefix", str(prefix)) if place == _folder(manager, prefix) else None


def installed() -> tuple[InstalledSpec, ...]:
    """List the kernelspecs of ours that Jupyter finds, by name.

    Jupyter's own listing leaves out a kernelspec whose provisioner is missing from this
    environment; here it is listed, because it is on disk.
    """
    specs = []
    for name, folder in sorted(_manager().find_kernel_specs().items()):
        spec = _load(Path(folder))
        if spec is not None and kernelspec.is_ours(spec):
            specs.append(_describe(name, Path(folder), spec))
    return tuple(specs)


def _manager() -> KernelSpecManager:
    from jupyter_client.kernelspec import KernelSpecManager  # noqa: PLC0415 - 0.1 s, rarely needed

    return KernelSpecManager()


def _describe(name: str, folder: Path, spec: Mapping[str, object]) -> InstalledSpec:
    return InstalledSpec(
        name=name,
        display_name=str(spec.get("display_name", name)),
        gpus=kernelspec.gpus_of(spec),
        provisioner=kernelspec.provisioner_of(spec),
        wrapper=kernelspec.runs_wrapper(spec),
        path=folder,
    )


def _load(folder: Path) -> Mapping[str, object] | None:
    """Read a folder's kernel.json; None where none can be read as a JSON object."""
    try:
        spec = json.loads((folder / "kernel.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return spec if isinstance(spec, dict) else None


def _read(manager: KernelSpecManager, name: str) -> _Source:
    """Find a kernelspec by name, Jupyter's built-in ``python3`` included."""
    folders = manager.find_kernel_specs()
    if name.lower() not in folders:
        raise KernelspecError(
            f"There is no kernelspec {name!r}. There are: {', '.join(sorted(folders))}."
        )
    folder = Path(folders[name.lower()])
    spec = _load(folder)
    if spec is None and not (folder / "kernel.json").exists():
        # Where no python3 is installed, Jupyter makes one up from ipykernel's logos and this.
        from ipykernel.kernelspec import get_kernel_dict  # noqa: PLC0415 - see _manager

        spec = get_kernel_dict()
    if spec is None:
        raise KernelspecError(f"{folder / 'kernel.json'} is not a JSON object that can be read.")
    return _Source(name.lower(), folder, spec)


def _derived(
    source: _Source, options: Mapping[str, object], python: str | None, *, provisioner: bool
) -> dict[str, object]:
    """Build the kernel.json from an existing one, with our wrapper where its Python has it."""
    try:
        argv = kernelspec.argv_of(source.spec)
        interpreter = _interpreter(argv, python, needed=not provisioner)
        return kernelspec.derived(
            source.spec, options, interpreter=interpreter, provisioner=provisioner
        )
    except KernelspecError as error:
        raise KernelspecError(f"The kernelspec {source.name!r} cannot be used: {error}") from error


def _interpreter(
    argv: Sequence[str], python: str | None, *, needed: bool
) -> tuple[str, ...] | None:
    """Return the command that will run our wrapper, or None when ``argv`` has to stay as it is."""
    present = kernelspec.interpreter_of(argv)
    if present is None:
        if python is not None:
            raise KernelspecError(f"it runs {argv[0]}, not ipykernel, so --python cannot apply.")
        if needed:
            raise KernelspecError(
                f"it runs {argv[0]}, not ipykernel, so without the\n"
                f"provisioner nothing would lease. Leave out --no-provisioner."
            )
        return None
    if python is not None:
        flags = present[1:] if all(part.startswith("-") for part in present[1:]) else ()
        return (_checked(python), *flags)
    if _BARE_PYTHON.fullmatch(present[0]):
        # A server reads "python" as the Python it runs on itself. Another server may read the
        # copy, so the copy names the Python that is asked here.
        present = (sys.executable, *present[1:])
    problem = _import_problem(present)
    if problem is not None and needed:
        raise KernelspecError(_cannot_run(" ".join(present), problem))
    return present if problem is None else None


def _checked(python: str) -> str:
    """Return the absolute path of a Python that can run the wrapper.

    Links stay unresolved: the Python of a virtual environment is a link, and the environment is
    found by where the link is.
    """
    found = shutil.which(os.path.expanduser(python))  # noqa: PTH111 - Path would drop "./"
    if found is None:
        raise KernelspecError(f"{python} is not a program that can be run.")
    executable = os.path.abspath(found)  # noqa: PTH100 - Path.resolve would follow the link
    problem = _import_problem((executable,))
    if problem is not None:
        raise KernelspecError(_cannot_run(executable, problem))
    return executable


def _cannot_run(interpreter: str, problem: str) -> str:
    return (
        f"{interpreter} cannot run the kernel:\n  {problem}\n"
        f"Install it there:  {interpreter} -m pip install jupyter-gpu"
    )


def _import_problem(interpreter: Sequence[str]) -> str | None:
    """Run a Python to see whether the wrapper imports there; return what went wrong, or None."""
    try:
        probe = subprocess.run(
            [*interpreter, "-c", PROBE],
            capture_output=True,
            check=False,
            cwd=os.sep,  # a package in the current folder is not one that the kernel will find
            stdin=subprocess.DEVNULL,
            text=True,
            timeout=PROBE_SECONDS,
        )
    except subprocess.TimeoutExpired:
        return f"no answer within {PROBE_SECONDS} s"
    except OSError as error:
        return str(error)
    if probe.returncode == 0:
        return None
    lines = probe.stderr.strip().splitlines()
    return lines[-1] if lines else f"it ended with status {probe.returncode}"


def _variables(env: Iterable[str]) -> dict[str, str]:
    variables = {}
    for item in env:
        name, equals, value = item.partition("=")
        if not name or not equals:
            raise KernelspecError(f"{item!r} sets no variable: write NAME=VALUE.")
        if name == "CUDA_VISIBLE_DEVICES":
            raise KernelspecError(
                "CUDA_VISIBLE_DEVICES is set from the lease at every start. To choose among\n"
                "devices, use --devices."
            )
        variables[name] = value
    return variables


def _folder(manager: KernelSpecManager, where: Where) -> Path:
    """Return the folder that holds the kernelspecs of a place."""
    if where == "user":
        return Path(manager.user_kernel_dir)
    prefix = Path(sys.prefix) if where == "sys-prefix" else Path(where)
    return prefix.expanduser().absolute() / "share" / "jupyter" / "kernels"


def _refuse_to_replace(folder: Path, name: str) -> None:
    """Raise when something that is not ours stands where the kernelspec is to go."""
    if not os.path.lexists(folder):
        return
    spec = _load(folder)
    if spec is None or not kernelspec.is_ours(spec):
        raise KernelspecError(
            f"There is a kernelspec {name!r} already that is not ours, in\n{folder}\n"
            f"It stays as it is. Choose another name with --name."
        )


def _write(
    manager: KernelSpecManager,
    spec: Mapping[str, object],
    name: str,
    where: Where,
    resources: Path | None,
) -> Path:
    """Put the kernel.json and the files beside it in place; return the folder."""
    place = _folder(manager, where)
    try:
        with tempfile.TemporaryDirectory() as staging:
            # One level down: a temporary directory is closed to others, and Jupyter copies modes.
            stage = Path(staging) / name
            stage.mkdir()
            if resources is None:
                drawing = logo(kernelspec.gpus_of(spec))
                (stage / "logo-svg.svg").write_text(drawing, encoding="utf-8")
            else:
                _copy_resources(resources, stage)
            text = json.dumps(spec, indent=1, ensure_ascii=False) + "\n"
            (stage / "kernel.json").write_text(text, encoding="utf-8")
            if where == "user":
                return Path(manager.install_kernel_spec(str(stage), name, user=True))
            prefix = str(place.parent.parent.parent)
            return Path(manager.install_kernel_spec(str(stage), name, prefix=prefix))
    except OSError as error:
        raise KernelspecError(
            f"{place / name} cannot be written: {error.strerror or error}\n"
            f"Choose another place with --user, --sys-prefix or --prefix."
        ) from error


def _copy_resources(source: Path, target: Path) -> None:
    """Copy logos and whatever else a kernelspec's folder holds, but not its kernel.json."""
    for entry in source.iterdir():
        if entry.is_dir():
            shutil.copytree(entry, target / entry.name)
        elif entry.name != "kernel.json":
            shutil.copy(entry, target)
