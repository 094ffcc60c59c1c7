"""Part i: shares of one GPU under MPS and without, CPUs near it, and GPUs joined by NVLink."""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from fractions import Fraction

from proofs.findings import Findings
from proofs.kernel_server import Server, ServerError
from proofs.place import Workplace

GIB = 2**30
# A cap may be missed by the allocator's own granularity, and by what a context takes.
_SLACK_GIB = 1.5
_MPS = "a share under MPS"
_PLAIN = "a share without MPS"


def prove(place: Workplace, findings: Findings) -> None:
    """Prove each statement; one that cannot be put to the test keeps no other from it."""
    for name, config in (
        ("quarter", {"gpus": "1/4"}),
        ("eighth", {"gpus": "1/8"}),
        ("third", {"gpus": "1/3"}),
        ("whole", {"gpus": 1}),
        ("near-cpus", {"gpus": 1, "cpu_affinity": "closest"}),
    ):
        place.add_kernelspec(f"{name}-now", {**config, "wait": 0})
    with _guarded(findings, _PLAIN):
        _without_mps(place, findings)
    with _guarded(findings, _MPS):
        _under_mps(place, findings)
    with _guarded(findings, "CPU affinity"):
        _near_cpus(place, findings)
    with _guarded(findings, "topology"):
        _neighbours(place, findings)


@contextlib.contextmanager
def _guarded(findings: Findings, what: str) -> Iterator[None]:
    try:
        yield
    except TimeoutError:
        raise
    except Exception as error:  # the rest is proved all the same
        findings.failed(what, error)


def _without_mps(place: Workplace, findings: Findings) -> None:
    with place.server() as server:
        kernel = server.start("quarter-now")
        lease = place.lease_of(kernel["kernel"])
        cap = place.gpus[0].memory_total_bytes / 4 / GIB
        told = server.call(kernel, "take_until_refused()")
        findings.check(
            f"{_PLAIN}: torch takes no more than a quarter, and the error is its own",
            _near(told["taken_gib"], cap) and told["error"] == "OutOfMemoryError",
            f"{told['taken_gib']} of {cap:.1f} GiB, then {told['error']}",
            **told,
        )
        words = " ".join(lease.record.caps)
        findings.check(
            f"{_PLAIN}: what is said names what the cap does not cover",
            all(word in words for word in ("context", "other", "mps start")),
            words,
        )
        jax = server.start("quarter-now")
        told = server.call(jax, "take_until_refused_by_jax()")
        findings.check(
            f"{_PLAIN}: JAX takes no more than a quarter",
            _near(told["taken_gib"], cap),
            f"{told['taken_gib']} of {cap:.1f} GiB, then {told['error']}",
            **told,
        )


def _near(found: float, cap: float) -> bool:
    return cap - 3 * _SLACK_GIB <= found <= cap + 0.1


def _under_mps(place: Workplace, findings: Findings) -> None:
    began = _mps("start")
    findings.check(f"{_MPS}: jupyter gpu mps start", began.get("daemon") is True, json.dumps(began))
    try:
        with place.server() as server:
            _two_quarters(place, findings, server)
        with place.server() as server:
            _other_parts(findings, server)
    finally:
        ended = _mps("stop", "--force")
        findings.check(
            f"{_MPS}: jupyter gpu mps stop", ended.get("daemon") is False, json.dumps(ended)
        )


