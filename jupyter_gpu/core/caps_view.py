"""What ``%gpu limit`` says: the caps, how they get into force, and what they leave out. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jupyter_gpu.core.answers import SCHEMA
from jupyter_gpu.core.caps import DeviceCap, JaxWay, TorchWay
from jupyter_gpu.core.quantities import in_gib
from jupyter_gpu.core.view import Column, Table, View

_COLUMNS = (Column("Visible = physical"), Column("torch's cache at most"))
_COVERS = (
    "This covers torch's cache only, in this process. It does not cover the CUDA context (some "
    "600 MB a GPU), other libraries, or child processes, and it isolates nothing: other programs "
    "can still fill the GPU."
)
_ENVIRONMENT_COVERS = (
    "This covers torch's cache only, in each process by itself: a child process that imports torch "
    "reads the same setting and may take as much again. It does not cover the CUDA context (some "
    "600 MB a GPU) or other libraries, and it isolates nothing: other programs can still fill the "
    "GPU."
)
_OVER = "What is more fails with torch.OutOfMemoryError."


@dataclass(frozen=True, slots=True)
class Limits:
    """The caps as they stand, and how they reached the frameworks.

    ``changed`` is false where they are only shown; ``environment`` are the variables that set a
    cap, None for one that was removed now. ``code`` is a line for a person to run where a cap
    cannot be set yet.
    """

    caps: tuple[DeviceCap, ...]
    torch: TorchWay
    jax: JaxWay
    jax_fraction: float | None = None
    changed: bool = True
    environment: Mapping[str, str | None] = field(default_factory=dict)
    version: str | None = None
    code: str | None = None
    held_bytes: Mapping[int, int] = field(default_factory=dict)

    @property
    def capped(self) -> bool:
        """Whether there is a cap on torch on any device."""
        return any(cap.fraction is not None and cap.fraction < 1 for cap in self.caps)


def limits_answer(limits: Limits) -> dict[str, object]:
    """Return the answer of ``%gpu limit --json``."""
    return {
        "schema": SCHEMA,
        "caps": [cap.as_json() for cap in limits.caps],
        "torch": limits.torch,
        "jax": limits.jax,
        "jax_fraction": limits.jax_fraction,
        "environment": dict(limits.environment),
    }


def limits_view(limits: Limits) -> View:
    """Return the caps by device, how they come into force, and what they do not cover."""
    rows = tuple(_row(cap) for cap in limits.caps) if limits.capped else ()
    covers = []
    if limits.capped:
        words = _ENVIRONMENT_COVERS if limits.torch == "environment" else _COVERS
        covers.append(f"{words} {_OVER}")
    return View(
        title=_title(limits),
        tables=(Table("Caps", _COLUMNS, rows),) if rows else (),
        lines=(*_torch_lines(limits), *_jax_lines(limits), *covers),
        notes=tuple(_held_notes(limits)),
        code=() if limits.code is None else (limits.code,),
    )


def _title(limits: Limits) -> str:
    if limits.torch == "absent":
        return "torch is not installed in this kernel's Python"
    if limits.torch == "without CUDA":
        return f"torch {limits.version} is built without CUDA, so it has nothing to cap"
    if limits.code is not None:
        return "No cap is set on torch yet. Once CUDA is initialised, run"
    if not limits.capped:
        return "torch has no cap here" if not limits.changed else "torch's cap is taken away"
    if limits.torch == "now":
        return "torch's cache is capped" + (" now" if limits.changed else "")
    then = "torch initialises CUDA" if limits.torch == "later" else "torch is imported"
    return f"torch's cache will be capped when {then}"


def _row(cap: DeviceCap) -> tuple[str, ...]:
    name = f"cuda:{cap.ordinal} = physical {cap.device.index}"
    if cap.fraction is None:
        return (name, "no cap is known")
    percent = f"{cap.fraction * 100:.4g} %"
    if cap.number_bytes is None:
        return (name, percent)
    total = in_gib(cap.device.memory_total_bytes)
    return (name, f"{in_gib(cap.number_bytes)} of {total} GiB ({percent})")


def _torch_lines(limits: Limits) -> list[str]:
    if limits.code is not None:
        known = f"torch {limits.version} reads no cap from the environment; 2.10 and newer do."
        return [f"{known} After  import torch,  %gpu limit  can set it too."]
    if limits.torch == "later" and limits.changed and limits.capped:
        return ["torch is imported, so it is told directly, not through the environment."]
    words = [
        f"{name} is removed" if value is None else f"{name}={value}"
        for name, value in limits.environment.items()
        if name.startswith("PYTORCH")
    ]
    return [f"In the environment: {'; '.join(words)}"] if words else []


def _jax_lines(limits: Limits) -> list[str]:
    if limits.jax == "absent":
        return []
    if limits.jax == "too late":
        return ["JAX has opened its GPUs: its share stays as it is until a restart."] * (
            limits.changed or limits.jax_fraction is not None
        )
    words = [
        f"{name} is removed" if value is None else f"{name}={value}"
        for name, value in limits.environment.items()
        if name.startswith("XLA")
    ]
    if words:
        return [f"JAX has not begun, and will read this: {'; '.join(words)}."]
    if limits.jax_fraction is None:
        return []
    return [f"JAX takes at most {limits.jax_fraction * 100:.4g} % of each GPU."]


def _held_notes(limits: Limits) -> list[str]:
    """Return where torch holds more than the cap: what it has is not taken from it."""
    notes = []
    for cap in limits.caps:
        held, allowed = limits.held_bytes.get(cap.ordinal, 0), cap.number_bytes
        if limits.changed and allowed is not None and held > allowed:
            notes.append(
                f"torch holds {in_gib(held)} GiB of cuda:{cap.ordinal} already, more than the cap; "
                "it can take no more.  %gpu free  gives back what is not in use."
            )
    return notes
