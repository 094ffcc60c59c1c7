"""The checks of what an administrator has written: the rules, and the devices on hold. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from jupyter_gpu.core.checks import Check
from jupyter_gpu.core.overview import Overview

_EDITOR = "sudo nano"


def site_checks(overview: Overview) -> Iterator[Check]:
    """Yield whether the file of rules can be used, and which devices are out of service."""
    rules = overview.rules
    if rules is not None and rules.problem is not None:
        fix = "as the administrator, mend the file of rules: nothing is granted until then"
        yield Check("rules", "fail", rules.problem, fix)
    elif rules is not None:
        yield Check("rules", "ok", rules.source or "none")
        for name in rules.in_vain:
            found = f"device {name} is reserved, and nothing here has that name"
            yield Check("rules", "warn", found, f"{_EDITOR} {rules.source}")
    if overview.holds.problem is not None:
        fix = "as its owner or root, mend or remove that file, and hold anew what is broken"
        yield Check("holds", "fail", overview.holds.problem, fix)
    for hold in overview.holds.entries:
        device = overview.inventory.find(hold.uuid)
        if device is None:
            found = f"{hold.uuid} is {hold.words}, and no device here has that UUID"
            yield Check("holds", "warn", found, f"sudo jupyter gpu unhold {hold.uuid}")
        else:
            yield Check("holds", "ok", f"GPU {device.index} is {hold.words}")
