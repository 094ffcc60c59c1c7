"""The extension of jupyter_server: ends kernels that nobody uses, and answers read-only questions.

Without it kernels get their devices all the same. The wheel switches it on; a server loads it with
``_load_jupyter_server_extension``. Ending kernels is off until a time is set.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
from collections.abc import Callable
from datetime import datetime, timezone
from typing import Any

from jupyter_server.auth.decorator import authorized
from jupyter_server.base.handlers import APIHandler
from jupyter_server.utils import url_path_join
from tornado import web
from tornado.ioloop import PeriodicCallback
from traitlets import Float, HasTraits, TraitType
from traitlets.config import LoggingConfigurable

from jupyter_gpu.core.answers import SCHEMA, status_answer, who_answer
from jupyter_gpu.core.errors import GPUError, RequestError, StoreError
from jupyter_gpu.core.idleness import IDLE_TIME, is_over, parse_idle_time, shorter
from jupyter_gpu.faces.following import USES
from jupyter_gpu.idle import site_times
from jupyter_gpu.overview import NOT_EXCLUSIVE, read_overview

RESOURCE = "jupyter_gpu"
_OK, _FAILURE, _UNAVAILABLE = 200, 500, 503


def _jupyter_server_extension_points() -> list[dict[str, str]]:
    """Name this module as an extension; a server asks for this."""
    return [{"module": __name__}]


def _load_jupyter_server_extension(app: Any) -> None:  # noqa: ANN401 - jupyter_server is untyped here
    """Begin; a server calls this once, before it answers."""
    JupyterGPU(parent=app).begin(app)


class IdleTime(TraitType[Any, Any]):
    """A trait that takes a time as a person writes it, and is its seconds; None is never."""

    default_value = None
    info_text = IDLE_TIME

    def validate(self, obj: HasTraits, value: object) -> float | None:
        """Return the seconds; traitlets calls this."""
        try:
            return parse_idle_time(self.name or "", value)
        except RequestError:
            self.error(obj, value)

    def from_string(self, text: str) -> str:
        """Take a value from the command line; traitlets calls this."""
        return text


class JupyterGPU(LoggingConfigurable):
    """What the GPUs of idle kernels come to on this server."""

    idle_warning = IdleTime(
        allow_none=True,
        help="After how long a kernel that runs no cell, and whose GPUs do nothing, tells so "
        'under its last cell, such as "2h". The site\'s rules may set a time too: the shorter '
        "counts. Default: never.",
    ).tag(config=True)
    idle_shutdown = IdleTime(
        allow_none=True,
        help="After how long such a kernel is ended, whatever it keeps in memory, so that others "
        'get its GPUs, such as "8h". Kernels without a GPU, and those of which it is not known '
        "whether their GPUs do nothing, live on. The site's rules may set a time too: the shorter "
        "counts. Default: never.",
    ).tag(config=True)
    check_every = Float(30.0, min=0.01, help="Seconds between two looks for kernels to end.").tag(
        config=True
    )

    def begin(self, app: Any) -> None:  # noqa: ANN401 - jupyter_server is untyped here
        """Begin to answer and to look for idle kernels; called when the extension is loaded."""
        self._told = ""
        pattern = "(status|leases|queue)"
        path = url_path_join(app.web_app.settings["base_url"], "jupyter-gpu", "api", pattern)
        app.web_app.add_handlers(".*$", [(path, GPUHandler)])
        self._kernels = app.kernel_manager
        self._settings = app.web_app.settings
        PeriodicCallback(self.end_idle_kernels, self.check_every * 1000).start()

    async def end_idle_kernels(self) -> None:
        """End every kernel that has been idle for too long; called again and again."""
        seconds = await asyncio.to_thread(self._shutdown_seconds)
        if seconds is None:
            return
        for kernel_id in tuple(self._kernels.list_kernel_ids()):
            await self._end_if_idle(kernel_id, seconds)

    async def _end_if_idle(self, kernel_id: str, seconds: float) -> None:
        try:
            await self._end_one(kernel_id, seconds)
        except Exception:  # one that cannot be ended is no reason to keep the others
            self.log.exception("GPU: kernel %s could not be ended", kernel_id)

    async def _end_one(self, kernel_id: str, seconds: float) -> None:
        use = self._settings.get(USES, {}).get(kernel_id)
        if use is None or kernel_id not in self._kernels:
            return
        provisioner = self._kernels.get_kernel(kernel_id).provisioner
        lease = provisioner.lease
        if lease is None or lease.released:
            return
        since = use.idle_since(provisioner)
        if not is_over(since, seconds, _now()):
            return
        indices = ", ".join(map(str, lease.recorded_indices()))
        self.log.warning(
            "GPU: kernel %s ends and gives back physical %s: idle since %s, and idle_shutdown "
            "is %.0f s",
            kernel_id,
            indices,
            since,
            seconds,
        )
        await self._kernels.shutdown_kernel(kernel_id)

    def _shutdown_seconds(self) -> float | None:
        """Return the shorter of the configured time and the site's, which may have changed."""
        site = None
        try:
            site = site_times(os.environ).shutdown_seconds
            self._told = ""
        except GPUError as error:  # then nothing is granted either, and whoever asks is told
            if self._told != str(error):
                self._told = str(error)
                self.log.warning("GPU: no time of the site's rules counts: %s", self._told)
        return shorter(self.idle_shutdown, site)


class GPUHandler(APIHandler):  # type: ignore[misc] # untyped base
    """Answers ``GET /jupyter-gpu/api/status``, ``leases`` and ``queue``."""

    auth_resource = RESOURCE

    @web.authenticated
    @authorized  # type: ignore[untyped-decorator] # jupyter_server is untyped here
    async def get(self, what: str) -> None:
        """Answer as ``jupyter gpu status`` and ``who`` do."""
        status, body = await answered(what, _ANSWERS[what], self.log)
        self.set_status(status)
        self.finish(json.dumps(body))


async def answered(
    what: str, read: Callable[[], dict[str, object]], log: logging.Logger
) -> tuple[int, dict[str, object]]:
    """Return the status and the body of an answer, which is read in a thread."""
    try:
        return _OK, await asyncio.to_thread(read)
    except GPUError as error:
        return _UNAVAILABLE, {"schema": SCHEMA, "message": str(error)}
    except Exception:  # whatever it is, who asks is told no more than that
        log.exception("GPU: %s could not be read", what)
        message = "This could not be read. The server's log says more."
        return _FAILURE, {"schema": SCHEMA, "message": message}


def _status() -> dict[str, object]:
    return status_answer(read_overview(os.environ))


def _leases() -> dict[str, object]:
    overview = read_overview(os.environ, sensors=False)
    problem = overview.leasing.problem
    if problem not in (None, NOT_EXCLUSIVE):
        # An empty list would say that nobody holds anything.
        raise StoreError(problem)
    return who_answer(overview)


def _queue() -> dict[str, object]:
    answer = _leases()
    return {name: answer[name] for name in ("schema", "queue", "leasing")}


_ANSWERS: dict[str, Callable[[], dict[str, object]]] = {
    "status": _status,
    "leases": _leases,
    "queue": _queue,
}


def _now() -> datetime:
    return datetime.now(timezone.utc)
