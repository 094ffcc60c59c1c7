"""The request options as traits, so that kernelspecs and server configuration set them alike."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from traitlets import HasTraits, TraitType

from jupyter_gpu.core.request import OPTIONS


class Option(TraitType[Any, Any]):
    """A trait that takes what a person wrote; ``Request.parse`` reads it and says what is wrong."""

    def from_string(self, text: str) -> str:
        """Take a value from the command line; traitlets calls this."""
        return text


class OptionBesideMethod(Option):
    """An option whose name a method of jupyter_client has already: ``wait``.

    It is set like any other; read as an attribute it is the method, which the kernel manager
    calls.
    """

    def __init__(self, method: Callable[..., Any], help: str) -> None:  # noqa: A002 - traitlets'
        super().__init__(None, allow_none=True, help=help)
        self._method = method

    def validate(self, obj: HasTraits, value: Any) -> Any:  # noqa: ANN401
        """Take any value. traitlets hands back what ``get`` gave it: then nothing has changed."""
        return obj._trait_values.get(self.name or "") if callable(value) else value  # noqa: SLF001

    def get(self, obj: HasTraits, cls: type[Any] | None = None) -> Any:  # noqa: ANN401
        """Return the method, bound; traitlets calls this to read the attribute."""
        return self._method.__get__(obj, cls)


WAIT_HELP = 'How long a start waits for a device, such as "10m", or 0. Default: 8s.'


class RequestOptions(HasTraits):
    """The options of interface.md, each a trait with its help; None means "not given"."""

    gpus = Option(
        None,
        allow_none=True,
        help='How many GPUs the kernel gets: 1 (the default), 2, … , 0, or "all"; a share of one, '
        'such as "1/4"; or a MIG device by its profile, such as "mig:1g.18gb".',
    ).tag(config=True)
    devices = Option(
        None,
        allow_none=True,
        help="Physical indices or UUIDs to choose from, such as [0, 3]. Default: any.",
    ).tag(config=True)
    min_free_memory = Option(
        None, allow_none=True, help='Memory that must be free on each, such as "20GiB".'
    ).tag(config=True)
    model = Option(
        None, allow_none=True, help='A part of the model\'s name, such as "H200".'
    ).tag(config=True)
    wait = Option(None, allow_none=True, help=WAIT_HELP).tag(config=True)
    identifiers = Option(
        None,
        allow_none=True,
        help='How CUDA_VISIBLE_DEVICES names devices: "auto" (the default: indices where they '
        'are certain), "index" or "uuid".',
    ).tag(config=True)
    topology = Option(
        None,
        allow_none=True,
        help='Whether several devices have to be joined by NVLink: "any" (the default: no '
        'matter), "prefer" (else the closest there are) or "require".',
    ).tag(config=True)
    cpu_affinity = Option(
        None,
        allow_none=True,
        help='Which CPUs the kernel may use: "none" (the default: no matter) or "closest" (those '
        "of its devices' NUMA node).",
    ).tag(config=True)
    memory_cap = Option(
        None,
        allow_none=True,
        help='The most memory that the kernel may use on each device: "auto" (the default: the '
        'share\'s part of it), "none", or an amount such as "10GiB".',
    ).tag(config=True)
    on_unavailable = Option(
        None,
        allow_none=True,
        help="For front ends that start kernels themselves: what the kernel does when no device "
        'can be had: "cpu" (the default: starts without), "wait" or "error".',
    ).tag(config=True)

    def given_options(self) -> dict[str, object]:
        """Return the options that somebody has set."""
        # Not by getattr, where a provisioner's method may have the name (see OptionBesideMethod).
        values = {name: self._trait_values.get(name) for name in OPTIONS}
        return {name: value for name, value in values.items() if value is not None}
