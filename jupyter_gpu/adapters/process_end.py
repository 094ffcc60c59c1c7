"""Notices at once that a process has ended, without asking it again and again."""

from __future__ import annotations

import os
import select
import threading
from collections.abc import Callable


def call_at_end(pid: int | None, callback: Callable[[], None]) -> None:
    """Call back from a thread when a process of this machine has ended.

    Nothing happens where it has ended already, or where the system cannot tell (no pidfd).
    """
    if pid is None:
        return
    try:
        descriptor = os.pidfd_open(pid)
    except (OSError, AttributeError):
        return
    threading.Thread(target=_wait, args=(descriptor, callback), daemon=True).start()


def _wait(descriptor: int, callback: Callable[[], None]) -> None:
    try:
        select.select([descriptor], [], [])
    finally:
        os.close(descriptor)
    callback()
