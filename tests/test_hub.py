"""A real JupyterHub: two users of this system, two logins, one machine with two GPUs.

Logins are PAM's, as on a hub that nobody has configured: the test makes the users and gives them
passwords. The servers are started by the hub's local spawner and run as their users.
"""

from __future__ import annotations

import ast
import json
import os
import shutil
import subprocess
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
import websocket
from conftest import leases_left
from support_hub import Browser, Hub, Python, SystemUser, processes_of, what_is_missing
from support_server import wait_until

from jupyter_gpu.adapters.place import Place, safety
from jupyter_gpu.adapters.records import records_path
from jupyter_gpu.adapters.store import LeaseStore

MACHINE = "2xH200"
COMMAND = "import sys; get_ipython().system(f'{sys.executable} -m jupyter_gpu who --json')"


@pytest.fixture(scope="module")
def folder():
    """A folder that other users can traverse."""
    made = Path(tempfile.mkdtemp(prefix="jupyter-gpu-hub-"))
    made.chmod(0o755)
    yield made
    shutil.rmtree(made)


@pytest.fixture(scope="module")
def people(folder):
    reason = what_is_missing()
    if reason and os.environ.get("CI"):
        pytest.fail(f"CI runs these tests: {reason}")
    if reason:
        pytest.skip(reason)
    with SystemUser("ada", folder) as ada, SystemUser("ben", folder) as ben:
        yield ada, ben


@pytest.fixture(scope="module")
def place(folder, people):
    """The lease directory of a whole machine, as ``jupyter gpu setup`` makes it."""
    subprocess.run(
        [sys.executable, "-m", "jupyter_gpu", "setup", "--root", folder],
        check=True,
        capture_output=True,
    )
    found = Place(folder / "run" / "jupyter-gpu", "system")
    assert safety(found) is None
    return found


@pytest.fixture(scope="module")
def visitors(folder, people, place):
    """The browsers of two people, in front of one hub."""
    environ = {"JUPYTER_GPU_SIMULATE": MACHINE, "JUPYTER_GPU_LEASE_DIR": str(place.directory)}
    with (
        Hub(folder, people, Python(folder, people[0]), **environ) as hub,
        Browser(hub, people[0]) as ada,
        Browser(hub, people[1]) as ben,
    ):
        yield ada, ben


@pytest.fixture
def browsers(visitors, place):
    """Both, logged in and with their servers running; nothing is held when the test is over."""
    for one in visitors:
        if not one.is_logged_in:
            assert one.log_in().url == f"{one.hub.url}/hub/home"
        if not one.server():
            one.ask_for_server()
    for one in visitors:
        one.enter_server()
    yield visitors
    for one in visitors:
        one.close_notebooks()
    assert leases_left(place.lock_path, within=10) == []


class Holder:
    """A person whose kernel holds a device."""

    def __init__(self, browser, answer):
        assert answer.status == 201, answer.body
        self.browser, self.name = browser, browser.user.name
        self.kernel = answer.body["kernel"]["id"]

    def run(self, code):
        return self.browser.run(self.kernel, code)

    def attempts(self, expression):
        """What comes of an expression in this kernel: its value, or the name of its exception."""
        return self.run(
            "import os\n"
            f"try:\n    print({expression})\nexcept Exception as error:\n    print(type(error).__name__)"
        )

    def visible(self):
        return self.run("import os; print(os.environ['CUDA_VISIBLE_DEVICES'])")


@pytest.fixture
def ada(holders):
    return holders[0]


@pytest.fixture
def ben(holders):
    return holders[1]


@pytest.fixture
def holders(browsers):
    """Ada and Ben, each with a kernel that holds one of the two devices."""
    with ThreadPoolExecutor(2) as pool:
        answers = list(pool.map(lambda one: one.open_notebook("work.ipynb"), browsers))
    return [Holder(*pair) for pair in zip(browsers, answers, strict=True)]


def held(place):
    """Who holds which devices, as root sees it."""
    with LeaseStore(place) as store:
        return {lease.user: lease.record.indices for lease in store.holdings().leases}


def lease_of(person, place):
    with LeaseStore(place) as store:
        (lease,) = [lease for lease in store.holdings().leases if lease.user == person.name]
    return lease


def test_a_wrong_password_opens_nothing(visitors):
    ada, ben = visitors
    with Browser(ada.hub, ada.user) as stranger:
        assert stranger.log_in(password=ben.user.password).status_code == 403
        assert not stranger.is_logged_in


def test_each_gets_a_device_and_a_third_start_is_refused_with_both_names(ada, ben, place):
    devices = {one.name: one.visible() for one in (ada, ben)}
    assert sorted(devices.values()) == ["0", "1"]
    assert held(place) == {name: (int(index),) for name, index in devices.items()}
    for one in (ada, ben):
        assert one.run("import getpass, os; print(getpass.getuser(), os.getuid())") == (
            f"{one.name} {one.browser.user.uid}"
        )
        refused = one.browser.open_notebook("third.ipynb")
        assert refused.status == 500
        message = refused.body["message"]
        assert message.startswith("No GPU is free (2 on this machine).\n")
        assert {ada.name, ben.name} <= set(message.split())
        assert "Traceback" not in message


def test_each_sees_the_other_as_holder(ada, ben):
    wanted = {one.name: [int(one.visible())] for one in (ada, ben)}
    for one in (ada, ben):
        in_the_notebook = ast.literal_eval(one.run("%gpu who --json"))
        by_command = json.loads(one.run(COMMAND))
        for answer in (in_the_notebook, by_command):
            assert {lease["user"]: lease["indices"] for lease in answer["leases"]} == wanted


