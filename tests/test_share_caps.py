"""The caps of a share: which variables set them, how hard each is, and what is never done."""

from fractions import Fraction

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support_cli import GIB, device

from jupyter_gpu.core.caps import LEAST_BYTES, cap_in, jax_cap, torch_cap
from jupyter_gpu.core.errors import ImpossibleRequest
from jupyter_gpu.core.facts import MPS
from jupyter_gpu.core.share_caps import own_log_directory, share_caps, why_impossible

QUARTER = Fraction(1, 4)
WHOLE = 150_754_820_096
NEW, OLD = "2.13.0", "2.9.1"
DAEMON = MPS("/tmp/jupyter-gpu-mps-1000/pipe", daemon=True)
NO_DAEMON = MPS("/tmp/nvidia-mps", daemon=False)
TORCH, CUDA_TORCH = "PYTORCH_ALLOC_CONF", "PYTORCH_CUDA_ALLOC_CONF"
JAX, NEW_JAX = "XLA_PYTHON_CLIENT_MEM_FRACTION", "XLA_CLIENT_MEM_FRACTION"
LIMIT, THREADS = "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT", "CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"
CONTEXT = "the 600 MB that a CUDA context takes"
FIFTY = "a memory_cap of 50.0 GiB"
PIPES, LOGS = "CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY"
FRACTION = "per_process_memory_fraction"


def caps(share=QUARTER, cap="auto", environ=None, mps=NO_DAEMON, torch=NEW, devices=None):
    return share_caps(share, cap, devices or (device(0),), environ or {}, mps, torch)


def said(found):
    return " ".join(found.words)


