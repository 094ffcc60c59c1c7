import builtins
import gc
import os
import subprocess
import sys
import threading
from types import SimpleNamespace

import ipywidgets
import pytest
from IPython.core.displaypub import CapturingDisplayPublisher
from ipywidgets.widgets import widget as registry
from support_shell import make_shell

import jupyter_gpu
from jupyter_gpu.core.errors import GPUError, RequestError
from jupyter_gpu.core.monitor_html import parts
from jupyter_gpu.core.monitor_style import COMPACT, FOLDED, ROOT
from jupyter_gpu.feed import THREAD_NAME

VIEW = "application/vnd.jupyter.widget-view+json"


@pytest.fixture(autouse=True)
def _no_widget_is_left():
    assert registry._instances == {}
    yield
    left = list(registry._instances.values())
    ipywidgets.Widget.close_all()
    assert left == []


@pytest.fixture(autouse=True)
def _no_thread_is_left(eventually):
    yield
    eventually(lambda: not threads())


def threads():
    return [one for one in threading.enumerate() if one.name == THREAD_NAME]


class Notebook:
    """A shell whose cells come from a front end, and what it was sent."""

    def __init__(self, shell):
        self.shell = shell
        self.parent = {}
        self.count = 0
        self.outputs = CapturingDisplayPublisher()
        shell.display_pub = self.outputs
        shell.kernel = SimpleNamespace(get_parent=lambda: self.parent)
        self.comes_from()

    def comes_from(self, *, cell="another", page="page-1", allow_stdin=True):
        self.count += 1
        cell = f"cell-{self.count}-of-many" if cell == "another" else cell
        self.parent = {
            "header": {"msg_id": f"request-{self.count}", "session": page},
            "metadata": {} if cell is None else {"cellId": cell},
            "content": {"allow_stdin": allow_stdin},
        }

    def run(self, code, **request):
        self.comes_from(**request)
        result = self.shell.run_cell(code, store_history=True)
        result.raise_error()
        return result.result

    @property
    def shown(self):
        return [output for output in self.outputs.outputs if not output["update"]]

    @property
    def data(self):
        return [output["data"] for output in self.shown]

    @property
    def updates(self):
        return [output["data"] for output in self.outputs.outputs if output["update"]]


@pytest.fixture
def shell(eight_gpus):
    with make_shell() as shell:
        shell.run_line_magic("load_ext", "jupyter_gpu")
        yield shell


@pytest.fixture
def notebook(shell):
    return Notebook(shell)


@pytest.fixture
def monitor(notebook):
    """A monitor that a cell has displayed."""
    notebook.run("import jupyter_gpu; m = jupyter_gpu.Monitor(interval=0.1)")
    notebook.run("display(m)", cell="cell-1")
    monitor = notebook.shell.user_ns["m"]
    yield monitor
    monitor.close()


def values(monitor):
    tree = monitor._tree
    return [tree._state.value, tree._now.value, *(card.value for card in tree._cards)]


def test_outside_of_ipython_it_says_what_to_use_instead():
    with pytest.raises(GPUError, match="jupyter gpu status"):
        jupyter_gpu.Monitor()


