"""`exeat secrets check`: are these files usable? Nothing is run, no value is fetched and none is shown."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from typing import Final

from exeat.cli.parser import HelpText
from exeat.policy.document import POLICY_KEYS, is_json, parse_data, parse_document
from exeat.policy.host import shown
from exeat.secrets.model import SecretSpec, ValueSource, Where
from exeat.secrets.setup.config import combine, parse_secrets, parse_secrets_table
from exeat.secrets.setup.values import mode_warnings, read_secrets_file, source_warnings

EPILOG: Final = """\
A file is TOML, or JSON if its name ends in .json. One table for each secret:

  [GITHUB_TOKEN]                  # the variable in which the command finds it
  env = "GITHUB_TOKEN"            # or value, file or command
  hosts = ["api.github.com"]      # where it may go: rules; the port is 443
  shape = "ghp_"                  # or sk-, jwt, uuid, a length
  where = ["headers", "basic"]    # or query, path, body

  [DEPLOY_KEY]
  command = ["vault", "read", "-field=key", "secret/deploy"]
  timeout_s = 10
  refresh_s = 3600                # run it again every hour
  hosts = ["*.deploy.example.com:8443"]
  placeholder = "deploy-key-placeholder"
  inject = { header = "Authorization", format = "Bearer {value}" }
  on_wrong_host = "pass"          # or refuse, the default

In a policy file the tables are [secrets.GITHUB_TOKEN] and so on.

exit status: 0 usable, 2 not"""


def add_secrets_options(parser: argparse.ArgumentParser) -> None:
    parser.description = "Work with secrets files."
    actions = parser.add_subparsers(title="actions", metavar="ACTION", required=True, prog="exeat secrets")
    check = actions.add_parser(
        "check",
        help="list the secrets in a file, and its mistakes",
        description="Check secrets files without running anything. For each secret, says where its\n"
        "value comes from, which hosts may get it and in which parts of a request.\n"
        "Values are not fetched and never shown.",
        epilog=EPILOG,
        formatter_class=HelpText,
    )
    check.add_argument("files", metavar="FILE", nargs="+", help="secrets, or a policy with secrets; checked together")
    check.set_defaults(run=lambda options, arguments: check_files(options.files))


def check_files(paths: Sequence[str]) -> int:
    """Print one line for each secret, and warnings. Raises ConfigError for the first thing that cannot be used."""
    groups: list[tuple[SecretSpec, ...]] = []
    warnings: list[str] = []
    for path in paths:
        text, mode = read_secrets_file(path)
        specs = _parse(text, path)
        warnings += mode_warnings(path, mode, specs)
        if not specs:
            warnings.append(f"{path}: has no secrets")
        groups.append(specs)
    together = combine(groups)
    for warning in (*warnings, *source_warnings(together)):
        print(f"exeat: warning: {warning}", file=sys.stderr)
    for spec in together:
        print(_line(spec))
    return 0


def _parse(text: str, path: str) -> tuple[SecretSpec, ...]:
    """A policy is known by what stands next to its secrets. All of it has to be right then."""
    data, _ = parse_data(text, path, as_json=is_json(path))
    if isinstance(data, dict) and "secrets" in data and len(data) > 1 and all(key in POLICY_KEYS for key in data):
        table = parse_document(text, path).secrets
        return () if table is None else parse_secrets_table(table.content, table.where)
    return parse_secrets(text, path)


def _line(spec: SecretSpec) -> str:
    parts = ", ".join(part for part in Where if part in spec.where) or "nothing"
    line = f"{spec.name}: {_source(spec.source)}; to {', '.join(rule.text for rule in spec.hosts)}; in {parts}"
    return f"{line}; sets {spec.inject.header}" if spec.inject else line


def _source(source: ValueSource) -> str:
    """Where a value is. Of a command only the program: its arguments may be credentials themselves."""
    if source.env is not None:
        return f"env {source.env}"
    if source.file is not None:
        return f"file {shown(source.file)[1:-1]}"
    if source.command is not None:
        return f"command {shown(source.command[0])[1:-1]}"
    return "value"
