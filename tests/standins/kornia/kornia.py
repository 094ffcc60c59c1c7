"""A stand-in for a library that initialises CUDA while it is imported."""

import standin_driver

standin_driver.initialise()
