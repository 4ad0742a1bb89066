"""Send the key to a URL and print the answer, trusting certifi's file and nothing else."""

import os
import ssl
import sys
import urllib.request

import certifi

request = urllib.request.Request(sys.argv[1], headers={"Authorization": f"Bearer {os.environ['API_KEY']}"})
trusted = ssl.create_default_context(cafile=certifi.where())
with urllib.request.urlopen(request, timeout=20, context=trusted) as answer:
    sys.stdout.write(answer.read().decode())