def test_it_is_a_name_of_the_package_that_loads_nothing_before_it_is_used():
    code = (
        "import sys, jupyter_gpu; assert 'jupyter_gpu.widget' not in sys.modules; "
        "jupyter_gpu.Monitor; print('ipywidgets' in sys.modules, 'IPython' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == ["False", "False"]
    with pytest.raises(AttributeError, match="no attribute 'Moniter'"):
        _ = jupyter_gpu.Moniter


@pytest.mark.parametrize(
    "arguments",
    [{"devices": 9}, {"devices": "cuda:8"}, {"interval": 0}, {"compact": 1}, {"live": "yes"}],
)
def test_a_wrong_argument_is_one_line(notebook, arguments):
    with pytest.raises(RequestError) as raised:
        jupyter_gpu.Monitor(**arguments)
    assert str(raised.value).startswith(f"{next(iter(arguments))}: ")
    assert raised.value._render_traceback_() == [str(raised.value)]


def test_it_loads_the_extension_where_nobody_has(eight_gpus):
    with make_shell() as shell:
        monitor = jupyter_gpu.Monitor()
        assert "jupyter_gpu" in shell.extension_manager.loaded
        assert repr(monitor).startswith("8 GPUs are visible")


def test_in_a_terminal_it_is_text(shell, capsys):
    monitor = jupyter_gpu.Monitor("cuda:1,cuda:0")
    monitor._ipython_display_()
    said = capsys.readouterr().out
    assert said.index("cuda:1 = physical 1") < said.index("cuda:0 = physical 0")
    assert "cuda:2" not in said
    monitor.close()


def test_a_notebook_gets_widgets_with_a_picture_and_a_place_for_the_last_one(notebook, monitor):
    live, kept = notebook.shown
    assert set(live["data"]) == {VIEW, "text/html", "text/plain"}
    assert live["data"][VIEW]["model_id"] == monitor._tree.root.model_id
    assert "cuda:0" in live["data"]["text/html"]
    assert "cuda:0 = physical 0" in live["data"]["text/plain"]
    assert kept["data"] == {"text/html": "", "text/plain": ""}
    assert kept["transient"]["display_id"]
    assert ROOT in monitor._tree.root._dom_classes
    assert len(monitor._tree._cards) == 8


def test_it_moves_while_a_cell_runs_and_stands_still_afterwards(
    notebook, monitor, simulate, eventually
):
    gpus = [{"name": "NVIDIA H200", "utilization_percent": 0} for _ in range(8)]
    simulate({"gpus": gpus})

    def wait():
        gpus[3]["utilization_percent"] = 77
        simulate({"gpus": gpus})
        eventually(lambda: "77" in monitor._tree._now.value)
        assert monitor._tree._button.disabled

    notebook.shell.user_ns["wait"] = wait
    notebook.run("wait()")
    eventually(lambda: not monitor._tree._button.disabled)
    assert "Still since" in monitor._tree._state.value
    kept = eventually(lambda: [one for one in notebook.updates if "77" in one["text/plain"]])[0]
    assert "<details" not in kept["text/html"].partition("<div")[0]


def test_the_last_picture_and_the_first_are_never_both_seen(notebook, monitor, eventually):
    notebook.run("pass")
    eventually(lambda: notebook.updates)
    first, kept = notebook.data[0]["text/html"], notebook.updates[-1]["text/html"]
    name = first.partition("jgm-first-")[2][:8]
    assert f".jgm-first-{name}{{display:none}}" in kept
    assert f"class='jgm-last-{name}'" in kept
    assert f".jgm-last-{name}" in monitor._tree._style.value
    assert first.startswith("<details class=")


def test_the_last_call_brings_every_card_up_to_date(notebook, monitor, eventually):
    seen = []
    hear = monitor._hear
    monitor._watching.listener = lambda moment: (hear(moment), seen.append(moment))
    notebook.run("pass")
    eventually(lambda: seen and not monitor._gate.context().feed()._watchings[0].due < 1e18)
    shown = parts(seen[-1], monitor._choice)
    assert values(monitor) == [shown.state, shown.now, *shown.cards]


def test_what_has_not_changed_is_not_sent(monitor):
    tree = monitor._tree
    moment = monitor._look()
    tree.show(moment, monitor._choice, whole=True)
    sent = []
    widgets = [one for one in registry._instances.values() if hasattr(one, "value")]
    for widget in widgets:
        widget.observe(sent.append, "value")
    tree.show(moment, monitor._choice, whole=True)
    tree.show(moment, monitor._choice)
    assert sent == []


def test_its_button_looks_once(notebook, monitor, simulate):
    simulate({"gpus": [{"name": "NVIDIA H200", "utilization_percent": 61} for _ in range(8)]})
    assert "61" not in monitor._tree._now.value
    monitor._tree._button.click()
    assert "61" in monitor._tree._now.value


def test_refresh_and_json_look_at_once(monitor, simulate):
    simulate({"gpus": [{"name": "NVIDIA L4", "utilization_percent": 62} for _ in range(2)]})
    monitor.refresh()
    assert "62" in monitor._tree._now.value
    assert len(monitor._tree._cards) == 2
    assert [one["utilization_percent"] for one in monitor.as_json()["devices"]] == [62, 62]
    assert "62" in repr(monitor)
    simulate("16xH200")
    monitor.refresh()
    assert len(monitor._tree._cards) == 16
    simulate({"gpus": []})
    monitor.refresh()
    assert monitor._tree._cards == ()


def test_the_rest_of_the_machine_is_folded_away_where_there_is_one(notebook, monitor, monkeypatch):
    assert monitor._tree._rest not in monitor._tree.root.children
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "3")
    monitor.refresh()
    fold, rest = monitor._tree._fold, monitor._tree._rest
    at = monitor._tree.root.children.index(fold)
    assert monitor._tree.root.children[at + 1] is rest
    assert FOLDED in rest._dom_classes
    assert fold.description.startswith("The rest of this machine: 7 devices")
    assert fold.value is False