class TestWithoutMPS:
    """Each framework is asked to hold itself back, and the words say what that leaves out."""

    def test_torch_and_jax_get_the_share(self):
        found = caps()
        assert found.environment == {TORCH: f"{FRACTION}:0.25", JAX: "0.25"}
        assert found.hardness == "torch"
        assert found.memory_bytes == WHOLE // 4

    def test_the_words_say_what_the_cap_leaves_out_and_what_is_harder(self):
        words = said(caps())
        assert "torch's cache at most 35.1 GiB of GPU 0 (torch 2.13.0)" in words
        assert "does not cover the CUDA context, other libraries or child processes" in words
        assert "isolates nothing" in words
        assert "TensorFlow grows as it needs, uncapped" in words
        assert "For a hard limit:  jupyter gpu mps start" in words

    @pytest.mark.parametrize("running", [False, None])
    def test_nothing_is_advised_that_a_simulated_machine_refuses(self, running):
        arguments = (QUARTER, "auto", (device(0),), {}, MPS("/tmp/nvidia-mps", running), NEW)
        plain, simulated = share_caps(*arguments), share_caps(*arguments, simulated=True)
        assert "mps start" in said(plain)
        assert "mps start" not in said(simulated)
        assert simulated.words == plain.words[:-1]
        assert simulated.environment == plain.environment

    def test_a_third_is_rounded_down(self):
        assert caps(Fraction(2, 3)).environment[TORCH] == f"{FRACTION}:0.666666"

    def test_settings_of_the_persons_own_are_merged(self):
        environ = {CUDA_TORCH: "expandable_segments:True"}
        assert caps(environ=environ).environment == {
            CUDA_TORCH: f"expandable_segments:True,{FRACTION}:0.25",
            JAX: "0.25",
        }

    def test_a_lower_cap_of_the_persons_own_stays(self):
        environ = {TORCH: f"{FRACTION}:0.1", NEW_JAX: "0.2"}
        found = caps(environ=environ)
        assert found.environment == {}
        assert found.hardness == "torch"
        assert found.memory_bytes == int(WHOLE * 0.1)
        assert "at most 14.0 GiB of GPU 0 (torch 2.13.0), your own setting" in said(found)
        assert "JAX takes at most 28.1 GiB" in said(found)

    @pytest.mark.parametrize("own", ["0.9", "1", "half", ""])
    def test_a_higher_or_unreadable_one_gives_way(self, own):
        found = caps(environ={TORCH: f"{FRACTION}:{own}", JAX: own})
        assert cap_in(found.environment[TORCH]) == 0.25
        assert found.environment[JAX] == "0.25"

    def test_jax_never_gets_a_second_of_its_two_variables(self):
        found = caps(environ={NEW_JAX: "0.9"})
        assert found.environment[NEW_JAX] == "0.25"
        assert JAX not in found.environment

    def test_both_of_torchs_variables_say_the_same_where_both_had_a_cap(self):
        environ = {CUDA_TORCH: f"{FRACTION}:0.9", TORCH: f"{FRACTION}:0.8"}
        after = {**environ, **caps(environ=environ).environment}
        assert {cap_in(after[name]) for name in (CUDA_TORCH, TORCH)} == {0.25}

    @pytest.mark.parametrize(
        ("torch", "why"),
        [
            (None, "none was found in this program's Python"),
            (OLD, "torch 2.9.1 reads none from the environment"),
            ("2.13.0+cpu", "torch 2.13.0+cpu is built without CUDA"),
            ("unreadable", "torch unreadable reads none"),
        ],
    )
    def test_a_torch_that_reads_no_cap_gets_none_and_the_words_say_so(self, torch, why):
        found = caps(torch=torch, environ={TORCH: "expandable_segments:True"})
        assert found.environment == {JAX: "0.25"}
        assert (found.hardness, found.memory_bytes) == ("none", None)
        assert f"torch has no cap: {why}" in said(found)
        assert "{}" not in said(found)

    def test_an_amount_is_a_fraction_of_the_device(self):
        found = caps(cap=10 * GIB)
        assert torch_cap(found.environment) == pytest.approx(10 * GIB / WHOLE, abs=1e-6)
        assert found.memory_bytes <= 10 * GIB

    def test_where_the_size_is_unknown_the_share_is_the_fraction(self):
        unknown = (device(0, memory_total_bytes=None),)
        for cap in ("auto", 10 * GIB):
            found = caps(cap=cap, devices=unknown)
            assert found.environment == {TORCH: f"{FRACTION}:0.25", JAX: "0.25"}
            assert found.memory_bytes is None
            assert "0.25 of the memory" in said(found)

    def test_without_a_cap_nothing_is_set_and_the_words_say_that(self):
        found = caps(cap="none")
        assert found.environment == {}
        assert found.hardness == "none"
        assert "no cap, because memory_cap is none: this program can fill all of GPU 0" in said(
            found
        )

    def test_a_daemon_that_cannot_be_seen_is_not_relied_on(self):
        found = caps(mps=MPS("/pipes", daemon=None))
        assert found.hardness == "torch"
        assert LIMIT not in found.environment
        assert "MPS control daemon of /pipes runs cannot be seen here" in said(found)

    def test_a_mig_device_is_not_told_to_use_mps(self):
        mig = (device(0, kind="mig", profile="1g.18gb", memory_total_bytes=16 * GIB),)
        found = caps(devices=mig, mps=DAEMON)
        assert LIMIT not in found.environment
        assert "at most 4.0 GiB of MIG device 1g.18gb of GPU 0" in said(found)
        assert "mps start" not in said(found)


