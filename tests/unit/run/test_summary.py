"""The summary: as many lines as are read, in columns."""

from __future__ import annotations

import io

from exeat.run.summary import print_summary


def shown(*entries: tuple[str, int, str]) -> list[str]:
    out = io.StringIO()
    print_summary(entries, out=out)
    return out.getvalue().splitlines()


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
    out = io.StringIO()
    print_summary([("a.test:443", 1, "--allow a.test")], "work", out)
    assert out.getvalue().endswith("  to keep a rule: exeat proxy allow HOST --name work\n")
