"""Sentences for values that a person is likely to have meant otherwise.

This file exists because the driver says nothing: a value it cannot read means fewer GPUs, or none,
and no message.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from jupyter_gpu.core.devices import Inventory
    from jupyter_gpu.core.visibility import Reading


def value_notes(
    value: str | None,
    reading: Reading | None,
    inventory: Inventory,
    environment: Mapping[str, str] | None,
) -> tuple[str, ...]:
    """Return the sentences for one value; no sentence for a value that says what it means."""
    del value, reading, inventory, environment
    return ()
