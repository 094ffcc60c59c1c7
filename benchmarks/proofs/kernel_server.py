"""A server in a process of its own: it starts kernels as servers do, and can be killed as one.

``Server`` is the handle on it. The process reads one JSON object a line and answers with one.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any


class ServerError(RuntimeError):
    """The server, or a cell in one of its kernels, answered with an error."""


class Server:
    """Another process that starts kernels; use it in a ``with``."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-u", str(Path(__file__))],
            env=dict(environment),
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            bufsize=1,
        )
        self._pids: list[int] = []

    def __enter__(self) -> Server:
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):  # it may be gone
            self.process.stdin.close()
        try:
            self.process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        for pid in self._pids:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def start(self, name: str) -> dict[str, Any]:
        """Start a kernel: its ``kernel`` id, ``pid``, and ``ms`` to the first reply."""
        answer = self.ask(do="start", name=name)
        self._pids.append(answer["pid"])
        return answer

    def run(self, kernel: Mapping[str, Any], code: str) -> str:
        """Run a cell and return what it printed."""
        return self.ask(do="run", kernel=kernel["kernel"], code=code)["printed"]

    def call(self, kernel: Mapping[str, Any], call: str) -> dict[str, Any]:
        """Call a function of ``proofs.in_kernel`` in a kernel and return what it says."""
        code = f"import proofs.in_kernel\nproofs.in_kernel.{call}"
        return json.loads(self.run(kernel, code).splitlines()[-1])

    def shut_down(self, kernel: Mapping[str, Any]) -> None:
        self.ask(do="shut_down", kernel=kernel["kernel"])

    def kill_with(self, *kernels: Mapping[str, Any]) -> float:
        """Kill the server and these kernels at once, and return when (``time.monotonic``)."""
        when = time.monotonic()
        self.process.kill()
        for kernel in kernels:
            os.kill(kernel["pid"], signal.SIGKILL)
        self.process.wait()
        return when

    def ask(self, **question: object) -> dict[str, Any]:
        self.process.stdin.write(json.dumps(question) + "\n")
        line = self.process.stdout.readline()
        if not line:
            raise ServerError(f"the server ended with {self.process.wait()}")
        answer = json.loads(line)
        if "error" in answer:
            raise ServerError(answer["error"])
        return answer


class _Kernels:
    """The kernels of this process, by id."""

    def __init__(self) -> None:
        self._kernels: dict[str, tuple[Any, Any]] = {}

    def start(self, name: str) -> dict[str, object]:
        from jupyter_client import KernelManager

        manager = KernelManager(kernel_name=name)
        began = time.perf_counter()
        # Standard output is what this process answers on.
        manager.start_kernel(stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            client = manager.blocking_client()
            client.start_channels()
            self._await_reply(client)
            took = (time.perf_counter() - began) * 1000
            self._await_output(client)
        except BaseException:
            manager.shutdown_kernel(now=True)
            raise
        self._kernels[manager.kernel_id] = (manager, client)
        return {"kernel": manager.kernel_id, "pid": manager.provisioner.pid, "ms": took}

    def run(self, kernel: str, code: str) -> dict[str, object]:
        return {"printed": self._execute(self._kernels[kernel][1], code)}

    def shut_down(self, kernel: str) -> dict[str, object]:
        manager, client = self._kernels.pop(kernel)
        client.stop_channels()
        manager.shutdown_kernel(now=True)
        return {}

    def close(self) -> None:
        for kernel in list(self._kernels):
            with contextlib.suppress(Exception):  # killed on purpose, perhaps
                self.shut_down(kernel)

    @staticmethod
    def _await_reply(client: Any) -> None:
        request = client.execute("None", store_history=False)
        while client.get_shell_msg(timeout=60)["parent_header"].get("msg_id") != request:
            continue

    @staticmethod
    def _await_output(client: Any) -> None:
        """Wait until output arrives: what is published before the client has joined is lost."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            client.kernel_info()
            with contextlib.suppress(queue.Empty):
                client.get_iopub_msg(timeout=0.1)
                return
        raise TimeoutError("the kernel's output does not arrive")

    @staticmethod
    def _execute(client: Any, code: str) -> str:
        printed: list[str] = []

        def listen(message: dict[str, Any]) -> None:
            if message["msg_type"] == "stream" and message["content"]["name"] == "stdout":
                printed.append(message["content"]["text"])

        reply = client.execute_interactive(
            code, store_history=False, output_hook=listen, timeout=90
        )["content"]
        if reply["status"] != "ok":
            raise ServerError(f"{reply.get('ename')}: {reply.get('evalue')}")
        return "".join(printed)


def main() -> None:
    kernels = _Kernels()
    for line in sys.stdin:
        question = json.loads(line)
        try:
            answer = getattr(kernels, question.pop("do"))(**question)
        except Exception as error:  # it goes to who asked
            answer = {"error": str(error) or repr(error)}
        print(json.dumps(answer), flush=True)
    kernels.close()


if __name__ == "__main__":
    main()
