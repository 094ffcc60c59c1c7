"""The process behind ``DriverDouble.reader``: one line asks, one pickled Inventory answers."""

import json
import pickle
import sys

from jupyter_gpu.adapters.nvml import NVMLMachine


def main():
    with NVMLMachine() as machine:
        for line in sys.stdin:
            inventory = machine.read(sensors=json.loads(line)["sensors"])
            pickle.dump(inventory, sys.stdout.buffer)
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
