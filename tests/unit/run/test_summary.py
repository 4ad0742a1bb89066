"""The summary: as many lines as are read, in columns; and the same as one JSON object."""

from __future__ import annotations

import io
import json
import subprocess
import sys

from exeat.gateway.record.counters import Counters, KeptList
from exeat.jail.messages import Row
from exeat.run.gateway_process.serving import tell_outcome
from exeat.run.outcome import UNKNOWN, Outcome, as_json, print_summary
from exeat.sources import make_policy


def printed(outcome: Outcome, name: str = "") -> list[str]:
    out = io.StringIO()
    print_summary(outcome, name, out)
    return out.getvalue().splitlines()


def shown(*entries: Row) -> list[str]:
    return printed(Outcome(entries))


def test_once_is_a_word() -> None:
    assert shown(("a.test:443", 1, "--allow a.test")) == ["exeat: blocked once:", "  a.test:443  1x  --allow a.test"]


def test_counts_and_places_stand_in_columns() -> None:
    assert shown(("a.test:443", 120, "--allow a.test"), ("long.example.test:80", 3, "denied by a rule")) == [
        "exeat: blocked 123 times:",
        "  a.test:443            120x  --allow a.test",
        "  long.example.test:80    3x  denied by a rule",
    ]


def test_twenty_are_shown_and_the_rest_is_counted() -> None:
    lines = shown(*((f"h{number}.test", 2, "x") for number in range(25)))
    assert lines[0] == "exeat: blocked 50 times:"
    assert len(lines) == 22
    assert lines[-1] == "  and 5 more; --audit FILE records all"
    assert len(shown(*((f"h{number}.test", 2, "x") for number in range(20)))) == 21


def test_a_sandbox_with_a_name_has_a_list_to_keep_a_rule_in() -> None:
    lines = printed(Outcome((("a.test:443", 1, "--allow a.test"),)), "work")
    assert lines[-1] == "  to keep a rule: exeat proxy allow HOST --name work"


def test_what_was_allowed_and_failed_has_a_list_of_its_own() -> None:
    assert printed(Outcome((), (("a.test:443", 2, "the name does not resolve"),))) == [
        "exeat: allowed, but failed 2 times:",
        "  a.test:443  2x  the name does not resolve",
    ]


def told(counters: Counters) -> Outcome:
    return tell_outcome(counters, make_policy(["good.test"]), KeptList("work"), "netns")


def test_the_json_has_what_the_schema_says() -> None:
    counters = Counters()
    counters.decided("allow", "allowed", "good.test", 443)
    counters.decided("deny", "not-listed", "evil.test", 22)
    counters.block("git.test", 0, "not-listed")
    counters.fail("good.test", 443, "connection_refused")
    found = json.loads(as_json(told(counters), 7))
    assert found == {
        "version": 1,
        "exit_status": 7,
        "complete": True,
        "error": None,
        "refused_namespaces": [],
        "sandbox": "work",
        "jail": "netns",
        "allowed": [{"host": "good.test", "port": 443, "count": 1}],
        "denied": [
            {
                "host": "evil.test", "port": 22, "count": 1, "reason": "not-listed", "rule": "evil.test:22",
                "advice": "--allow evil.test:22",
            },
            {
                "host": "git.test", "port": None, "count": 1, "reason": "not-listed", "rule": "git.test",
                "advice": "--allow git.test; for another protocol: --allow git.test:PORT",
            },
        ],
        "failed": [
            {
                "host": "good.test", "port": 443, "count": 1, "reason": "refused",
                "advice": "the server refused the connection",
            }
        ],
        "more": {"allowed": 0, "denied": 0, "failed": 0},
    }  # fmt: skip


def test_noise_is_for_programs_only() -> None:
    counters = Counters()
    counters.block("", 0, "malformed")
    counters.block("9.113.0.203.in-addr.arpa", 0, "not-listed")
    outcome = told(counters)
    assert outcome.denied == ()
    assert [entry["host"] for entry in json.loads(as_json(outcome, 0))["denied"]] == [None, "9.113.0.203.in-addr.arpa"]


def test_what_is_left_out_is_counted() -> None:
    counters = Counters()
    for number in range(3_000):
        counters.block(f"h{number}.test", 443, "not-listed")
    outcome = told(counters)
    found = json.loads(as_json(outcome, 0))
    assert (len(found["denied"]), found["more"]["denied"]) == (100, 2_900)
    assert sum(count for _, count, _ in outcome.denied) == 3_000
    assert outcome.denied[-1] == ("other hosts", 2_900, "--audit FILE records all")


def test_without_a_gateway_to_tell_it_is_said_to_be_incomplete() -> None:
    found = json.loads(as_json(UNKNOWN, 1))
    assert (found["complete"], found["denied"], found["exit_status"]) == (False, [], 1)


def test_any_error_is_json() -> None:
    text = 'a "quoted" \\ path\n\x1b[2J é \U0001f600 \udcff'
    found = json.loads(as_json(UNKNOWN, None, text))
    assert (found["error"], found["exit_status"]) == (text, None)
    assert as_json(UNKNOWN, None, text).isascii()


_SEAL_AND_SAY = """
from exeat.run.outcome import UNKNOWN, as_json
from exeat.run.sealing import seal_imports
seal_imports()
print(as_json(UNKNOWN, None, 'two\\nlines, "quoted", \\xe9 \\U0001f600 \\udcff'))
"""


def test_any_error_can_be_told_when_no_code_is_loaded_any_more() -> None:
    """Codecs are code."""
    done = subprocess.run([sys.executable, "-c", _SEAL_AND_SAY], capture_output=True, text=True, timeout=60, check=True)
    assert json.loads(done.stdout)["error"] == 'two\nlines, "quoted", \xe9 \U0001f600 \udcff'
