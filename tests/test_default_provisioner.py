"""The provisioner as the default of every kernelspec: kernels live exactly as they did before."""

import json
import os
import sys
import uuid
from pathlib import Path

import pytest
from jupyter_client import KernelManager
from jupyter_client.provisioning import KernelProvisionerFactory
from kernels import REPLY_SECONDS, SEE, START_SECONDS, free_count, leases, require_leased
from support_server import Server
from traitlets.config import Config

TRANSPORTS = {
    "tcp": {},
    "tcp, encrypted": {"transport_encryption": "required"},
    "ipc": {"transport": "ipc"},
}
# What a leased kernel has in its environment and another has not.
DEVICES = {
    "CUDA_DEVICE_ORDER",
    "CUDA_VISIBLE_DEVICES",
    "JUPYTER_GPU_PROVISIONED",
    "JUPYTER_GPU_STARTER",
}
LEASED = {
    "JUPYTER_GPU_LEASE",
    "JUPYTER_GPU_LEASE_FD",
    "TF_FORCE_GPU_ALLOW_GROWTH",
    "XLA_PYTHON_CLIENT_PREALLOCATE",
}

# A kernel in no language in particular: every cell's answer is its environment, as JSON.
SCRIPT_KERNEL = """
import json, os, signal, sys, threading
import zmq
from jupyter_client.session import Session
with open(sys.argv[1], encoding="utf-8") as file:
    connection = json.load(file)
session = Session(key=connection["key"].encode())
signal.signal(signal.SIGINT, signal.SIG_IGN)  # sent before every shutdown
context = zmq.Context()
def bind(kind, name):
    bound = context.socket(kind)
    bound.bind(f"tcp://{connection['ip']}:{connection[name + '_port']}")
    return bound
shell, control = bind(zmq.ROUTER, "shell"), bind(zmq.ROUTER, "control")
iopub, beat = bind(zmq.PUB, "iopub"), bind(zmq.REP, "hb")
threading.Thread(target=zmq.proxy, args=(beat, beat), daemon=True).start()
poller = zmq.Poller()
for one in (shell, control):
    poller.register(one, zmq.POLLIN)
while True:
    for one, _ in poller.poll():
        identity, request = session.recv(one, 0)
        kind = request["msg_type"]
        answer = {"status": "ok"}
        session.send(iopub, "status", {"execution_state": "busy"}, parent=request)
        if kind == "kernel_info_request":
            answer |= {"protocol_version": "5.3", "implementation": "script", "banner": ""}
            answer |= {"language_info": {"name": "environment"}}
        elif kind == "execute_request":
            text = json.dumps(dict(os.environ) | {"pid": os.getpid()})
            content = {"name": "stdout", "text": text}
            session.send(iopub, "stream", content, parent=request)
        session.send(one, kind.replace("request", "reply"), answer, parent=request, ident=identity)
        session.send(iopub, "status", {"execution_state": "idle"}, parent=request)
        if kind == "shutdown_request":
            context.destroy(linger=200)
            sys.exit(0)
"""


@pytest.fixture(autouse=True)
def _four_gpus(simulate):
    simulate("4xH200")


@pytest.fixture
def default_provisioner(monkeypatch):
    """Say which provisioner kernelspecs have that name none, as the server's environment does."""

    def put(name):
        monkeypatch.setenv("JUPYTER_DEFAULT_PROVISIONER_NAME", name)
        KernelProvisionerFactory.clear_instance()

    yield put
    KernelProvisionerFactory.clear_instance()


@pytest.fixture
def managed():
    """Start kernels through jupyter_client: ``managed("python3", gpus=1)``."""
    started = []

    def start(name, **options):
        given = {key: options.pop(key) for key in ("gpus", "devices") if key in options}
        started.append(Managed(name, Config({"GPUProvisioner": given}), options))
        return started[-1]

    yield start
    for one in started:
        one.close()


