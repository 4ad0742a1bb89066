"""A body that is packed twice, of which the inner layer is long and holds nothing: it is unpacked in turns, too.

Counted, not timed: in how many steps a few kilobytes are read that hold megabytes of empty blocks.
"""

from __future__ import annotations

import gzip
import zlib

import pytest

from exeat.gateway.flow.download import Download
from exeat.secrets.vault import Vault
from tests.unit.secrets.samples import make_secret, request, response, treat

pytestmark = pytest.mark.threat("T-I4")

TEXT = b"the only text"
EMPTY_BLOCK = b"\0\0\0\xff\xff"
MEGABYTES = 12


def hollow(size: int) -> bytes:
    """A gzip member of about so many bytes, with a text at its end."""
    trailer = zlib.crc32(TEXT).to_bytes(4, "little") + len(TEXT).to_bytes(4, "little")
    last = b"\x01" + len(TEXT).to_bytes(2, "little") + (0xFFFF ^ len(TEXT)).to_bytes(2, "little") + TEXT
    return b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + EMPTY_BLOCK * (size // 5) + last + trailer


def steps_for(body: bytes) -> tuple[int, bytes]:
    """How many turns it takes to unpack the body, and what the client gets."""
    secret = make_secret()
    vault = Vault([secret])
    head = response(b"Content-Encoding: gzip, gzip", b"Content-Length: %d" % len(body))
    download = Download(head, treat(vault, request()), client_minor=1, keep_alive=True)
    out, steps = download.take(body), 1
    while download.is_behind:
        out += download.go_on()
        steps += 1
    return steps, out.partition(b"\r\n\r\n")[2]


def test_a_hollow_body_is_unpacked_in_turns() -> None:
    packed = gzip.compress(hollow(MEGABYTES << 20), 9)
    assert len(packed) < 64 << 10, "it comes in one read"
    steps, got = steps_for(packed)
    assert got == TEXT
    assert steps >= MEGABYTES // 3


def test_the_control_a_short_one_takes_one_turn() -> None:
    assert steps_for(gzip.compress(hollow(1_000))) == (1, TEXT)
