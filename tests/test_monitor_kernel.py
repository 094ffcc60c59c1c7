"""The monitor in real kernels: what it sends, how it ends, and that an idle kernel is culled."""

import contextlib
import itertools
import json
import os
import queue
import signal
import threading
import time
import urllib.parse
from datetime import datetime

import pytest
import websocket
from jupyter_client.manager import KernelManager
from support_server import TOKEN, Server, wait_until

SECONDS = 60
TICK_SECONDS = 0.2
LIMIT_BYTES = 4096
GIB = 2**30
WATCH = "%load_ext jupyter_gpu\n%gpu monitor --interval {} -o m\n"


class Kernel:
    """A kernel as a notebook's front end has it, and all that it publishes."""

    def __init__(self, folder):
        self.stderr = folder / "stderr"
        self.manager = KernelManager(kernel_name="python3")
        self._sink = self.stderr.open("wb")  # open for a restart
        self.manager.start_kernel(stderr=self._sink)
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=SECONDS)
        self.cells = itertools.count(1)

    def begin(self, code, cell=None):
        """Run a cell as a front end with a person does; returns the id of the request."""
        message = self.client.session.msg(
            "execute_request",
            {
                "code": code,
                "silent": False,
                "store_history": True,
                "user_expressions": {},
                "allow_stdin": True,
                "stop_on_error": True,
            },
            metadata={"cellId": cell or f"cell-{next(self.cells)}"},
        )
        self.client.shell_channel.send(message)
        return message["header"]["msg_id"]

    def messages(self, request, *, until="idle", within=SECONDS):
        """Everything published until the request's state is that."""
        deadline = time.monotonic() + within
        while True:
            assert time.monotonic() < deadline, f"never {until}: {self.said}"
            with contextlib.suppress(queue.Empty):
                message = self.client.get_iopub_msg(timeout=1)
                yield message
                content = message["content"]
                mine = message["parent_header"].get("msg_id") == request
                if mine and content.get("execution_state") == until:
                    return

    def run(self, code, cell=None):
        """Run a cell and return what it printed; an error fails the test."""
        printed = []
        for message in self.messages(self.begin(code, cell)):
            if message["msg_type"] == "error":
                pytest.fail("\n".join(message["content"]["traceback"]))
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])
        return "".join(printed)

    @property
    def said(self):
        """What came out of its standard error."""
        return self.stderr.read_text(errors="replace")

    def close(self):
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=True)
        self.client.context.destroy(linger=0)
        self.manager.context.destroy(linger=0)
        self._sink.close()


@pytest.fixture
def kernel(eight_gpus, tmp_path):
    kernel = Kernel(tmp_path)
    yield kernel
    kernel.close()


@pytest.fixture
def busy(simulate):
    """A machine on which every number changes all the time, until the test ends."""
    stop = threading.Event()
    threads = []

    def put(count, pid):
        def description(tick):
            return {
                "gpus": [
                    {
                        "name": "NVIDIA H200",
                        "memory_total_bytes": 150_754_820_096,
                        "memory_used_bytes": (60 + (7 * tick + index) % 70) * GIB,
                        "utilization_percent": (37 * tick + 11 * index) % 101,
                        "temperature_celsius": 40 + (tick + index) % 50,
                        "power_watts": 200.0 + (91 * tick + index) % 500,
                        "processes": [
                            {"pid": pid, "memory_bytes": (20 + (tick + index) % 9) * GIB},
                            *(
                                {"pid": 4_000_000 + 9 * index + n, "memory_bytes": (n + 1) * GIB}
                                for n in range(4)
                            ),
                        ],
                    }
                    for index in range(count)
                ]
            }

        def change():
            for tick in itertools.count(1):
                if stop.wait(TICK_SECONDS / 2):
                    return
                simulate(description(tick))

        simulate(description(0))
        threads.append(threading.Thread(target=change))
        threads[0].start()

    yield put
    stop.set()
    for thread in threads:
        thread.join()


