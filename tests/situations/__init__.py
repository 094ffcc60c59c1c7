"""The situations people hit, as rows of cells that run in a fresh kernel over the driver doubles.

``tests/data/situations.json`` is the list: number, input, and what is right. Each module here has
the rows of one part of it, and ``tests/test_situations.py`` plays them.
"""
