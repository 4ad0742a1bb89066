"""exeat: run code you do not trust, and decide what it may reach."""

__version__ = "0.1.0"
