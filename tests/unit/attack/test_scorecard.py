"""The scorecard: what counts as failure, and what people read."""

from __future__ import annotations

import json

import pytest

from exeat.attack.scorecard import Row, Scorecard, Seen


def _row(seen: Seen, *, expected: str = "stopped", evidence: str = "", said: str = "", control: str = "") -> Row:
    return Row("E1.tcp4", "tcp", "TCP to 127.0.0.1", "netns", expected, seen, said, evidence=evidence, control=control)


@pytest.mark.parametrize(
    ("seen", "status"),
    [
        ([Seen.STOPPED, Seen.WORKS], 0),
        ([Seen.STOPPED, Seen.NO_CONTROL], 0),
        ([Seen.STOPPED, Seen.ESCAPED], 1),
        ([Seen.STOPPED, Seen.BROKEN], 1),
        ([], 1),
    ],
)
def test_exit_status(seen: list[Seen], status: int) -> None:
    """Anything that got out is a failure, and so is an attack that proves nothing."""
    assert Scorecard("netns", "root", tuple(_row(each) for each in seen)).status == status


def test_an_escape_is_a_failure_where_nobody_claimed_otherwise() -> None:
    """The env jail is no boundary; its scorecard says so instead of looking good."""
    card = Scorecard("env", "root", (_row(Seen.ESCAPED, expected="gets out", evidence="arrived at tcp v4"),))
    assert card.status == 1
    text = card.to_text({"tcp": "TCP"})
    assert "ESCAPED" in text
    assert "this jail does not claim to stop it" in text


def test_the_table_fits_and_is_plain() -> None:
    """At most 100 columns, and no control characters from a probe."""
    rows = (
        _row(Seen.ESCAPED, evidence="arrived \x1b[31m " + "x" * 400),
        _row(Seen.BROKEN, said="not run: " + "word " * 60),
        _row(Seen.NO_CONTROL, control="no SCTP in this kernel"),
    )
    text = Scorecard("netns", "user 1000", rows).to_text({"tcp": "TCP, IPv4"})
    assert max(map(len, text.splitlines())) <= 100
    assert "\x1b" not in text
    assert "no SCTP in this kernel" in text
    assert text.splitlines()[-1].startswith("netns as user 1000: 0 stopped, 1 escaped, 0 of 1 things")


def test_json_has_every_row() -> None:
    card = Scorecard("netns", "root", (_row(Seen.STOPPED, said="refused", control="arrived at tcp v4"),))
    read = json.loads(card.to_json())
    assert read["rows"] == [
        {
            "id": "E1.tcp4",
            "class": "tcp",
            "attack": "TCP to 127.0.0.1",
            "expected": "stopped",
            "seen": "stopped",
            "said": "refused",
            "evidence": "",
            "control": "arrived at tcp v4",
            "lack": "",
        }
    ]
    assert read["jail"] == "netns"