def weighed(kernel):
    """Have what widgets send weighed from now on: (widget, sent when, bytes of all frames)."""
    import zmq

    socket = kernel.client.context.socket(zmq.SUB)
    socket.setsockopt(zmq.SUBSCRIBE, b"")
    socket.connect(f"tcp://127.0.0.1:{kernel.manager.iopub_port}")
    found, stop = [], threading.Event()

    def listen():
        while not stop.is_set():
            if socket.poll(100):
                frames = socket.recv_multipart()
                start = frames.index(b"<IDS|MSG>") + 2
                header, content = json.loads(frames[start]), json.loads(frames[start + 3])
                if header["msg_type"] == "comm_msg":
                    sent = datetime.fromisoformat(header["date"].replace("Z", "+00:00"))
                    size = sum(map(len, frames))
                    found.append((content["comm_id"], sent.timestamp(), size))
        socket.close(linger=0)

    thread = threading.Thread(target=listen)
    thread.start()

    def end():
        stop.set()
        thread.join()

    return found, end


@pytest.mark.slow
@pytest.mark.parametrize("devices", [2, 8])
def test_a_tick_takes_four_kilobytes_at_most(tmp_path, simulate, busy, devices):
    simulate(f"{devices}xH200")
    kernel = Kernel(tmp_path)
    found, end = weighed(kernel)
    try:
        busy(devices, int(kernel.run("import os; print(os.getpid())")))
        machine = os.environ["JUPYTER_GPU_SIMULATE"]
        kernel.run(f"os.environ['JUPYTER_GPU_SIMULATE'] = {machine!r}")
        kernel.run(WATCH.format(f"{TICK_SECONDS}s"))
        fast = kernel.run("import time; time.sleep(1); print(m._tree._now.comm.comm_id)").strip()
        before = len(found)
        kernel.run(f"time.sleep({62 * TICK_SECONDS})")
        ticks, last = [], 0.0
        for widget, sent, size in found[before:]:
            # Every tick begins with the fast numbers, but for one in which they are the same.
            if widget == fast or sent - last > TICK_SECONDS / 2:
                ticks.append([])
            ticks[-1].append(size)
            last = sent
        sums = list(map(sum, ticks))
        assert len(sums) >= 40
        assert max(sums) <= LIMIT_BYTES, sums
        assert sum(len(sizes) > 1 for sizes in ticks) > len(ticks) / 2, "cards take turns"
        kernel.run("m.close()")
    finally:
        end()
        kernel.close()


def test_it_pushes_while_a_cell_runs_and_never_while_the_kernel_is_idle(kernel, simulate):
    simulate({"gpus": [{"name": "NVIDIA H200", "utilization_percent": 0}]})
    kernel.run(
        f"import os, time; os.environ['JUPYTER_GPU_SIMULATE'] = {os.environ['JUPYTER_GPU_SIMULATE']!r}"
    )
    kernel.run(WATCH.format("0.1s"))
    request = kernel.begin("time.sleep(1.5)")
    time.sleep(0.3)
    simulate({"gpus": [{"name": "NVIDIA H200", "utilization_percent": 77}]})
    pushed = [m for m in kernel.messages(request) if m["msg_type"] == "comm_msg"]
    assert any("77" in m["content"]["data"]["state"].get("value", "") for m in pushed)
    # After three seconds there is silence, and what changes now is not told.
    quiet = time.monotonic()
    while time.monotonic() - quiet < 4.5:
        with contextlib.suppress(queue.Empty):
            kernel.client.get_iopub_msg(timeout=0.1)
            assert time.monotonic() - quiet < 4.0, "it goes on talking"
    simulate({"gpus": [{"name": "NVIDIA H200", "utilization_percent": 5}]})
    with pytest.raises(queue.Empty):
        kernel.client.get_iopub_msg(timeout=3)
    kernel.run("m.close()")


