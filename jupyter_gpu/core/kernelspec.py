"""The kernel.json of a kernelspec that asks for GPUs.

A request stands in it twice, because front ends start kernels in two ways: as the configuration
of our provisioner, for servers that look at it, and as arguments of our wrapper, for front ends
that run ``argv`` themselves. Here it is only put together and read; the files are
``jupyter_gpu.faces.kernelspecs``.

Source: https://jupyter-client.readthedocs.io/en/stable/kernels.html#kernel-specs
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from itertools import pairwise

from jupyter_gpu.core.errors import KernelspecError, RequestError
from jupyter_gpu.core.request import OPTIONS, Request

PROVISIONER = "gpu-provisioner"
PROVISIONERS = (PROVISIONER, "slurm-gpu-provisioner")
WRAPPER = "jupyter_gpu.kernel"
STEM, TITLE = "pytorch", "PyTorch"

# Modules that start ipykernel from the command line, our wrapper included.
_LAUNCHERS = ("ipykernel_launcher", "ipykernel", WRAPPER)
# What jupyter_client uses where a kernel.json names none.
_DEFAULT_PROVISIONER = "local-provisioner"
# A name that a server can list; jupyter_client accepts others only with a warning.
_NAME = re.compile(r"[A-Za-z0-9._-]+")
# The shares that a launcher's entries are usually made for, as a person calls them.
_SHARES = {"1/2": "half", "1/3": "third", "1/4": "quarter"}
_NVLINK = {"require": ", NVLink", "prefer": ", NVLink preferred"}


def pytorch(
    options: Mapping[str, object], *, executable: str = "python", provisioner: bool = True
) -> dict[str, object]:
    """Build the kernel.json of a PyTorch kernelspec.

    Parameters
    ----------
    options
        The request's options by their names, already validated.
    executable
        The Python to run; ``"python"`` stands for the one the server runs on.
    provisioner
        False leaves the lease to the wrapper alone.
    """
    arguments = [*request_arguments(options), "--framework=torch"]
    # The rest is what ipykernel 7.4 writes into its own kernel.json.
    spec: dict[str, object] = {
        "argv": [executable, "-m", WRAPPER, *arguments, "-f", "{connection_file}"],
        "display_name": display_name(TITLE, options),
        "language": "python",
        "metadata": {"debugger": True, "supported_encryption": ["curve"]},
        "kernel_protocol_version": "5.5",
    }
    return with_provisioner(spec, options) if provisioner else spec


def derived(
    source: Mapping[str, object],
    options: Mapping[str, object],
    *,
    interpreter: Sequence[str] | None = None,
    provisioner: bool = True,
) -> dict[str, object]:
    """Build a kernel.json from that of an existing kernelspec, of any language.

    Everything that stands there stays; the request is added, and the display name says so.

    Parameters
    ----------
    source
        The existing kernel.json, which is not changed.
    options
        The request's options by their names, already validated.
    interpreter
        The start of a command that runs our wrapper with ``-m``. None leaves ``argv`` as it is,
        so that only the provisioner leases.
    provisioner
        False leaves the lease to the wrapper alone.

    Raises
    ------
    KernelspecError
        When the kernelspec has a provisioner of someone else's, which ours would replace.
    """
    other = provisioner_of(source)
    if other not in (None, _DEFAULT_PROVISIONER, *PROVISIONERS):
        raise KernelspecError(
            f"its provisioner is {other!r} already,\n"
            f"and a kernelspec has only one, so {PROVISIONER} cannot start it as well."
        )
    spec = dict(source)
    if interpreter is not None:
        spec["argv"] = _wrapped(argv_of(source), interpreter, options)
    spec["display_name"] = display_name(title_of(source), options)
    if provisioner:
        return with_provisioner(spec, options)
    if other is None:
        return spec
    metadata = _mapping(spec.get("metadata"))
    return {**spec, "metadata": {k: v for k, v in metadata.items() if k != "kernel_provisioner"}}


def with_provisioner(
    spec: Mapping[str, object], options: Mapping[str, object]
) -> dict[str, object]:
    """Return a kernel.json with the stanza that makes our provisioner start its kernel."""
    config = {name: _json(value) for name, value in options.items() if value is not None}
    config.setdefault("gpus", 1)
    stanza = {"provisioner_name": PROVISIONER, "config": config}
    return {**spec, "metadata": {**_mapping(spec.get("metadata")), "kernel_provisioner": stanza}}


def request_arguments(options: Mapping[str, object]) -> tuple[str, ...]:
    """Write a request as arguments of the wrapper, ``gpus`` first: ``--gpus=2 --model=H200``."""
    given = {"gpus": 1, **{name: value for name, value in options.items() if value is not None}}
    return tuple(f"--{name.replace('_', '-')}={_text(value)}" for name, value in given.items())


def display_name(title: str, options: Mapping[str, object]) -> str:
    """Name a kernelspec for a person: ``"PyTorch (¼ GPU)"``, ``"PyTorch (2 GPUs, waits 30m)"``."""
    gpus, wait = options.get("gpus"), options.get("wait")
    amount = _amount(gpus)
    several = amount == "all" or (isinstance(amount, int) and amount > 1)
    joined = _NVLINK.get(str(options.get("topology")), "") if several else ""
    waits = "" if wait in (None, 0, "0", "8s") else f", waits {wait}"
    return f"{title} ({_in_words(gpus)}{joined}{waits})"


def default_name(stem: str, options: Mapping[str, object]) -> str:
    """Name a kernelspec's folder: ``"pytorch-2gpus"``, ``"pytorch-quarter-gpu"``."""
    return f"{stem}-{_in_a_name(options.get('gpus'))}"