def _two_quarters(place: Workplace, findings: Findings, server: Server) -> None:
    total = place.gpus[0].memory_total_bytes / GIB
    cap = total / 4
    one, two = server.start("quarter-now"), server.start("quarter-now")
    leases = [place.lease_of(kernel["kernel"]) for kernel in (one, two)]
    same = leases[0].record.uuids == leases[1].record.uuids
    findings.check(
        f"{_MPS}: two quarters are on one device",
        same and sum((lease.share for lease in leases), Fraction(0)) == Fraction(1, 2),
        "; ".join(leases[1].record.because),
    )
    told = server.call(one, "tell_memory()")
    findings.check(
        f"{_MPS}: free memory inside reads the cap, and multiprocessors a quarter",
        abs(told["free_gib"] - cap) < _SLACK_GIB and told["multiprocessors"] <= 36,
        f"free {told['free_gib']}, total {told['total_gib']} GiB, "
        f"{told['multiprocessors']} multiprocessors; {told['variables']}",
        **told,
    )
    held = server.call(one, "take_until_refused()")
    findings.check(
        f"{_MPS}: torch is refused beyond the cap, cleanly",
        _near(held["taken_gib"], cap) and held["error"] == "OutOfMemoryError",
        f"{held['taken_gib']} of {cap:.1f} GiB, then {held['error']}",
        **held,
    )
    jax = server.call(two, "take_until_refused_by_jax()")
    findings.check(
        f"{_MPS}: JAX is refused beyond the cap, while the other quarter is full",
        _near(jax["taken_gib"], cap),
        f"{jax['taken_gib']} of {cap:.1f} GiB, limit {jax['limit_gib']}, then {jax['error']}",
        **jax,
    )
    after = [server.call(one, "tell_devices()"), server.call(two, "tell_devices()")]
    findings.check(
        f"{_MPS}: both kernels compute after they were refused",
        all(one_told["computed"] for one_told in after),
        after[0]["value"],
    )
    third = server.start("quarter-now")
    lease = place.lease_of(third["kernel"])
    findings.check(
        f"{_MPS}: a third quarter lands on the device that is shared already",
        lease.record.uuids == leases[0].record.uuids,
        "; ".join(lease.record.because),
    )
    child = server.call(third, "let_a_child_take(20)")
    findings.measured(
        f"{_MPS}: a child of a kernel beside 20 GiB of the kernel's own", json.dumps(child)
    )
    if len(place.gpus) == 1:
        _refused(findings, server, "whole-now", f"{_MPS}: a whole GPU is refused, with the holders")
    names = [place.command_of(pid) for pid in place.named_pids(leases[0].record.uuids[0])]
    findings.measured(f"{_MPS}: processes that NVML names", "; ".join(names))
    findings.measured(f"{_MPS}: status while in use", json.dumps(_mps("status")))
    findings.check(
        f"{_MPS}: what is said is that the limits are hard",
        any("MPS" in words for words in leases[0].record.caps),
        " ".join(leases[0].record.caps),
    )


def _other_parts(findings: Findings, server: Server) -> None:
    for name in ("eighth", "third"):
        told = server.call(server.start(f"{name}-now"), "tell_memory()")
        findings.measured(
            f"{_MPS}: inside a share of an {name}" if name == "eighth" else f"{_MPS}: of a {name}",
            f"free {told['free_gib']}, total {told['total_gib']} GiB, "
            f"{told['multiprocessors']} multiprocessors; {told['variables']}",
        )


def _refused(findings: Findings, server: Server, name: str, what: str) -> None:
    try:
        server.start(name)
    except ServerError as error:
        findings.check(what, "GPU" in str(error) and "kernel" in str(error), str(error))
    else:
        findings.check(what, found=False, detail="it was started")


def _near_cpus(place: Workplace, findings: Findings) -> None:
    with place.server() as server:
        kernel = server.start("near-cpus-now")
        lease = place.lease_of(kernel["kernel"])
        topology = place.topology()
        near = topology.place(lease.record.uuids[0]).cpus
        allowed = os.sched_getaffinity(0)
        expected = sorted(set(near or ()) & allowed) or sorted(allowed)
        inside = server.call(kernel, "tell_cpus()")
        findings.check(
            "cpu_affinity closest: the kernel is on the CPUs that NVML names, as far as allowed",
            inside["cpus"] == expected,
            f"{len(near or ())} near, {len(allowed)} allowed, {len(inside['cpus'])} in the kernel; "
            + "; ".join(lease.record.because),
        )


def _neighbours(place: Workplace, findings: Findings) -> None:
    import jupyter_gpu
    from jupyter_gpu.core.errors import ImpossibleRequest

    what = "topology require: two GPUs joined by NVLink, reported as such"
    if len(place.gpus) > 1:
        with jupyter_gpu.acquire(2, topology="require") as lease:
            links = place.topology().among(lease.record.uuids)
            said = "; ".join(lease.record.because)
            findings.check(what, all(link.nvlink for link in links) and "NVLink" in said, said)
        return
    findings.not_run(what, "one GPU")
    try:
        jupyter_gpu.acquire(2, topology="require")
    except ImpossibleRequest as error:
        words = str(error)
        findings.check("topology require: more than there is can never be met", True, words)


def _mps(*words: str) -> dict[str, object]:
    done = subprocess.run(
        [sys.executable, "-m", "jupyter_gpu", "mps", *words, "--json"],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    try:
        return json.loads(done.stdout)
    except ValueError:
        return {"status": done.returncode, "said": (done.stdout + done.stderr)[-600:]}

