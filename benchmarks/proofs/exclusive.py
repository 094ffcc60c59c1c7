"""Part a: the devices inside the kernels are the leased ones, and nobody else gets them."""

from __future__ import annotations

from proofs.findings import Findings
from proofs.in_kernel import digits
from proofs.kernel_server import Server, ServerError
from proofs.place import AT_ONCE, Workplace

TWO = "two kernels with one GPU each have different ones"


def prove(place: Workplace, findings: Findings) -> None:
    with place.server() as server:
        first = server.start("pytorch-1gpu")
        had = [_check_devices(place, findings, server, first)]
        if len(place.gpus) > 1:
            second = server.start("pytorch-1gpu")
            had.append(_check_devices(place, findings, server, second))
            findings.check(TWO, not set(had[0]) & set(had[1]))
            server.shut_down(second)
            _check_refused(findings, server, "pytorch-2gpus", "two GPUs are refused meanwhile")
            server.shut_down(first)
            both = server.start("pytorch-2gpus")
            _check_devices(place, findings, server, both)
        else:
            findings.not_run(TWO, "one GPU")
            _check_refused(findings, server, "pytorch-1gpu", "the one GPU is refused meanwhile")
            findings.not_run("two GPUs are refused meanwhile", "one GPU: see the row above")


def _check_devices(
    place: Workplace, findings: Findings, server: Server, kernel: dict
) -> list[str]:
    told = server.call(kernel, "tell_devices()")
    lease = place.lease_of(kernel["kernel"])
    leased = [] if lease is None else [digits(uuid) for uuid in lease.record.uuids]
    same = bool(leased) and told["torch"] == told["driver"] == leased
    findings.check(
        f"torch and the driver report the leased {len(leased)} GPU(s), which compute",
        same and told["computed"],
        f"CUDA_VISIBLE_DEVICES={told['value']}"
        + ("" if same else f", leased {leased}, driver {told['driver']}, torch {told['torch']}"),
        first_reply_ms=round(kernel["ms"], 1),
    )
    return told["driver"]


def _check_refused(findings: Findings, server: Server, name: str, what: str) -> None:
    try:
        server.start(name + AT_ONCE)
    except ServerError as error:
        # The sentence must name the holder; any other error is not a refusal.
        words = str(error)
        findings.check(what, "kernel" in words and "GPU" in words, words)
    else:
        findings.check(what, found=False, detail=f"{name} was started")
