"""The checks of the CUDA libraries: what they were built for, remember, and see. Pure."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import replace

from jupyter_gpu.core.checks import Check
from jupyter_gpu.core.environment import numbering_is_cudas
from jupyter_gpu.core.facts import Facts, Installed
from jupyter_gpu.core.frameworks import remembers, version_pair
from jupyter_gpu.core.history import cell_words
from jupyter_gpu.core.late import stale_words
from jupyter_gpu.core.leases import clean
from jupyter_gpu.core.overview import Overview
from jupyter_gpu.core.quantities import in_words
from jupyter_gpu.core.torch_values import torch_count
from jupyter_gpu.core.variables import VISIBLE
from jupyter_gpu.core.view import value_words

_XLA_FRACTIONS = ("XLA_CLIENT_MEM_FRACTION", "XLA_PYTHON_CLIENT_MEM_FRACTION")
_NVML_CHECK = "PYTORCH_NVML_BASED_CUDA_CHECK"
# torch has read the variable by itself since this version.
_TORCH_READS = (2, 0)
# Wheels of PyPI are for the newest CUDA; these folders have them for the last of each older one.
_TORCH_WHEELS = {11: "cu118", 12: "cu126"}
_TORCH_INDEX = "https://download.pytorch.org/whl"
_NEWEST_CUDA = 13
_BUILDS = ("torch", "tensorflow", "jax", "cupy")


def framework_checks(
    overview: Overview, facts: Facts, environ: Mapping[str, str]
) -> Iterator[Check]:
    """Yield a check for each CUDA library that is installed, and for settings that break them."""
    for library in _libraries(overview, facts):
        yield from _build(library, overview, facts, environ)
    for sentence in () if overview.process is None else overview.process.missing:
        found, _, fix = sentence.partition(":  ")
        yield Check("PyTorch", "warn", found, fix or f"{facts.pip} install torch")
    yield from _rememberers(overview, environ)
    yield from _pynvml(facts)
    yield from _xla(environ)
    yield from _vllm(overview, facts)


def _libraries(overview: Overview, facts: Facts) -> Iterator[Installed]:
    """Yield the libraries with builds, where one is loaded as it is loaded, not as installed."""
    imports = () if overview.process is None else overview.process.history.imports
    loaded = {one.module: one for one in imports if one.module in _BUILDS and one.version}
    for library in facts.installed:
        if library.distribution in _BUILDS:
            one = loaded.pop(library.distribution, None)
            version = None if one is None else one.version
            yield library if version is None else _as_loaded(library, version)
    for module, one in loaded.items():
        yield _as_loaded(Installed(one.name, module, ""), one.version or "")


def _as_loaded(library: Installed, version: str) -> Installed:
    """Return a library in the version that is loaded; what that was built for it may say."""
    public, _, local = version.partition("+")
    if version == library.version or (public == library.version.partition("+")[0] and not local):
        return library
    cuda = re.fullmatch(r"cu([0-9]{2})([0-9])", local)
    return replace(
        library,
        version=version,
        cuda=None if cuda is None else f"{cuda[1]}.{cuda[2]}",
        other="the CPU only" if local == "cpu" else None,
        loaded=True,
    )


def _build(
    library: Installed, overview: Overview, facts: Facts, environ: Mapping[str, str]
) -> Iterator[Check]:
    """Yield the first thing that stands against a library, or that it is in order."""
    where = "" if facts.python is None else f" in {clean(facts.python)}"
    name, found = library.name, f"{clean(library.version)}{_built_for(library)}{where}"
    there = facts.library(library.distribution)
    if there is None or there.version != library.version:
        has = "not installed" if there is None else f"installed is {clean(there.version)}"
        found += f" loaded ({has})"
    trouble = _unusable(library, overview, facts)
    if trouble is None:
        trouble = _of_its_own(library, overview, facts, environ)
    if trouble is not None:
        yield Check(name, "warn", f"{found}{trouble[0]}", trouble[1])
        return
    yield Check(name, "ok", found + _in_this_process(library, overview, environ))


def _built_for(library: Installed) -> str:
    if library.cuda is not None:
        return f" for CUDA {clean(library.cuda)}"
    return "" if library.other is None else f" for {clean(library.other)}"


def _unusable(library: Installed, overview: Overview, facts: Facts) -> tuple[str, str] | None:
    """Return why this build cannot use the GPUs here, and what to install, or None."""
    newest = _driver_cuda(overview, facts)
    major = None if newest is None else int(newest.partition(".")[0])
    if library.other is not None:
        if not overview.inventory.gpus or overview.inventory.source != "nvml":
            return None
        fix = _install(library, major, facts.pip)
        return f", so it cannot use the {in_words(len(overview.inventory.gpus))} here", fix
    built = re.match(r"[0-9]{1,4}", library.cuda or "")
    # Within one major version CUDA runs newer builds on older drivers (minor-version
    # compatibility, NVIDIA's CUDA Compatibility guide); across majors it does not.
    if built is None or major is None or int(built[0]) <= major:
        return None
    fix = _install(library, major, facts.pip)
    return f", but this driver runs CUDA {newest} at most", f"update the driver, or  {fix}"


def _driver_cuda(overview: Overview, facts: Facts) -> str | None:
    """Return the newest CUDA here; the driver's own word counts compatibility packages in."""
    own = None if facts.driver is None else facts.driver.cuda
    text = own or overview.inventory.cuda or ""
    return text if re.fullmatch(r"[0-9]{1,4}(\.[0-9]{1,4})?", text) else None