def test_a_click_looks_once(kernel, simulate):
    simulate({"gpus": [{"name": "NVIDIA H200", "utilization_percent": 0}]})
    kernel.run(
        f"import os; os.environ['JUPYTER_GPU_SIMULATE'] = {os.environ['JUPYTER_GPU_SIMULATE']!r}"
    )
    kernel.run(WATCH.format("1s"))
    button = kernel.run("print(m._tree._button.comm.comm_id)").strip()
    simulate({"gpus": [{"name": "NVIDIA H200", "utilization_percent": 66}]})
    data = {"method": "custom", "content": {"event": "click"}}
    message = kernel.client.session.msg("comm_msg", {"comm_id": button, "data": data})
    kernel.client.shell_channel.send(message)
    values = [
        m["content"]["data"]["state"].get("value", "")
        for m in kernel.messages(message["header"]["msg_id"])
        if m["msg_type"] == "comm_msg"
    ]
    assert any("66" in value for value in values)
    kernel.run("m.close()")


def test_closed_it_leaves_no_widget_and_no_thread(kernel):
    kernel.run(WATCH.format("0.1s") + "import time; time.sleep(0.3)")
    kernel.run("m.close(); del m; import gc; gc.collect()")
    left = """
from ipywidgets.widgets import widget
import threading, time
deadline = time.monotonic() + 10
def threads():
    return [one.name for one in threading.enumerate() if one.name.startswith("jupyter-gpu")]
while threads() and time.monotonic() < deadline:
    time.sleep(0.01)
print(len(widget._instances), threads())
"""
    assert kernel.run(left).strip() == "0 []"


def test_a_cell_that_is_run_again_has_one_monitor(kernel):
    """The front end's word that the old view is gone waits for the end of the cell."""
    code = """
import time
feed = get_ipython().magics_manager.magics["line"]["gpu"].__self__.context().feed()
deadline = time.monotonic() + 10
while len(feed._watchings) > 1 and time.monotonic() < deadline:
    time.sleep(0.01)
print(len(feed._watchings))
"""
    for _ in range(3):
        said = kernel.run(WATCH.format("0.1s") + code, cell="the same")
        assert said.splitlines()[-1] == "1"


def test_a_monitor_never_breaks_a_cell(kernel):
    kernel.run(WATCH.format("0.1s"))
    kernel.run("m._tree.show = None")
    assert kernel.run("import time; time.sleep(0.5); print('whole')") == "whole\n"
    assert kernel.run("print('and on')") == "and on\n"


def quiet(kernel):
    """Check that nothing of ours is on standard error; ipykernel may complain of its own end."""
    for name in ("jupyter_gpu", "jupyter-gpu", "ipywidgets", "in thread", "Fatal Python error"):
        assert name not in kernel.said, kernel.said


def running(kernel, code="import time; time.sleep(30)"):
    """Watch, begin a cell that takes long, and wait until the monitor follows it."""
    kernel.run(WATCH.format("0.1s"))
    request = kernel.begin(code)
    for message in kernel.messages(request, until="busy"):
        del message
    wait_until(
        lambda: kernel.client.get_iopub_msg(timeout=10)["msg_type"] == "comm_msg",
        what="the monitor",
    )
    return request


def test_the_kernel_ends_quietly_while_a_cell_is_watched(kernel):
    running(kernel, "import time\nwhile True: time.sleep(0.01)")
    kernel.manager.shutdown_kernel()
    quiet(kernel)


def test_it_is_restarted_quietly(kernel):
    running(kernel)
    kernel.manager.restart_kernel(now=False)
    kernel.client.wait_for_ready(timeout=SECONDS)
    quiet(kernel)
    kernel.run(WATCH.format("0.1s"))
    kernel.run("m.close()")
    quiet(kernel)


def test_an_interrupt_ends_the_cell_and_not_the_monitor(kernel):
    request = running(kernel)
    kernel.manager.interrupt_kernel()
    errors = [m for m in kernel.messages(request) if m["msg_type"] == "error"]
    assert [m["content"]["ename"] for m in errors] == ["KeyboardInterrupt"]
    request = kernel.begin("import time; time.sleep(1)")
    assert any(m["msg_type"] == "comm_msg" for m in kernel.messages(request))
    quiet(kernel)


def test_exit_in_the_cell_is_quiet(kernel):
    kernel.run(WATCH.format("0.1s"))
    kernel.begin("import time; time.sleep(0.5); exit()")
    wait_until(lambda: not kernel.manager.is_alive(), what="the kernel to end")
    quiet(kernel)