def test_compact_is_a_class_of_the_whole(notebook):
    monitor = jupyter_gpu.Monitor(compact=True)
    monitor._repr_mimebundle_()
    assert monitor._tree.root._dom_classes == (ROOT, COMPACT)
    monitor.close()


def test_its_history_has_every_point_and_cell(notebook, monitor, eventually):
    notebook.shell.user_ns["wait"] = lambda: eventually(lambda: len(monitor.history) > 40)
    notebook.run("wait()")
    rows, cells = monitor.history, monitor.cells
    assert {row["index"] for row in rows} == set(range(8))
    assert rows == sorted(rows, key=lambda row: row["time"])
    assert cells[-1]["cell"] == notebook.shell.execution_count - 1
    assert cells[-1]["cell"] in {row["cell"] for row in rows}
    pytest.importorskip("pandas")
    assert len(monitor.frame()) >= len(rows)
    monitor.close()
    assert len(monitor.history) >= len(rows)


def test_it_saves_its_history_as_a_picture(notebook, monitor, tmp_path):
    pytest.importorskip("matplotlib")
    monitor.save(tmp_path / "run.svg")
    assert "<svg" in (tmp_path / "run.svg").read_text(encoding="utf-8")


def test_it_watches_as_long_as_it_has_a_view(notebook, monitor, eventually):
    root = monitor._tree.root
    root._view_count = 1
    assert threads()
    root._view_count = 0
    eventually(lambda: not threads())
    assert monitor.history is not None
    root._view_count = 1
    assert threads()
    # A page that is loaded anew adds its view to the one that is gone with the old page.
    notebook.comes_from(page="page-2")
    root._view_count = 2
    root._view_count = 1
    eventually(lambda: not threads())


def test_a_view_that_comes_back_shows_what_is_true_now(notebook, monitor, simulate, eventually):
    root = monitor._tree.root
    root._view_count = 1
    root._view_count = 0
    simulate({"gpus": [{"name": "NVIDIA H200", "utilization_percent": 63} for _ in range(8)]})
    root._view_count = 1
    assert "63" in monitor._tree._now.value


def test_closed_it_takes_its_widgets_away_and_can_be_displayed_again(notebook, monitor, eventually):
    monitor.close()
    monitor.close()
    assert registry._instances == {}
    eventually(lambda: not threads())
    monitor.refresh()
    notebook.run("display(m)")
    assert VIEW in notebook.data[-2]
    assert threads()


def test_several_monitors_share_one_thread(notebook, monitor, eventually):
    other = jupyter_gpu.Monitor(devices=5)
    notebook.run("pass")
    other._ipython_display_()
    assert len(threads()) == 1
    monitor.close()
    assert len(threads()) == 1
    assert {row["index"] for row in other.history} <= {5}
    other.close()


def test_in_a_batch_run_there_is_one_picture_renewed_with_each_cell(notebook, simulate):
    batch = {"cell": None, "allow_stdin": False}
    notebook.run("import jupyter_gpu; m = jupyter_gpu.Monitor(); display(m)", **batch)
    assert VIEW not in notebook.data[0]
    assert "cuda:7" in notebook.data[0]["text/html"]
    simulate({"gpus": [{"name": "NVIDIA H200", "utilization_percent": 64} for _ in range(8)]})
    notebook.run("pass", **batch)
    last = notebook.outputs.outputs[-1]
    assert last["update"]
    assert last["transient"] == notebook.outputs.outputs[0]["transient"]
    assert "64" in last["data"]["text/html"]
    count = len(notebook.outputs.outputs)
    notebook.shell.user_ns["m"].close()
    notebook.run("pass", **batch)
    assert len(notebook.outputs.outputs) == count


