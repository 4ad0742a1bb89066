"""The log of a gateway on another machine, as the record of a run here."""

from __future__ import annotations

import json
from typing import Final

from exeat.audit.chain import parse_line
from exeat.audit.logfile import open_sink
from exeat.audit.rotation import Rotation
from exeat.container.harness.multiplexed import STDERR
from exeat.gateway.record.counters import Counters, KeptList, is_failure
from exeat.policy import Policy
from exeat.run.gateway_process.serving import tell_outcome
from exeat.run.outcome import Outcome

_LISTENING: Final = b"listening on "
_MAX_SAID: Final = 4_000


class FarRecord:
    """Fed with what comes of the gateway's streams. Its lines get a new place in the chain of the log here."""

    def __init__(self, target: str | None, rotation: Rotation) -> None:
        """Raises StartError if the log cannot be written."""
        self._sink = open_sink(target, max_bytes=rotation.max_bytes, keep=rotation.keep)
        self._counters = Counters()
        self._rest = b""
        self._said = b""

    def feed(self, pieces: list[tuple[int, bytes]]) -> None:
        """Raises OSError if the log cannot be written: then the run ends."""
        for which, data in pieces:
            if which == STDERR:
                self._said = (self._said + data)[-_MAX_SAID:]
                continue
            *lines, self._rest = (self._rest + data).split(b"\n")
            bodies = [body for line in lines if (body := self._count(line + b"\n"))]
            if bodies:
                self._sink.write(bodies, wait=True)

    def _count(self, raw: bytes) -> str:
        """Returns the line without its place in the chain; "" if it is no record."""
        line = parse_line(raw)
        if line is None:
            return ""
        found = json.loads(raw)
        if line.event == "decision":
            place = (str(found.get("host", "")), int(found.get("port", 0)))
            self._counters.decided(found.get("verdict", "deny"), found.get("reason", ""), *place)
        elif line.event == "end" and is_failure(str(found.get("note", ""))):
            self._counters.fail(str(found.get("host", "")), int(found.get("port", 0)), found["note"])
        return line.body.decode("ascii").split(",", 2)[2]

    @property
    def is_listening(self) -> bool:
        return _LISTENING in self._said

    @property
    def said(self) -> str:
        """On standard error, for a person who has to find out why it does not listen."""
        return "".join(char for char in self._said.decode("utf-8", "replace") if char.isprintable() or char == "\n")

    def outcome(self, policy: Policy) -> Outcome:
        return tell_outcome(self._counters, policy, KeptList(), "sidecar")

    def close(self) -> None:
        self._sink.close()
