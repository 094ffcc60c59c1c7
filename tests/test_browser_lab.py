"""JupyterLab in a real browser, from the click in the launcher on."""

import contextlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
from conftest import poll
from doubles import gpu
from doubles.machine import DriverDouble
from kernels import leases
from support_browser import (
    a_site,
    artefacts,
    browser,
    kept_site,
    lab,
    machine,
    picture,
    site,
    the_lease,
)

import jupyter_gpu

__all__ = ["artefacts", "browser", "kept_site", "lab", "site"]

TESTS = Path(__file__).parent
TWO, ONE, NONE = "PyTorch (2 GPUs)", "PyTorch (1 GPU)", "PyTorch (no GPU)"
VISIBLE = "import os; print('visible', os.environ['CUDA_VISIBLE_DEVICES'])"
TOO_LATE = "import os\nos.environ['CUDA_VISIBLE_DEVICES'] = '1'"


def test_a_request_for_another_machine_is_seen_and_goes_nowhere(lab):
    there = "http://198.51.100.7/"
    assert lab.page.evaluate("there => fetch(there).then(() => 'came', () => 'failed')", there) == (
        "failed"
    )
    assert lab.strayed == [there]
    lab.strayed.clear()


def test_the_launcher_has_an_entry_for_every_number_of_gpus(lab, eventually):
    section = lab.page.locator(".jp-Launcher-section", has_text="Notebook").first
    titles = section.locator(".jp-LauncherCard-label").all_inner_texts()
    titles = {" ".join(title.split()) for title in titles}
    assert titles == {ONE, TWO, NONE, "PyTorch (¼ GPU)"}
    pictures = section.locator(".jp-LauncherCard-icon img")
    assert pictures.count() == 4
    drawn = "all => all.every(one => one.complete && one.naturalWidth > 0)"
    eventually(lambda: pictures.evaluate_all(drawn))
    lab.shot("launcher")
    picture("launcher", lab.page, section)


def test_the_map_is_shown_with_the_devices_of_the_lease(lab):
    notebook = lab.launch(TWO)
    kernel_id = notebook.ready()
    cell = notebook.run("%gpu")
    cell.says("2 of 4 GPUs are yours", "cuda:0 = physical 0", "cuda:1 = physical 1", "2, 3 free")
    notebook.run(VISIBLE).says("visible 0,1")
    record = the_lease().record
    assert (record.indices, record.owner.kernel_id) == ((0, 1), kernel_id)
    lab.shot("map")


@pytest.fixture
def somebody_trains(site, tmp_path):
    """A command on all devices of the machine, as ``jupyter gpu run`` starts it."""
    (tmp_path / "train.py").write_text("import signal\nsignal.pause()\n", encoding="utf-8")
    places = os.pathsep.join((str(Path(sys.executable).parent), os.environ["PATH"]))
    words = ("-m", "jupyter_gpu", "run", "--gpus", "all", "--", "python", "train.py")
    running = subprocess.Popen(
        [sys.executable, *words], cwd=tmp_path, env={**os.environ, "PATH": places}
    )
    poll(leases)
    yield running
    running.terminate()
    running.wait()


def test_a_refusal_is_a_dialog_with_all_its_words_and_the_launcher_goes_on(lab, somebody_trains):
    with contextlib.ExitStack() as ends:
        ends.callback(somebody_trains.wait)
        ends.callback(somebody_trains.terminate)
        lab.launch(TWO)
        dialog = lab.dialog()
        shown = dialog.inner_text()
        lab.shot("refused")
        picture("refused", lab.page, dialog.locator(".jp-Dialog-content"))
        first, *lines = [line.strip() for line in shown.splitlines() if line.strip()]
        assert first == "Error Starting Kernel"
        assert lines[0] == "No 2 GPUs are free (4 on this machine)."
        assert re.fullmatch(r"0, 1, 2, 3  \S+  python train.py  since \d\d:\d\d", lines[1])
        assert "jupyter gpu install --gpus 2 --wait 30m --name wait-2" in lines
        assert "Traceback" not in shown
        box = dialog.locator(".jp-Dialog-content").bounding_box()
        assert box["x"] >= 0 and box["x"] + box["width"] <= lab.page.viewport_size["width"]
        dialog.locator(".jp-mod-accept").click()
        other = lab.page.locator(".jp-Dialog", has_text="Select Kernel")
        other.locator(".jp-mod-reject").click()
        lab.page.locator(".jp-Dialog").wait_for(state="detached")
    poll(lambda: leases() == ())
    lab.new_launcher()
    notebook = lab.launch(TWO)
    notebook.ready()
    notebook.run(VISIBLE).says("visible 0,1")