class Managed:
    """A kernel under its manager, and a client of it."""

    def __init__(self, name, config, options):
        runtime = Path(os.environ["JUPYTER_RUNTIME_DIR"])
        runtime.mkdir(exist_ok=True)
        options["connection_file"] = str(runtime / f"kernel-{uuid.uuid4()}.json")
        self.manager = KernelManager(kernel_name=name, config=config, **options)
        self.manager.start_kernel()
        self.connect()

    def connect(self):
        self.client = self.manager.client()
        self.client.start_channels()
        self.client.wait_for_ready(timeout=START_SECONDS)

    @property
    def process(self):
        return self.manager.provisioner.process

    def run(self, code, when_busy=lambda: None):
        """Run code; returns the reply's content and what was printed."""
        printed = []

        def gather(message):
            if message["msg_type"] == "stream":
                printed.append(message["content"]["text"])
                when_busy()

        reply = self.client.execute_interactive(code, output_hook=gather, timeout=REPLY_SECONDS)
        return reply["content"], "".join(printed)

    def see(self):
        return json.loads(self.run(f"{SEE}print(json.dumps(seen))")[1])

    def close(self):
        self.client.stop_channels()
        if self.manager.has_kernel:
            self.manager.shutdown_kernel(now=True)
        self.manager.cleanup_resources()


def life(kernel, connection_file):
    """Lead a kernel through its whole life, and note everything that a front end could notice."""
    client, manager = kernel.client, kernel.manager
    noted = {"kernel_info": client.kernel_info(reply=True, timeout=REPLY_SECONDS)["content"]}
    code = "import os, json; print(json.dumps(dict(os.environ)))"
    noted["environment"] = json.loads(kernel.run(code)[1])
    noted["cwd"] = kernel.run("print(os.getcwd())")[1]
    noted["group"] = kernel.run("print(os.getpgrp() == os.getpid() == os.getsid(0))")[1]
    sleep = "import time\nprint('busy', flush=True)\ntime.sleep(60)"
    noted["interrupt"] = kernel.run(sleep, when_busy=manager.interrupt_kernel)[0]["ename"]
    first, connection = kernel.process, connection_file.read_text(encoding="utf-8")
    kernel.run("x = 1")
    manager.restart_kernel()
    client.wait_for_ready(timeout=START_SECONDS)
    noted["restart: the connection stays"] = connection == connection_file.read_text("utf-8")
    noted["restart: another process"] = kernel.process.pid != first.pid
    noted["restart: the first one's status"] = first.returncode
    noted["restart: names are gone"] = kernel.run("x")[0]["ename"]
    last = kernel.process
    client.stop_channels()
    manager.shutdown_kernel()
    noted["status"] = last.returncode
    noted["has a kernel"] = manager.has_kernel
    return noted


@pytest.mark.parametrize("transport", TRANSPORTS)
def test_a_kernelspec_that_names_no_provisioner_lives_as_before(
    transport, managed, default_provisioner
):
    runtime = Path(os.environ["JUPYTER_RUNTIME_DIR"])
    lives, left = {}, {}
    for provisioner in ("local-provisioner", "gpu-provisioner"):
        default_provisioner(provisioner)
        kernel = managed("python3", gpus=2, **TRANSPORTS[transport])
        assert len(leases()) == (provisioner == "gpu-provisioner")
        lives[provisioner] = life(kernel, Path(kernel.manager.connection_file))
        left[provisioner] = sorted(path.name for path in runtime.iterdir())
    before, now = lives.values()
    environments = [noted.pop("environment") for noted in (before, now)]
    for noted in (before, now):  # IPython's banner ends with another tip every time
        noted["kernel_info"]["banner"] = noted["kernel_info"]["banner"].partition("Tip:")[0]
    assert now == before
    assert now["status"] == 0
    assert now["restart: the first one's status"] == 0
    assert now["interrupt"] == "KeyboardInterrupt"
    assert left == {"local-provisioner": [], "gpu-provisioner": []}
    added = {k: v for k, v in environments[1].items() if environments[0].get(k) != v}
    added.pop("JUPYTER_DEFAULT_PROVISIONER_NAME")
    assert added.keys() == DEVICES | LEASED
    assert added["CUDA_VISIBLE_DEVICES"] == "0,1"
    assert environments[0].keys() - environments[1].keys() == set()
    assert leases() == ()
    assert free_count() == 4


def test_a_restart_keeps_the_devices_that_a_stock_kernelspec_has(managed, default_provisioner):
    default_provisioner("gpu-provisioner")
    other = managed("python3", gpus=1)
    kernel = managed("python3", gpus=1)
    seen = kernel.see()
    other.close()
    kernel.manager.restart_kernel()
    kernel.client.wait_for_ready(timeout=START_SECONDS)
    again = kernel.see()
    require_leased(again, (1,))
    assert again["pid"] != seen["pid"]
    assert again["JUPYTER_GPU_LEASE"] == seen["JUPYTER_GPU_LEASE"]