def stem_of(name: str, spec: Mapping[str, object]) -> str:
    """Return an existing kernelspec's name without the amount of GPUs that we put there."""
    return name.removesuffix(f"-{_in_a_name(gpus_of(spec))}") if is_ours(spec) else name


def title_of(spec: Mapping[str, object]) -> str:
    """Return a kernelspec's display name without the amount of GPUs that we put there."""
    title = str(spec.get("display_name") or spec.get("language") or "kernel")
    amount = re.escape(_in_words(gpus_of(spec)))
    ours = rf" \({amount}(, NVLink( preferred)?)?(, waits [^)]*)?\)$"
    return re.sub(ours, "", title) if is_ours(spec) else title


def check_name(name: str) -> str:
    """Return a kernelspec's folder name as Jupyter stores it, in lower case.

    Raises
    ------
    KernelspecError
        When the name has characters that a kernelspec's name cannot have.
    """
    if not _NAME.fullmatch(name) or name in {".", ".."}:
        raise KernelspecError(
            f"{name!r} cannot name a kernelspec: use ASCII letters, digits, '-', '.' and '_'."
        )
    return name.lower()


def argv_of(spec: Mapping[str, object]) -> tuple[str, ...]:
    """Return the command of a kernel.json.

    Raises
    ------
    KernelspecError
        When there is none.
    """
    argv = _strings(spec.get("argv"))
    if not argv:
        raise KernelspecError("its kernel.json has no command in 'argv'.")
    return argv


def interpreter_of(argv: Sequence[str]) -> tuple[str, ...] | None:
    """Return the start of a command that runs ipykernel, up to ``-m``; None for other commands.

    ``("conda", "run", "-n", "x", "python")`` is as good an interpreter as ``("python",)``.
    """
    for at, (flag, module) in enumerate(pairwise(argv)):
        if flag == "-m" and at and module in _LAUNCHERS:
            return tuple(argv[:at])
    return None


def provisioner_of(spec: Mapping[str, object]) -> str | None:
    """Return the name of the provisioner that a kernel.json asks for, or None."""
    name = _stanza(spec).get("provisioner_name")
    return name if isinstance(name, str) else None


def config_of(spec: Mapping[str, object]) -> dict[str, object]:
    """Return the options that a kernel.json gives to its provisioner, as they stand there."""
    return _mapping(_stanza(spec).get("config"))


def is_ours(spec: Mapping[str, object]) -> bool:
    """Tell whether a kernel.json asks for GPUs through this package, in either of the two ways."""
    return provisioner_of(spec) in PROVISIONERS or runs_wrapper(spec)


def runs_wrapper(spec: Mapping[str, object]) -> bool:
    """Tell whether a kernel.json's command leases by itself, whoever starts it."""
    return WRAPPER in _strings(spec.get("argv"))


