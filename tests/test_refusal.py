"""The words of a refusal."""

from datetime import datetime, timedelta, timezone

import pytest
from hypothesis import given
from hypothesis import strategies as st

from jupyter_gpu.core.devices import Device
from jupyter_gpu.core.leases import Holdings, Lease, Owner, Record, Waiter
from jupyter_gpu.core.policy import Candidate
from jupyter_gpu.core.refusal import (
    Reader,
    holder_in_words,
    idle_in_words,
    refusal,
    short_holder,
    short_lines,
    since_in_words,
)
from jupyter_gpu.core.request import Request

ZONE = timezone(timedelta(hours=2))
NOW = datetime(2026, 12, 1, 11, 30, tzinfo=ZONE)
BEN = Reader("kernel", "ben", NOW)


def candidates(*reasons):
    return tuple(
        Candidate(Device(i, f"GPU-{i:02}", "NVIDIA H200"), reason)
        for i, reason in enumerate(reasons)
    )


def lease(*indices, number=1, user="ada", state="active", note=None, **owner):
    record = Record(
        id=f"{number:015x}",
        owner=Owner("kernel", **owner),
        since="2026-12-01T07:12:00+00:00",
        uuids=tuple(f"GPU-{i:02}" for i in indices),
        indices=indices,
    )
    return Lease(record, user, state, note=note)


@pytest.mark.parametrize(
    ("owner", "words", "short"),
    [
        ({"notebook": "/home/ada/a b.ipynb"}, "/home/ada/a b.ipynb", "a b.ipynb"),
        ({"command": "python train.py"}, "python train.py", "python train.py"),
        ({"kernel_id": "0123456789abcdef"}, "kernel 01234567", "kernel 01234567"),
        ({}, "a program", "a program"),
        ({"notebook": "a.ipynb", "command": "python"}, "a.ipynb", "a.ipynb"),
    ],
)
def test_a_holder_is_its_notebook_or_its_command_or_its_kernel(owner, words, short):
    assert holder_in_words(Owner("kernel", **owner)) == words
    assert short_holder(Owner("kernel", **owner)) == short


@pytest.mark.parametrize(
    ("since", "words"),
    [
        ("2026-12-01T07:12:00+00:00", "09:12"),
        ("2026-11-30T23:30:00+00:00", "01:30"),
        ("2026-11-30T16:40:00+00:00", "yesterday 18:40"),
        ("2026-10-05T16:40:00+00:00", "2026-10-05 18:40"),
        ("", "–"),
        ("soon", "–"),
        ("1999-01-01T00:00:00+00:00", "1999-01-01 02:00"),
        ("0001-01-01T00:00:00+14:00", "–"),
        ("9999-12-31T23:59:59+00:00", "–"),
    ],
)
def test_a_time_is_said_as_a_person_says_it(since, words):
    assert since_in_words(since, NOW) == words


@pytest.mark.parametrize(
    ("ago", "words"),
    [
        (timedelta(seconds=60), "idle 1 min"),
        (timedelta(minutes=12, seconds=59), "idle 12 min"),
        (timedelta(minutes=59, seconds=59), "idle 59 min"),
        (timedelta(hours=1), "idle 1 h"),
        (timedelta(hours=3, minutes=59), "idle 3 h"),
        (timedelta(hours=23, minutes=59), "idle 23 h"),
        (timedelta(hours=24), "idle 1 day"),
        (timedelta(days=2, hours=5), "idle 2 days"),
        (timedelta(days=400), "idle 400 days"),
        (timedelta(0), "idle 1 min"),
        (timedelta(seconds=-5), "idle 1 min"),
    ],
)
def test_an_idle_time_is_said_as_a_person_says_it(ago, words):
    assert idle_in_words((NOW - ago).isoformat(), NOW) == words
    assert idle_in_words(None, NOW) == ""


def test_a_refusal_says_that_a_holder_is_idle():
    idle = (NOW - timedelta(hours=2)).isoformat()
    holdings = Holdings((lease(0, notebook="/a/b.ipynb", idle_since=idle),))
    message = refusal(Request(), candidates("leased"), holdings, BEN)
    assert "  0  ada  /a/b.ipynb  since 09:12, idle 2 h\n" in message
    draining = lease(0, state="draining", notebook="/a/b.ipynb", idle_since=idle)
    message = refusal(Request(), candidates("leased"), Holdings((draining,)), BEN)
    assert "idle" not in message


