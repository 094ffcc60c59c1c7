"""The subcommands of ``jupyter gpu``, one class each, imported when they are called."""
