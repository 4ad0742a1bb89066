"""What every program is put before: a jail whose rules name good.test, and nothing that tells it of a gateway.

A program passes if it works unchanged, fails where no rule allows it, and the log says so by name.
"""

from __future__ import annotations

import itertools
import json
import os
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from tests.clients.scene import HOSTS
from tests.support.programs import Finished, bare_environment, run
from tests.support.runs.running import TIMEOUT_S, run_argv

# daemon. Not nobody: in a user namespace the files of root look like nobody's, so nobody is told less often no.
SOMEBODY = 1
# Root can become someone without rights; someone without rights is tested as they are.
USERS = {"caller": None, "somebody": SOMEBODY} if os.geteuid() == 0 else {"caller": None}
# Who a jail is for does not depend on what is spoken in it: HTTPS as every user, HTTP as one.
HTTP_AND_HTTPS = pytest.mark.parametrize(
    ("scheme", "any_jail"),
    [("http", None), *(("https", uid) for uid in USERS.values())],
    ids=["http", *(f"https-{name}" for name in USERS)],
    indirect=["any_jail"],
)
PROXY_VARIABLES = ("http_proxy", "https_proxy", "all_proxy", "no_proxy")
# A command by the host it is to go to.
Command = Callable[[str], Sequence[str]]


@dataclass(frozen=True, slots=True)
class Ended:
    """How a command ended, and the decisions that it caused."""

    done: Finished
    decisions: Sequence[Mapping[str, Any]]

    @property
    def stdout(self) -> str:
        return self.done.stdout

    @property
    def stderr(self) -> str:
        return self.done.stderr

    @property
    def gist(self) -> list[tuple[str, str, int, str]]:
        return [(line["verdict"], line["host"], line["port"], line["reason"]) for line in self.decisions]

    @property
    def protocols(self) -> list[str]:
        return [line["protocol"] for line in self.decisions]

    @property
    def requests(self) -> list[str]:
        """The verdicts on HTTP requests. The connection has one too, if the gateway was faster than the client."""
        return [line["verdict"] for line in self.decisions if line["protocol"] == "redirect/http"]


class Jail:
    """Runs commands with `exeat run`, as one user, in a folder of theirs. Every run has a log of its own."""

    def __init__(self, folder: Path, uid: int | None, ca: Path) -> None:
        self.folder = folder / "work"  # not the home, nor around it: that is not shared with a run for real
        self.folder.mkdir()
        self.uid = uid
        self.ca = ca
        self.env = bare_environment(folder / "home")
        self.hosts: Mapping[str, str] = HOSTS
        self.before: Sequence[str] = ()  # a command that exeat is run under
        self.options: Sequence[str] = ()  # of `exeat run`, for all runs
        self._numbers = itertools.count(1)
        self._logs = folder
        self.give(folder / "home", self.folder)

    def give(self, *paths: Path) -> None:
        """Make these, and all that is in them, the user's."""
        if self.uid is not None:
            for path in paths:
                for each in (path, *path.rglob("*")):
                    os.chown(each, self.uid, self.uid, follow_symlinks=False)

    def run(
        self, argv: Sequence[str], *allow: str, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> Ended:
        """Run to the end, under these rules."""
        env = {**self.env, **(env or {})}
        assert not any(name.lower() in PROXY_VARIABLES for name in env)
        log = self._logs / f"audit-{next(self._numbers)}.jsonl"
        options = [*self.options, "--no-proxy-env", "--audit", str(log)]
        options += [word for rule in allow for word in ("--allow", rule)]
        options += [word for host, ip in self.hosts.items() for word in ("--add-host", f"{host}:{ip}")]
        done = run([*self.before, *run_argv(options, argv, self.uid)], env, cwd=cwd or self.folder, timeout_s=TIMEOUT_S)
        assert log.exists(), f"exeat has not started: {done}"
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        assert [lines[0]["event"], lines[-1]["event"]] == ["start", "stop"], (done, lines)
        assert lines[0]["jail"] == "netns"
        return Ended(done, [line for line in lines if line["event"] == "decision"])

    def works(
        self,
        argv: Sequence[str],
        place: str,
        *,
        says: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
    ) -> Ended:
        """Run a command that needs this place, HOST:PORT, and no other. `says`: all that it prints."""
        ended = self.run(argv, place, env=env, cwd=cwd)
        assert ended.done.status == 0, ended
        assert says is None or ended.stdout == says, ended
        host, _, port = place.rpartition(":")
        assert set(ended.gist) == {("allow", host, int(port), "allowed")}, ended
        return ended

    def fails(
        self, argv: Sequence[str], rule: str, *, env: Mapping[str, str] | None = None, cwd: Path | None = None
    ) -> Ended:
        """Run a command for which this rule is not enough: it must end in a failure, and have got nothing."""
        ended = self.run(argv, rule, env=env, cwd=cwd)
        assert ended.done.status != 0, ended
        assert {line["verdict"] for line in ended.decisions} == {"deny"}, ended
        return ended

    def prove(
        self,
        command: Command,
        port: int,
        *,
        says: str | None = None,
        env: Mapping[str, str] | None = None,
        cwd: Path | None = None,
        seen: Callable[[], int],
    ) -> Ended:
        """Show that a rule is all that counts. Returns the run in which the command went to good.test.

        evil.test, on the same server, has no name; another port of good.test is refused by whom it is dialled through.
        Both work as soon as a rule says so, and not until then has the server seen anything: `seen` counts it. The two
        that fail run at the same time, and then the two that work.
        """
        to_good, to_evil = command("good.test"), command("evil.test")
        before = seen()
        nameless, portless = _together(
            lambda: self.fails(to_evil, f"good.test:{port}", env=env, cwd=cwd),
            lambda: self.fails(to_good, "good.test:1", env=env, cwd=cwd),
        )
        assert set(nameless.gist) == {("deny", "evil.test", 53, "not-listed")}, nameless
        assert set(nameless.protocols) == {"dns"}
        assert set(portless.gist) == {("deny", "good.test", port, "port-not-listed")}, portless
        assert set(portless.protocols) <= {"redirect", "redirect/http"}
        assert seen() == before, "the server has been reached"
        good, evil = _together(
            lambda: self.works(to_good, f"good.test:{port}", says=says, env=env, cwd=cwd),
            lambda: self.works(to_evil, f"evil.test:{port}", says=says, env=env, cwd=cwd),
        )
        assert {*good.protocols, *evil.protocols} <= {"redirect", "redirect/http"}
        assert seen() >= before + 2
        return good


def _together(*runs: Callable[[], Ended]) -> list[Ended]:
    with ThreadPoolExecutor(len(runs)) as pool:
        return [each.result() for each in [pool.submit(run) for run in runs]]
