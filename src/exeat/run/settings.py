"""What `exeat run` was asked to do."""

from __future__ import annotations

import sys
from collections.abc import Callable
from typing import TYPE_CHECKING

from exeat.audit.rotation import DEFAULT_ROTATION, Rotation
from exeat.policy.files import VIEW, FilePolicy

if TYPE_CHECKING:
    from exeat.sandbox.folder import SandboxFolder
    from exeat.sources import Loaded

JAILS = ("auto", "netns", "nft", "seatbelt", "env")


class RunSettings:
    """The options of one run, read but not acted upon.

    `load` reads the rules. It is called when the jail is being built already: importing what it needs takes longer
    than building.
    """

    __slots__ = (
        "argv",
        "ask",
        "ask_fd",
        "ask_here",
        "ask_s",
        "audit",
        "audit_rotation",
        "clean_env",
        "devices",
        "env",
        "environ",
        "files",
        "folder",
        "jail",
        "learn",
        "learn_out",
        "load",
        "log_files",
        "may_intercept",
        "may_name_loopback",
        "on_summary",
        "policy_files",
        "proxy_env",
        "quiet",
        "secrets_files",
        "summary_json",
        "unix",
        "upstream_ca",
    )

    def __init__(
        self,
        argv: list[str],
        load: Callable[[], Loaded],
        *,
        policy_files: tuple[str, ...] = (),
        secrets_files: tuple[str, ...] = (),
        upstream_ca: tuple[str, ...] = (),
        may_name_loopback: bool = True,
        may_intercept: bool = True,
        jail: str = "auto",
        audit: str | None = None,
        audit_rotation: Rotation = DEFAULT_ROTATION,
        env: tuple[str, ...] = (),
        environ: dict[bytes, bytes] | None = None,
        clean_env: bool = False,
        proxy_env: bool = True,
        unix: tuple[str, ...] = (),
        devices: tuple[str, ...] = (),
        files: FilePolicy = VIEW,
        quiet: bool = False,
        folder: SandboxFolder | None = None,
        ask: bool = False,
        ask_s: float = 30.0,
        ask_fd: int = -1,
        ask_here: bool = True,
        learn: bool = False,
        learn_out: str | None = None,
        summary_json: str | None = None,
        on_summary: Callable[[str], None] | None = None,
    ) -> None:
        self.argv = argv
        self.load = load
        self.policy_files = policy_files
        self.secrets_files = secrets_files
        self.upstream_ca = upstream_ca
        self.may_name_loopback = may_name_loopback  # may a rule list a loopback address?
        self.may_intercept = may_intercept  # may there be secrets, or rules on methods and paths?
        self.jail = jail
        self.audit = audit
        self.audit_rotation = audit_rotation
        self.log_files: tuple[str, ...] = ()  # what the log is made of, if the command could get at it
        self.env = env
        self.environ = environ  # for the command, in the place of our own; a secret's variables are taken out
        self.clean_env = clean_env
        self.proxy_env = proxy_env
        self.unix = unix
        self.devices = devices
        self.files = files
        self.quiet = quiet
        self.folder = folder  # of the sandbox that the command runs in, if that has a name
        self.ask = ask  # put what no rule lists to somebody who may decide
        self.ask_s = ask_s
        self.ask_fd = ask_fd  # where to ask, if that is a program that has started us
        self.ask_here = ask_here  # also at the terminal, if there is one
        self.learn = learn  # let through what no rule lists, and say what that was
        self.learn_out = learn_out
        self.summary_json = summary_json  # where to write what the run came to
        self.on_summary = on_summary  # whom to tell

    @property
    def name(self) -> str:
        return self.folder.name if self.folder is not None else ""

    @property
    def log_in_reach(self) -> str | None:
        """The log, if the command could get at it. That of a sandbox is in a folder that is hidden as a whole."""
        return self.audit if self.folder is None else None

    @property
    def hides_by_mounts(self) -> bool:
        """Then only what is there before the command starts is hidden for certain."""
        return sys.platform == "linux" and self.jail not in ("env", "seatbelt")

    @property
    def spare_logs(self) -> int:
        """How many files must be there for the log to go on in."""
        rotation = self.audit_rotation
        return rotation.keep if self.hides_by_mounts and rotation.max_bytes else 0

    @property
    def mode(self) -> str:
        return "learn" if self.learn else "ask" if self.ask else ""
