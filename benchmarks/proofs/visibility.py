"""Part d: what ``%gpu --json`` says of a value of CUDA_VISIBLE_DEVICES is what the driver does."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import pairs

from proofs.findings import Findings
from proofs.in_kernel import digits
from proofs.place import Workplace

TABLE = pairs.ROOT / "tests" / "data" / "driver_visibility.json"
# Positions are those of the table; its made-up UUIDs become those of this machine.
FROM_TABLE = (
    " ", "0,1", " 0,1", "0;1", "0x1", "+1", "-1", "-1,0", "0,99,1", "0,1,0", "NoDevFiles", "0.5,1",
    "2147483648",
    "GPU-2B1F70C3-5D9E-4A86-9C04-71E6A3D8F25B",
    "GPU-2b1f70c3-5d9e-4a86-9c04-71e6a3d8f25b ",
    "GPU-2b1f70c35d9e4a869c0471e6a3d8f25b",
    "GPU-2b1f70c3-5d9e-4a",
    "GPU-47ad90e6-c3f1-4b28-8e5d-0f92b6c1a374,GPU-2b1f70c3-5d9e-4a86-9c04-71e6a3d8f25b",
    "GPU-47ad90e6-c3f1-4b28-8e5d-0f92b6c1a374,0",
    "GPU-2b1f70c3-5d9e-4a86-9c04-71e6a3d8f25b,abc,GPU-47ad90e6-c3f1-4b28-8e5d-0f92b6c1a374",
)  # fmt: skip
QUICK = 6
MISSING = "GPU-00000000-0000-4000-8000-000000000000"
_UUID = re.compile(r"(GPU-)?((?:(?<=GPU-)[0-9A-Fa-f]{4}|\b[0-9A-Fa-f]{8}(?=-?[0-9A-Fa-f]{4}))[0-9A-Fa-f-]*)")


@dataclass(frozen=True, slots=True)
class Answer:
    """cuInit's code and the digits of the UUIDs in visible order."""

    cuinit: int | None
    uuids: tuple[str, ...]


def prove(place: Workplace, findings: Findings, *, quick: bool) -> None:
    real = [gpu.uuid for gpu in place.gpus]
    values = [None, *(in_this_machine(value, real) for value in FROM_TABLE)]
    rows = _ask(values[:QUICK] if quick else values)
    wrong = [row for row in rows if not row["agrees"]]
    findings.check(
        f"%gpu --json says what the driver does, for {len(rows)} values",
        not wrong,
        "; ".join(map(_words, wrong)),
        values=rows,
    )
    after = [row for row in rows if row["after"] != row["driver"]]
    findings.check(
        "and once the driver is initialised it shows the driver's own map",
        not after,
        "; ".join(f"{row['value']!r}: {row['after']}" for row in after),
    )
    frozen = [row["value"] for row in rows if row["before"] != "open"]
    findings.check("before that the state is open", not frozen, ", ".join(map(repr, frozen)))
    for row in _ask(unmeasured(real[0])):
        findings.check(
            f"not measured before: {row['value']}",
            row["agrees"],
            f"driver {row['driver']}" if row["agrees"] else _words(row),
            values=[row],
        )


def unmeasured(uuid: str) -> list[str]:
    """Return values that the table does not have."""
    return [
        "-4294967295",
        "-4294967296",
        "-18446744073709551615",
        "4294967296",
        "9223372036854775808",
        "18446744069414584320",
        "18446744073709551616",
        f"{uuid[:12]}xyz",
        f"{uuid[:12]} ",
        f"{uuid[:12]};",
        f"{uuid[:12]}-",
        f"{uuid}00",
        "GPU-",
        "GPU--",
        f"MIG-{uuid}",
    ]


def in_this_machine(value: str, real: list[str]) -> str:
    """Return a value of the table with this machine's UUIDs in place of the made-up ones."""
    made_up = _made_up()
    return translated(value, made_up, [*real, MISSING][: len(made_up)])


def masked(text: str, real: list[str]) -> str:
    """Return text with made-up UUIDs in place of this machine's."""
    more = [f"GPU-{number:08x}-5d9e-4a86-9c04-000000000000" for number in range(2, len(real))]
    made_up = [*_made_up(), *more][: len(real)]
    for old, new in zip(real, made_up, strict=True):
        text = text.replace(old, new)  # with anything behind it, more digits too
    return translated(text, real, made_up)


def translated(text: str, from_uuids: list[str], to_uuids: list[str]) -> str:
    """Return text with UUIDs, or beginnings of them, replaced and their spelling kept."""

    def replace(match: re.Match[str]) -> str:
        prefix, found = match[1] or "", match[2]
        for old, new in zip(from_uuids, to_uuids, strict=True):
            if digits(old).startswith(digits(found)):
                spelt = new.removeprefix("GPU-") if "-" in found else digits(new)
                rest = spelt[: len(found)]
                return prefix + (rest.upper() if found == found.upper() else rest)
        return match[0]

    return _UUID.sub(replace, text)


def _made_up() -> list[str]:
    return json.loads(TABLE.read_text(encoding="utf-8"))["uuids"]


def _ask(values: list[str | None]) -> list[dict]:
    with ThreadPoolExecutor(4) as pool:
        return list(pool.map(_ask_one, values))


def _ask_one(value: str | None) -> dict:
    done = subprocess.run(
        [sys.executable, str(Path(__file__).with_name("one_value.py"))],
        input=json.dumps(value),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    if done.returncode:
        raise RuntimeError(f"the process for {value!r} failed: {done.stderr[-500:]}")
    told = json.loads(done.stdout.splitlines()[-1])
    driver = [told["cuinit"], told["uuids"]]
    said = told["before"]["visible"]
    ours = [said["cuinit"], [digits(device["uuid"]) for device in said["devices"]]]
    return {
        "value": value,
        "driver": driver,
        "ours": ours,
        "agrees": driver == ours,
        "before": told["before"]["process"]["state"],
        "after": _after(told["after"]["process"], told["cuinit"]),
    }


def _after(process: dict, cuinit: int) -> list:
    """Return the map that the magic shows afterwards, in the form of the driver's answer."""
    if process["state"] != "frozen":
        return [cuinit or f"state {process['state']}", []]
    return [0, [digits(device["uuid"]) for device in process["in_force"]]]


def _words(row: dict) -> str:
    return f"{row['value']!r}: driver {row['driver']}, we say {row['ours']}"