@given(st.text() | st.datetimes().map(datetime.isoformat))
def test_any_time_can_be_said(since):
    assert since_in_words(since, NOW)


def test_a_refusal_says_what_was_asked_who_holds_it_and_what_to_do():
    holdings = Holdings(leases=(lease(0, 1, notebook="/home/ada/train.ipynb"),))
    message = refusal(Request(), candidates("leased", "leased"), holdings, BEN)
    assert message.splitlines() == [
        "No GPU is free (2 on this machine).",
        "  0, 1  ada  /home/ada/train.ipynb  since 09:12",
        "For an entry that waits:",
        "  jupyter gpu install --gpus 1 --wait 30m --name wait-1",
    ]


def test_whose_kernel_holds_it_is_told_that_closing_a_tab_frees_nothing():
    holdings = Holdings(leases=(lease(0, notebook="/home/ada/train.ipynb"),))
    mine = "A kernel of yours holds one: shut it down; closing its tab does not."
    ada = Reader("kernel", "ada", NOW)
    assert mine in refusal(Request(), candidates("leased"), holdings, ada).splitlines()
    assert mine not in refusal(Request(), candidates("leased"), holdings, BEN)


@pytest.mark.parametrize(
    ("kind", "wait", "fewer"),
    [
        ("kernel", "jupyter gpu install --gpus 2 --wait 30m", "pick a kernel with 1 GPU."),
        ("command", "To wait for them:  --wait 30m", "Or take 1:  --gpus 1"),
        ("api", 'To wait for them:  wait="30m"', "Or take 1:  gpus=1"),
    ],
)
def test_what_to_do_is_said_in_the_words_of_where_they_asked(kind, wait, fewer):
    reader = Reader(kind, "ben", NOW)
    message = refusal(Request(gpus=2), candidates("leased", None), Holdings(), reader)
    assert wait in message
    assert fewer in message


def test_lines_are_short_and_paths_stay_whole():
    path = "/a" * 60
    lines = short_lines(f"First.\n  0  {'word ' * 40}\n  {path}").splitlines()
    assert lines[0] == "First."
    assert lines[1].startswith("  0  word")
    assert all(len(line) <= 76 for line in lines[:-1])
    assert lines[-1].strip() == path


def test_what_is_free_but_too_few_is_offered():
    holdings = Holdings(leases=(lease(0, command="python train.py"),))
    message = refusal(Request(gpus=2), candidates("leased", None), holdings, BEN)
    assert "  1  free, but 2 are needed" in message.splitlines()
    assert "Or take 1: pick a kernel with 1 GPU." in message.splitlines()


def test_each_lease_is_told_once_and_each_other_obstacle_in_its_words():
    holdings = Holdings(leases=(lease(0, 2, number=1), lease(1, number=2, user=None)))
    some = candidates("leased", "leased", "leased", "only 3.0 GiB free")
    lines = refusal(Request(), some, holdings, BEN).splitlines()
    assert lines[1:4] == [
        "  0, 2  ada  a program  since 09:12",
        "  1  unknown user  a program  since 09:12",
        "  3  only 3.0 GiB free",
    ]


def test_a_draining_lease_says_what_keeps_it():
    holdings = Holdings(leases=(lease(0, state="draining", note="kept by process 7 (python)"),))
    message = refusal(Request(), candidates("leased"), holdings, BEN)
    assert "since 09:12, draining (kept by process 7 (python))" in message


def test_a_device_that_nobody_claims_says_so():
    message = refusal(Request(), candidates("leased"), Holdings(unclaimed=("GPU-00",)), BEN)
    assert "  0  leased by a process that has left no record" in message


def test_those_who_wait_before_are_counted_and_notes_are_told():
    waiting = Waiter(lease().record, "ben")
    message = refusal(
        Request(), candidates("leased"), Holdings(waiters=(waiting,)), BEN, ("A note.",)
    )
    assert "Waiting before this one: 1." in message.splitlines()
    assert "A note." in message.splitlines()


def test_named_devices_are_named():
    message = refusal(Request(devices=("1",)), candidates("leased", "leased"), Holdings(), BEN)
    assert message.startswith("No GPU is free (1 GPU out of device 1; 2 on this machine).")


def test_all_means_as_many_as_work():
    message = refusal(Request(gpus="all"), candidates("leased", None), Holdings(), BEN)
    assert message.startswith("No 2 GPUs are free (2 on this machine).")


REASONS = st.lists(st.sampled_from([None, "leased", "lost"]), min_size=1, max_size=8)


