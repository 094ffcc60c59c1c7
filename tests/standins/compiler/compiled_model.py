"""A stand-in for a model that compiles itself while it is imported (torch.compile)."""

import compiler_stack

forward = compiler_stack.compile(lambda x: x)
