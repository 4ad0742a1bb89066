"""`python -m exeat` is the `exeat` command."""

from exeat.cli.main import console

console()
