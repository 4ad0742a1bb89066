"""Every program, unchanged, in every mode: the server sees the value, and the program nothing but the placeholder."""

from __future__ import annotations

import shlex

import pytest

from tests.clients.secrets.clients import CLIENTS, Client
from tests.clients.secrets.scene import MODES, Mode, is_here, leaks
from tests.support.fixtures.programs import Reports
from tests.support.programs import give_up, need, need_module


@pytest.mark.parametrize(
    ("mode", "client"), [(mode, client) for mode in MODES for client in CLIENTS if mode.suits(client)], ids=str
)
def test_program(reports: Reports, mode: Mode, client: Client) -> None:
    need(*client.needs)
    if client.module:
        need_module(client.module)
    if not is_here(client):
        give_up(f"{client.name}: not installed; `{shlex.join(client.probe)}` fails")
    report = reports(mode)
    done = report.ran.ended[client.name]
    assert done.status == 0, done
    assert not leaks(done.stdout + done.stderr)
    client.confirm(done, report.ran.key, report.folder / client.name)
    assert {what for name, what in report.shown if name == client.name} == {client.shows}
    decisions = report.decisions_on(client)
    assert {line["verdict"] for line in decisions} == {"allow"}, decisions
    assert {line["protocol"].partition("/")[0] for line in decisions} == mode.doors(client), decisions
    assert ["API_KEY"] in [line["secrets"] for line in decisions]


@pytest.mark.parametrize("mode", MODES, ids=str)
def test_the_value_is_nowhere(reports: Reports, mode: Mode) -> None:
    """Not in anything that was said, in no file that was left, not in the log; and the placeholder is no value."""
    report = reports(mode)
    assert report.ran.key.startswith("sk-")
    assert not leaks(report.ran.key)
    assert not leaks(report.ran.done.stdout + report.ran.done.stderr)
    every = report.folder.parent.rglob("*")  # the home as well
    left = [path for path in every if path.is_file() and path != report.folder / "secrets.json"]
    assert left
    assert [path for path in left if leaks(path.read_bytes().decode("latin-1"))] == []
