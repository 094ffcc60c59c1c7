"""A thousand waiters on eight devices, some killed, some stopped: the others are served in order.

    python tests/race/waiters.py --waiters 1000 --devices 8

Every waiter is a process of its own, forked from one that has imported everything, so that its
processor time is that of waiting; it is counted from when it stands in line. With --mixed they ask
for different things. Prints one line, and ends with 1 if a promise was broken.
"""

import argparse
import gc
import json
import os
import random
import resource
import select
import signal
import sys
import tempfile
import time
from pathlib import Path

from jupyter_gpu.adapters.place import Place
from jupyter_gpu.adapters.simulated import SimulatedMachine
from jupyter_gpu.adapters.store import LeaseStore
from jupyter_gpu.allocator import Acquisition
from jupyter_gpu.core.leases import Owner
from jupyter_gpu.core.request import Request

ALIKE = ({"gpus": 1},)
# A choice of any, of several, of one in particular, and two shares.
MIXED = ({"gpus": 1}, {"gpus": 2}, {"gpus": 1, "devices": [3]}, {"gpus": "1/4"}, {"gpus": "1/2"})


def wait_for_a_device(number, options, place, devices, hold, told):
    """One waiter, from its ticket to its end."""
    request = Request.parse({**options, "wait": "1h"})
    owner = Owner("command", command=f"waiter {number}")
    machine = SimulatedMachine(f"{devices}xH200")
    warm_up(request, owner, machine, place)
    with Acquisition(request, owner, {}, machine=machine, place=place) as acquisition:
        lease = acquisition.step()
        started = processor_seconds()
        os.write(told, b"%d lined-up\n" % number)
        while lease is None:
            time.sleep(acquisition.pause_seconds)
            lease = acquisition.step()
    os.write(told, b"%d served\n" % number)
    time.sleep(hold)
    lease.release()
    os.write(told, b"%d spent %d\n" % (number, (processor_seconds() - started) * 1e6))


def warm_up(request, owner, machine, place):
    """Do all of it once in a place of one's own: a fork copies its memory when it is first used."""
    own = Place(place.directory.with_name(f"warm-{os.getpid()}"), "simulated")
    asked = {"machine": machine, "place": own}
    with Acquisition(request, owner, {}, **asked).step():
        everything = Request.parse({"gpus": "all", "wait": "1h"})
        with Acquisition(everything, owner, {}, **asked) as first:
            first.step()
            with Acquisition(request, owner, {}, **asked) as second:
                second.step()
                second.step()


def processor_seconds():
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


