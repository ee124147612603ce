"""Measurements behind every figure in README and docs. Each module is a command: `python -m bench.leases --help`."""
