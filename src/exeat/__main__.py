"""`python -m exeat` is the `exeat` command."""

from exeat.cli.start import console

console()
