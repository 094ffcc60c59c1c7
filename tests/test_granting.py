"""A grant is written down: the record, the log, and what the notebook had."""

import os
from dataclasses import replace
from fractions import Fraction

import pytest

from jupyter_gpu.adapters.grant_log import GrantLog
from jupyter_gpu.adapters.place import Place
from jupyter_gpu.adapters.records import records_path
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.allocator import Acquisition, acquire_now
from jupyter_gpu.core.errors import StoreError
from jupyter_gpu.core.leases import Owner, Record
from jupyter_gpu.core.request import Request
from jupyter_gpu.granting import Caller, write_down

pytestmark = pytest.mark.usefixtures("eight_gpus")
NOTEBOOK = "/home/alice/train.ipynb"


@pytest.fixture(autouse=True)
def _no_rules_of_the_computers_own(monkeypatch, tmp_path):
    """Keep what ``/etc/jupyter-gpu.toml`` may say on this computer out of these tests."""
    path = tmp_path / "no-rules.toml"
    path.touch()
    monkeypatch.setenv("JUPYTER_GPU_CONFIG", str(path))


@pytest.fixture
def place(lease_directory):
    return Place(lease_directory, "given")


def granted(gpus=1, origin=None, environ=None, **options):
    request = Request.parse({"gpus": gpus, **options}, default_wait=0)
    owner = Owner("kernel", notebook=NOTEBOOK)
    caller = Caller(origin)
    return acquire_now(Acquisition(request, owner, environ or os.environ, caller=caller))


def log(place):
    return [entry for user in GrantLog(place).read().users for entry in user.entries]


@pytest.mark.parametrize("origin", ["notebook", "kernelspec", "magic", None])
def test_a_record_says_what_where_from_and_why(place, origin):
    with granted("1/3", origin, cpu_affinity="closest") as lease, LeaseStore(place) as store:
        (found,) = store.holdings().leases
        assert found.record.request.as_options() == lease.record.request.as_options()
        assert replace(found.record, request=lease.record.request) == lease.record
        assert (found.record.share, found.record.units) == (Fraction(1, 3), 27_720 // 3)
        assert (found.record.origin, found.record.notebooks) == (origin, "all")
        assert len(found.record.because) == 2
        assert found.record.caps
        assert found.as_json()["origin"] == origin


def test_a_nested_grant_is_not_logged_and_names_those_above(place):
    with granted() as above:
        with granted("1/2", environ={**os.environ, **above.environment}) as nested:
            assert nested.record.ancestors == (above.id,)
            assert [entry.lease for entry in log(place)] == [above.id]
    assert len(log(place)) == 2


def test_a_notebook_gets_what_it_had_last_time(place):
    with granted(devices=[5]):
        pass
    with granted() as lease:
        assert lease.record.indices == (5,)
        assert lease.record.because == ("what this notebook had last time",)


def test_one_grant_in_sixteen_sweeps(place):
    with LeaseStore(place, write=True) as store:
        claims = []
        while not {True, False} <= {claim.id.endswith("0") for claim in claims}:
            claims.append(store.new_claim())
        for ends, swept in ((False, False), (True, True)):
            dead = records_path(place) / "abcdefabcdefabc.json"
            dead.write_text("{}")
            claim = next(one for one in claims if one.id.endswith("0") is ends)
            write_down(store, claim, Record(claim.id, Owner("api"), ""), logged=False)
            assert dead.exists() is not swept
        assert [entry.lease for entry in log(place)] == ["abcdefabcdefabc"]
        for claim in claims:
            store.withdraw(claim)


def test_a_record_that_cannot_be_written_is_an_error(place):
    with LeaseStore(place, write=True) as store:
        claim = store.new_claim()
        (records_path(place) / f"{claim.id}.json").mkdir()
        with pytest.raises(StoreError, match="a record cannot be written"):
            write_down(store, claim, Record(claim.id, Owner("api"), ""), logged=True)
        assert log(place) == []
        claim.close()
