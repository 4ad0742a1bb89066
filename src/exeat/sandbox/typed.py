"""Rules as people type them: `github.com` also means its subdomains, `=github.com` does not, and a URL is an error.

Only commands read rules like this. A file holds the common grammar and nothing else.
"""

from __future__ import annotations

import re
from typing import NamedTuple

from exeat.errors import ConfigError
from exeat.policy.grammar import is_public_suffix, parse_rule
from exeat.policy.host import shown
from exeat.policy.rule import Rule, Scope, Source

_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)")
_SCP = re.compile(r"[A-Za-z0-9._-]+@([A-Za-z0-9.-]+)(:.*)?")  # git@github.com:owner/repository
_WITH_PATH = re.compile(r"(?!\[)([^/]*[^/0-9.:][^/]*)/.*|([^/]+:[0-9]+)/.*")  # github.com/x, but not 10.0.0.0/8
_HOST = re.compile(r"(?:\*?\.)?[A-Za-z0-9._-]+(:[0-9]{1,5})?|\[[0-9A-Fa-f:.]+\](:[0-9]{1,5})?")
_PORTS = {"ssh": ":22", "git+ssh": ":22", "git": ":9418", "ftp": ":21"}
_OPTION = re.compile(r"(methods|paths|max_upload)=.*|private|force|no-intercept|allow_sni_mismatch", re.DOTALL)


class Typed(NamedTuple):
    """What was typed. `rule` is what it stands for, and `note` says so; `exact` is it to the letter, if it differs."""

    rule: Rule
    exact: Rule | None = None
    note: str = ""


def read_allow(text: str, number: int) -> Typed:
    """What `allow TEXT` is to store. A name covers its subdomains, unless strangers could have them."""
    text, source = _checked(text, number, "allow"), Source("allow", item=number)
    if text.startswith("!"):
        raise ConfigError(f"{shown(text)} denies", where=str(source), expected=f"exeat proxy block {_quoted(text[1:])}")
    if text.startswith("="):
        return Typed(_exactly(text, source))
    rule = parse_rule(text, source)
    if rule.pattern.scope is not Scope.EXACT:
        return Typed(rule)
    name = rule.pattern.name
    if "." not in name:
        return Typed(rule, note="this host only, because it is a single label")
    if is_public_suffix(name):
        return Typed(rule, note="this host only, because anyone can register names below it")
    return Typed(parse_rule(f".{text}", source), rule, f"{name} and its subdomains")


def read_block(text: str, number: int) -> Typed:
    """What `block TEXT` is about, as a deny rule. A name covers its subdomains; to deny too much is safe."""
    text, source = _checked(text, number, "block"), Source("block", item=number)
    if text.startswith("="):
        return Typed(_exactly(text, source, deny=True))
    rule = _deny_rule(text, source)
    if rule.pattern.scope is not Scope.EXACT:
        return Typed(rule)
    wide = _deny_rule(f".{text}", source)
    return Typed(wide, rule, f"{rule.pattern.name} and its subdomains")


def _deny_rule(text: str, source: Source) -> Rule:
    """The rule as a deny. Of an allow rule that is typed as it was written, what a deny cannot have is left out."""
    try:
        return parse_rule(text, source, deny=True)
    except ConfigError as error:
        try:
            rule = parse_rule(text, source)
        except ConfigError:
            raise error from None
        if rule.deny:
            raise
        return Rule(True, rule.pattern, rule.ports, source, methods=rule.methods, paths=rule.paths)


def _exactly(text: str, source: Source, *, deny: bool = False) -> Rule:
    rule = _deny_rule(text[1:], source) if deny else parse_rule(text[1:], source)
    if rule.deny != deny or rule.pattern.scope not in (Scope.EXACT, Scope.NETWORK):
        raise ConfigError(f"{shown(text)} is not one host", where=str(source), expected="=good.test, or .good.test")
    return rule


def _checked(text: str, number: int, verb: str) -> str:
    """The text without the blanks around it, if it can be a rule at all; else an error that shows the right form."""
    text = text.strip(" ")
    where = f"{verb} item {number}"
    if number > 1 and _OPTION.fullmatch(text):
        raise ConfigError(
            f"{shown(text)} is an option without a rule",
            where=where,
            expected=f"the rule and its options in one pair of quotes: 'good.test {ascii(text)[1:-1]}'",
        )
    head = text.partition(" ")[0].lstrip("!=")
    if slip := _host_of_slip(head):
        raise ConfigError(f"{shown(head)} is not a host", where=where, expected=f"exeat proxy {verb} {_quoted(slip)}")
    return text


def _host_of_slip(head: str) -> str:
    """The rule that was meant by a URL, an address of a repository or a host with a path; "" if it is none of them."""
    port = ""
    if url := _SCHEME.fullmatch(head):
        port = _PORTS.get(url[1].lower(), "")
        host = re.split(r"[/?#]", url[2], maxsplit=1)[0].rpartition("@")[2]
    elif scp := _SCP.fullmatch(head):
        host, port = scp[1], ":22"
    elif path := _WITH_PATH.fullmatch(head):
        host = path[1] or path[2]
    else:
        return ""
    if not _HOST.fullmatch(host):
        return "HOST"
    return host if re.search(r":[0-9]+$", host) else host + port


def _quoted(text: str) -> str:
    return text if re.fullmatch(r"[\w.:/=-]+", text, re.ASCII) else ascii(text)
