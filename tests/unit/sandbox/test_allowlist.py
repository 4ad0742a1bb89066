"""Edits of a list: one line comes or goes, and every other byte stays."""

from __future__ import annotations

import pytest

from exeat.errors import ConfigError
from exeat.policy import Source, parse_rule
from exeat.policy.grammar import is_public_suffix
from exeat.policy.rule import Rule, Scope
from exeat.sandbox.allowlist import parse_allowlist_file
from exeat.sandbox.folder import default_allowlist

TEXT = "# mine \n\n  a.test   # why\nb.test\n\n# end"


def rule(text: str) -> Rule:
    return parse_rule(text, Source("test"))


@pytest.mark.parametrize("ending", ["\n", "\r\n"])
def test_a_rule_is_appended_as_a_line(ending: str) -> None:
    """With the line ending of the file. A last line that was not ended is ended first."""
    text = TEXT.replace("\n", ending)
    found = parse_allowlist_file(text, "list.txt").with_rule("c.test:22")
    assert found.text == f"{text}{ending}c.test:22{ending}"
    assert [(each.source.line, each.text) for each in found.rules] == [(3, "a.test"), (4, "b.test"), (7, "c.test:22")]
    assert parse_allowlist_file(found.text, "list.txt").rules == found.rules


def test_an_equal_rule_is_not_repeated() -> None:
    """Equal by its canonical text, however it is written."""
    listed = parse_allowlist_file("A.test.  methods=GET|HEAD\n", "list.txt")
    assert listed.with_rule("a.test methods=HEAD|GET") is listed


def test_every_line_with_an_equal_rule_goes() -> None:
    """With the comment behind it; all other lines stay as they are, to the last byte."""
    text = "# top\r\na.test # one\r\n \tb.test\t# two \r\n\r\nA.TEST\r\n# a.test\r\nc.test"
    found = parse_allowlist_file(text, "list.txt").without(rule("a.test"))
    assert found.text == "# top\r\n \tb.test\t# two \r\n\r\n# a.test\r\nc.test"
    assert [(each.source.line, each.text) for each in found.rules] == [(2, "b.test"), (5, "c.test")]
    assert found.without(rule("c.test")).text == "# top\r\n \tb.test\t# two \r\n\r\n# a.test\r\n"
    assert found.without(rule("!b.test")) is found


@pytest.mark.parametrize("text", ["not a rule", "a.test\nevil.test", "a.test # x", "# x", "", "*.com"])
def test_what_is_not_a_rule_is_never_appended(text: str) -> None:
    """A text with a line ending in it would be two rules."""
    with pytest.raises(ConfigError):
        parse_allowlist_file("", "list.txt").with_rule(text)


def test_the_default_list() -> None:
    """It is read whole and has no rule twice. It has what it should have, and no wildcard over what strangers own."""
    text = default_allowlist()
    rules = parse_allowlist_file(text, "default-allowlist.txt").rules
    names = {each.text for each in rules}
    assert len(names) == len(rules) > 80
    assert names >= {
        "pypi.org", "files.pythonhosted.org", "registry.npmjs.org", "static.crates.io", "proxy.golang.org",
        "rubygems.org", "repo.maven.apache.org", "services.gradle.org", "repo.packagist.org", "api.nuget.org",
        "cpan.metacpan.org", "hackage.haskell.org", "repo.hex.pm", "pub.dev", "cdn.cocoapods.org",
        "cloud.r-project.org", "pkg.julialang.org", "conda.anaconda.org", "github.com", "github.com:22",
        "codeload.github.com", "raw.githubusercontent.com", "gitlab.com", "bitbucket.org", "codeberg.org",
        "git.sr.ht", "deb.debian.org", ".archive.ubuntu.com", "dl-cdn.alpinelinux.org", "formulae.brew.sh",
        "mirrors.fedoraproject.org", "geo.mirror.pkgbuild.com", "dl.rockylinux.org", "repo.almalinux.org",
        "download.opensuse.org",
    }  # fmt: skip
    assert not [
        each for each in rules if each.deny or each.force or each.private or is_public_suffix(each.pattern.name)
    ]
    assert [each.text for each in rules if each.pattern.scope is not Scope.EXACT] == [".archive.ubuntu.com"]
    assert max(map(len, text.splitlines())) <= 120
