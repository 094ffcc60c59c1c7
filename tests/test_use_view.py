"""What ``%gpu use`` answers."""

import dataclasses
import json
from datetime import datetime, timezone

from jupyter_gpu.core.devices import Inventory
from jupyter_gpu.core.layout import DEVICE_UNITS
from jupyter_gpu.core.leases import Lease, Owner, Record
from jupyter_gpu.core.render_text import as_text
from jupyter_gpu.core.request import Request
from jupyter_gpu.core.use_view import (
    Changed,
    Left,
    changed_answer,
    changed_view,
    left_answer,
    left_view,
)
from jupyter_gpu.testing import fake_gpu

NOW = datetime(2026, 3, 4, 12, 0, tzinfo=timezone.utc)
GPUS = tuple(fake_gpu(index) for index in range(4))
MACHINE = Inventory("simulated", "580.95.05", "13.0", None, GPUS)
RECORD = Record(
    "a" * 15,
    Owner("kernel", notebook="/home/a/train.ipynb"),
    since="2026-03-04T10:42:00+00:00",
    uuids=(GPUS[3].uuid, GPUS[1].uuid),
    indices=(3, 1),
    because=("asked for by name",),
)
LEASE = Lease(RECORD, "alice", "active", (12,))


def test_the_new_map_with_its_lease():
    changed = Changed((GPUS[3], GPUS[1]), (GPUS[0],), LEASE)
    text = as_text(changed_view(changed, MACHINE, NOW))
    assert text.startswith("2 of 4 GPUs are yours now")
    assert "cuda:0 = physical 3  H200" in text
    assert "cuda:1 = physical 1  H200" in text
    assert "Leased since 10:42 for train.ipynb; ends with this kernel." in text
    assert "Why these: asked for by name." in text
    assert "Before: physical 0." in text
    answer = changed_answer(changed, Request(2))
    assert answer["devices"][0] == {"ordinal": 0, "index": 3, "uuid": GPUS[3].uuid}
    assert (answer["schema"], answer["when"]) == (1, "now")
    json.dumps(answer)


def test_none_and_a_kernel_without_a_notebook():
    text = as_text(changed_view(Changed((), (GPUS[0],), None), MACHINE, NOW))
    assert text.startswith("This kernel has no GPU now")
    assert "Before: physical 0." in text
    record = dataclasses.replace(
        RECORD, owner=Owner("kernel"), uuids=(GPUS[3].uuid,), indices=(3,)
    )
    changed = Changed((GPUS[3],), (GPUS[3],), dataclasses.replace(LEASE, record=record))
    text = as_text(changed_view(changed, MACHINE, NOW))
    assert text.startswith("1 of 4 GPUs is yours now")
    assert "for this kernel; ends with it." in text
    assert "Before" not in text


def test_what_waits_for_the_restart():
    left = Left(notes=("Restart the kernel.",))
    text = as_text(left_view(Request(2), left, MACHINE))
    assert text.startswith("2 GPUs: not yet")
    assert "Restart the kernel." in text
    answer = left_answer(Request(2, ("1", "3")), left)
    assert answer["request"] == {"gpus": 2, "devices": ["1", "3"]}
    assert (answer["when"], answer["restarting"], answer["devices"]) == ("restart", False, None)
    assert as_text(left_view(Request("all"), Left(True), MACHINE)).startswith(
        "All GPUs: with the restart"
    )
    assert left_answer(Request(), Left(True))["restarting"]


def changed_text(device, machine, **of_record):
    record = dataclasses.replace(RECORD, uuids=(device.uuid,), indices=(device.index,), **of_record)
    lease = dataclasses.replace(LEASE, record=record)
    view = changed_view(Changed((device,), (), lease), machine, NOW)
    return " ".join(as_text(view).split())


def test_a_share_is_said_with_its_caps():
    caps = ("Memory: torch's cache at most 70.2 GiB.", "Multiprocessors: all of them.")
    text = changed_text(GPUS[0], MACHINE, units=DEVICE_UNITS // 2, caps=caps)
    assert text.startswith("½ of physical 0 is yours now (4 GPUs on this machine)")
    assert " ".join(caps) in text


def test_a_mig_device_is_said_to_be_one():
    part = dataclasses.replace(GPUS[1], kind="mig", uuid="MIG-1f2e3d4c-1", profile="1g.18gb")
    text = changed_text(part, dataclasses.replace(MACHINE, devices=(*GPUS, part)))
    assert text.startswith("1 MIG device is yours now: 1g.18gb of physical 1 ")
