"""Which claims on the same device cannot all be true; test_store has them over real locks."""

import pytest
from support_cli import lease

from jupyter_gpu.core.leases import Owner, ProcessRef
from jupyter_gpu.core.rivals import CONFLICT, NOT_HELD, with_conflicts

SERVER = ProcessRef(7, 1, 1)


def kept(by, **changes):
    return Owner("kernel", keeper=by, **changes)


@pytest.mark.parametrize(
    ("leases", "notes"),
    [
        ([], []),
        ([lease("a", (0,)), lease("b", (1,))], [None, None]),
        ([lease("a", (0,)), lease("b", (0, 1)), lease("c", (2,))], [CONFLICT, CONFLICT, None]),
        ([lease("a", (0,), "eve"), lease("b", (0,), "bob")], [CONFLICT, CONFLICT]),
        ([lease("a", (0,), note=NOT_HELD), lease("b", (0,))], [NOT_HELD, None]),
        ([lease("a", (0,)), lease("b", (0,), ancestors=("a" * 15,))], [None, None]),
        (
            [lease("a", (0,), owner=kept(SERVER)), lease("b", (0,), owner=kept(SERVER))],
            [None, None],
        ),
        (
            [lease("a", (0,), owner=kept(None, workers=(SERVER,))), lease("b", (0,))],
            [None, None],
        ),
        ([lease("a", (0,), note="kept by 4"), lease("b", (0,))], ["kept by 4", CONFLICT]),
    ],
)
def test_claims_that_cannot_both_be_true_are_marked(leases, notes):
    assert [one.note for one in with_conflicts(tuple(leases))] == notes


def test_a_doubtful_lease_stays_what_it_is_otherwise():
    idle = kept(None, idle_since="2026-12-01T09:00:00+00:00")
    one, _ = with_conflicts((lease("a", (0,), owner=idle), lease("b", (0,))))
    assert (one.state, one.pids, one.user) == ("idle", (4711,), "alice")
