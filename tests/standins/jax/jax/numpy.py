"""jax.numpy of the stand-in: the first operation takes memory on every visible device."""

import standin_driver


def ones(*shape):
    for ordinal in range(standin_driver.count()):
        standin_driver.make_context(ordinal)
    return list(shape)
