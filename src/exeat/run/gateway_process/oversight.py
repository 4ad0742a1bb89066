"""Control of a gateway during the run: the sandbox's list, questions, learning."""

from __future__ import annotations

import os
import socket
import time
from collections.abc import Sequence
from typing import Any

from exeat.errors import ConfigError, ExeatError
from exeat.gateway.gates.questions import Answer, Answerer, Question
from exeat.gateway.gateway import Gateway
from exeat.run.asks.panel import CONTROL, PROGRAM, TERMINAL, Panel
from exeat.run.gateway_process.stored import StoredRules
from exeat.run.learn.learning import MAX_PLACES, Learning
from exeat.run.settings import RunSettings
from exeat.sandbox.control import ANSWER, PENDING, RELOAD, STATUS
from exeat.sandbox.server import ControlServer

_MAX_COMMAND = 200


class Oversight:
    """Made before the gateway, which needs to know whom to ask; started with it, and closed after it."""

    def __init__(self, settings: RunSettings, stored: StoredRules | None, asked: socket.socket | None) -> None:
        self._settings = settings
        self._stored = stored
        self._server: ControlServer | None = None
        self._learning: Learning | None = None
        self._panel: Panel | None = None
        self._command = _shown(settings.argv)
        # Numbers begin again with every run: without this, an answer could be taken for that of another run's question.
        self._tag = os.urandom(2).hex()
        self._started = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        if settings.ask and (stored is not None or asked is not None):
            self._panel = Panel(settings.ask_s, stored.keep if stored is not None else None)
            if asked is not None:
                self._panel.listen(asked, PROGRAM if settings.ask_fd >= 0 else TERMINAL)

    @property
    def ask(self) -> Answerer | None:
        """Whom the gateway asks. None: no one can be asked, so what no rule lists is simply denied."""
        if self._settings.learn:
            return self._let_through
        return self._panel.ask if self._panel is not None else None

    async def start(self, gateway: Gateway, jail: str) -> None:
        self._gateway = gateway
        self._jail = jail
        if self._settings.learn:
            self._learning = Learning(gateway)
            self._learning.start()
        if self._stored is not None:
            assert self._settings.folder is not None
            self._stored.follow(gateway)
            self._server = ControlServer(
                self._settings.folder,
                {STATUS: self._status, RELOAD: self._reload, PENDING: self._pending, ANSWER: self._answer},
            )
            await self._server.start()

    def stop_asking(self) -> None:
        """The command is over."""
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._stored is not None:
            self._stored.close()
        if self._panel is not None:
            self._panel.close()

    async def close(self) -> str:
        """After the gateway. Returns the policy that was learned."""
        if self._learning is None:
            return ""
        await self._learning.stop()
        out = (self._settings.learn_out or "").lower()
        return self._learning.policy_text(self._settings.argv, "txt" if out.endswith(".txt") else "toml")

    async def _let_through(self, question: Question) -> Answer:
        """While learning. What lies inside is never let through: no one has looked at it."""
        return Answer(not question.inside and len(self._gateway.granted) < MAX_PLACES, "learn")

    # What the control socket is asked

    async def _status(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._stored is not None
        gateway = self._gateway
        decisions = gateway.counters.decisions
        return {
            "pid": os.getppid(),
            "command": self._command,
            "started": self._started,
            "jail": self._jail,
            "mode": self._settings.mode,
            "open_connections": gateway.counters.open_connections,
            "rules": len(gateway.policy.rules),
            "other_rules": [rule.text for rule in (*self._stored.own.rules, *gateway.granted)],
            "allowed": sum(count for (verdict, _), count in decisions.items() if verdict == "allow"),
            "denied": sum(count for (verdict, _), count in decisions.items() if verdict == "deny"),
            "pending": len(self._panel.questions()) if self._panel is not None else 0,
        }

    async def _reload(self, request: dict[str, Any]) -> dict[str, Any]:
        assert self._stored is not None
        closed, notes = await self._stored.reload()
        return {"closed": closed, "notes": notes}

    async def _pending(self, request: dict[str, Any]) -> dict[str, Any]:
        open_questions = self._panel.questions() if self._panel is not None else []
        asker = self._gateway.state.questions
        return {
            "command": self._command,
            "run": self._tag,
            "questions": [
                {
                    "number": question.number,
                    "host": question.host,
                    "port": question.port,
                    "rule": question.rule,
                    "inside": question.inside,
                    "program": question.program,
                    "waiting": asker.waiting(question) if asker is not None else 0,
                    "left_s": round(left_s, 1),
                }
                for question, left_s in open_questions
            ],
        }

    async def _answer(self, request: dict[str, Any]) -> dict[str, Any]:
        if self._panel is None:
            raise ExeatError("this command does not ask; it was started without --ask")
        number, allow, always = request.get("number"), request.get("allow"), request.get("always")
        if not (isinstance(number, int) and isinstance(allow, bool) and isinstance(always, bool)):
            raise ConfigError("not an answer", expected="number, allow and always")
        if request.get("run") != self._tag:
            raise ExeatError("this question is no longer open")
        return {"said": self._panel.answer(number, allow=allow, always=always, by=CONTROL)}


def _shown(argv: Sequence[str]) -> str:
    text = " ".join(argv)
    text = "".join(char if char.isprintable() else "?" for char in text)
    return text if len(text) <= _MAX_COMMAND else f"{text[: _MAX_COMMAND - 1]}…"