@given(REASONS, st.integers(1, 9) | st.just("all"))
def test_a_refusal_always_says_what_and_what_to_do(reasons, gpus):
    message = refusal(Request(gpus=gpus), candidates(*reasons), Holdings(), BEN)
    assert message.startswith("No ")
    assert "--wait 30m" in message
    assert "%" not in message
    assert max(map(len, message.splitlines())) <= 76


def test_who_holds_some_already_is_told_so_and_what_to_type():
    reader = Reader("magic", "ben", NOW, ("GPU-00",))
    text = refusal(Request(3), candidates(None, "leased", None), Holdings((lease(1),)), reader)
    assert "  0  yours already\n  2  free, but 3 are needed\n" in text
    assert text.endswith("To wait for them:  %gpu use 3 --wait 30m\nOr take 2:  %gpu use 2")
    named = refusal(Request(1, ("1",)), candidates(None, "leased"), Holdings(), reader)
    assert named.endswith("%gpu use --devices 1 --wait 30m")
    named = refusal(Request(2, ("0", "1")), candidates(None, "leased"), Holdings(), reader)
    assert "%gpu use 0,1 --wait 30m" in named
    assert named.endswith("Or take 1:  %gpu use 1 --devices 0,1")
    everything = refusal(Request("all"), candidates(None, "leased"), Holdings(), reader)
    assert "%gpu use all --wait 30m" in everything


@pytest.mark.parametrize(
    ("request_", "line"),
    [
        (Request(1, ("0",)), "--devices 0"),
        (Request(1, ("0", "1")), "1 --devices 0,1"),
        (Request(1, model="H200"), "1 --model H200"),
        (Request(1, model="H200 NVL"), "1 --model 'H200 NVL'"),
        (Request("all", min_free_memory_bytes=20 << 30), "all --min-free-memory 20GiB"),
    ],
)
def test_the_way_to_wait_is_the_same_request(request_, line):
    reader = Reader("magic", "ben", NOW)
    pool = tuple(
        Candidate(
            Device(i, f"GPU-{i:02}", "NVIDIA H200 NVL", memory_total_bytes=140 << 30), "leased"
        )
        for i in range(2)
    )
    text = refusal(request_, pool, Holdings(), reader)
    assert text.splitlines()[-1] == f"To wait for them:  %gpu use {line} --wait 30m"


def shares(*free_units, reasons=(None,) * 9):
    return tuple(
        Candidate(Device(i, f"GPU-{i:02}", "NVIDIA H200"), reasons[i], free_units=units)
        for i, units in enumerate(free_units)
    )


def test_a_limit_comes_first_and_nothing_less_is_offered():
    message = refusal(
        Request(gpus=2), candidates(None, None, None), Holdings(), BEN, limit="The limit is 1."
    )
    assert message.startswith("The limit is 1.\n  0, 1, 2  free\n")
    assert "Or take" not in message
    one = refusal(Request(gpus=2), candidates(None, "leased"), Holdings(), BEN, limit="No.")
    assert "  0  free\n" in one
    assert "Or take" not in one


def test_beside_the_leases_on_a_gpu_the_reason_against_it_is_told():
    share = Request.parse({"gpus": "1/4"})
    holdings = Holdings((lease(0, notebook="/a.ipynb"), lease(1, number=2, notebook="/b.ipynb")))
    found = shares(0, 27_720 // 2, reasons=("leased", "on hold since 09:12 by root: fan"))
    message = refusal(share, found, holdings, BEN)
    assert "  1  on hold since 09:12 by root: fan\n" in message
    assert "  0  leased\n" not in message


def test_free_devices_that_are_no_neighbours_are_said_to_be_none():
    request = Request(gpus=2, topology="require")
    message = refusal(request, candidates(None, None, "leased"), Holdings(), BEN)
    assert message.startswith("No 2 GPUs joined by NVLink are free (3 on this machine).\n")
    assert "  0, 1  free, but no 2 of them are joined by NVLink\n" in message


def test_what_looks_free_and_is_refused_is_in_use_below_or_was_taken():
    message = refusal(Request(), candidates(None), Holdings(), BEN)
    assert "  0  in use below a lease that has ended, or taken at this moment\n" in message


def test_a_pool_that_was_cut_down_is_not_called_the_machine():
    notes = ("The pool is limited by the lease that this program runs under.",)
    message = refusal(Request(), candidates("leased"), Holdings(), BEN, notes)
    assert message.startswith("No GPU is free (1 in this pool).\n")
