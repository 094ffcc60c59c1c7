"""A real JupyterHub for the tests: users of this system, their browsers, all ended by pid.

The proxy is the one in Python from PyPI: it takes JupyterHub's own place for a proxy, brings no
Node.js and needs nothing but what pip installs.
"""

from __future__ import annotations

import contextlib
import importlib.util
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
import time
from pathlib import Path

import requests
import websocket
from conftest import poll
from jupyter_client.session import Session
from support_server import Answer, free_port, wait_until

CHECKOUT = Path(__file__).parent.parent
NEEDED = ("jupyterhub", "pamela", "configurable_http_proxy", "jupyterlab")
# What no server here needs, and is large.
NOT_OF_PYTHON = ("test", "idlelib", "config-*", "site-packages", "dist-packages")
NOT_OF_PACKAGES = ("torch", "nvidia", "triton")

CONFIG = """
c = get_config()
c.JupyterHub.bind_url = "http://127.0.0.1:{port}"
c.JupyterHub.hub_bind_url = "http://127.0.0.1:{hub_port}"
c.JupyterHub.db_url = "sqlite:///:memory:"
c.JupyterHub.authenticator_class = "pam"
c.JupyterHub.spawner_class = "jupyterhub.spawner.LocalProcessSpawner"
c.JupyterHub.shutdown_on_logout = True
c.Authenticator.allowed_users = {names!r}
c.ConfigurableHTTPProxy.api_url = "http://127.0.0.1:{proxy_port}"
c.ConfigurableHTTPProxy.command = [{root_python!r}, "-c", "from configurable_http_proxy.cli import main; main()"]
c.Spawner.cmd = [{user_python!r}, "-m", "jupyterhub.singleuser"]
c.Spawner.args = ["--GPUProvisioner.wait=0", "--LanguageServerManager.autodetect=False"]
c.Spawner.environment = {environ!r}
c.Spawner.default_url = "/lab"
c.Spawner.poll_interval = 1
c.Spawner.http_timeout = 60
c.LocalProcessSpawner.interrupt_timeout = 5
c.LocalProcessSpawner.term_timeout = 5
"""


def what_is_missing():
    """Why no JupyterHub with users of its own can run here, as a sentence; None when it can."""
    if getattr(os, "getuid", lambda: 1)() != 0:
        return "a JupyterHub that starts servers of several users needs root"
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    absent += [name for name in ("useradd", "userdel", "chpasswd") if shutil.which(name) is None]
    return f"not installed: {', '.join(absent)}" if absent else None


def processes_of(uid):
    """The living processes of a user."""
    return living(lambda process: process.stat().st_uid == uid)


def living(fits):
    """The processes that are not just waiting to be waited for, and for whose folder it is true."""
    found = []
    for process in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):  # one that ends while it is looked at
            state = (process / "stat").read_text(errors="replace").rpartition(")")[2].split()[0]
            if state not in "ZX" and fits(process):
                found.append(int(process.name))
    return found


def end_all(find):
    """Kill the processes that ``find`` finds, which are of this test's making, until none is left."""

    def gone():
        for pid in find():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        return not find()

    wait_until(gone, what="processes to end")


