"""The sandbox of `exeat run --name N`. A slip must not make one with a hundred rules: that takes a word."""

from __future__ import annotations

import sys

from exeat.errors import ConfigError
from exeat.sandbox.folder import NoSandboxError, SandboxFolder, open_sandbox
from exeat.sandbox.names import check_name
from exeat.sandbox.store import read_allowlist


def open_for_run(name: str, *, new: bool, empty: bool) -> SandboxFolder:
    """Open it; `new` or `empty` make it if it is not there, as does a person who says yes. Raises ConfigError."""
    check_name(name)
    try:
        folder = open_sandbox(name, create=new or empty, empty=empty)
    except NoSandboxError as missing:
        if not _is_person_here() or not _wants_it(missing):
            raise
        folder = open_sandbox(name, create=True)
    if empty and not folder.was_created:
        try:
            _refuse_rules(folder)
        except BaseException:
            folder.close()
            raise
    return folder


def _refuse_rules(folder: SandboxFolder) -> None:
    """An --empty that has no effect would be believed to have one."""
    rules = len(read_allowlist(folder).rules)
    if rules:
        raise ConfigError(
            f"the sandbox {folder.name} is there already, and its list has {rules} rule{'s' if rules > 1 else ''}",
            where="--empty",
            expected=f"no --empty, or exeat proxy reset --empty --name {folder.name} first",
        )


def _is_person_here() -> bool:
    return all(stream is not None and stream.isatty() for stream in (sys.stdin, sys.stderr))


def _wants_it(missing: NoSandboxError) -> bool:
    from exeat.policy.listing import parse_listing  # noqa: PLC0415 - only for the question
    from exeat.sandbox.allowlist import default_allowlist  # noqa: PLC0415

    rules = len(parse_listing(default_allowlist(), ""))
    others = f" ({missing.others})" if missing.others else ""
    question = f"Make it, with the list of {rules} rules that exeat comes with? [y/N] "
    print(f"exeat: there is no sandbox {missing.name} yet{others}.\n{question}", end="", file=sys.stderr, flush=True)
    answer = sys.stdin.readline()
    if not answer.endswith("\n"):
        print(file=sys.stderr)  # Ctrl-D leaves the cursor behind the question
    return answer.strip().lower() in ("y", "yes")
