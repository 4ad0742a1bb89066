"""What every client is put before: a gateway that lets it reach good.test, and not the same server as evil.test."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from exeat.audit.journal import Journal
from tests.support.gateways.gate import Gate
from tests.support.origins.web import Request
from tests.support.programs import Finished, run

HOSTS: Final = {"good.test": "127.0.0.1", "evil.test": "127.0.0.1"}


@dataclass(frozen=True, slots=True)
class Scene:
    """A gateway with the rule `good.test:PORT`, and the server on that port. `requests` grows as it is asked."""

    gate: Gate
    scheme: str
    port: int
    requests: Sequence[Request]
    env: Mapping[str, str]  # bare: a program that goes through the gateway has been told to by the test
    ca: Path

    @property
    def good(self) -> str:
        return f"{self.scheme}://good.test:{self.port}"

    @property
    def evil(self) -> str:
        return f"{self.scheme}://evil.test:{self.port}"

    @property
    def proxy(self) -> str:
        return self.gate.gateway.url

    @property
    def socks(self) -> str:
        """The same port, for a client that is to speak SOCKS5 and leave names to the gateway."""
        return self.proxy.replace("http://", "socks5h://", 1)

    @property
    def proxy_env(self) -> dict[str, str]:
        """The bare environment and the gateway's own variables, as a sandbox gets them."""
        return {**self.env, **self.gate.gateway.environ()}

    def decisions(self) -> list[dict[str, Any]]:
        """All decisions so far, once the gateway has seen the last of the program, which has ended, and written it."""
        gateway = self.gate.gateway
        journal = gateway.state.journal
        assert isinstance(journal, Journal)
        while gateway.counters.open_connections or journal.queued:
            self.gate.call(asyncio.sleep(0.005))
        return self.gate.decisions()

    def attempt(
        self, argv: Sequence[str], env: Mapping[str, str] | None = None, *, cwd: Path | None = None
    ) -> tuple[Finished, list[dict[str, Any]]]:
        """Run a program; how it ended, and the decisions that it caused."""
        before = len(self.decisions())
        done = run(argv, env or self.env, cwd=cwd)
        return done, self.decisions()[before:]

    def allowed(
        self, argv: Sequence[str], env: Mapping[str, str] | None = None, *, by: Sequence[str], cwd: Path | None = None
    ) -> Finished:
        """Run a program that must work. `by`: the protocols of the decisions it needs, each of them an allowance."""
        done, made = self.attempt(argv, env, cwd=cwd)
        assert done.status == 0, (done, made)
        expected = [("allow", "good.test", self.port, protocol) for protocol in by]
        assert [_gist(line) for line in made] == expected
        return done

    def denied(
        self, argv: Sequence[str], env: Mapping[str, str] | None = None, *, by: str, cwd: Path | None = None
    ) -> Finished:
        """Run a program that must fail at evil.test, on exactly one denial, and without the server being asked."""
        asked = len(self.requests)
        done, made = self.attempt(argv, env, cwd=cwd)
        assert done.status != 0, (done, made)
        assert [_gist(line) for line in made] == [("deny", "evil.test", self.port, by)], done
        assert made[0]["reason"] == "not-listed"
        assert len(self.requests) == asked
        return done


def _gist(line: Mapping[str, Any]) -> tuple[str, str, int, str]:
    return line["verdict"], line["host"], line["port"], line["protocol"]
