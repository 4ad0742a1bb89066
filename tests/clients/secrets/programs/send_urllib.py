"""Send the key to a URL and print the answer, with urllib as it is."""

import os
import sys
import urllib.request

request = urllib.request.Request(sys.argv[1], headers={"Authorization": f"Bearer {os.environ['API_KEY']}"})
with urllib.request.urlopen(request, timeout=20) as answer:
    sys.stdout.write(answer.read().decode())