def test_a_restart_keeps_the_devices_and_the_lease(lab):
    with jupyter_gpu.acquire(1):
        notebook = lab.launch(TWO)
        notebook.ready()
        notebook.run(VISIBLE).says("visible 1,2")
    before = the_lease().record
    notebook.run("kept = True")
    notebook.restart()
    notebook.ready()
    notebook.run(VISIBLE).says("visible 1,2")
    notebook.run("print('kept' in globals())").says("False")
    after = the_lease().record
    assert (after.id, after.uuids) == (before.id, before.uuids)
    lab.shot("restarted")


def test_a_change_of_kernel_hands_the_only_device_over(site, lab):
    site.write(machine(1))
    with site.another_kernelspec("Another (1 GPU)", like="pytorch-1gpu"):
        lab.open_lab()
        notebook = lab.launch(ONE)
        first = notebook.ready()
        notebook.run(VISIBLE).says("visible 0")
        notebook.change_kernel("Another (1 GPU)")
        lab.page.locator(".jp-KernelName", has_text="Another (1 GPU)").first.wait_for()
        second = notebook.ready()
        assert second != first
        notebook.run(VISIBLE).says("visible 0")
        notebook.run("%gpu").says("1 of 1 GPU is yours", "cuda:0 = physical 0")
        assert lab.page.locator(".jp-Dialog").count() == 0
        record = the_lease().record
        assert (record.indices, record.owner.kernel_id) == ((0,), second)
        lab.shot("changed")


@pytest.fixture(scope="module")
def too_late_site(browser, artefacts, driver_libraries, tmp_path_factory):
    """A server on a machine whose driver can freeze: the double, with a stand-in for torch."""
    double = DriverDouble(driver_libraries, tmp_path_factory.mktemp("frozen") / "machine.json")
    double.write(*map(gpu, range(4)))
    folders = (TESTS / "standins" / "driver", TESTS / "standins" / "torch")
    environ = {
        "JUPYTER_GPU_SIMULATE": None,
        "LD_LIBRARY_PATH": str(double.libraries),
        "JUPYTER_GPU_DOUBLE": str(double.path),
        "PYTHONPATH": ":".join(map(str, folders)),
    }
    with a_site(browser, artefacts, environ=environ) as started:
        yield started
        started.clear()


def test_a_warning_stands_below_the_cell_that_came_too_late(too_late_site, request):
    with too_late_site.window(request.node.name) as lab:
        notebook = lab.open_lab().launch(TWO)
        notebook.ready()
        early = notebook.run("import torch; torch.cuda.is_available()")
        early.says("True")
        late = notebook.run(TOO_LATE).says(
            'CUDA_VISIBLE_DEVICES is now "1"',
            "that changes nothing in this kernel",
            "cell [1] (torch.cuda.is_available) initialised CUDA",
        )
        assert late.output.locator("div.jupyter-gpu").count() == 1
        assert "changes nothing" not in early.text
        quiet = notebook.run("print('no further word')").says("no further word")
        assert quiet.text == "no further word"
        notebook.run("%gpu").says("CUDA is frozen: cell [1] (torch.cuda.is_available)")
        lab.shot("too-late")
