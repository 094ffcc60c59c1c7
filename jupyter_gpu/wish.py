"""A wish for other devices that waits for the kernel's next start."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from jupyter_gpu.adapters.request_file import drop_request, leave_request, take_request
from jupyter_gpu.core.devices import Device
from jupyter_gpu.core.errors import GPUError
from jupyter_gpu.core.request import Request
from jupyter_gpu.core.variables import ANNOUNCE, NOTICE


@dataclass(frozen=True, slots=True)
class Wish:
    """What was left for this start: a request, or else the trouble with what stood there."""

    request: Request | None = None
    trouble: GPUError | None = None


def leave_wish(connection_file: str, request: Request) -> None:
    """Leave a request for the next start with this connection file.

    Raises
    ------
    StoreError
        When it cannot be written there.
    """
    leave_request(connection_file, {**request.as_options(), "wait": request.wait_seconds})


def take_wish(connection_file: str | None) -> Wish | None:
    """Return what was left for this start, once; None when there is nothing."""
    if not connection_file:
        return None
    try:
        options = take_request(connection_file)
        return None if options is None else Wish(Request.parse(options, default_wait=0))
    except GPUError as error:
        return Wish(trouble=error)


def drop_wish(connection_file: str | None) -> None:
    """Remove what was left, because nothing will start with this connection file again."""
    if connection_file:
        drop_request(connection_file)


def devices_in_words(devices: tuple[Device, ...]) -> str:
    """Return ``"physical 0, 3"``, or ``"no GPU"``."""
    indices = ", ".join(str(device.index) for device in devices)
    return f"physical {indices}" if indices else "no GPU"


def not_granted(wish: Wish, error: GPUError, kept: str) -> str:
    """Return the notice for a kernel that starts with what it had before.

    Parameters
    ----------
    wish, error
        What was asked for, and why it could not be had.
    kept
        What the kernel has instead, in words.
    """
    asked = "What %gpu use" if wish.request is None else f"{wish.request.in_words()}, as %gpu use"
    return f"{asked} had asked for, could not be had.\n{error}\nThis kernel has {kept}."


def announced(environ: Mapping[str, str], notice: str | None) -> dict[str, str]:
    """Return the environment with a notice that the person is told before anything else."""
    if notice is None:
        return dict(environ)
    notices = [notice, *filter(None, [environ.get(NOTICE)])]
    return {**environ, NOTICE: "\n".join(notices), ANNOUNCE: "1"}
