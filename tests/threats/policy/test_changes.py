"""What is taken away while a command runs is gone for that command, at the redirecting door too."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from exeat.gateway.doors import redirect
from exeat.gateway.flow.channel import Channel
from exeat.sources import make_policy
from tests.support.fixtures.gateways import StartGate, StartOrigin
from tests.support.gateways.gate import Gate
from tests.support.gateways.scene import wait_until
from tests.support.origins.plain import Origin, echo
from tests.support.programs import Finished
from tests.support.runs.agent import Agent, make_home
from tests.support.runs.running import ANYWHERE, NOBODY, as_user, environment, exeat, folder_of

pytestmark = pytest.mark.threat("T-A12")


UID = NOBODY if os.geteuid() == 0 else None
MAPPED = tuple(word for name in ("good", "other") for word in ("--add-host", f"{name}.test:127.0.0.1"))


class Person:
    """Someone who runs `exeat proxy` in the same home."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.list = home / "sandboxes/work/allowlist.txt"

    def proxy(self, *words: str) -> Finished:
        argv = [*as_user(UID), sys.executable, "-m", "exeat", "proxy", *words, "--name", "work"]
        return exeat(argv=argv, env=environment(EXEAT_HOME=str(self.home)), cwd=ANYWHERE)

    def write(self, text: str) -> None:
        """Edit the list by hand, as an editor does that writes into the same file."""
        self.list.write_text(text)

    def pending(self) -> int:
        return len(json.loads(self.proxy("pending", "--json").stdout))


@pytest.fixture
def origin(start_origin: StartOrigin) -> Origin:
    return start_origin(echo)


@pytest.fixture
def person() -> Iterator[Person]:
    with folder_of(UID) as folder:
        person = Person(make_home(folder, UID))
        assert person.proxy("create", "--empty").status == 0
        yield person


def test_a_block_holds_while_a_command_learns(person: Person, origin: Origin) -> None:
    """`block` of a host that the list allows takes the rule out. A command that learns then takes the host for one
    that no rule lists, and lets itself through."""
    port = str(origin.port)
    assert person.proxy("allow", f"=good.test:{port}").status == 0
    with Agent("--name", "work", "--learn", *MAPPED, home=person.home, uid=UID) as agent:
        assert agent.ask("hold", "good.test", port) == "open"
        said = person.proxy("block", f"good.test:{port}")
        assert said.status == 1 or agent.ask("reach", "good.test", port) == "closed", said


def test_an_answer_for_good_goes_with_its_rule(person: Person, origin: Origin) -> None:
    """A yes for good is stored in the list. When the list is emptied ("nothing is allowed"), the command that asked
    goes on: the yes is in its memory as well."""
    port = str(origin.port)
    with Agent("--name", "work", "--ask", *MAPPED, home=person.home, uid=UID) as agent:
        agent.begin("hold", "good.test", port)
        wait_until(lambda: person.pending() == 1, "the question")
        assert person.proxy("approve", "--always").status == 0
        assert agent.end() == "open"
        assert f"good.test:{port}" in person.list.read_text()
        said = person.proxy("reset", "--empty", "--yes")
        still = "good.test" in said.stdout + said.stderr  # or it says that this one is still allowed
        assert still or agent.ask("ping") == "closed", said


def test_an_edit_with_letters_of_other_languages_is_taken(person: Person, origin: Origin) -> None:
    """A name with an umlaut in a list needs tables that are not loaded yet, and nothing is loaded any more. The whole
    change fails, a denial in it too, and no later edit by hand is looked at."""
    port = str(origin.port)
    person.write(f"good.test:{port}\nother.test:{port}\n")
    with Agent("--name", "work", *MAPPED, home=person.home, uid=UID) as agent:
        assert agent.ask("reach", "good.test", port) == "open"
        person.write(f"b\u00fccher.example\ngood.test:{port}\n")
        wait_until(lambda: agent.ask("reach", "other.test", port) == "closed", "the first edit")
        person.write("# nothing\n")
        wait_until(lambda: agent.ask("reach", "good.test", port) == "closed", "the second edit")
        status = person.proxy("allow", "\u00fcber.example").status
    assert status == 0


def test_no_connection_begins_by_rules_that_are_gone(
    start_gate: StartGate, start_origin: StartOrigin, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command opens connections over and over while its host is blocked. One that was looked at just before, to see
    whether it speaks HTTP, goes on by the rule that allowed it, and nothing ends it later."""
    port = start_origin(echo).port
    hosts = {"good.test": "127.0.0.1"}
    gate: Gate = start_gate(redirected=True, allow=[f"good.test:{port}"], hosts=hosts)

    def answer() -> bytes:
        try:
            with gate.reach("good.test", port) as conn:
                conn.sendall(b"\0ping")
                return conn.recv(5)
        except ConnectionError:
            return b""

    assert answer() == b"\0ping"
    look = redirect._speaks_http_already
    changes = 0

    async def look_and_change(client: Channel) -> bool:
        nonlocal changes
        found = await look(client)
        await gate.gateway.set_policy(make_policy(hosts=hosts))
        changes += 1
        return found

    monkeypatch.setattr(redirect, "_speaks_http_already", look_and_change)
    assert answer() == b""
    assert changes == 1
