"""What ``%gpu free`` gave back, and what still holds the rest. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from jupyter_gpu.core.answers import SCHEMA
from jupyter_gpu.core.card import UNEXPLAINED_MEMORY_BYTES
from jupyter_gpu.core.devices import Device, Inventory
from jupyter_gpu.core.held import Held, Holder
from jupyter_gpu.core.kernel_process import InForce, KernelProcess
from jupyter_gpu.core.overview import Overview
from jupyter_gpu.core.quantities import in_gib, in_words
from jupyter_gpu.core.view import Column, Table, View, memory_words

HOLDERS_SHOWN = 10
_NAMES_SHOWN = 3
_TYPE_LENGTH = 40
_LEAST_SHOWN_BYTES = 2**20
_LEAST_TOLD_BYTES = 64 * 2**20
NOT_FROZEN = {
    "open": "There is nothing to free: CUDA is open, so this kernel holds no GPU memory.",
    "absent": "There is nothing to free: there is no working driver in this kernel.",
    "simulated": "There is nothing to free: this machine is simulated.",
    "forked": "Nothing is touched here: this process was forked from a kernel, which holds the "
    "memory. Call  %gpu free  in that kernel.",
}
_RESTART = (
    "A restart of the kernel frees all that this kernel holds{}. Until then its CUDA context "
    "keeps some hundreds of MB on each GPU that it uses."
)
_UNNAMED = (
    "held by no variable: a traceback, a closure or a reference cycle in a library may hold them. "
    "A restart frees them."
)
_DEVICES = (
    Column("Visible = physical"),
    Column("Memory now", right=True),
    Column("Came back", right=True),
    Column("torch"),
)
_HOLDERS = (Column("Held by", shrinks=True), Column("Memory", right=True), Column("What"))


@dataclass(frozen=True, slots=True)
class TorchMemory:
    """What torch's allocator says of one device: bytes in tensors, and those it keeps in all."""

    allocated_bytes: int
    reserved_bytes: int

    @property
    def cached_bytes(self) -> int:
        """What it keeps without a tensor in it."""
        return max(self.reserved_bytes - self.allocated_bytes, 0)


@dataclass(frozen=True, slots=True)
class Emptied:
    """What was done for one framework; ``problem`` is its own words where it failed."""

    name: str
    done: str
    problem: str | None = None

    def in_words(self) -> str:
        """Return ``"torch emptied its cache"``."""
        words = f"{self.name} {self.done}"
        return words if self.problem is None else f"{words}: {self.problem}"


@dataclass(frozen=True, slots=True)
class MemoryReport:
    """The machine before and after, and what was done between.

    ``torch_before`` and ``torch_after`` are by visible ordinal, empty where torch has not begun.
    """

    before: Overview
    after: Overview
    torch_before: Mapping[int, TorchMemory] = field(default_factory=dict)
    torch_after: Mapping[int, TorchMemory] = field(default_factory=dict)
    emptied: tuple[Emptied, ...] = ()
    held: Held = field(default_factory=Held)


@dataclass(frozen=True, slots=True)
class _Row:
    """One device in force, before and after; ``pid`` is the kernel's."""

    shown: InForce
    before: Device | None
    after: Device | None
    pid: int

    @property
    def came_back(self) -> int | None:
        """Return the bytes that are no longer in use, None where that is unknown.

        This kernel's own are counted where the driver tells them: others may take memory meanwhile.
        """
        was, now = _own_bytes(self.before, self.pid), _own_bytes(self.after, self.pid)
        if was is None or now is None:
            was = None if self.before is None else self.before.memory_used_bytes
            now = None if self.after is None else self.after.memory_used_bytes
        return None if was is None or now is None else max(was - now, 0)


def free_answer(report: MemoryReport, process: KernelProcess) -> dict[str, object]:
    """Return the answer of ``%gpu free --json``."""
    return {
        "schema": SCHEMA,
        "state": process.state,
        "devices": [_row_answer(row, report) for row in _rows(report, process)],
        "frameworks": [
            {"name": one.name, "done": one.done, "problem": one.problem} for one in report.emptied
        ],
        "holders": [holder.as_json() for holder in report.held.holders],
        "unnamed": {"tensors": report.held.unnamed, "bytes": report.held.unnamed_bytes},
    }


def nothing_view(process: KernelProcess) -> View:
    """Return the view for a kernel in which nothing is touched."""
    return View(NOT_FROZEN[process.state])


def free_view(report: MemoryReport, process: KernelProcess) -> View:
    """Return what came back, per device, and what still holds the rest, by name."""
    rows = _rows(report, process)
    tables = [Table("Devices", _DEVICES, tuple(_device_row(row, report) for row in rows))]
    shown = report.held.holders[:HOLDERS_SHOWN]
    asking = report.after.process
    stays = report.after.lease is not None and asking is not None and asking.renewable
    restart = _RESTART.format(", and the lease stays" if stays else "")
    if shown:
        table = Table("Still held by torch tensors", _HOLDERS, tuple(map(_holder_row, shown)))
        tables.append(table)
    return View(
        title=_title(rows),
        tables=tuple(table for table in tables if table.rows),
        lines=(*_held_lines(report), *_done_lines(report)),
        notes=(*(note for row in rows for note in _elsewhere(row, report.after)), restart),
    )


def _rows(report: MemoryReport, process: KernelProcess) -> tuple[_Row, ...]:
    before, after = report.before.inventory, report.after.inventory
    return tuple(
        _Row(shown, _found(shown, before), _found(shown, after), process.pid)
        for shown in process.in_force or ()
    )


