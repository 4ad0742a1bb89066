"""Print what a URL returns, with urllib as it is: proxies and certificates from the environment."""

import sys
from urllib.request import urlopen

with urlopen(sys.argv[1], timeout=20) as answer:
    sys.stdout.write(answer.read().decode())
