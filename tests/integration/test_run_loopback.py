"""Loopback inside a jail is the jail's own, except for what a rule lists: there the host is meant."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator

import pytest

from tests.support.running import exeat, python

CONNECT = """
import socket, sys
try:
    with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10) as connection:
        print(connection.makefile().readline().strip() or "nothing")
except OSError as error:
    print(type(error).__name__)
"""
SERVE_AND_CONNECT = """
import socket, sys, threading
listener = socket.create_server((sys.argv[1], int(sys.argv[2])), family=socket.AF_INET6 if ":" in sys.argv[1] else socket.AF_INET)
def serve():
    connection, _ = listener.accept()
    connection.sendall(b"the jail\\n")
    connection.close()
threading.Thread(target=serve, daemon=True).start()
with socket.create_connection((sys.argv[1], int(sys.argv[2])), timeout=10) as connection:
    print(connection.makefile().readline().strip())
"""  # noqa: E501 - a program


@pytest.fixture(params=["127.0.0.1", "::1"])
def host(request: pytest.FixtureRequest) -> Iterator[tuple[str, int]]:
    """A server of the host that speaks first."""
    address = str(request.param)
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    with socket.create_server((address, 0), family=family) as listener:

        def serve() -> None:
            while True:
                try:
                    connection, _ = listener.accept()
                except OSError:
                    return
                with connection:
                    connection.sendall(b"the host\n")

        thread = threading.Thread(target=serve, daemon=True)
        thread.start()
        yield address, listener.getsockname()[1]
        listener.shutdown(socket.SHUT_RDWR)
        thread.join(10)


def authority(host: tuple[str, int]) -> str:
    return f"[{host[0]}]:{host[1]}" if ":" in host[0] else f"{host[0]}:{host[1]}"


def test_a_listed_address_and_port_mean_the_host(host: tuple[str, int]) -> None:
    done = exeat("--allow", authority(host), command=python(CONNECT, host[0], str(host[1])))
    assert done.stdout == "the host\n", done


def test_without_a_rule_there_is_nobody(host: tuple[str, int]) -> None:
    done = exeat("--allow", "good.test", command=python(CONNECT, host[0], str(host[1])))
    assert done.stdout == "ConnectionRefusedError\n", done


def test_another_port_of_a_listed_address_stays_inside(host: tuple[str, int]) -> None:
    other = authority((host[0], 1))
    done = exeat("--allow", other, command=python(CONNECT, host[0], str(host[1])))
    assert done.stdout == "ConnectionRefusedError\n", done


def test_a_name_that_leads_there_is_no_reason(host: tuple[str, int]) -> None:
    rule = f"good.test:{host[1]}"
    done = exeat("--allow", rule, "--add-host", f"good.test:{host[0]}", command=python(CONNECT, host[0], str(host[1])))
    assert done.stdout == "ConnectionRefusedError\n", done


def test_a_denied_port_is_denied(host: tuple[str, int]) -> None:
    place = authority(host)
    done = exeat("--allow", place, "--deny", place, command=python(CONNECT, host[0], str(host[1])))
    assert done.stdout in ("ConnectionResetError\n", "nothing\n"), done
    assert f"{place}" in done.stderr


def test_the_jails_own_servers_have_the_port_otherwise(host: tuple[str, int]) -> None:
    done = exeat("--allow", "good.test", command=python(SERVE_AND_CONNECT, host[0], str(host[1])))
    assert done.stdout == "the jail\n", done