def _install(library: Installed, major: int | None, pip: str) -> str:
    plugin = f"cuda{min(major or _NEWEST_CUDA, _NEWEST_CUDA)}"
    if library.distribution == "torch":
        wheels = _TORCH_WHEELS.get(major or 0)
        where = f" --index-url {_TORCH_INDEX}/{wheels}" if wheels else ""
        return f"{pip} install --force-reinstall torch{where}"
    if library.distribution == "jax":
        return f'{pip} install --upgrade "jax[{plugin}]"'
    if library.distribution == "cupy":
        return f"{pip} install cupy-{plugin}x"
    return f'{pip} install --upgrade "tensorflow[and-cuda]"'


def _of_its_own(
    library: Installed, overview: Overview, facts: Facts, environ: Mapping[str, str]
) -> tuple[str, str] | None:
    """Return what a usable library does otherwise than CUDA, and what to do, or None."""
    if library.distribution != "torch" or library.other is not None:
        return None
    why = remembers("torch", library.version, environ)
    if why is not None:
        fix = (
            "unset KINETO_USE_DAEMON, and restart the kernel"
            if why.startswith("KINETO")
            else f"{facts.pip} install --upgrade torch, or set {VISIBLE} before the import"
        )
        return f": {why}", fix
    stale = None if overview.process is None else stale_words(overview, overview.process)
    if stale is not None:
        return f": {stale.removesuffix('.')}", f"restart the kernel, or set {VISIBLE} back"
    return _miscount(library, overview, facts)


def _miscount(library: Installed, overview: Overview, facts: Facts) -> tuple[str, str] | None:
    """Return where torch's own reading of the value gives another number than the driver."""
    inventory, answer = overview.inventory, facts.driver
    pair = version_pair(library.version)
    if pair is None or pair < _TORCH_READS or inventory.source != "nvml":
        return None
    value = overview.visible.value
    uuids = tuple(gpu.uuid for gpu in inventory.gpus if gpu.uuid is not None)
    counted = torch_count(value, uuids)
    if counted.error is not None:
        return f": torch.cuda fails on {value_words(value)} with {counted.error}", _rewrite(
            overview
        )
    real = len(overview.visible.devices)
    if answer is not None and answer.cuinit is not None:
        real = len(answer.uuids)
    if counted.count is None or counted.count == real or len(uuids) < len(inventory.gpus):
        return None
    found = (
        f": torch.cuda.device_count() reads {value_words(value)} by rules of its own and says "
        f"{counted.count}, the driver gives {real}"
    )
    return found, _rewrite(overview)


