"""The versions of the stand-in."""

cuda = "13.0"
hip = None
