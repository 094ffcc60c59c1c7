"""A stand-in for a library that sets CUDA_VISIBLE_DEVICES when it is used."""

import os


def choose(value):
    os.environ["CUDA_VISIBLE_DEVICES"] = value
