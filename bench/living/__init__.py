"""The Brain beside real jobs on this machine. `python -m bench.living --help`."""