class SystemUser:
    """A user of this system with a home of their own and a password; use it in a ``with``."""

    def __init__(self, name, home: Path):
        # The pid keeps two runs of the tests at the same time apart.
        self.name, self.home = f"hub-test-{name}-{os.getpid()}", home / name
        self.password = secrets.token_urlsafe()

    def __enter__(self):
        command(
            "useradd", "--no-create-home", "--home-dir", self.home, "--shell", "/bin/sh", self.name
        )
        with contextlib.ExitStack() as undo:
            undo.callback(self.__exit__)
            self.uid, self.gid = (int(command("id", option, self.name)) for option in ("-u", "-g"))
            command("chpasswd", stdin=f"{self.name}:{self.password}\n")
            self.home.mkdir(mode=0o700)
            os.chown(self.home, self.uid, self.gid)
            undo.pop_all()
        return self

    def __exit__(self, *error):
        end_all(lambda: processes_of(self.uid))
        # By force: an ended process that nobody has waited for counts as "in use".
        command("userdel", "--force", self.name)

    def runs(self, *words, **environ):
        """Whether a command ends well as this user."""
        ended = subprocess.run(
            ["/bin/sh", "-c", 'exec "$@"', "sh", *map(str, words)], user=self.uid, group=self.gid, extra_groups=[], cwd="/",
            env={"HOME": str(self.home), "PATH": os.environ["PATH"], **environ},
            check=False, capture_output=True, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        return ended.returncode == 0


def command(*words, stdin=""):
    ended = subprocess.run(
        list(map(str, words)), input=stdin, text=True, capture_output=True, check=False
    )
    assert ended.returncode == 0, f"{words[0]}: {ended.stdout}{ended.stderr}"
    return ended.stdout


class Python:
    """A Python, with the packages of this one, that a user may run.

    The interpreter, its packages or the checkout may stand where only root can go, such as in
    /root. What a user cannot reach is linked, or copied, into a folder that they can.
    """

    def __init__(self, folder: Path, user: SystemUser):
        self.executable, self.environ = sys.executable, {}
        asked = ("-c", "import ipykernel, jupyter_gpu, jupyterhub")
        if not user.runs(self.executable, *asked):
            self._bring(folder, user)
            able = user.runs(self.executable, *asked, **self.environ)
            assert able, f"{user.name} cannot run {self.executable}"

    def _bring(self, folder, user):
        version = f"python{sys.version_info.major}.{sys.version_info.minor}"
        base = folder / "python"
        (base / "bin").mkdir(parents=True)
        link(Path(sys.executable).resolve(), base / "bin" / version)
        (base / "lib").mkdir()
        for library in (Path(sys.base_prefix) / "lib").glob("libpython*"):
            link(library, base / "lib" / library.name)
        bring_tree(sysconfig.get_path("stdlib"), base / "lib" / version, *NOT_OF_PYTHON)

        prefix = folder / "environment"
        (prefix / "bin").mkdir(parents=True)
        (prefix / "bin" / "python").symlink_to(base / "bin" / version)
        (prefix / "pyvenv.cfg").write_text(f"home = {base / 'bin'}\n")
        for name in ("etc", "lib", "share"):
            self._offer(Path(sys.prefix) / name, prefix / name, user)
        packages = folder / "packages"
        packages.mkdir()
        self._offer(CHECKOUT / "jupyter_gpu", packages / "jupyter_gpu", user)
        self.executable = str(prefix / "bin" / "python")
        self.environ = {
            "PATH": f"{prefix / 'bin'}:{os.environ['PATH']}",
            "PYTHONPATH": str(packages),
            "LD_LIBRARY_PATH": str(base / "lib"),
        }

    def _offer(self, tree, where, user):
        if user.runs("/bin/sh", "-c", f"cd '{tree}' && ls"):
            where.symlink_to(tree)
        elif tree.is_dir():
            bring_tree(tree, where, *NOT_OF_PACKAGES)


def bring_tree(tree, where, *left_out):
    shutil.copytree(
        tree, where, symlinks=True, copy_function=link,
        ignore=shutil.ignore_patterns(*left_out),
    )  # fmt: skip


def link(source, target):
    """Give a file a second name; a copy where the file system is another one."""
    try:
        os.link(source, target)
    except OSError:
        shutil.copy2(source, target)
    return target


class Hub:
    """One ``jupyterhub`` with its proxy on loopback; use it in a ``with``."""

    def __init__(self, folder: Path, users, python: Python, **environ):
        self.port, hub_port, proxy_port = free_port(), free_port(), free_port()
        self.url = f"http://127.0.0.1:{self.port}"
        self.folder = folder / "hub"
        self.folder.mkdir(mode=0o700)
        self.log_path = self.folder / "log"
        config = CONFIG.format(
            port=self.port, hub_port=hub_port, proxy_port=proxy_port, names={user.name for user in users},
            root_python=sys.executable, user_python=python.executable, environ={**python.environ, **environ},
        )  # fmt: skip
        (self.folder / "config.py").write_text(config)

    def __enter__(self):
        with self.log_path.open("wb") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "jupyterhub", "--config", "config.py"],
                cwd=self.folder, stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        with contextlib.ExitStack() as undo:
            undo.callback(self.__exit__)
            wait_until(self._answers, seconds=60, what="the hub to answer")
            undo.pop_all()
        return self

    def __exit__(self, *error):
        """Ask the hub to end with its proxy and servers, and end what does not."""
        self.process.terminate()
        try:
            self.process.wait(timeout=15)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        # The proxy of a hub that failed: nobody else works in this folder.
        end_all(lambda: living(lambda process: (process / "cwd").samefile(self.folder)))

    def _answers(self):
        assert self.process.poll() is None, f"the hub ended: {self.log}"
        with contextlib.suppress(requests.ConnectionError):
            return self.request("GET", "/hub/api/").status_code == 200

    def request(self, method, path, **headers):
        """A request of nobody's browser."""
        with direct_session() as session:
            return session.request(method, f"{self.url}{path}", headers=headers, timeout=60)

    @property
    def log(self):
        return self.log_path.read_text(errors="replace")


def direct_session():
    """A session that keeps cookies and knows no proxy but the hub's."""
    session = requests.Session()
    session.trust_env = False
    return session


