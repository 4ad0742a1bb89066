"""The addon that mitmproxy is measured with: puts one value in place of one placeholder, for one host.

In the Authorization header, and in request bodies that are streamed. Loaded by mitmproxy, in its own environment.
"""

import os
from typing import Any

HOST = os.environ["BENCH_HOST"]
PLACEHOLDER = os.environ["BENCH_PLACEHOLDER"]
VALUE = os.environ["BENCH_VALUE"]


class BodyFilter:
    """Replaces in a body that comes in pieces; holds back an end that may be the beginning of a placeholder."""

    def __init__(self) -> None:
        self.held = b""
        self.placeholder = PLACEHOLDER.encode()
        self.value = VALUE.encode()

    def __call__(self, piece: bytes) -> bytes:
        whole = self.held + piece
        if not piece:  # the end
            self.held = b""
            return whole
        if self.placeholder in whole:
            whole = whole.replace(self.placeholder, self.value)
        begin = whole.find(self.placeholder[:1], max(0, len(whole) - len(self.placeholder) + 1))
        while begin >= 0 and not self.placeholder.startswith(whole[begin:]):
            begin = whole.find(self.placeholder[:1], begin + 1)
        if begin < 0:
            self.held = b""
            return whole
        self.held = whole[begin:]
        return whole[:begin]


def requestheaders(flow: Any) -> None:
    request = flow.request
    if request.host != HOST:
        return
    sent = request.headers.get("authorization", "")
    if PLACEHOLDER in sent:
        request.headers["authorization"] = sent.replace(PLACEHOLDER, VALUE)
    if request.stream:  # set by `stream_large_bodies`
        request.stream = BodyFilter()
