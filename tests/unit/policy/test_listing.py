"""Allowlists as text: what is a rule, what is a comment, and where an error is."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exeat.errors import ConfigError
from exeat.policy import grammar
from exeat.policy.document import MAX_DOCUMENT, parse_listing
from exeat.policy.options import RuleError
from exeat.policy.rule import Rule, Source
from exeat.sources import RuleSources, load_document

LIST = """\
# a comment
good.test

  *.good.test:443   # behind a rule
\t!.bad.good.test\t# and behind a tab
#evil.test
    # evil.test
10.0.0.0/8:22 # a network
good.test:8080 methods=X#Y
"""


def texts(rules: tuple[Rule, ...]) -> list[tuple[int | None, str]]:
    return [(rule.source.line, rule.text) for rule in rules]


RULES = [
    (2, "good.test"),
    (4, "*.good.test:443"),
    (5, "!.bad.good.test"),
    (8, "10.0.0.0/8:22"),
    (9, "good.test:8080 methods=X#Y"),
]


@pytest.mark.parametrize("text", [LIST, LIST.replace("\n", "\r\n"), LIST.rstrip("\n"), "\ufeff" + LIST])
def test_rules_comments_and_blank_lines(text: str) -> None:
    """Whatever the line endings, with or without a byte order mark or a last line feed. `#` in a word is no comment."""
    assert texts(parse_listing(text, "list.txt")) == RULES


@pytest.mark.parametrize("text", ["", "\n", "\n\n", "#", "# x", "  \t \r\n", "\ufeff"])
def test_a_list_without_rules_is_empty(text: str) -> None:
    """So nothing is allowed."""
    assert parse_listing(text, "list.txt") == ()


@pytest.mark.parametrize(
    ("text", "where"),
    [
        ("good.test\nbad rule\n", "2:5"),
        ("  good.test:99999", "1:13"),
        ("a.test\n\t\thttps://x.test/y # z", "2:3"),
        ("*.com", "1:1"),
        ("a.test\n*.co.uk # all of it", "2:1"),
        ("# \x1b[31m\n", "1:3"),
        ("a.test\rb.test\n", "1:7"),
        ("a.test\n# x\u2028evil.test", "2:4"),
        ("a.test\x0bb.test", "1:7"),
        ("a.test\x00", "1:7"),
        ("a.test\u0085b.test", "1:7"),
        ("a.test b.test", "1:8"),
        ("a.test,b.test", "1:7"),
    ],
)
def test_an_error_names_file_line_and_column(text: str, where: str) -> None:
    """One bad line refuses the list, and so does a character that could show a reader other lines than there are."""
    with pytest.raises(ConfigError) as caught:
        parse_listing(text, "list.txt")
    assert caught.value.where == f"list.txt:{where}"


def test_a_list_has_a_limit() -> None:
    """Over 8 MiB nothing is read."""
    with pytest.raises(ConfigError, match="8 MiB"):
        parse_listing("#" * (MAX_DOCUMENT + 1), "list.txt")


def test_a_policy_file_that_ends_in_txt_is_such_a_list(tmp_path: Path) -> None:
    """`--policy list.txt`; an error names the file that was given."""
    path = tmp_path / "List.TXT"
    path.write_text(LIST)
    assert texts(load_document(str(path)).rules) == RULES
    loaded = RuleSources(files=(str(path),)).load()
    assert str(loaded.policy.rules[1].source) == f"{path}:4"
    path.write_text("good.test\nnot a rule\n")
    with pytest.raises(ConfigError, match=r"List\.TXT:2:5"):
        load_document(str(path))


MARKS = st.sampled_from(["", "!", "!!"])
PREFIXES = st.sampled_from(["", ".", "*.", "..", "*"])
LABELS = st.sampled_from([
    "a", "good", "x1", "1", "0x7f", "com", "co", "uk", "github", "io", "a-b", "-a", "a_b", "A", "xn--a", "test",
    "a" * 63, "a" * 64,
])  # fmt: skip
HOSTS = st.lists(LABELS, min_size=1, max_size=10).map(".".join)
PORTS = st.sampled_from(["", ":443", ":1", ":0", ":99999", ":65535", ":*", ":80-90", ":01", ":"])
OPTIONS = st.sampled_from(["", " ", " private", " force"])


@given(st.tuples(MARKS, PREFIXES, HOSTS, PORTS, OPTIONS).map("".join), st.booleans())
def test_the_short_way_and_the_long_way_agree(text: str, deny: bool) -> None:
    """For any text: the same rule in every field, or the same error at the same character."""

    def outcome(read: object) -> object:
        try:
            rule = read(text, Source("list.txt", 7), deny=deny)  # type: ignore[operator]
        except RuleError as fault:
            return fault.public, fault.offset, fault.expected
        return [getattr(rule, name) for name in vars(Rule)["__slots__"]]

    assert outcome(grammar.read_rule) == outcome(grammar._read_any_rule)


@pytest.mark.parametrize("text", ["a.test", ".a.test", "*.a.test:443", "!a.test", "!*.a.test:22", "!.co.uk"])
def test_plain_rules_go_the_short_way(text: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Long lists are quick only if they do."""

    def never(*_: object, **__: object) -> None:
        raise AssertionError("the long way")

    monkeypatch.setattr(grammar, "_read_any_rule", never)
    assert grammar.read_rule(text, Source("x", 1)).text == text