class Browser:
    """What one person's browser holds and does: pages, cookies, requests, kernels' channels."""

    def __init__(self, hub: Hub, user: SystemUser):
        self.hub, self.user = hub, user
        self.home = f"/user/{user.name}"
        self.session = direct_session()

    def __enter__(self):
        return self

    def __exit__(self, *error):
        self.session.close()

    def page(self, path):
        """Open a page and follow where it leads."""
        return self.session.get(
            f"{self.hub.url}{path}", headers={"Sec-Fetch-Mode": "navigate"}, timeout=60
        )

    def token_against_forgery(self, path):
        """The value of the XSRF cookie that belongs to a path."""
        fitting = [c for c in self.session.cookies if c.name == "_xsrf" and path.startswith(c.path)]
        return max(fitting, key=lambda cookie: len(cookie.path)).value if fitting else ""

    def log_in(self, password=None):
        """Fill in the hub's form; the page that it leads to."""
        self.page("/hub/login")
        form = {
            "username": self.user.name,
            "password": password or self.user.password,
            "_xsrf": self.token_against_forgery("/hub/"),
        }
        return self.session.post(
            f"{self.hub.url}/hub/login?next=/hub/home",
            data=form, headers={"Sec-Fetch-Mode": "navigate"}, timeout=60,
        )  # fmt: skip

    def log_out(self):
        return self.page("/hub/logout")

    @property
    def is_logged_in(self):
        return self.request("GET", "/hub/api/user").status == 200

    def request(self, method, path, body=None):
        """A request as a script of a page of the hub, or of a user's server, makes it."""
        answer = self.session.request(
            method, f"{self.hub.url}{path}", json=body, timeout=60, allow_redirects=False,
            headers={"Sec-Fetch-Mode": "cors", "X-XSRFToken": self.token_against_forgery(path)},
        )  # fmt: skip
        with contextlib.suppress(ValueError):
            return Answer(answer.status_code, answer.reason, answer.json())
        return Answer(answer.status_code, answer.reason, None)

    def server(self):
        """What the hub says of this user's server; None when there is none."""
        answer = self.request("GET", f"/hub/api/users/{self.user.name}")
        assert answer.status == 200, answer.body
        return answer.body["servers"].get("")

    def ask_for_server(self):
        assert self.page("/hub/spawn").status_code == 200

    def enter_server(self):
        """Wait for the server, and log in to it, by OAuth, as its page does."""
        # Seldom: each question costs the hub what the starting servers could use.
        poll(lambda: (self.server() or {}).get("ready"), within=60, every=0.25)
        page = self.page(f"{self.home}/lab")
        assert (page.status_code, page.url) == (200, f"{self.hub.url}{self.home}/lab"), self.hub.log

    def stop_server(self):
        answer = self.request("DELETE", f"/hub/api/users/{self.user.name}/server")
        assert answer.status in (202, 204), answer.body

    def open_notebook(self, path):
        """Start a kernel with one GPU for a notebook, as JupyterLab does; the answer as it came."""
        return self.request(
            "POST",
            f"{self.home}/api/sessions",
            {"path": path, "name": path, "type": "notebook", "kernel": {"name": "pytorch-1gpu"}},
        )

    def close_notebooks(self):
        """Shut down every kernel of this user, if there still is a server that has any."""
        sessions = self.request("GET", f"{self.home}/api/sessions")
        for session in sessions.body if sessions.status == 200 else ():
            self.request("DELETE", f"{self.home}/api/sessions/{session['id']}")

    def run(self, kernel, code, *, of=None):
        """Run code in a kernel and return what it printed, up to its end or the kernel's."""
        path = f"{(of or self).home}/api/kernels/{kernel}/channels"
        own = [c for c in self.session.cookies if self.home.startswith(c.path.rstrip("/"))]
        channels = websocket.create_connection(
            f"ws://127.0.0.1:{self.hub.port}{path}",
            cookie="; ".join(f"{c.name}={c.value}" for c in own),
            header={"Sec-Fetch-Mode": "websocket"}, origin=self.hub.url, timeout=30,
        )  # fmt: skip
        try:
            return executed(channels, code)
        finally:
            channels.close()


def executed(channels, code):
    """Send code as an execute request, and gather what it prints."""
    request = Session().msg("execute_request", {"code": code, "silent": False})
    number, printed, open_ends = request["msg_id"], [], {"idle", "reply"}
    channels.send(json.dumps({**request, "channel": "shell", "buffers": []}, default=str))
    deadline = time.monotonic() + 30
    while open_ends:
        assert time.monotonic() < deadline, f"the kernel printed only {printed}"
        try:
            message = json.loads(channels.recv())
        except websocket.WebSocketConnectionClosedException:
            break
        if message["parent_header"].get("msg_id") != number:
            continue
        content = message["content"]
        if message["msg_type"] == "status" and content["execution_state"] == "idle":
            open_ends.discard("idle")
        elif message["msg_type"] == "execute_reply":
            open_ends.discard("reply")
        elif message["msg_type"] == "stream":
            printed.append(content["text"])
        elif message["msg_type"] == "execute_result":
            printed.append(content["data"]["text/plain"])
        elif message["msg_type"] == "error":
            printed.append("\n".join(content["traceback"]))
    return "".join(printed).strip()
