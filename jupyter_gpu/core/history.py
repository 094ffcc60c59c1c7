"""What happened in a kernel, and in which cell: imports, changes of the variable, the freeze."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

When = Literal["during", "after", "before"]


@dataclass(frozen=True, slots=True)
class Imported:
    """A CUDA framework that was imported: in which cell, and whether the driver was frozen after.

    ``cell`` is the execution number, None for code that no numbered cell ran; ``when`` is "before"
    for what was there when watching began.
    """

    module: str
    name: str
    version: str | None
    cell: int | None
    frozen_after: bool = False
    when: When = "during"


@dataclass(frozen=True, slots=True)
class Frozen:
    """Where the CUDA driver was first seen initialised.

    ``when`` is "during" the cell, "after" it had ended (a thread, a callback), or "before" anything
    was watched. ``chain`` are the modules that were being imported at that moment, outermost first;
    ``call`` is what in the cell's text does it, as far as it can be told; ``values`` are those of
    CUDA_VISIBLE_DEVICES between which the driver has read it, one where it did not change then,
    none where that is not known. ``alone`` is false where threads of the person's ran beside the
    cell, any of which may have done it.
    """

    cell: int | None
    when: When = "during"
    chain: tuple[str, ...] = ()
    call: str | None = None
    values: tuple[str | None, ...] = ()
    alone: bool = True

    @property
    def by_import(self) -> str | None:
        """The module whose own code did it, None where no import did."""
        return self.chain[-1] if self.chain else None


@dataclass(frozen=True, slots=True)
class Change:
    """A change of CUDA_VISIBLE_DEVICES: by which cell, and how (``"%env"``)."""

    cell: int | None
    before: str | None
    after: str | None
    how: str


@dataclass(frozen=True, slots=True)
class History:
    """All that was seen since the extension was loaded.

    ``forked_frozen`` is, in a process that was forked from a kernel, whether that kernel's driver
    was initialised at the fork; None in the kernel itself.
    """

    imports: tuple[Imported, ...] = ()
    frozen: Frozen | None = None
    changes: tuple[Change, ...] = ()
    forked_frozen: bool | None = None


def cell_words(cell: int | None) -> str:
    """Return ``"cell [4]"``, the words for a cell everywhere."""
    return "code outside the numbered cells" if cell is None else f"cell [{cell}]"


def import_words(imported: Imported) -> str:
    """Return where an import happened: ``"in cell [4]"``."""
    if imported.when == "before":
        return "before jupyter_gpu watched its cells"
    return f"in {cell_words(imported.cell)}"


def cause_words(frozen: Frozen) -> str:
    """Return what initialised CUDA, as the subject of a sentence."""
    where = cell_words(frozen.cell)
    if frozen.when == "before":
        return "something before jupyter_gpu watched its cells"
    if frozen.when == "after":
        return f"a thread or a callback after {where}"
    if not frozen.alone:
        return f"something that ran while {where} did"
    if frozen.by_import is not None:
        first, last = frozen.chain[0], frozen.chain[-1]
        if first == last:
            return f"{where} (import {last})"
        return f"{where} (import {first}, which imports {last})"
    return f"{where} ({frozen.call})" if frozen.call else where
