"""Parts b and c: what happens to a lease when its kernel is killed, with workers and without."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Callable

from proofs.findings import Findings
from proofs.kernel_server import Server, ServerError
from proofs.place import Workplace, lives, ms_since, until

MEMORY_MIB = 512
# torch's workers look every five seconds whether their parent lives.
WORKERS_END_WITHIN = 20.0


def prove_with_workers(place: Workplace, findings: Findings) -> None:
    """Kill server and kernel while forked DataLoader workers live."""
    with place.server() as server:
        kernel = server.start("pytorch-1gpu")
        workers = server.call(kernel, f"start_workers({MEMORY_MIB})")["pids"]
        uuid = place.lease_of(kernel["kernel"]).record.uuids[0]
        with_kernel = place.used_bytes(uuid)
        killed = server.kill_with(kernel)
    until(lambda: not lives(kernel["pid"]), 5)
    seen = _watch(place, uuid, workers, killed)
    findings.check(
        "with forked workers alive the lease stays, named as draining with the workers",
        seen["draining_pids"] >= set(workers),
        f"workers {workers}, named {sorted(seen['draining_pids'])}",
        memory_with_kernel_mb=with_kernel // 10**6,
    )
    findings.check(
        "nobody gets the device while a worker lives",
        seen["given_out"] == 0 and seen["asked"] > 0,
        f"{seen['asked']} requests refused: {seen['words']}",
        requests=seen["asked"],
    )
    memory = seen["memory_after_kernel"]
    findings.check(
        "the device's memory stays taken meanwhile",
        memory > MEMORY_MIB * 2**20 // 2,
        f"{memory // 10**6} MB, under pids {seen['named']} (kernel {kernel['pid']})",
    )
    clear = until(lambda: place.is_clear(uuid), 10)
    place_free = until(lambda: place.refusal(uuid) is None, 10)
    ended = seen["ended"]
    findings.check(
        "when the workers have ended the device is given out again",
        True,
        f"workers ended {_ms(ended - killed)} ms after the kernel; "
        f"lease free {_ms(seen['freed'] - ended)} ms after them, "
        f"memory back {_ms(clear - ended)} ms, granted {_ms(place_free - ended)} ms",
        workers_ended_ms=_ms(ended - killed),
        lease_free_after_workers_ms=_ms(seen["freed"] - ended),
        memory_back_after_workers_ms=_ms(clear - ended),
        granted_after_workers_ms=_ms(place_free - ended),
        workers_ended_by_us=seen["ended_by_us"],
    )


def _watch(place: Workplace, uuid: str, workers: list[int], killed: float) -> dict:
    """Watch a device until the workers have ended and its lease is free."""
    seen = {"draining_pids": set(), "given_out": 0, "asked": 0, "words": "", "ended_by_us": False}
    seen["memory_after_kernel"], seen["named"] = place.used_bytes(uuid), place.named_pids(uuid)
    next_question = 0.0
    while any(map(lives, workers)):
        now = time.monotonic()
        if now > next_question:
            next_question = now + 0.25
            words = place.refusal(uuid)
            if all(map(lives, workers)):  # asked and answered while both lived
                seen["asked"] += 1
                seen["given_out"] += words is None
                seen["words"] = words or seen["words"]
            with place.store() as store:
                for lease in store.holdings().leases:
                    if uuid in lease.record.uuids and lease.state == "draining":
                        seen["draining_pids"] |= set(lease.pids)
        if now - killed > WORKERS_END_WITHIN:
            seen["ended_by_us"] = True
            for pid in workers:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.002)
    seen["ended"] = time.monotonic()
    seen["freed"] = until(lambda: place.is_free(uuid), 5)
    return seen


def prove_without_workers(place: Workplace, findings: Findings, rounds: int) -> None:
    """Kill kernels that use memory, and look what their device does until the next start."""
    with place.server() as server:
        idle = [_clock_death(place, server, _is_idle) for _ in range(rounds)]
        granted = [_clock_death(place, server, _is_given) for _ in range(rounds)]
        kernel = _using(server)
        os.kill(kernel["pid"], signal.SIGKILL)
        following = server.start("pytorch-1gpu")
        findings.check(
            "a killed kernel's device goes to the next start at once",
            True,
            f"the next kernel replied after {following['ms']:.0f} ms, "
            f"the one before, on an idle card, after {kernel['ms']:.0f} ms",
            next_reply_ms=following["ms"],
            usual_reply_ms=kernel["ms"],
        )
    locks = [first for first, _ in (*idle, *granted)]
    tidied, given = [last for _, last in idle], [last for _, last in granted]
    findings.check(
        "what else it waits for is the driver tidying up",
        max(given) < 2000,
        f"after the kill the lease is free in {locks} ms, the card idle in {tidied} ms, "
        f"the device given out in {given} ms",
        lease_free_ms=locks,
        card_idle_ms=tidied,
        granted_ms=given,
    )


def _using(server: Server) -> dict:
    kernel = server.start("pytorch-1gpu")
    server.call(kernel, f"take_memory({MEMORY_MIB})")
    return kernel


def _clock_death(
    place: Workplace, server: Server, happened: Callable[[Workplace, str], bool]
) -> tuple[float, float]:
    """Kill a kernel; return after how many ms its lease is free, and something has happened."""
    kernel = _using(server)
    uuid = place.lease_of(kernel["kernel"]).record.uuids[0]
    killed = time.monotonic()
    os.kill(kernel["pid"], signal.SIGKILL)
    until(lambda: place.is_free(uuid), 5, every=0.0005)
    freed = ms_since(killed)
    until(lambda: happened(place, uuid), 10, every=0.0005)
    took = ms_since(killed)
    with contextlib.suppress(ServerError):  # its kernel is gone
        server.shut_down(kernel)
    until(lambda: _is_idle(place, uuid), 10)
    return freed, took


def _is_idle(place: Workplace, uuid: str) -> bool:
    return place.is_clear(uuid) and not place.named_pids(uuid)


def _is_given(place: Workplace, uuid: str) -> bool:
    return place.refusal(uuid) is None


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 1)
