"""Print what a URL returns, with httpx as it is: proxies and certificates from the environment."""

import sys

import httpx

answer = httpx.get(sys.argv[1], timeout=20)
answer.raise_for_status()
sys.stdout.write(answer.text)