def _rewrite(overview: Overview) -> str:
    """Return the value that everybody reads alike."""
    plain = _index_form(overview) or ",".join(device.uuid for device in overview.visible.devices)
    return f'set {VISIBLE} to "{plain or "-1"}" before CUDA starts'


def _index_form(overview: Overview) -> str | None:
    """Return what is visible as plain numbers, None where those may mean other devices."""
    devices = [overview.inventory.find(one.uuid) for one in overview.visible.devices]
    if not numbering_is_cudas(overview.inventory):
        return None
    return ",".join(str(one.index) for one in devices if one is not None)


def _in_this_process(library: Installed, overview: Overview, environ: Mapping[str, str]) -> str:
    """Return since when the library is loaded here, and what it sees as far as it has looked."""
    process, words = overview.process, ""
    for imported in () if process is None else process.history.imports:
        if imported.module == library.distribution:
            words += f"; imported in {cell_words(imported.cell)}"
    sees = library.sees
    if sees is None and library.distribution == "torch" and process is not None:
        sees = process.torch_count
    if sees is not None:
        words += f"; sees {in_words(sees, 'device')}"
    elif library.loaded:
        words += "; has not counted devices yet"
    if library.distribution == "torch" and environ.get(_NVML_CHECK) == "1":
        words += f"; {_NVML_CHECK}=1, so is_available() leaves CUDA open"
    return words


def _rememberers(overview: Overview, environ: Mapping[str, str]) -> Iterator[Check]:
    """Yield the other libraries whose import alone has fixed this kernel's devices."""
    for imported in () if overview.process is None else overview.process.history.imports:
        why = remembers(imported.module, imported.version, environ)
        if why is not None and imported.module != "torch":
            found = f"imported in {cell_words(imported.cell)}: {why}"
            fix = f"restart the kernel to change devices, and set {VISIBLE} before that import"
            yield Check(imported.name, "warn", found, fix)


def _pynvml(facts: Facts) -> Iterator[Check]:
    deprecated = facts.library("pynvml")
    if deprecated is None:
        return
    found = (
        f"the deprecated package pynvml {clean(deprecated.version)} is installed beside "
        "nvidia-ml-py, and warns at every import or takes its place"
    )
    fix = (
        f"{facts.pip} uninstall -y pynvml, then  {facts.pip} install --force-reinstall nvidia-ml-py"
    )
    yield Check("pynvml", "warn", found, fix)


def _xla(environ: Mapping[str, str]) -> Iterator[Check]:
    if all(name in environ for name in _XLA_FRACTIONS):
        found = (
            f"{' and '.join(_XLA_FRACTIONS)} are both set: JAX refuses to start with a ValueError"
        )
        yield Check("JAX memory fraction", "fail", found, f"unset {_XLA_FRACTIONS[0]}")


def _vllm(overview: Overview, facts: Facts) -> Iterator[Check]:
    library, value = facts.library("vllm"), overview.visible.value
    if library is None:
        return
    if value is None or not value.startswith(("GPU-", "MIG-")):
        yield Check("vLLM", "ok", clean(library.version))
        return
    found = (
        f"{clean(library.version)} reads {VISIBLE} as numbers, and fails on {value_words(value)}"
    )
    plain = _index_form(overview)
    fix = (
        f'set {VISIBLE} to "{plain}" before the import, or lease with  identifiers: index'
        if plain and not value.startswith("MIG-")
        else "use whole GPUs by number, in a kernel leased with  identifiers: index"
    )
    yield Check("vLLM", "warn", found, fix)