class TestWithMPS:
    """The driver limits every process; torch is left alone, JAX told so that it need not retry."""

    def test_memory_and_multiprocessors_are_limited(self):
        found = caps(mps=DAEMON)
        limit = int(found.environment[LIMIT].removeprefix("0=").removesuffix("M")) * 2**20
        assert WHOLE // 4 - 2**20 < limit <= WHOLE // 4
        assert found.memory_bytes == limit
        assert found.environment[THREADS] == "25"
        assert found.environment[PIPES] == DAEMON.directory
        assert found.hardness == "mps"

    def test_the_words_say_what_is_hard_and_what_is_not(self):
        words = said(caps(mps=DAEMON))
        assert "Memory: at most 35.1 GiB in each process" in words
        assert "CUDA context included (MPS)" in words
        assert "A child process may take as much again" in words
        assert "Multiprocessors: at most ¼ of them" in words
        assert "a fault in one program" in words
        assert "mps start" not in words

    def test_torch_is_left_alone_and_jax_stays_below_the_limit(self):
        found = caps(mps=DAEMON, environ={TORCH: "expandable_segments:True"})
        assert not {TORCH, CUDA_TORCH} & found.environment.keys()
        room = jax_cap(found.environment) * WHOLE
        assert room <= found.memory_bytes - LEAST_BYTES

    def test_the_log_directory_is_told_for_a_daemon_of_ones_own_only(self):
        assert caps(mps=DAEMON).environment[LOGS] == "/tmp/jupyter-gpu-mps-1000/log"
        assert LOGS not in caps(mps=MPS("/tmp/nvidia-mps", daemon=True)).environment

    @pytest.mark.parametrize(
        ("share", "percent"), [("1/8", "12.5"), ("1/3", "33.33"), ("1/200", "1"), ("7/8", "87.5")]
    )
    def test_the_percentage_is_the_share_and_at_least_one(self, share, percent):
        assert caps(Fraction(share), mps=DAEMON).environment[THREADS] == percent

    @pytest.mark.parametrize("own", ["0=1G", "1=40G, 0=1024M", "0=1gb"])
    def test_a_lower_limit_of_the_persons_own_stays(self, own):
        found = caps(mps=DAEMON, environ={LIMIT: own, THREADS: "10"})
        assert not {LIMIT, THREADS} & found.environment.keys()
        assert found.memory_bytes == GIB
        assert "at most 1.0 GiB, your own setting, in each process" in said(found)
        assert "at most 10 in 100, your own setting" in said(found)

    @pytest.mark.parametrize("own", ["0=100G", "1=1G", "much", "", "0=-1G"])
    def test_a_higher_or_unreadable_one_gives_way_to_the_share(self, own):
        found = caps(mps=DAEMON, environ={LIMIT: own, THREADS: own})
        assert found.environment[LIMIT] == f"0={WHOLE // 4 // 2**20}M"
        assert found.environment[THREADS] == "25"

    def test_an_amount_is_the_limit(self):
        found = caps(cap=10 * GIB, mps=DAEMON)
        assert found.environment[LIMIT] == "0=10240M"
        assert found.memory_bytes == 10 * GIB

    def test_an_amount_needs_no_size(self):
        unknown = (device(0, memory_total_bytes=None),)
        found = caps(cap=10 * GIB, mps=DAEMON, devices=unknown)
        assert found.environment[LIMIT] == "0=10240M"
        assert found.environment[JAX] == "0.25"

    def test_a_share_of_an_unknown_size_is_left_to_the_frameworks(self):
        unknown = (device(0, memory_total_bytes=None),)
        found = caps(mps=DAEMON, devices=unknown)
        assert LIMIT not in found.environment
        assert found.environment[TORCH] == f"{FRACTION}:0.25"
        assert found.environment[THREADS] == "25"
        assert found.hardness == "torch"

    def test_without_a_cap_on_memory_only_multiprocessors_are_limited(self):
        found = caps(cap="none", mps=DAEMON)
        assert found.environment.keys() == {PIPES, LOGS, THREADS}
        assert found.hardness == "none"
        assert "memory_cap is none" in said(found)


class TestWholeDevices:
    """Whole devices have a cap only where one is asked for, and never go through MPS for it."""

    @pytest.mark.parametrize("share", [None, Fraction(1)])
    @pytest.mark.parametrize("cap", ["auto", "none"])
    def test_without_an_amount_there_is_nothing_to_say(self, share, cap):
        found = caps(share, cap, mps=DAEMON, devices=(device(0), device(1)))
        assert (found.environment, found.words, found.hardness) == ({}, (), "none")

    def test_no_devices_have_no_caps(self):
        assert share_caps(None, 10 * GIB, (), {}).environment == {}

    def test_an_amount_is_the_smallest_fraction_over_the_devices(self):
        two = (device(0, memory_total_bytes=40 * GIB), device(1, memory_total_bytes=80 * GIB))
        found = caps(None, 20 * GIB, mps=DAEMON, devices=two)
        assert found.environment == {TORCH: f"{FRACTION}:0.25", JAX: "0.25"}
        assert "torch's cache at most 20.0 GiB of each GPU" in said(found)
        assert "mps start" not in said(found)

    def test_the_whole_of_a_device_is_no_cap(self):
        found = caps(None, WHOLE)
        assert found.environment == {}
        assert "is the whole of it" in said(found)

    def test_an_amount_of_an_unknown_size_cannot_be_told(self):
        found = caps(None, 20 * GIB, devices=(device(0, memory_total_bytes=None),))
        assert found.environment == {}
        assert "its size is unknown" in said(found)

    def test_a_device_of_unknown_size_is_not_promised_anything(self):
        found = caps(None, 20 * GIB, devices=(device(0), device(1, memory_total_bytes=None)))
        assert "of each GPU whose size is known" in said(found)


