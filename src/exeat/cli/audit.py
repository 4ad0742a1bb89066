"""`exeat audit verify`, and `exeat replay`, which judges recorded requests by another policy."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Iterator, Sequence

from exeat.audit.replay import Replayed, Row, replay_log
from exeat.audit.verify import describe, verify_files
from exeat.cli.options import add_judging_options, policy_sources
from exeat.cli.parser import HelpText
from exeat.cli.screen import aligned, counted, in_ascii
from exeat.errors import ConfigError
from exeat.policy.replay import Outcome, judge_again
from exeat.reasons import Reason, in_words
from exeat.sandbox.folder import open_sandbox

_MAX_SHOWN = 253
_VERDICTS = {"allowed": "allow", "denied": "deny", "unknown": "unknown"}
# How each outcome that is not as before is called: as a heading, and behind a number.
_CHANGED = (
    (Outcome.DENIED, "Allowed then, denied now:", "would now be denied"),
    (Outcome.ALLOWED, "Denied then, allowed now:", "would now be allowed"),
    (Outcome.UNKNOWN, "Cannot be decided from the log:", "cannot be decided from the log"),
)


def add_audit_options(parser: argparse.ArgumentParser) -> None:
    parser.description = "Work with audit logs."
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, prog="exeat audit")
    verify = actions.add_parser(
        "verify",
        help="find any edit, cut or reordering in a log",
        description="Check the hash chain of a log. Finds every changed, removed, added or moved\n"
        "line. A cut tail shows only against a head hash kept elsewhere (--head): the\n"
        "chain has no key.",
        epilog="exit status: 0 intact, 1 not intact, 2 cannot be read",
        formatter_class=HelpText,
    )
    verify.add_argument(
        "files", metavar="FILE", nargs="+", help="the log; its rotated parts are found, or give them oldest first"
    )
    verify.add_argument("--head", metavar="HASH", help="the hash that the last line must have")
    verify.set_defaults(run=lambda options, arguments: verify_logs(options.files, options.head))


def verify_logs(paths: Sequence[str], head: str | None) -> int:
    """Print what was found; 0 intact, 1 not."""
    try:
        found = verify_files(paths, expect_head=head)
    except OSError as error:
        raise ConfigError(
            f"cannot be read: {error.strerror}", where=str(error.filename), expected="an audit log"
        ) from None
    for line in describe(found):
        print(line)
    return 0 if found.ok else 1


def add_replay_options(parser: argparse.ArgumentParser) -> None:
    parser.description = (
        "Say which recorded requests a changed policy would treat differently. Reads the\n"
        "log and its rotated parts; sends nothing and resolves nothing. Paths are not\n"
        "recorded: a rule with paths may leave a request undecided."
    )
    parser.epilog = (
        "examples:\n"
        "  exeat replay --audit audit.jsonl --policy new.toml\n"
        "  exeat replay --name work --deny '*.example.com'\n"
        "\n"
        "exit status: 0 no difference, 1 differences, 2 bad arguments or files"
    )
    parser.add_argument("--audit", metavar="FILE", help="the log (default: that of the sandbox --name)")
    add_judging_options(parser)
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    audit: str | None = options.audit
    files: tuple[str, ...] = ()
    if options.name is not None:
        with open_sandbox(options.name) as folder:
            audit, files = audit or folder.audit_path, (folder.allowlist_path,)
    if audit is None:
        raise ConfigError("no log given", where="exeat replay", expected="--audit FILE, or --name NAME")
    sources = policy_sources(options, *files)
    given = (sources.allow, sources.deny, sources.files, sources.allowlist, sources.secrets_files, sources.env_secrets)
    if not any(given):
        expected = "--policy FILE, --allow RULE or --name NAME"
        raise ConfigError("no policy given", where="exeat replay", expected=expected)
    loaded = sources.load()
    policy, intercepts = loaded.policy, loaded.intercept != "none"
    replayed = replay_log(audit, lambda recorded: judge_again(policy, recorded, intercepts=intercepts))
    for warning in _warnings(replayed, audit):
        print(f"exeat: warning: {warning}", file=sys.stderr)
    print(json.dumps(_as_dict(replayed), indent=2) if options.json else "\n".join(_as_lines(replayed)))
    return 1 if replayed.differences else 0


def _warnings(replayed: Replayed, audit: str) -> Iterator[str]:
    if replayed.not_records:
        yield f"{counted(replayed.not_records, 'line')} skipped: not an audit record"
    if replayed.verification is not None and not replayed.verification.ok:
        yield f"the log was changed or cut, so this may not be what happened; see: exeat audit verify {_safe(audit)}"


def _as_lines(replayed: Replayed) -> Iterator[str]:
    for outcome, heading, _ in _CHANGED:
        rows = replayed.most_frequent(outcome)
        if not rows:
            continue
        yield heading
        cells = [(_where(row), f"{count}x", f"{_was(row)} -> {_now(row)}") for row, count in rows]
        yield from (f"  {line}" for line in aligned(cells, right=frozenset({1})))
    if replayed.unlisted:
        yield f"  and {replayed.unlisted} more decisions, about places that are not listed here"
    yield _sentence(replayed)


def _sentence(replayed: Replayed) -> str:
    totals = replayed.totals
    decisions = counted(replayed.decisions, "recorded decision")
    parts = [f"{totals[outcome]} {words}" for outcome, _, words in _CHANGED if totals[outcome]]
    said = f"{decisions}, all as before."
    if parts:
        said = f"{decisions}: {', '.join(parts)}, {totals[Outcome.SAME]} as before."
    elif not replayed.decisions:
        said = "The log has no decision by a policy."
    other = totals[Outcome.OTHER]
    return f"{said} {other} more {'was' if other == 1 else 'were'} not decided by a policy." if other else said


def _where(row: Row) -> str:
    host = _safe(row.host)
    host = f"[{host}]" if ":" in host else host
    if row.protocol == "dns":
        return f"{host} (lookup)"
    return f"{host}:{row.port} {_safe(row.method)}"


def _was(row: Row) -> str:
    if row.was_allowed:
        return f"was allowed by {_safe(row.was_rule) or 'a rule'}"
    return f"was denied: {_reason(row.was_reason, row.was_rule)}"


def _now(row: Row) -> str:
    now = row.now
    match now.outcome:
        case "allowed":
            return f"now allowed by {_safe(now.rule)}"
        case "denied":
            return f"now denied: {_reason(now.reason, now.rule)}"
        case _:
            return f"{now.reason} ({_safe(now.rule)})" if now.rule else now.reason


def _reason(reason: str, rule: str) -> str:
    if reason == Reason.DENIED_BY_RULE:
        return f"by {_safe(rule)}"
    return in_words(reason)


def _safe(text: str) -> str:
    """Text that a sandbox chose must not write on a terminal."""
    return in_ascii(text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}...")


def _as_dict(replayed: Replayed) -> dict[str, object]:
    return {
        "decisions": replayed.decisions,
        "same": replayed.totals[Outcome.SAME],
        "now_denied": replayed.totals[Outcome.DENIED],
        "now_allowed": replayed.totals[Outcome.ALLOWED],
        "unknown": replayed.totals[Outcome.UNKNOWN],
        "not_by_policy": replayed.totals[Outcome.OTHER],
        "not_records": replayed.not_records,
        "intact": replayed.verification is not None and replayed.verification.ok,
        "unlisted": replayed.unlisted,
        "changes": [
            {
                "host": row.host,
                "port": row.port,
                "method": row.method,
                "protocol": row.protocol,
                "count": count,
                "was": {
                    "verdict": "allow" if row.was_allowed else "deny",
                    "rule": row.was_rule or None,
                    "reason": row.was_reason,
                },
                "now": {
                    "verdict": _VERDICTS[row.now.outcome.value],
                    "rule": row.now.rule or None,
                    "reason": row.now.reason,
                },
            }
            for outcome, _, _ in _CHANGED
            for row, count in replayed.most_frequent(outcome)
        ],
    }
