"""Send the key to a URL and print the answer, with httpx as it is."""

import os
import sys

import httpx

answer = httpx.get(sys.argv[1], headers={"Authorization": f"Bearer {os.environ['API_KEY']}"}, timeout=20)
answer.raise_for_status()
sys.stdout.write(answer.text)
