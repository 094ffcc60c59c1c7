"""The subcommands of ``%gpu``, one module each, loaded when they are called."""