def test_nobody_gets_a_gpu_unless_a_kernelspec_asks_where_the_server_says_0(
    managed, default_provisioner, monkeypatch, lease_directory
):
    default_provisioner("gpu-provisioner")
    put_kernelspec(lease_directory, monkeypatch, "asks", config={"gpus": 1})
    plain, asking = managed("python3", gpus=0), managed("asks", gpus=0)
    seen = plain.see()
    assert seen["CUDA_VISIBLE_DEVICES"] == "-1"
    assert seen["JUPYTER_GPU_LEASE"] is None
    require_leased(asking.see(), (0,))


def test_the_servers_configuration_chooses_for_every_kernelspec(managed, default_provisioner):
    default_provisioner("gpu-provisioner")
    require_leased(managed("python3", gpus="all", devices=[2, 3]).see(), (2, 3))


def test_without_configuration_a_stock_kernelspec_gets_one(managed, default_provisioner):
    default_provisioner("gpu-provisioner")
    require_leased(managed("python3").see(), (0,))


def test_a_server_reads_it_from_its_configuration_file(lease_directory, monkeypatch, tmp_path):
    configuration = Path(os.environ["JUPYTER_CONFIG_DIR"])
    configuration.mkdir()
    (configuration / "jupyter_server_config.py").write_text(
        "c.GPUProvisioner.gpus = 0\nc.GPUProvisioner.devices = [1, 3]\n", encoding="utf-8"
    )
    put_kernelspec(lease_directory, monkeypatch, "asks", config={"gpus": 1})
    environ = {
        "JUPYTER_DEFAULT_PROVISIONER_NAME": "gpu-provisioner",
        "JUPYTER_NO_CONFIG": "",
    }
    with Server(tmp_path, **environ) as server:
        plain = server.open_notebook("a.ipynb", "python3").body["kernel"]["id"]
        assert server.visible(plain) == "-1"
        assert leases() == ()
        asking = server.open_notebook("b.ipynb", "asks").body["kernel"]["id"]
        seen = json.loads(server.run(asking, f"{SEE}print(json.dumps(seen))"))
        require_leased(seen, (1,))


def put_kernelspec(lease_directory, monkeypatch, name, *, argv=None, config=None):
    """Install a kernelspec that does not run our wrapper, with our provisioner or the default."""
    spec = {
        "argv": argv or [sys.executable, "-m", "ipykernel_launcher", "-f", "{connection_file}"],
        "display_name": name,
        "language": "python" if argv is None else "environment",
    }
    if config is not None:
        provisioner = {"provisioner_name": "gpu-provisioner", "config": config}
        spec["metadata"] = {"kernel_provisioner": provisioner}
    share = lease_directory.parent / "share"
    folder = share / "kernels" / name
    folder.mkdir(parents=True)
    (folder / "kernel.json").write_text(json.dumps(spec), encoding="utf-8")
    monkeypatch.setenv("JUPYTER_PATH", str(share))


@pytest.mark.parametrize("config", [None, {"gpus": 2}], ids=["by default", "by kernelspec"])
def test_a_kernel_of_another_language_gets_its_devices(
    managed, default_provisioner, monkeypatch, lease_directory, tmp_path, config
):
    default_provisioner("gpu-provisioner")
    script = tmp_path / "kernel.py"
    script.write_text(SCRIPT_KERNEL, encoding="utf-8")
    argv = [sys.executable, str(script), "{connection_file}"]
    put_kernelspec(lease_directory, monkeypatch, "script", argv=argv, config=config)
    kernel = managed("script", gpus=2)
    require_leased(json.loads(kernel.run("?")[1]), (0, 1))
    first = kernel.process
    kernel.manager.restart_kernel()
    kernel.client.wait_for_ready(timeout=START_SECONDS)
    require_leased(json.loads(kernel.run("?")[1]), (0, 1))
    last = kernel.process
    kernel.client.stop_channels()
    kernel.manager.shutdown_kernel()
    assert (first.returncode, last.returncode) == (0, 0)
    assert leases() == ()
