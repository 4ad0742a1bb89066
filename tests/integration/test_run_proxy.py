"""`exeat proxy` while a command runs: what a person sees and what comes of it, for any user (E2, E3)."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.fixtures.gateways import StartOrigin
from tests.support.gateways.scene import wait_until
from tests.support.origins.plain import Origin, echo
from tests.support.programs import Finished
from tests.support.runs.agent import Agent, make_home
from tests.support.runs.running import ANYWHERE, BY_USER, NOBODY, as_user, environment, exeat, folder_of

ORDINARY = pytest.mark.parametrize("uid", [NOBODY if os.geteuid() == 0 else None], ids=["ordinary"])
MAPPED = tuple(
    word for name in ("good", "other", "beside") for word in ("--add-host", f"{name}.test:127.0.0.1")
)  # fmt: skip


class Person:
    """Someone who runs `exeat` in the same home."""

    def __init__(self, home: Path, uid: int | None) -> None:
        self.home = home
        self.uid = uid

    def exeat(self, *words: str) -> Finished:
        argv = [*as_user(self.uid), sys.executable, "-m", "exeat", *words]
        return exeat(argv=argv, env=environment(EXEAT_HOME=str(self.home)), cwd=ANYWHERE)

    def proxy(self, *words: str) -> Finished:
        return self.exeat("proxy", *words, "--name", "work")


@pytest.fixture
def origin(start_origin: StartOrigin) -> Origin:
    return start_origin(echo)


@pytest.fixture(name="person")
def make_person(uid: int | None) -> Iterator[Person]:
    with folder_of(uid) as folder:
        yield Person(make_home(folder, uid), uid)


@BY_USER
def test_the_list_of_a_running_sandbox(uid: int | None, person: Person, origin: Origin) -> None:
    """`allow` holds for the next connection; `block` closes what is open, even if an option had allowed it."""
    port = str(origin.port)
    assert person.proxy("create", "--empty").status == 0
    options = ("--name", "work", *MAPPED, "--allow", f"beside.test:{port}")
    with Agent(*options, home=person.home, uid=uid) as agent:
        assert agent.ask("reach", "good.test", port) == "closed"
        said = person.proxy("allow", f"good.test:{port}")
        assert (said.status, said.stderr) == (0, "")
        assert said.stdout == (
            f"added .good.test:{port}: good.test and its subdomains\n"
            "applied to 1 running sandbox, 0 connections closed\n"
        )
        assert agent.ask("hold", "good.test", port) == "open"

        (seen,) = json.loads(person.exeat("proxy", "ls", "--json").stdout)
        assert (seen["name"], seen["state"], seen["rules"], seen["open_connections"]) == ("work", "running", 1, 1)
        assert seen["allowed"] >= 1
        assert seen["denied"] >= 1
        assert seen["records"] >= 3
        assert seen["running"][0]["other_rules"] == [f"beside.test:{port}"]
        refused = person.proxy("rm", "--yes")
        assert refused.status == 1
        assert f"pid {seen['running'][0]['pid']} (" in refused.stderr

        said = person.proxy("block", f"good.test:{port}")
        assert said.status == 0, said
        assert said.stdout.endswith("applied to 1 running sandbox, 1 connection closed\n")
        assert agent.ask("ping") == "closed"
        assert agent.ask("reach", "good.test", port) == "closed"

        assert agent.ask("hold", "beside.test", port) == "open"
        said = person.proxy("block", "beside.test")
        assert said.status == 0, said
        assert "1 connection closed\n" in said.stdout
        assert agent.ask("ping") == "closed"
        assert agent.ask("reach", "beside.test", port) == "closed"
        listed = json.loads(person.proxy("list", "--json").stdout)
        assert [rule["deny"] for rule in listed["rules"]] == [True]

    shown = person.proxy("log", "--blocked")
    assert shown.status == 0
    assert "good.test" in shown.stdout
    assert "allowed" not in shown.stdout
    assert person.exeat("check", "--name", "work", f"beside.test:{port}").status == 1
    assert person.proxy("ls").stdout.splitlines()[1].split()[:2] == ["work", "idle"]
    assert person.proxy("rm", "--yes").status == 0
    assert person.exeat("proxy", "ls", "--names").stdout == ""


@ORDINARY
def test_questions_of_a_running_sandbox(uid: int | None, person: Person, origin: Origin) -> None:
    """`pending` shows what waits, a host is enough for an answer, and without one it must be clear which is meant."""
    port = str(origin.port)
    options = ("--new", "--name", "work", "--ask", *MAPPED)
    with Agent(*options, home=person.home, uid=uid) as first, Agent(*options, home=person.home, uid=uid) as second:
        first.begin("reach", "good.test", port)
        second.begin("reach", "other.test", port)
        wait_until(lambda: len(json.loads(person.proxy("pending", "--json").stdout)) == 2, "two questions")
        unclear = person.proxy("approve")
        assert unclear.status == 1
        assert re.search(rf"1-[0-9a-f]{{4}}-1  good\.test:{port}", unclear.stderr)
        assert re.search(rf"2-[0-9a-f]{{4}}-1  other\.test:{port}", unclear.stderr)
        assert person.proxy("approve", "--always", "GOOD.test.").status == 0
        assert first.end() == "open"
        assert person.proxy("deny").status == 0
        assert second.end() == "closed"
        assert person.proxy("pending").stdout == 'nothing waits for an answer in the sandbox "work"\n'
        assert person.proxy("approve").status == 1
    listed = json.loads(person.proxy("list", "--json").stdout)
    assert listed["rules"][-1]["text"] == f"good.test:{port}"
