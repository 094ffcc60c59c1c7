"""A grant is written down: for readers, for the notebook's next start, for the report."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timezone

from jupyter_gpu.adapters.claim import Claim
from jupyter_gpu.adapters.grant_log import GrantLog
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.candidates import Look
from jupyter_gpu.core.leases import Origin, Owner, Record
from jupyter_gpu.core.policy import Choice
from jupyter_gpu.core.request import Request
from jupyter_gpu.outfit import Outfit


@dataclass(frozen=True, slots=True)
class Caller:
    """Where a request came from, None where that is not said, and what will run on the devices.

    The Python of ``program`` says which torch reads the caps of a share; None is this one.
    """

    origin: Origin | None = None
    program: str | None = None


def record_of(
    claim: Claim,
    request: Request,
    owner: Owner,
    choice: Choice,
    look: Look,
    fitted: Outfit,
    origin: Origin | None,
) -> Record:
    """Return what others can read about a lease that is granted now."""
    return Record(
        id=claim.id,
        owner=owner,
        since=datetime.now(timezone.utc).isoformat(timespec="seconds"),
        request=request,
        uuids=choice.uuids,
        indices=tuple(device.index for device in choice.devices),
        units=request.units,
        ancestors=look.pool.ancestors,
        because=(*choice.because, *fitted.because),
        origin=origin,
        caps=fitted.caps,
        notebooks=look.around.site.notebooks,
    )


def write_down(store: LeaseStore, claim: Claim, record: Record, *, logged: bool) -> None:
    """Publish a record, and log the grant unless the devices are an outer lease's.

    Raises
    ------
    StoreError
        When the record cannot be written.
    """
    store.publish(claim, record)
    if logged and not record.ancestors:
        GrantLog(store.place).granted(record, record.share)
    store.remember_devices(record.owner.notebook, record.uuids)
    # A grant leaves one record behind at most and a sweep takes many, so one grant in sixteen,
    # as its random id falls, keeps the directory clean and the others pay nothing.
    if claim.id.endswith("0"):
        store.sweep()
