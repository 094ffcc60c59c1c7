"""A stand-in for a library that runs a JAX operation while it is imported."""

import jax.numpy as jnp

WEIGHTS = jnp.ones(3)
