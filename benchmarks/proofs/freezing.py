"""Part g: ``%gpu`` knows when the driver has read CUDA_VISIBLE_DEVICES for good."""

from __future__ import annotations

import json

from proofs.findings import Findings
from proofs.kernel_server import Server
from proofs.place import Workplace

_ASK = "state = %gpu --json\nimport json; print(json.dumps(state))"


def prove(place: Workplace, findings: Findings) -> None:
    with place.server() as server:
        kernel = server.start("pytorch-1gpu")
        leased = list(place.lease_of(kernel["kernel"]).record.uuids)
        fresh = _process(server, kernel)
        findings.check("a fresh kernel's driver is open", fresh["state"] == "open", str(fresh))
        server.run(kernel, "import torch")
        imported = _process(server, kernel)
        findings.check("and after import torch", imported["state"] == "open", imported["state"])
        server.run(kernel, "torch.cuda.is_available()")
        asked = _process(server, kernel)
        initialised = server.run(kernel, "print(torch.cuda.is_initialized())").strip()
        findings.check(
            "after torch.cuda.is_available() it is frozen, and in force is what is leased",
            asked["state"] == "frozen" and _in_force(asked) == leased,
            f"in force {asked['in_force']}, torch.cuda.is_initialized() says {initialised}",
        )
        server.run(kernel, "import os; os.environ['CUDA_VISIBLE_DEVICES'] = '-1'")
        late = _process(server, kernel)
        findings.check(
            "a later value changes what is set, and not what is in force",
            late["set_now"] == "-1" and _in_force(late) == leased,
            f"launched with {late['launched_with']}, set now {late['set_now']}",
        )


def _process(server: Server, kernel: dict) -> dict:
    return json.loads(server.run(kernel, _ASK))["process"]


def _in_force(process: dict) -> list[str]:
    return [device["uuid"] for device in process["in_force"] or ()]
