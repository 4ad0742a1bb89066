"""`exeat replay`: what a changed policy would have done, by what is on record."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from exeat.audit.verify import describe, verify_files
from exeat.errors import ConfigError
from exeat.reasons import Reason, in_words

if TYPE_CHECKING:
    from exeat.audit.replay import Replayed, Row


_MAX_SHOWN = 253
_VERDICTS = {"allowed": "allow", "denied": "deny", "unknown": "unknown"}


def add_replay_options(parser: argparse.ArgumentParser) -> None:
    from exeat.cli.options import add_policy_options

    parser.description = (
        "Say which recorded requests a changed policy would treat differently. Reads the\n"
        "log and its rotated parts; sends nothing and resolves nothing. Paths are not\n"
        "on record: where a rule with paths decides, that cannot be told."
    )
    parser.epilog = (
        "examples:\n"
        "  exeat replay --audit audit.jsonl --policy new.toml\n"
        "  exeat replay --name work --deny '*.example.com'\n"
        "\n"
        "exit status: 0 no difference that can be told, 1 differences, 2 unusable"
    )
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--audit", metavar="FILE", help="the log (default: that of the sandbox --name)")
    parser.add_argument("--name", metavar="NAME", help="judge by the list of this sandbox too")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    add_policy_options(parser)
    parser.add_argument(
        "--secrets", "--config", metavar="FILE", action="append", default=[], help="their hosts are allowed: JSON, TOML"
    )
    parser.set_defaults(run=_run)


def _run(options: argparse.Namespace, arguments: Sequence[str]) -> int:
    from exeat.audit.replay import replay_log
    from exeat.cli.options import policy_sources
    from exeat.policy.replay import judge_again

    audit: str | None = options.audit
    files: tuple[str, ...] = ()
    if options.name is not None:
        from exeat.sandbox.folder import open_sandbox

        with open_sandbox(options.name) as folder:
            audit, files = audit or folder.audit_path, (folder.allowlist_path,)
    if audit is None:
        raise ConfigError("no log given", where="exeat replay", expected="--audit FILE, or --name NAME")
    sources = policy_sources(options, *files)
    given = (sources.allow, sources.deny, sources.files, sources.allowlist, sources.secrets_files, sources.env_secrets)
    if not any(given):
        raise ConfigError(
            "no policy given", where="exeat replay", expected="--policy FILE, --allow RULE or --name NAME"
        )
    loaded = sources.load()
    policy, intercepts = loaded.policy, loaded.intercept != "none"
    replayed = replay_log(audit, lambda recorded: judge_again(policy, recorded, intercepts=intercepts))
    for warning in _warnings(replayed, audit):
        print(f"exeat: warning: {warning}", file=sys.stderr)
    if options.json:
        import json

        print(json.dumps(_as_dict(replayed), indent=2))
    else:
        print("\n".join(_as_lines(replayed)))
    return 1 if replayed.differences else 0


def _warnings(replayed: Replayed, audit: str) -> Iterator[str]:
    if replayed.not_records:
        count = replayed.not_records
        yield (
            "1 line is not a record and was left out"
            if count == 1
            else f"{count} lines are not records and were left out"
        )
    if replayed.verification is not None and not replayed.verification.ok:
        yield f"the log was changed or cut, so this may not be what happened; see: exeat audit verify {_safe(audit)}"


def _as_lines(replayed: Replayed) -> Iterator[str]:
    from exeat.policy.replay import Outcome

    for outcome, heading in (
        (Outcome.DENIED, "Allowed then, denied now:"),
        (Outcome.ALLOWED, "Denied then, allowed now:"),
        (Outcome.UNKNOWN, "Cannot be told:"),
    ):
        rows = replayed.most_frequent(outcome)
        if not rows:
            continue
        yield heading
        wheres = [_where(row) for row, _ in rows]
        width = max(map(len, wheres))
        count_width = len(str(rows[0][1]))
        for where, (row, count) in zip(wheres, rows, strict=True):
            yield f"  {where:<{width}}  {count:>{count_width}}x  {_was(row)} -> {_now(row)}"
    if replayed.unlisted:
        yield f"  and {replayed.unlisted} more decisions on places for which there was no room in this list"
    yield _sentence(replayed)


def _sentence(replayed: Replayed) -> str:
    from exeat.policy.replay import Outcome

    totals = replayed.totals
    decisions = "1 recorded decision" if replayed.decisions == 1 else f"{replayed.decisions} recorded decisions"
    parts = [
        f"{totals[outcome]} {words}"
        for outcome, words in (
            (Outcome.DENIED, "would now be denied"),
            (Outcome.ALLOWED, "would now be allowed"),
            (Outcome.UNKNOWN, "cannot be told"),
        )
        if totals[outcome]
    ]
    said = f"{decisions}, all as before."
    if parts:
        said = f"{decisions}: {', '.join(parts)}, {totals[Outcome.SAME]} as before."
    elif not replayed.decisions:
        said = "No decision by a policy is on record."
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
    shown = "".join(char if char.isascii() and char.isprintable() else "?" for char in text)
    return shown if len(shown) <= _MAX_SHOWN else f"{shown[:_MAX_SHOWN]}..."


def _as_dict(replayed: Replayed) -> dict[str, object]:
    from exeat.policy.replay import Outcome

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
            for outcome in (Outcome.DENIED, Outcome.ALLOWED, Outcome.UNKNOWN)
            for row, count in replayed.most_frequent(outcome)
        ],
    }


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