def _own_bytes(device: Device | None, pid: int) -> int | None:
    processes = () if device is None else device.processes
    return next((one.memory_bytes for one in processes if one.pid == pid), None)


def _found(shown: InForce, inventory: Inventory) -> Device | None:
    return None if shown.uuid is None else inventory.find(shown.uuid)


def _title(rows: tuple[_Row, ...]) -> str:
    known = [row.came_back for row in rows if row.came_back is not None]
    if not known:
        return "What came back cannot be measured here"
    total = sum(known)
    if total < _LEAST_SHOWN_BYTES:
        return "Nothing came back"
    return f"{_amount(total)} came back"


def _amount(number_bytes: int) -> str:
    """Return ``"12.1 GiB"``, what is small in MiB."""
    if number_bytes < 2**30 // 10:
        return f"{number_bytes / 2**20:.1f} MiB" if number_bytes else "0 MiB"
    return f"{in_gib(number_bytes)} GiB"


def _device_row(row: _Row, report: MemoryReport) -> tuple[str, ...]:
    physical = "unknown" if row.shown.index is None else str(row.shown.index)
    torch = report.torch_after.get(row.shown.ordinal)
    words = ""
    if torch is not None:
        in_tensors, cached = _amount(torch.allocated_bytes), _amount(torch.cached_bytes)
        words = f"torch: {in_tensors} in tensors, {cached} cached"
    return (
        f"cuda:{row.shown.ordinal} = physical {physical}",
        "–" if row.after is None else memory_words(row.after),
        "–" if row.came_back is None else f"{_amount(row.came_back)} back",
        words,
    )


def _holder_row(holder: Holder) -> tuple[str, ...]:
    names = ", ".join(holder.names[:_NAMES_SHOWN])
    if len(holder.names) > _NAMES_SHOWN:
        names += f" and {len(holder.names) - _NAMES_SHOWN} more"
    what = holder.about[:_TYPE_LENGTH]
    if holder.tensors > 1 or holder.about not in ("Tensor", "Parameter"):
        what += f", {in_words(holder.tensors, 'tensor')}"
    return (names, _amount(holder.number_bytes), what)


def _held_lines(report: MemoryReport) -> list[str]:
    held, lines = report.held, []
    rest = held.holders[HOLDERS_SHOWN:]
    if rest:
        amount = _amount(sum(holder.number_bytes for holder in rest))
        lines.append(f"And {len(rest)} more, {amount}.")
    if any(len(holder.names) > 1 for holder in held.holders[:HOLDERS_SHOWN]):
        lines.append("What several names hold comes back when each of them is deleted.")
    if held.unnamed:
        words = f"{in_words(held.unnamed, 'tensor')}, {_amount(held.unnamed_bytes)}"
        lines.append(f"{words}, {_UNNAMED}")
    allocated = sum(one.allocated_bytes for one in report.torch_after.values())
    inside = allocated - held.number_bytes
    if inside > max(allocated // 10, _LEAST_TOLD_BYTES):
        lines.append(
            f"{_amount(inside)} more is held inside torch: saved for a backward pass, graphs and "
            "workspaces."
        )
    cached = sum(one.cached_bytes for one in report.torch_after.values())
    if cached > _LEAST_TOLD_BYTES:
        lines.append(
            f"torch keeps {_amount(cached)} in blocks that are partly in use: a block comes back "
            "when all that is in it is deleted."
        )
    if not held.complete:
        lines.append("The variables lead to very many objects; only the first were looked at.")
    return lines


def _done_lines(report: MemoryReport) -> list[str]:
    words = [one.in_words() for one in report.emptied]
    return [f"Done: {'; '.join(words)}."] if words else ["No framework here has begun to use CUDA."]


def _elsewhere(row: _Row, after: Overview) -> list[str]:
    """Return who else has memory on a device, which nothing here can give back."""
    device, process = row.after, after.process
    if device is None or process is None:
        return []
    where = f"cuda:{row.shown.ordinal}"
    notes = []
    for one in device.processes:
        seen = after.known.get(one.pid)
        if one.pid != process.pid and seen is not None:
            amount = "" if one.memory_bytes is None else f"{_amount(one.memory_bytes)} of "
            name = f"{seen.user}'s process {one.pid} ({seen.command})"
            notes.append(f"{where}: {amount}{'it is' if amount else 'also used by'} {name}.")
    used = device.memory_used_bytes or 0
    if not device.processes and used > UNEXPLAINED_MEMORY_BYTES:
        notes.append(
            f"{where}: {_amount(used)} is in use by no process that can be seen from here. Nothing "
            "in this kernel can free it, and a restart of it may not either."
        )
    return notes


def _row_answer(row: _Row, report: MemoryReport) -> dict[str, object]:
    ordinal = row.shown.ordinal
    was, now = report.torch_before.get(ordinal), report.torch_after.get(ordinal)
    return {
        "ordinal": ordinal,
        "index": row.shown.index,
        "uuid": row.shown.uuid,
        "memory_used_before_bytes": None if row.before is None else row.before.memory_used_bytes,
        "memory_used_after_bytes": None if row.after is None else row.after.memory_used_bytes,
        "came_back_bytes": row.came_back,
        "torch_allocated_before_bytes": None if was is None else was.allocated_bytes,
        "torch_allocated_after_bytes": None if now is None else now.allocated_bytes,
        "torch_reserved_before_bytes": None if was is None else was.reserved_bytes,
        "torch_reserved_after_bytes": None if now is None else now.reserved_bytes,
    }
