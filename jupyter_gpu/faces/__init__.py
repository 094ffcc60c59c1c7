"""The layer people and front ends meet: command line, magic, provisioner parts."""