def test_live_says_otherwise(notebook):
    assert VIEW not in jupyter_gpu.Monitor(live=False)._repr_mimebundle_()
    notebook.comes_from(cell=None, allow_stdin=False)
    assert VIEW not in jupyter_gpu.Monitor()._repr_mimebundle_()
    monitor = jupyter_gpu.Monitor(live=True)
    assert VIEW in monitor._repr_mimebundle_()
    monitor.close()


@pytest.fixture
def without_ipywidgets(monkeypatch):
    real = builtins.__import__

    def refuse(name, *rest):
        if name == "ipywidgets":
            raise ImportError
        return real(name, *rest)

    monkeypatch.setattr(builtins, "__import__", refuse)


def test_without_ipywidgets_the_picture_says_how_to_get_them(notebook, capsys, without_ipywidgets):
    notebook.run("import jupyter_gpu; m = jupyter_gpu.Monitor(); display(m)")
    assert set(notebook.data[0]) == {"text/html", "text/plain"}
    assert capsys.readouterr().out.count("%pip install ipywidgets") == 1
    notebook.run("pass")
    assert notebook.updates
    assert capsys.readouterr().out == ""
    notebook.shell.user_ns["m"].close()


def test_a_picture_whose_cell_is_run_again_is_renewed_no_more(notebook, without_ipywidgets):
    notebook.run("import jupyter_gpu; jupyter_gpu.Monitor()._ipython_display_()", cell="cell-1")
    notebook.run("pass", cell="cell-2")
    count = len(notebook.updates)
    notebook.run("pass", cell="cell-1")
    notebook.run("pass", cell="cell-2")
    assert len(notebook.updates) == count
    assert not notebook.shell.magics_manager.magics["line"]["gpu"].__self__.cell_ends()._called


def test_where_the_machine_cannot_be_read_it_says_so_and_mends_itself(
    notebook, simulate, monkeypatch
):
    monkeypatch.setenv("JUPYTER_GPU_SIMULATE", "8xNOTHING")
    notebook.run("import jupyter_gpu; m = jupyter_gpu.Monitor(); display(m)")
    assert "NOTHING" in notebook.data[0]["text/plain"]
    simulate("2xH200")
    monitor = notebook.shell.user_ns["m"]
    monitor.refresh()
    assert len(monitor._tree._cards) == 2
    monitor.close()


def test_a_monitor_whose_cell_is_run_again_sends_nothing_more(notebook, monitor, eventually):
    # Its view is gone, and the front end's word of that waits until the cell has ended.
    notebook.shell.user_ns["wait"] = lambda: eventually(lambda: monitor._watching is None)
    notebook.run("wait()", cell="cell-1")
    notebook.run("display(m)", cell="cell-1")
    assert monitor._watching is not None


def test_a_cell_run_again_leaves_no_widgets_of_before(notebook, monitor, eventually):
    notebook.run("n = jupyter_gpu.Monitor()\ndisplay(n)", cell="cell-9")
    shown = notebook.shell.user_ns["n"]
    count = len(registry._instances)
    notebook.shell.user_ns["wait"] = lambda: eventually(lambda: shown._tree is None)
    notebook.run("wait()", cell="cell-9")
    assert len(registry._instances) < count


def test_a_cell_run_again_after_its_view_was_taken_away_leaves_no_widgets(notebook):
    code = "import jupyter_gpu\nn = jupyter_gpu.Monitor()\ndisplay(n)"
    counts = []
    for _ in range(4):
        notebook.run(code, cell="cell-9")
        shown = notebook.shell.user_ns["n"]
        shown._tree.root._view_count += 1
        counts.append(len(registry._instances))
        shown._tree.root._view_count -= 1
    assert len(set(counts)) == 1
    shown.close()


