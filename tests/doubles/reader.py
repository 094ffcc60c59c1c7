"""The process behind ``DriverDouble.reader``: one line asks, one pickled value answers."""

import json
import pickle
import sys

from jupyter_gpu.adapters.nvml import NVMLMachine


def main():
    with NVMLMachine() as machine:
        for line in sys.stdin:
            asked = json.loads(line)
            if asked["topology"]:
                pickle.dump(machine.topology(), sys.stdout.buffer)
            else:
                pickle.dump(machine.read(sensors=asked["sensors"]), sys.stdout.buffer)
            sys.stdout.buffer.flush()


if __name__ == "__main__":
    main()