def test_a_process_that_ends_itself_is_quiet(kernel):
    kernel.run(WATCH.format("0.1s"))
    kernel.begin("import os, signal, time; time.sleep(0.5); os.kill(os.getpid(), signal.SIGTERM)")
    wait_until(lambda: not kernel.manager.is_alive(), what="the kernel to end")
    quiet(kernel)


def test_a_fork_in_the_cell_has_no_monitor_of_its_own(kernel):
    kernel.run(WATCH.format("0.1s"))
    code = """
import os, sys, threading, time
time.sleep(0.3)
read, write = os.pipe()
pid = os.fork()
if pid == 0:
    names = [one.name for one in threading.enumerate() if one.name.startswith("jupyter-gpu")]
    os.write(write, repr((names, m.history)).encode())
    os._exit(0)
_, status = os.waitpid(pid, 0)
time.sleep(0.3)
print(os.read(read, 999).decode(), status, len(m.history) > 0)
"""
    assert kernel.run(code).strip() == "([], []) 0 True"
    quiet(kernel)


@pytest.fixture
def server(eight_gpus, tmp_path):
    options = (
        "--MappingKernelManager.cull_idle_timeout=3",
        "--MappingKernelManager.cull_interval=1",
        "--MappingKernelManager.cull_connected=True",
    )
    with Server(tmp_path, arguments=options) as server:
        yield server


class Page:
    """A front end's websocket to a kernel."""

    def __init__(self, server, kernel_id):
        from jupyter_client.session import Session

        self.session = Session(key=b"")
        query = urllib.parse.urlencode({"session_id": self.session.session, "token": TOKEN})
        self.socket = websocket.create_connection(
            f"ws://127.0.0.1:{server.port}/api/kernels/{kernel_id}/channels?{query}",
            timeout=SECONDS,
        )

    def send(self, kind, content, **metadata):
        message = self.session.msg(kind, content, metadata=metadata)
        message["channel"], message["buffers"] = "shell", []
        self.socket.send(json.dumps(message, default=str))
        return message["header"]["msg_id"]

    def execute(self, code):
        content = {"code": code, "silent": False, "store_history": True, "allow_stdin": True}
        return self.send("execute_request", content, cellId=f"cell-{code}")

    def until_idle(self, request):
        """Every message up to the request's end."""
        found = []
        while True:
            message = json.loads(self.socket.recv())
            found.append(message)
            state = message["content"].get("execution_state")
            if message["parent_header"].get("msg_id") == request and state == "idle":
                return found

    def run(self, code):
        return self.until_idle(self.execute(code))


@pytest.mark.slow
def test_an_idle_kernel_is_culled_with_a_monitor_open_and_a_busy_one_is_not(server):
    started = server.open_notebook("watched.ipynb", kernel="python3")
    kernel_id = started.body["kernel"]["id"]
    page = Page(server, kernel_id)
    view = "application/vnd.jupyter.widget-view+json"
    shown = page.run(WATCH.format("0.2s"))
    models = [
        m["content"]["data"][view]["model_id"]
        for m in shown
        if view in m["content"].get("data", {})
    ]
    (model,) = models
    # As the front end tells that it has a view, at once.
    state = {"method": "update", "state": {"_view_count": 1}, "buffer_paths": []}
    page.until_idle(page.send("comm_msg", {"comm_id": model, "data": state}))
    moved = page.run("import time; time.sleep(7)")
    assert sum(m["msg_type"] == "comm_msg" for m in moved) > 20
    assert server.get(f"kernels/{kernel_id}").status == 200
    ended = time.monotonic()
    wait_until(
        lambda: server.get(f"kernels/{kernel_id}").status == 404, seconds=25, what="the culling"
    )
    assert time.monotonic() - ended > 3
    with contextlib.suppress(Exception):  # the server may have closed it
        page.socket.close()


def test_nothing_of_it_is_left_after_a_sigint_at_rest(kernel):
    kernel.run(WATCH.format("0.1s"))
    os.kill(kernel.manager.provisioner.pid, signal.SIGINT)
    assert kernel.run("print('here')") == "here\n"
    quiet(kernel)
