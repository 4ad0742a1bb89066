from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from exeat.engine.client import Engine
from exeat.engine.errors import ConflictError, EngineError, NotFoundError
from exeat.errors import JailError
from tests.support.engines.fake_engine import answer, serving


def test_a_call_sends_json_and_reads_json(tmp_path: Path) -> None:
    with serving(tmp_path / "s", lambda request: answer(201, {"Id": "1"})) as requests:
        engine = Engine(str(tmp_path / "s"), "docker")
        query = {"filters": {"label": ["a"]}, "all": True, "name": "ä b", "left": None}
        assert engine.call("POST", "/containers/create", query=query, body={"Image": "x"}) == {"Id": "1"}
    head, _, body = requests[0].partition(b"\r\n\r\n")
    assert head.startswith(
        b"POST /containers/create?filters=%7B%22label%22%3A+%5B%22a%22%5D%7D&all=true&name=%C3%A4+b HTTP/1.1"
    )
    assert json.loads(body) == {"Image": "x"}


def test_an_empty_answer_is_none(tmp_path: Path) -> None:
    with serving(tmp_path / "s", lambda request: answer(204)):
        assert Engine(str(tmp_path / "s")).call("POST", "/containers/1/start") is None


@pytest.mark.parametrize(("status", "kind"), [(404, NotFoundError), (409, ConflictError), (500, EngineError)])
def test_a_refusal_is_an_error_with_what_the_engine_said(tmp_path: Path, status: int, kind: type[EngineError]) -> None:
    refuse = serving(tmp_path / "s", lambda request: answer(status, {"message": "no, because"}))
    with refuse, pytest.raises(kind, match="no, because") as raised:
        Engine(str(tmp_path / "s")).call("GET", "/info")
    assert type(raised.value) is kind
    assert raised.value.status == status
    assert isinstance(raised.value, RuntimeError)
    assert isinstance(raised.value, JailError)


def test_lines_of_a_stream_come_one_by_one_however_they_are_cut(tmp_path: Path) -> None:
    chunks = b'{"a": 1}\r\n{"b"', b": 2}\n\n", b'{"c": 3}'
    body = b"".join(b"%x\r\n%b\r\n" % (len(each), each) for each in chunks) + b"0\r\n\r\n"
    reply = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + body
    with serving(tmp_path / "s", lambda request: reply) as requests:
        lines = list(Engine(str(tmp_path / "s")).stream("POST", "/build", data=iter([b"one", b"", b"two"])))
    assert lines == [{"a": 1}, {"b": 2}, {"c": 3}]
    assert requests[0].endswith(b"3\r\none\r\n3\r\ntwo\r\n0\r\n\r\n")


@pytest.mark.parametrize(
    "reply",
    [
        b"",
        b"HTTP/1.1 200 OK\r\n",
        b"garbage\r\n\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nnope!",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\n{}",
        b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n",
    ],
)
def test_an_answer_that_is_none_is_an_error(tmp_path: Path, reply: bytes) -> None:
    with serving(tmp_path / "s", lambda request: reply), pytest.raises(EngineError):
        Engine(str(tmp_path / "s")).call("GET", "/info")


def test_kind_and_rootless_are_asked_once(tmp_path: Path) -> None:
    def reply(request: bytes) -> bytes:
        if request.startswith(b"GET /_ping"):
            return b"HTTP/1.1 200 OK\r\nServer: Docker\r\nContent-Length: 2\r\n\r\nOK"
        return answer(200, {"SecurityOptions": ["name=seccomp", "name=rootless"]})

    with serving(tmp_path / "s", reply) as requests:
        engine = Engine(str(tmp_path / "s"))
        assert [engine.kind, engine.kind, engine.is_rootless, engine.is_rootless] == ["docker", "docker", True, True]
    assert len(requests) == 2


def test_podman_is_rootless_if_its_process_is_not_roots(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reply = b"HTTP/1.1 200 OK\r\nLibpod-API-Version: 4.3.1\r\nContent-Length: 2\r\n\r\nOK"
    with serving(tmp_path / "s", lambda request: reply) as requests:
        engine = Engine(str(tmp_path / "s"))
        assert engine.kind == "podman"
        assert engine.ask_peer() == (os.getpid(), os.geteuid())
        assert engine.is_rootless == (os.geteuid() != 0)
        monkeypatch.setattr(engine, "ask_peer", lambda: (1, 1000))
        assert engine.is_rootless
    assert [request.split()[1] for request in requests] == [b"/_ping"]


def test_a_stream_that_takes_over_begins_with_what_came_with_the_head(tmp_path: Path) -> None:
    reply = b"HTTP/1.1 101 UPGRADED\r\nConnection: Upgrade\r\nUpgrade: tcp\r\n\r\nfirst"
    with serving(tmp_path / "s", lambda request: reply):
        headers = {"Connection": "Upgrade", "Upgrade": "tcp"}
        taken = Engine(str(tmp_path / "s")).request("POST", "/containers/1/attach", headers=headers)
        assert (taken.status, taken.take_start() + taken.connection.recv(10)) == (101, b"first")
        taken.close()


def test_garbage_in_a_stream_is_an_error(tmp_path: Path) -> None:
    reply = b"HTTP/1.1 200 OK\r\nContent-Length: 14\r\n\r\n{}\nnot json\n{}"
    with serving(tmp_path / "s", lambda request: reply), pytest.raises(EngineError, match="not JSON"):
        list(Engine(str(tmp_path / "s")).stream("GET", "/events"))
