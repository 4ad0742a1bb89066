"""What is relied on of h2's inside is checked when it is loaded: another h2 is refused, not used."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from typing import Any

import pytest
from h2.connection import H2Connection
from h2.exceptions import InvalidBodyLengthError
from h2.exceptions import ProtocolError as H2ProtocolError

from exeat.gateway.http2.frames import _check_h2

_receive = H2Connection.receive_data


def _raising(change: Callable[[H2ProtocolError], Exception]) -> Callable[[H2Connection, bytes], Any]:
    """An h2 that raises something else for what is malformed."""

    def receive(self: H2Connection, data: bytes) -> Any:
        try:
            return _receive(self, data)
        except H2ProtocolError as error:
            raise change(error) from error.__cause__

    return receive


class OtherError(H2ProtocolError):
    """What a later h2 may raise."""


def _no_cause(error: H2ProtocolError) -> Exception:
    error.__cause__ = None
    return H2ProtocolError("malformed in some way")


def _other_length(error: H2ProtocolError) -> Exception:
    return OtherError() if isinstance(error, InvalidBodyLengthError) else error


def _with_more_behind_goaway(self: H2Connection, data: bytes) -> Any:
    try:
        return _receive(self, data)
    except H2ProtocolError:
        self._data_to_send += b"more"
        raise


def _never_open_again(self: H2Connection, data: bytes) -> Any:
    if getattr(self, "is_over", False):
        raise H2ProtocolError("the connection is closed")
    try:
        return _receive(self, data)
    except H2ProtocolError:
        self.is_over = True  # type: ignore[attr-defined]
        raise


def test_the_h2_that_is_installed_is_fit() -> None:
    _check_h2()


@pytest.mark.parametrize(
    "receive",
    [
        pytest.param(_raising(lambda _: OtherError()), id="an error of its own for a malformed message"),
        pytest.param(_raising(_other_length), id="an error of its own for a wrong length"),
        pytest.param(_raising(_no_cause), id="nothing tells what could not be decompressed"),
        pytest.param(_raising(lambda _: RuntimeError()), id="any other error"),
        pytest.param(_with_more_behind_goaway, id="more behind the GOAWAY frame"),
        pytest.param(_never_open_again, id="it cannot be opened again"),
        pytest.param(lambda self, data: [], id="nothing is refused"),
    ],
)
def test_an_h2_with_another_inside_is_refused(receive: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(H2Connection, "receive_data", receive)
    with pytest.raises(ImportError, match="install h2"):
        _check_h2()


def test_nothing_of_http2_can_be_loaded_with_such_an_h2() -> None:
    """At the start, not at the first malformed message."""
    program = (
        "from h2.connection import H2Connection\n"
        "H2Connection.receive_data = lambda self, data: []\n"
        "import exeat.gateway.http2.back\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False, timeout=60)
    assert ended.returncode == 1
    assert "ImportError: h2 " in ended.stderr
