"""The client against a harness that lies: it ends the connection, and every call gets its error."""

from __future__ import annotations

import asyncio
import socket
import struct
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from exeat.container.harness import client as client_module
from exeat.container.harness.client import HarnessClient
from exeat.container.harness.outcome import CallResult, HarnessLostError, ToolError
from exeat.container.harness.protocol import Frame, encode_frame

pytestmark = pytest.mark.threat("T-N3")
_HELLO = {"method": "hello", "params": {"protocol": 1, "version": "1", "tools": ["t"], "scoped": True}}
_ANSWER = {"id": 1, "result": {"kind": "J"}}


def _frame(head: dict[str, Any], blob: bytes = b"") -> bytes:
    return encode_frame(Frame(head, blob))


async def _talk(said: bytes, **more: Any) -> object:
    """The outcome of one call, if the harness says hello and then this."""
    ours, theirs = socket.socketpair()
    client = HarnessClient(ours, **more)
    try:
        theirs.sendall(_frame(_HELLO) if not more else b"")
        await client.ready(30)
        task = asyncio.create_task(client.call("t", {}, timeout_s=30, output_bytes=100, result_bytes=1 << 20))
        await asyncio.sleep(0)
        await asyncio.to_thread(theirs.sendall, said)
        theirs.shutdown(socket.SHUT_WR)
        try:
            return await task
        except (ToolError, HarnessLostError) as error:
            return error
    finally:
        await client.aclose()
        theirs.close()


def test_an_answer_is_taken() -> None:
    """The control."""
    output = _frame({"method": "output", "params": {"id": 1, "stream": "stderr"}}, b"\xe2\x82")
    found = asyncio.run(_talk(output + _frame(_ANSWER, b"[1]")))
    assert isinstance(found, CallResult)
    assert (found.value, found.stderr) == ([1], "\ufffd")


@pytest.mark.parametrize(
    "said",
    [
        b"",
        b"garbage that is no frame",
        b"\0" * 100,
        _frame(_ANSWER, b"1")[:-1],
        _frame(_HELLO),
        _frame({"id": 2, "result": {"kind": "J"}}, b"1"),
        _frame({"id": 0, "result": {}}),
        _frame({"id": "1", "result": {}}),
        _frame({"id": 1}),
        _frame({"id": 1, "result": None}),
        _frame({"method": "output", "params": {"id": 2, "stream": "stdout"}}, b"x"),
        _frame({"method": "output", "params": {"id": 1, "stream": "stdin"}}, b"x"),
        _frame({"method": "output", "params": {"id": 1, "stream": "stdout"}}, b"x" * 101),
        _frame({"method": "output", "params": {"id": 1, "stream": "stdout"}}, b"x" * 51) * 2,
        _frame({"method": "output", "params": {"id": 1, "stream": "stdout"}}),
        _frame({"method": "call", "params": {}}),
        struct.pack(">II", 2**32 - 1, 10) + b"x" * 100_000,
    ],
)
def test_what_was_not_asked_for_ends_the_connection(said: bytes) -> None:
    assert isinstance(asyncio.run(_talk(said)), HarnessLostError)


@pytest.mark.parametrize(
    "head",
    [
        {"id": 1, "result": {}},
        {"id": 1, "result": {"kind": 1}},
        {"id": 1, "error": {}},
        {"id": 1, "error": {"code": "new", "message": "", "signal": 0}},
        {"id": 1, "error": {"code": "died", "message": "", "signal": 10**30}},
        {"id": 1, "error": {"code": "cancelled", "message": "", "signal": 0}},
    ],
)
def test_answers_without_a_meaning_cost_the_call(head: dict[str, Any]) -> None:
    assert isinstance(asyncio.run(_talk(_frame(head))), ToolError)


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(["stdout", "J", "E", "1"]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["id", "method", "params", "result", "error", "kind", "code"]), inner, max_size=4
        )
    ),
    max_leaves=8,
)
_HEADS = st.dictionaries(st.sampled_from(["id", "method", "params", "result", "error", "x"]), _JSON, max_size=4)
_ODD = st.one_of(
    st.binary(max_size=300),
    st.builds(_frame, _HEADS, st.binary(max_size=200)),
    st.builds(lambda data, cut: data[:cut], st.builds(_frame, _HEADS, st.binary(max_size=50)), st.integers(0, 80)),
)


