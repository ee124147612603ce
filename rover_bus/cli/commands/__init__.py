"""One module a command of `rover`; group.py says which. Imported one at a time."""
