"""A stand-in for a library whose submodule makes a context while it is imported."""