class Judge:
    def __init__(self, options, place):
        self.options, self.place = options, place
        self.random = random.Random(options.seed)
        self.reading, self.telling = os.pipe()
        self.pids, self.lined_up, self.served, self.spent = {}, [], [], {}
        self.killed, self.stopped = set(), set()
        self.rest = b""

    def start(self, number, opening):
        pid = os.fork()
        if pid == 0:
            try:
                os.close(self.reading)
                opening.claim.close()  # its copy would keep the devices that all wait for
                wait_for_a_device(
                    number,
                    self.kind_of(number),
                    self.place,
                    self.options.devices,
                    self.options.hold,
                    self.telling,
                )
            except BaseException as error:
                os.write(self.telling, b"%d failed %s\n" % (number, repr(error).encode()))
                os._exit(1)
            os._exit(0)
        self.pids[number] = pid

    def listen(self, seconds):
        """Take in what waiters have told; their own order is the pipe's."""
        if not select.select([self.reading], [], [], seconds)[0]:
            return
        *lines, self.rest = (self.rest + os.read(self.reading, 1 << 16)).split(b"\n")
        for line in lines:
            number, what, *more = line.decode().split(" ", 2)
            if what == "lined-up":
                self.lined_up.append(int(number))
            elif what == "served":
                self.served.append(int(number))
            elif what == "spent":
                self.spent[int(number)] = int(more[0]) / 1e6
            else:
                raise SystemExit(f"waiter {number} failed: {more}")

    def disturb(self):
        """Kill one or stop one of those who wait, a few percent of all in the end."""
        waiting = [n for n in self.lined_up if n not in self.gone and n not in self.served]
        if len(waiting) < self.options.devices * 4:
            return
        chosen = self.random.choice(waiting)
        if len(self.killed) < self.options.waiters * self.options.killed:
            os.kill(self.pids[chosen], signal.SIGKILL)
            self.killed.add(chosen)
        elif len(self.stopped) < self.options.waiters * self.options.stopped:
            os.kill(self.pids[chosen], signal.SIGSTOP)
            self.stopped.add(chosen)

    @property
    def gone(self):
        return self.killed | self.stopped

    def left(self):
        return [n for n in self.pids if n not in self.gone and n not in self.spent]

    def run(self):
        request = Request.parse({"gpus": "all", "wait": 0})
        machine = SimulatedMachine(f"{self.options.devices}xH200")
        # Once all of it, so that nothing is left to be imported by the waiters.
        one = Request.parse({"gpus": 1, "wait": "1h"})
        with Acquisition(request, Owner("api"), {}, machine=machine, place=self.place).step():
            with Acquisition(one, Owner("api"), {}, machine=machine, place=self.place) as ahead:
                ahead.step()
                ahead.step()
        opening = Acquisition(request, Owner("api"), {}, machine=machine, place=self.place).step()
        gc.freeze()
        for number in range(self.options.waiters):
            self.start(number, opening)
            while len(self.lined_up) <= number:  # one after the other, so that the order is known
                self.listen(10)
        began = time.monotonic()
        opening.release()
        deadline = began + self.options.patience
        last = 0.0
        while self.left() and time.monotonic() < deadline:
            self.listen(0.05)
            if time.monotonic() - last > 0.02:
                self.disturb()
                last = time.monotonic()
        return time.monotonic() - began

    def kind_of(self, number):
        kinds = MIXED if self.options.mixed else ALIKE
        return kinds[number % len(kinds)]

    def out_of_order(self):
        """By how many living waiters that came earlier each was overtaken, at most.

        Those who ask for something else do not count: what they could not use is given to others.
        """
        served, worst = set(), 0
        after = {number: place for place, number in enumerate(self.lined_up)}
        for number in self.served:
            overtaken = [
                n
                for n in self.lined_up[: after[number]]
                if n not in served
                and n not in self.gone
                and self.kind_of(n) == self.kind_of(number)
            ]
            worst = max(worst, len(overtaken))
            served.add(number)
        return worst

    def end(self):
        for number, pid in self.pids.items():
            if number in self.stopped or number not in self.spent:
                os.kill(pid, signal.SIGKILL)
            os.waitpid(pid, 0)


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--waiters", type=int, default=1000)
    parser.add_argument("--devices", type=int, default=8)
    parser.add_argument("--mixed", action="store_true", help="different requests")
    parser.add_argument("--hold", type=float, default=0.01, help="seconds that a device is held")
    parser.add_argument("--killed", type=float, default=0.05)
    parser.add_argument("--stopped", type=float, default=0.03)
    parser.add_argument("--patience", type=float, default=300)
    parser.add_argument("--limit", type=float, default=10, help="processor seconds of all waiters")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        place = Place(Path(folder, "leases"), "simulated")  # no rules of this machine
        judge = Judge(options, place)
        try:
            seconds = judge.run()
            found = {
                "waiters": options.waiters,
                "devices": options.devices,
                "killed": len(judge.killed),
                "stopped": len(judge.stopped),
                "served": len(judge.spent),
                "not_served": len(judge.left()),
                "most_overtaken": judge.out_of_order(),
                "processor_seconds": round(sum(judge.spent.values()), 2),
                "seconds": round(seconds, 1),
            }
        finally:
            judge.end()
        with LeaseStore(place) as store:
            holdings = store.holdings()
            found["left"] = len(holdings.leases) + len(holdings.waiters)
    print(json.dumps(found))
    broken = (
        found["not_served"]
        or found["left"]
        or found["most_overtaken"] >= options.devices * (4 if options.mixed else 1)
        or found["processor_seconds"] > options.limit
    )
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
