"""Real Jupyter servers for the tests: started on loopback, spoken to by REST, ended by pid."""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from pathlib import Path

from jupyter_client.blocking import BlockingKernelClient

TOKEN = "for-tests-only"


def wait_until(condition, *, seconds=15.0, what="the condition"):
    """Return what ``condition()`` gives as soon as it is true; fail after the deadline."""
    deadline = time.monotonic() + seconds
    while True:
        value = condition()
        if value:
            return value
        assert time.monotonic() < deadline, f"waited {seconds} s for {what}"
        time.sleep(0.02)


def free_port():
    """Return a port below those that the system gives to kernels, free at this moment."""
    while True:
        port = random.randrange(15_000, 32_000)
        with socket.socket() as listener, contextlib.suppress(OSError):
            listener.bind(("127.0.0.1", port))
            return port


class Answer:
    """An answer of the server: status, reason, and the JSON body (None where there is none)."""

    def __init__(self, status, reason, body):
        self.status, self.reason, self.body = status, reason, body


class Server:
    """One ``jupyter server`` process; use it in a ``with``."""

    def __init__(self, folder: Path, *, name="server", arguments=(), command=(), **environ):
        self.folder = folder
        self.root = folder / name
        self.root.mkdir(parents=True, exist_ok=True)
        self.runtime = folder / f"{name}-runtime"
        self.log_path = folder / f"{name}.log"
        self.port = free_port()
        self.environ = {**os.environ, "JUPYTER_RUNTIME_DIR": str(self.runtime), **environ}
        self.arguments, self.command = arguments, command

    def __enter__(self):
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [
                    *self.command, sys.executable, "-m", "jupyter_server", "--no-browser", "--allow-root",
                    "--ip=127.0.0.1", f"--port={self.port}", "--ServerApp.port_retries=0",
                    f"--IdentityProvider.token={TOKEN}", f"--ServerApp.root_dir={self.root}",
                    "--KernelRestarter.time_to_dead=0.3", "--LanguageServerManager.autodetect=False",
                    *self.arguments,
                ],
                env=self.environ, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        wait_until(self._answers, seconds=40, what=f"the server to answer\n{self.log}")
        return self

    def __exit__(self, *error):
        for kernel in self.living_kernels():
            with contextlib.suppress(ProcessLookupError):
                os.kill(kernel, signal.SIGKILL)
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()

    def _answers(self):
        assert self.process.poll() is None, f"the server ended: {self.log}"
        with contextlib.suppress(OSError):
            return self.get("status").status == 200

    @property
    def log(self):
        return self.log_path.read_text(errors="replace")

    def logs(self, words, *, seconds=10.0):
        """Return whether the log says ``words``; a server writes a moment after it acts."""
        wait_until(lambda: words in self.log, seconds=seconds, what=f"{words!r} in\n{self.log}")
        return True

    def request(self, method, path, body=None):
        request = urllib.request.Request(
            f"http://127.0.0.1:{self.port}/api/{path}",
            method=method,
            data=None if body is None else json.dumps(body).encode(),
            headers={"Authorization": f"token {TOKEN}", "Content-Type": "application/json"},
        )
        try:
            with urllib.request.urlopen(request, timeout=60) as answer:
                text = answer.read()
                return Answer(answer.status, answer.reason, json.loads(text) if text else None)
        except urllib.error.HTTPError as error:
            with error:
                text = error.read()
            with contextlib.suppress(ValueError):
                return Answer(error.code, error.reason, json.loads(text))
            return Answer(error.code, error.reason, None)

    def get(self, path):
        return self.request("GET", path)

    def open_notebook(self, path, kernel="pytorch-1gpu"):
        """Start a kernel for a notebook as JupyterLab does; the answer as it came."""
        name = path.rsplit("/", 1)[-1]
        return self.request(
            "POST",
            "sessions",
            {"path": path, "name": name, "type": "notebook", "kernel": {"name": kernel}},
        )

    def kernel_process(self, kernel_id):
        """The pid of a kernel of this server: a leader of its session with its connection file."""
        found = [
            pid
            for pid in self.living_kernels()
            if f"kernel-{kernel_id}.json" in command_line(pid) and leads_session(pid)
        ]
        return found[0] if found else None

    def living_kernels(self):
        return [
            int(entry)
            for entry in os.listdir("/proc")
            if entry.isdigit() and str(self.runtime) in command_line(int(entry))
        ]

    @contextlib.contextmanager
    def client(self, kernel_id):
        client = wait_until(
            lambda: self._connected(kernel_id), seconds=60, what="the kernel to answer"
        )
        try:
            yield client
        finally:
            disconnect(client)

    def _connected(self, kernel_id):
        """A client that the kernel answers, or None where it has just been restarted."""
        path = next(self.runtime.glob(f"kernel-{kernel_id}.json"), None)
        if path is None:
            return None
        client = BlockingKernelClient(connection_file=str(path))
        client.load_connection_file()
        client.start_channels()
        try:
            client.wait_for_ready(timeout=15)
        except RuntimeError:  # a heartbeat missed under load, or other ports by now
            disconnect(client)
            return None
        return client

    def run(self, kernel_id, code):
        """Run code in a kernel and return what it printed."""
        printed = []

        def keep(message):
            content = message["content"]
            printed.append(content.get("text") or "\n".join(content.get("traceback", [])))

        with self.client(kernel_id) as client:
            client.execute_interactive(code, output_hook=keep, timeout=30)
        return "".join(printed).strip()

    def visible(self, kernel_id):
        return self.run(kernel_id, "import os; print(os.environ['CUDA_VISIBLE_DEVICES'])")


def disconnect(client):
    client.stop_channels()
    client.context.destroy(linger=0)


def command_line(pid):
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def leads_session(pid):
    try:
        return os.getsid(pid) == pid
    except ProcessLookupError:
        return False
