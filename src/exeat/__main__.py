"""`python -m exeat` is the `exeat` command."""

import sys

from exeat.cli.main import main

sys.exit(main())
