"""The pure layer: values and rules, with no I/O, no clock and no environment."""
