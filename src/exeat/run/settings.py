"""The request for a run, and the plan made from it when the rules are known."""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING

from exeat.audit.rotation import DEFAULT_ROTATION, Rotation
from exeat.file_policy import FilePolicy, FileSettings, combine
from exeat.jail.environment import Variables, inherited_environment
from exeat.jail.select import AUTO, BODIES, Hides
from exeat.values import Value

if TYPE_CHECKING:
    from exeat.jail.container.options import ContainerOptions
    from exeat.jail.messages import HostPorts
    from exeat.jail.vm.options import VmOptions
    from exeat.run.late import Late
    from exeat.sandbox.folder import SandboxFolder
    from exeat.trust.unnamed_file import TrustFiles

Versions = tuple[tuple[int, ...], ...]  # of files
JAILS = (AUTO, *BODIES)


class GivenRules(Value):
    """What a user gave about rules, unread: for `exeat.sources.RuleSources`, which takes 40 ms to load.

    Without the secrets of the environment, which the runner has no copy of.
    """

    allow: tuple[str, ...] = ()
    deny: tuple[str, ...] = ()
    files: tuple[str, ...] = ()
    add_hosts: tuple[str, ...] = ()
    private_networks: tuple[str, ...] = ()
    allowlist: str = ""
    env_hosts: str = ""
    env_private_networks: str = ""
    secrets_files: tuple[str, ...] = ()
    intercept: str = ""


class RunSettings(Value):
    """The options of one run, read but not acted upon."""

    argv: list[str]
    rules: GivenRules = GivenRules()
    upstream_ca: tuple[str, ...] = ()
    jail: str = AUTO
    container: ContainerOptions | None = None
    vm: VmOptions | None = None
    audit: str | None = None
    audit_rotation: Rotation = DEFAULT_ROTATION
    env: tuple[str, ...] = ()
    environ: dict[bytes, bytes] | None = None  # for the command, not our own; a secret's variables are taken out
    clean_env: bool = False
    proxy_env: bool = True
    unix: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    files: tuple[FileSettings, ...] = (FileSettings(),)  # what is said about files so far; the options first
    quiet: bool = False
    folder: SandboxFolder | None = None  # of the sandbox that the command runs in, if that has a name
    ask: bool = False  # put what no rule lists to someone who may decide
    ask_s: float = 30.0
    ask_fd: int = -1  # where to ask, if that is a program that has started us
    ask_here: bool = True  # also at the terminal, if there is one
    learn: bool = False  # let through what no rule lists, and say what that was
    learn_out: str | None = None
    summary_json: str | None = None  # where to write what the run came to
    on_summary: Callable[[str], None] | None = None  # whom to tell
    late: Late | None = None  # who says later what to run; until then `argv` stands for any command
    read_from: tuple[Versions, Versions] = ((), ())  # if so: the files that are read meanwhile, as they were before

    @property
    def name(self) -> str:
        return self.folder.name if self.folder is not None else ""

    @property
    def ends_with_report(self) -> bool:
        """A program waits for what the run came to. Once it knows, this process ends."""
        return self.on_summary is not None

    @property
    def log_in_reach(self) -> str | None:
        """The log, if the command could get at it. That of a sandbox is in a folder that is hidden as a whole."""
        return self.audit if self.folder is None else None

    @property
    def hides_by_mounts(self) -> bool:
        """Then only what is there before the command starts is hidden for certain."""
        return sys.platform == "linux" and (
            self.jail == AUTO or BODIES[self.jail].hides in (Hides.BY_MOUNTS, Hides.BY_IMAGE)
        )

    @property
    def has_own_kernel(self) -> bool:
        return self.jail != AUTO and BODIES[self.jail].own_kernel

    @property
    def spare_logs(self) -> int:
        """How many files must be there for the log to go on in."""
        rotation = self.audit_rotation
        return rotation.keep if self.hides_by_mounts and rotation.max_bytes else 0

    @property
    def mode(self) -> str:
        return "learn" if self.learn else "ask" if self.ask else ""


class Preparations(Value):
    """What follows from the rules for the command: variables, files to hide, whom to trust. For the user: what to say.

    The gateway process alone reads policy files, since they may hold secrets.
    """

    to_host: tuple[HostPorts, ...] = ()  # loopback places that the rules list
    files: tuple[FileSettings, ...] = ()  # what policy files say about files
    placeholders: Mapping[str, str] = {}
    hidden: tuple[str, ...] = ()
    said: tuple[str, ...] = ()
    trust: TrustFiles | None = None


class Plan(Value):
    """All that is known when the rules are read and the secrets fetched, before the jail is built."""

    settings: RunSettings
    files: FilePolicy
    prepared: Preparations = Preparations()
    log_files: tuple[str, ...] = ()  # what the log is made of, if the command could get at it


def make_plan(settings: RunSettings, prepared: Preparations, log_files: tuple[str, ...] = ()) -> Plan:
    """Raises ConfigError for files of which two things are said."""
    options, *others = settings.files
    files = combine(options, (*others, *prepared.files))
    if settings.has_own_kernel:
        # A guest makes namespaces of its own as it likes. The jail around QEMU is not loosened for that.
        files = files._replace(nest=False)
    return Plan(settings, files, prepared, log_files)


def variables_of(settings: RunSettings, prepared: Preparations, *, passes_on: bool = True) -> Variables:
    """What the command's environment is made of."""
    return Variables(
        inherited_environment(settings.environ),
        settings.env,
        settings.clean_env,
        settings.proxy_env,
        prepared.placeholders,
        settings.name,
        passes_on,
    )


class FilesSeen(Value):
    """What a command did to files, by full paths. `changed`: in its layer; `is_complete`: that is all of it.

    `tried`: what it looked for that is hidden from it, as far as that is known.
    """

    changed: tuple[str, ...] = ()
    is_complete: bool = True
    tried: tuple[str, ...] = ()