@settings(max_examples=200)
@given(st.lists(_ODD, max_size=4))
def test_fuzzed(said: list[bytes]) -> None:
    """Whatever it says, the call ends with a result or with one of two errors."""
    assert isinstance(asyncio.run(_talk(b"".join(said))), CallResult | ToolError | HarnessLostError)


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"protocol": 2, "version": "1", "tools": [], "scoped": True},
        {"protocol": 1, "version": 1, "tools": [], "scoped": True},
        {"protocol": 1, "version": "1", "tools": [1], "scoped": True},
        {"protocol": 1, "version": "1", "tools": ["x"] * 1001, "scoped": True},
    ],
)
def test_a_hello_that_is_none(params: dict[str, Any]) -> None:
    async def main() -> None:
        ours, theirs = socket.socketpair()
        client = HarnessClient(ours)
        theirs.sendall(_frame({"method": "hello", "params": params}))
        with pytest.raises(HarnessLostError):
            await client.ready(30)
        await client.aclose()
        theirs.close()

    asyncio.run(main())


def test_silence_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """A harness that says nothing, does not end a call, or does not confirm that it did."""
    monkeypatch.setattr(client_module, "GRACE_S", 0.05)

    async def main() -> None:
        ours, theirs = socket.socketpair()
        client = HarnessClient(ours)
        with pytest.raises(HarnessLostError, match="was not ready"):
            await client.ready(0.05)
        await client.aclose()
        theirs.close()
        for is_cancelled in (False, True):
            ours, theirs = socket.socketpair()
            lost: asyncio.Future[HarnessLostError] = asyncio.get_running_loop().create_future()
            client = HarnessClient(ours, on_lost=lost.set_result)
            theirs.sendall(_frame(_HELLO))
            await client.ready(30)
            task = asyncio.create_task(client.call("t", {}, timeout_s=30 if is_cancelled else 0.05))
            await asyncio.sleep(0)
            if is_cancelled:
                task.cancel()
            with pytest.raises(asyncio.CancelledError if is_cancelled else HarnessLostError):
                await task
            assert "does not" in (await asyncio.wait_for(lost, 60)).public
            await client.aclose()
            theirs.close()

    asyncio.run(main())


def test_a_harness_that_does_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is sent waits in memory, up to a limit; the call ends all the same."""
    monkeypatch.setattr(client_module, "GRACE_S", 0.05)

    async def main() -> None:
        ours, theirs = socket.socketpair()
        client = HarnessClient(ours)
        theirs.sendall(_frame(_HELLO))
        await client.ready(30)
        with pytest.raises(ValueError, match="at most 32 MiB"):
            await client.call("t", {"x": "x" * (33 << 20)})
        with pytest.raises(HarnessLostError):
            await client.call("t", {"x": "x" * (20 << 20)}, timeout_s=0.05)
        await client.aclose()
        theirs.close()

    asyncio.run(main())


def test_over_an_attach_stream() -> None:
    """stderr of the harness is in the same stream and is left out; the first bytes came with the engine's answer."""

    def wrapped(data: bytes, stream: int = 1) -> bytes:
        return struct.pack(">BxxxI", stream, len(data)) + data

    hello = wrapped(_frame(_HELLO))
    said = wrapped(b"a warning", 2) + wrapped(_frame(_ANSWER, b"2")[:9]) + wrapped(_frame(_ANSWER, b"2")[9:])
    found = asyncio.run(_talk(said, is_multiplexed=True, received=hello))
    assert isinstance(found, CallResult)
    assert found.value == 2