class TestWhyImpossible:
    """What can never stand is told as a part of a sentence, and refused as a whole one."""

    @pytest.mark.parametrize(
        ("share", "cap", "why"),
        [
            ("1/1000", "auto", f"1/1000 of GPU 0 is 151 MB, less than {CONTEXT}"),
            ("1/4", 500_000_000, f"a memory_cap of 500 MB is less than {CONTEXT}"),
            ("1/4", 50 * GIB, f"{FIFTY} is more than the 35.1 GiB that are ¼ of GPU 0"),
            ("1", 200 * GIB, "a memory_cap of 200.0 GiB is more than the 140.4 GiB that GPU 0 has"),
        ],
    )
    def test_it_names_what_is_asked_and_what_there_is(self, share, cap, why):
        assert why_impossible(Fraction(share), cap, device(0)) == why
        with pytest.raises(ImpossibleRequest) as refused:
            caps(Fraction(share), cap)
        assert str(refused.value) == f"{why[0].upper()}{why[1:]}."
        assert "%" not in why

    def test_a_difference_too_small_for_one_digit_is_shown(self):
        why = why_impossible(QUARTER, WHOLE // 4 + 2**20, device(0))
        assert why == "a memory_cap of 35.1013 GiB is more than the 35.1003 GiB that are ¼ of GPU 0"

    @pytest.mark.parametrize(
        ("share", "cap", "total"),
        [
            ("1/4", "auto", WHOLE),
            ("1/1000", "none", WHOLE),
            ("1/1000", "auto", None),
            ("1/4", WHOLE // 4, WHOLE),
            ("1/4", 500 * GIB, None),
        ],
    )
    def test_what_can_stand_has_no_reason(self, share, cap, total):
        assert why_impossible(Fraction(share), cap, device(0, memory_total_bytes=total)) is None

    def test_a_whole_small_device_is_not_a_share(self):
        assert why_impossible(None, "auto", device(0, memory_total_bytes=GIB // 4)) is None


@pytest.mark.parametrize(
    ("pipes", "logs"),
    [
        ("/tmp/jupyter-gpu-mps-0/pipe", "/tmp/jupyter-gpu-mps-0/log"),
        ("/tmp/jupyter-gpu-mps-0", None),
        ("/tmp/nvidia-mps", None),
        ("pipe", None),
        ("", None),
    ],
)
def test_only_directories_of_our_making_have_a_log_directory(pipes, logs):
    assert own_log_directory(pipes) == logs


SHARES = st.fractions(min_value=0, max_value=1, max_denominator=64).filter(lambda s: 0 < s < 1)


@given(
    share=SHARES,
    total=st.integers(2**30, 2**38),
    cap=st.one_of(st.just("auto"), st.integers(LEAST_BYTES, 2**37)),
    own=st.floats(0, 1),
    daemon=st.booleans(),
)
def test_no_framework_is_ever_told_more_than_the_share(share, total, cap, own, daemon):
    one = device(0, memory_total_bytes=total)
    assume(why_impossible(share, cap, one) is None)
    environ = {TORCH: f"{FRACTION}:{own}", JAX: f"{own}"}
    found = share_caps(share, cap, (one,), environ, MPS("/pipes", daemon), NEW)
    after = {**environ, **found.environment}
    most = total * share if cap == "auto" else cap
    assert jax_cap(after) * total <= most + 1
    assert found.memory_bytes <= most
    if daemon:
        assert found.environment[LIMIT] == f"0={found.memory_bytes // 2**20}M"
    else:
        assert torch_cap(after) * total <= most + 1