def test_what_somebody_else_has_closed_is_watched_no_more(notebook, monitor, eventually):
    ipywidgets.Widget.close_all()
    notebook.shell.user_ns["wait"] = lambda: eventually(lambda: monitor._watching is None)
    notebook.run("wait()", cell="cell-5")


def test_a_comm_that_another_page_has_closed_is_heard_again(monitor):
    from comm import get_comm_manager

    comm, manager = monitor._tree._button.comm, get_comm_manager()
    manager.register_comm(comm)
    manager.comm_close(None, None, {"content": {"comm_id": comm.comm_id, "data": {}}})
    assert manager.comms[comm.comm_id] is comm


def test_a_picture_says_that_the_extension_was_unloaded(notebook):
    batch = {"cell": None, "allow_stdin": False}
    notebook.run("import jupyter_gpu; n = jupyter_gpu.Monitor(); display(n)", **batch)
    notebook.run("%unload_ext jupyter_gpu", **batch)
    assert "was unloaded" in notebook.updates[-1]["text/plain"]
    notebook.run("%load_ext jupyter_gpu", **batch)


def test_when_the_extension_is_unloaded_it_says_so_and_does_not_claim_to_move(notebook, monitor):
    notebook.run("%unload_ext jupyter_gpu")
    assert "was unloaded, so this stands still" in monitor._tree._state.value
    assert monitor._tree._button not in monitor._tree.root.children
    notebook.run("%load_ext jupyter_gpu")


@pytest.mark.parametrize("version", ["v9.dev", None])
def test_ipywidgets_that_are_damaged_count_as_none(notebook, monkeypatch, version):
    monkeypatch.setattr(ipywidgets, "__version__", version)
    assert VIEW not in jupyter_gpu.Monitor()._repr_mimebundle_()


@pytest.mark.parametrize("path", [None, 3, b"a.svg", "a\0.svg", "~nobody-of-that-name/x.svg"])
def test_what_is_no_path_is_one_line(monitor, path):
    with pytest.raises(RequestError, match="path: "):
        monitor.save(path)


def test_its_past_begins_when_it_is_made(notebook, monitor):
    notebook.run("pass")
    later = jupyter_gpu.Monitor()
    assert monitor.history
    assert later.history == []
    assert later.cells == []


def test_widgets_that_somebody_has_closed_are_made_anew(notebook, monitor):
    ipywidgets.Widget.close_all()
    notebook.run("pass")
    notebook.run("display(m)", cell="cell-3")
    assert notebook.data[-2][VIEW]["model_id"] == monitor._tree.root.model_id


def test_it_goes_on_after_the_extension_was_loaded_anew(notebook, monitor, eventually):
    notebook.run("%reload_ext jupyter_gpu")
    notebook.run("display(m)")
    notebook.shell.user_ns["wait"] = lambda: eventually(lambda: monitor._tree._button.disabled)
    notebook.run("wait()", cell="cell-4")


def test_ipywidgets_that_are_too_old_count_as_none(notebook, monkeypatch):
    monkeypatch.setattr(ipywidgets, "__version__", "7.8.1")
    assert VIEW not in jupyter_gpu.Monitor()._repr_mimebundle_()


def test_in_a_forked_child_it_is_quiet(notebook, monitor):
    read, write = os.pipe()
    with monitor._tree._lock:  # as the feed's thread may hold it at that moment
        pid = os.fork()
        if pid == 0:
            try:
                threading.Timer(5, os._exit, (1,)).start()
                count = len(notebook.outputs.outputs)
                monitor._cell_ends()
                monitor.refresh()
                monitor.close()
                quiet = not monitor.history and len(notebook.outputs.outputs) == count
                os.write(write, b"quiet" if quiet else b"not")
            finally:
                os._exit(0)
    os.waitpid(pid, 0)
    assert os.read(read, 9) == b"quiet"
    os.close(read)
    os.close(write)


def test_a_monitor_that_is_dropped_leaves_nothing(notebook):
    import weakref

    monitor = jupyter_gpu.Monitor()
    monitor._repr_mimebundle_()
    monitor.close()
    gone = weakref.ref(monitor)
    del monitor
    gc.collect()
    assert gone() is None