def gpus_of(spec: Mapping[str, object]) -> int | str:
    """Return the option ``gpus`` of a kernelspec of ours: 2, ``"all"``, ``"1/4"``, a profile."""
    given: object = None
    if provisioner_of(spec) in PROVISIONERS:
        given = _mapping(_stanza(spec).get("config")).get("gpus")
    elif runs_wrapper(spec):
        arguments = (part for part in argv_of(spec) if part.startswith("--gpus="))
        given = next(arguments, "--gpus=1").removeprefix("--gpus=")
    return _amount(given if isinstance(given, (int, str)) else 1)


def misplaced_options(spec: Mapping[str, object]) -> tuple[tuple[str, str], ...]:
    """Return the options that stand where nothing reads them: the place and the name of each."""
    metadata, astray = _mapping(spec.get("metadata")), _mapping(spec.get("kernel_provisioner"))
    places = (
        ("the top level", spec),
        ("config", _mapping(spec.get("config"))),
        ("kernel_provisioner", astray),
        ("kernel_provisioner.config", _mapping(astray.get("config"))),
        ("metadata", metadata),
        ("metadata.config", _mapping(metadata.get("config"))),
        ("metadata.kernel_provisioner", _stanza(spec)),
    )
    return tuple((place, name) for place, data in places for name in OPTIONS if name in data)


def unequal_options(
    config: Mapping[str, object], arguments: Mapping[str, object]
) -> tuple[str, ...]:
    """Return the options that ask the provisioner for something else than the wrapper.

    Both are readable requests. ``on_unavailable`` is the wrapper's alone: it may be missing from
    the configuration.
    """
    names = (name for name in OPTIONS if name != "on_unavailable" or name in config)
    return tuple(
        name
        for name in names
        if Request.parse({name: config.get(name)}) != Request.parse({name: arguments.get(name)})
    )


def option_text(value: object) -> str:
    """Return an option's value as an argument has it, ``"not given"`` where there is none."""
    return "not given" if value is None else _text(value)


def _wrapped(
    argv: Sequence[str], interpreter: Sequence[str], options: Mapping[str, object]
) -> list[str]:
    """Run the wrapper where ipykernel was run, with this request instead of an earlier one."""
    old = interpreter_of(argv)
    rest = argv[len(old) + 2 :] if old is not None else ()
    flags = tuple(f"--{name.replace('_', '-')}=" for name in OPTIONS)
    kept = [part for part in rest if not part.startswith(flags)]
    return [*interpreter, "-m", WRAPPER, *request_arguments(options), *kept]


def _stanza(spec: Mapping[str, object]) -> dict[str, object]:
    return _mapping(_mapping(spec.get("metadata")).get("kernel_provisioner"))


def _mapping(value: object) -> dict[str, object]:
    """Return a copy of a JSON object; whatever else stands there counts as an empty one."""
    return {str(key): item for key, item in value.items()} if isinstance(value, dict) else {}


def _strings(value: object) -> tuple[str, ...]:
    """Return a JSON list of strings as a tuple; whatever else stands there counts as empty."""
    if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
        return ()
    return tuple(value)


def _json(value: object) -> object:
    return list(value) if isinstance(value, tuple) else value


def _text(value: object) -> str:
    return ",".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value)


def _amount(gpus: object) -> int | str:
    """Return the option ``gpus`` as its reader writes it, or as it stands where nobody reads it."""
    try:
        return Request.parse({"gpus": gpus}).amount
    except RequestError:
        return gpus if isinstance(gpus, int) else str(gpus)


def _in_words(gpus: object) -> str:
    """Say a request's GPUs in a display name: ``"2 GPUs"``, ``"¼ GPU"``, ``"MIG 1g.18gb"``."""
    try:
        request = Request.parse({"gpus": gpus})
    except RequestError:
        return f"{gpus} GPUs"
    if request.gpus == 0:
        return "no GPU"
    return request.amount_in_words() if request.profile is None else f"MIG {request.profile}"


def _in_a_name(gpus: object) -> str:
    """Say a request's GPUs in a folder name: ``"2gpus"``, ``"quarter-gpu"``, ``"mig-1g.18gb"``."""
    amount = _amount(gpus)
    if isinstance(amount, int):
        return "cpu" if amount == 0 else "1gpu" if amount == 1 else f"{amount}gpus"
    part, _, whole = amount.partition("/")
    if whole:
        return f"{_SHARES.get(amount, f'{part}-of-{whole}')}-gpu"
    if amount.startswith("mig:"):
        # "+me" says that a MIG device has media engines; a folder's name has no "+".
        return amount.replace(":", "-").replace("+", ".")
    return f"{amount}-gpus"
