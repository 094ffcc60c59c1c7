"""The situations of sections A to F, each in a fresh real kernel; and those that need no word."""

import contextlib
import dataclasses
import json
import os
import sys
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from cell_kernel import kernel
from doubles import gpu
from situations import compiled, forks, held, ids, numbering, quiet, too_late, values

import jupyter_gpu
from jupyter_gpu.adapters.processes import reference

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the doubles are Linux libraries")

LIST = json.loads(
    (Path(__file__).parent / "data" / "situations.json").read_text(encoding="utf-8")
)
TOLD = tuple(
    row
    for part in (too_late, compiled, numbering, ids, forks, values, held)
    for row in part.ROWS
)
LEAST_QUIET = 30


class World:
    """What a row can use: the doubles, kernels on them, leases, a folder."""

    def __init__(self, double, folder, simulate, eventually):
        self.double, self.folder, self.eventually = double, folder, eventually
        self._simulate, self._environ = simulate, {}

    def kernel(self, **options):
        environ = {**self._environ, **options.pop("environ", {})}
        return kernel(self.double, environ=environ, **{"ours": None, **options})

    def simulate(self, description):
        self._simulate(description)
        self._environ = {"JUPYTER_GPU_SIMULATE": os.environ["JUPYTER_GPU_SIMULATE"]}

    @contextlib.contextmanager
    def provisioned(self, **config):
        """A kernel under our provisioner, which can be restarted."""
        with kernel(self.double, ours=(), environ=self._environ, config=config) as made:
            yield made

    @contextlib.contextmanager
    def idle_lease(self, *, hours, notebook, indices):
        """A lease of a kernel that has run nothing for some hours."""
        since = datetime.now(timezone.utc) - timedelta(hours=hours)
        with jupyter_gpu.acquire(indices) as held_lease:
            held_lease.describe(
                lambda owner: dataclasses.replace(
                    owner,
                    kind="kernel",
                    notebook=notebook,
                    idle_since=since.isoformat(),
                    keeper=reference(os.getpid()),
                )
            )
            yield held_lease


@pytest.fixture
def world(driver_double, tmp_path, simulate, eventually):
    return World(driver_double, tmp_path, simulate, eventually)


def play(world, row):
    gpus = row.gpus or 4
    gpus = tuple(gpu(n) for n in range(gpus)) if isinstance(gpus, int) else gpus
    world.double.write(*gpus, **row.driver)
    with world.kernel(standins=row.standins, ours=row.ours, environ=row.environ) as made:
        for cell in row.cells:
            seen = made.run(cell.code)
            shown = f"{cell.code!r} showed {seen}"
            if cell.hint:
                assert [word for word in cell.hint if word not in seen.hint] == [], shown
                assert len(seen.hints) == 1, shown
            else:
                assert seen.hints == [], shown
            text = f"{seen.answer} {' '.join(seen.printed.split())}"
            assert [word for word in cell.answer if word not in text] == [], shown
            assert [word for word in cell.without if word in text] == [], shown
            assert bool(seen.error) == cell.fails or row.number == "quiet", shown
            assert "no longer watches" not in seen.printed


@pytest.mark.parametrize("row", TOLD, ids=lambda row: row.id)
def test_a_situation_is_told_right(world, row):
    if row.play is None:
        play(world, row)
    else:
        row.play(world)


@pytest.mark.parametrize("row", quiet.ROWS, ids=lambda row: row.part)
def test_nothing_is_said_where_nothing_is_wrong(world, row):
    play(world, row)


def test_every_situation_of_the_list_is_played():
    assert {row.number for row in TOLD} == {row["id"] for row in LIST}
    assert {row["section"] for row in LIST} == set("ABCDEF")
    assert len(quiet.ROWS) >= LEAST_QUIET
