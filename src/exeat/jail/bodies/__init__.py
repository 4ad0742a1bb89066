"""The kinds of jail: one module each, and a line in `jail/select.py`."""