def test_nobody_frees_or_takes_or_ends_what_another_holds(ada, ben, place):
    lease = lease_of(ben, place)
    record = records_path(place) / f"{lease.record.id}.json"
    before = record.read_bytes(), held(place), ben.run("import os; print(os.getpid())")
    kernel = int(before[2])
    server = int(ben.run("print(os.getppid())"))
    (uuid,) = lease.record.uuids
    forged, lock = f"{record.parent}/forged.json", f"{place.lock_path}"
    ranges = f"(device_range(None, {uuid!r}), lease_byte({lease.record.id!r}))"
    ada.run(
        "import os\n"
        "from pathlib import Path\n"
        "from jupyter_gpu.adapters import locks\n"
        "from jupyter_gpu.core.layout import device_range, lease_byte\n"
        f"Path({forged!r}).write_text('{{}}')\n"
        f"fd = os.open({lock!r}, os.O_RDWR)"
    )
    refused = {
        "remove the record": f"os.unlink('{record}')",
        "overwrite it": f"open('{record}', 'w')",
        "put another in its place": f"os.replace('{forged}', '{record}')",
        "take it away": f"os.rename('{record}', '{record}.away')",
        "open it to others": f"os.chmod('{record}', 0o666)",
        "replace the lock file": f"os.replace('{forged}', '{lock}')",
        "remove the lock file": f"os.unlink('{lock}')",
        "take the records away": f"os.rename('{record.parent}', '{record.parent}.away')",
        "look at the kernel's descriptors": f"os.listdir('/proc/{kernel}/fd')",
        "end the kernel": f"os.kill({kernel}, 9)",
        "end its session": f"os.killpg({kernel}, 9)",
        "end the server": f"os.kill({server}, 9)",
        "stop the kernel": f"os.kill({kernel}, 19)",
        "look into the home": f"os.listdir('{ben.browser.user.home}')",
    }
    for what, expression in refused.items():
        assert (what, ada.attempts(expression)) == (what, "PermissionError")
    assert ada.attempts(f"[locks.unlock(fd, where) for where in {ranges}]") == "[None, None]"
    assert ada.attempts(f"[locks.try_lock(fd, where) for where in {ranges}]") == "[False, False]"
    assert ada.attempts("os.ftruncate(fd, 0)") == "None"
    ada.run(f"os.unlink('{forged}')")
    assert (record.read_bytes(), held(place), ben.run("print(os.getpid())")) == before


def test_nobody_gets_into_the_server_of_another_by_http(ada, ben, place):
    before, kernel = held(place), f"{ben.browser.home}/api/kernels/{ben.kernel}"
    assert ada.browser.page(f"{ben.browser.home}/lab").status_code == 403
    assert ada.browser.request("GET", kernel).status == 403
    assert ada.browser.request("DELETE", kernel).status == 403
    assert ada.browser.request("POST", f"{kernel}/restart").status == 403
    hub = "/hub/api/users"
    assert ada.browser.request("DELETE", f"{hub}/{ben.name}/server").status in (403, 404)
    token = ada.browser.request("POST", f"{hub}/{ada.name}/tokens", {}).body["token"]
    by_token = {"Authorization": f"token {token}"}
    own = f"{ada.browser.home}/api/kernels/{ada.kernel}"
    for method, path, status in (("GET", own, 200), ("GET", kernel, 403), ("DELETE", kernel, 403)):
        assert ada.browser.hub.request(method, path, **by_token).status_code == status
    with pytest.raises(websocket.WebSocketBadStatusException, match="403"):
        ada.browser.run(ben.kernel, "print(1)", of=ben.browser)
    assert held(place) == before
    assert ben.run("print(1)") == "1"


def test_a_server_that_its_user_kills_frees_that_users_device_only(ada, ben, place):
    of_ben, device = lease_of(ben, place).record.id, ada.visible()
    server = int(ada.run("import os; print(os.getppid())"))
    assert ada.browser.user.runs("/bin/sh", "-c", f"kill -KILL {server}")
    wait_until(lambda: ada.name not in held(place), what="the device to be free")
    assert lease_of(ben, place).record.id == of_ben
    assert ben.run("print(1)") == "1"
    wait_until(lambda: not ada.browser.server(), what="the hub to notice")

    ada.browser.ask_for_server()
    ada.browser.enter_server()
    again = Holder(ada.browser, ada.browser.open_notebook("again.ipynb"))
    assert again.visible() == device
    assert lease_of(ben, place).record.id == of_ben


def test_after_a_logout_and_a_stop_nothing_is_held_and_nothing_runs(ada, ben, place):
    uuids = [uuid for one in (ada, ben) for uuid in lease_of(one, place).record.uuids]
    assert len(set(uuids)) == 2
    ada.browser.log_out()
    assert not ada.browser.is_logged_in
    wait_until(lambda: list(held(place)) == [ben.name], what="the logout to stop the server")
    ben.browser.stop_server()
    wait_until(lambda: not held(place), what="the stop to end the kernel")
    for one in (ada, ben):
        uid = one.browser.user.uid
        wait_until(
            lambda uid=uid: not processes_of(uid), what=f"the processes of {one.name} to end"
        )
    with LeaseStore(place) as store:
        assert all(store.is_free((), uuid) for uuid in uuids)
