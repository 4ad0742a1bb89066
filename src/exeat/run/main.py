"""`exeat run`: the gateway's process first, because it takes longest to load, and then everything else."""

from __future__ import annotations

import gc
from collections.abc import Callable
from typing import TYPE_CHECKING

from exeat.engine.errors import NoWayError
from exeat.errors import ConfigError, ExeatError
from exeat.file_policy import FilePolicy
from exeat.jail.environment import inherited_environment
from exeat.jail.process.descriptors import ensure_standard_streams
from exeat.run.files.hints import name_hidden_agents
from exeat.run.gateway_process.process import GatewayProcess
from exeat.run.log import RunLog
from exeat.run.outcome import UNKNOWN, as_json, print_learned, say
from exeat.run.sealing import forget_start_folder
from exeat.run.settings import FilesSeen, RunSettings

if TYPE_CHECKING:
    from exeat.run.learn.file_at_end import LearnOut, SummaryOut


def run(settings: RunSettings) -> int:
    """Run the command to its end. Returns the exit status for our own process."""
    try:
        return _run(settings)
    except BrokenPipeError:
        raise  # the reader of our own output has left
    except OSError as error:  # no process, descriptor or memory left, for example
        raise ExeatError("the run failed", detail=f"{type(error).__name__}: {error}") from None


def _run(settings: RunSettings) -> int:
    if not settings.argv or not settings.argv[0]:
        raise ConfigError("no command given", where="exeat run", expected="exeat run [OPTION...] -- COMMAND [ARG...]")
    forget_start_folder()
    # Loading code makes much that stays and little garbage: without looking for it, a fifth faster.
    gc.disable()
    ensure_standard_streams()
    if settings.folder is not None and settings.folder.was_created and not settings.quiet:
        listed = "empty" if settings.folder.starts_empty else "the shipped one"
        say(f"sandbox {settings.name} is new; its list is {listed}: exeat proxy list --name {settings.name}")
    log: RunLog | None = None
    out: LearnOut | None = None
    summary: SummaryOut | None = None
    try:
        out, summary = open_files(settings)
        add_files = _learn_files(settings)
        log = RunLog(settings.log_in_reach, settings.spare_logs)
        if settings.late is not None:
            from exeat.run.files.versions import read_by_gateway  # for those that wait

            settings = settings.replace(read_from=read_by_gateway(settings))
        gateway = GatewayProcess(settings)
        log.is_forked()
        if settings.ask and not gateway.can_ask and not settings.quiet:
            say("--ask: no terminal and no --name, so exeat cannot ask; hosts that no rule lists are denied")
        try:
            # From here on two processes load code at the same time.
            from exeat.run.lifecycle import run_in_jail

            finished = run_in_jail(settings, gateway, tuple(log.files))
        finally:
            gateway.kill()
        status, outcome = finished.status, finished.outcome
        log.finish()
        settings = finished.plan.settings
        if status and not settings.quiet and settings.hides_by_mounts:
            environ = inherited_environment(settings.environ)
            for line in name_hidden_agents(environ, settings.unix, settings.argv, used_ssh=outcome.used_ssh):
                say(line)
        if settings.learn:
            print_learned(add_files(outcome.learned, finished.plan.files, finished.files_seen), out)
        tell(settings, summary, as_json(outcome, status))
        return status
    except NoWayError:
        raise  # the program may know another way; the run is not over
    except ExeatError as error:
        tell(settings, summary, as_json(UNKNOWN, None, str(error)))
        raise
    finally:
        for each in (log, out, summary):
            if each is not None:
                each.discard()


def _learn_files(settings: RunSettings) -> Callable[[str, FilePolicy, FilesSeen], str]:
    """What adds to a learned policy what there is to say about files. Loads it now: later nothing can be."""
    if not settings.learn:
        return lambda text, files, seen: text
    from exeat.run.learn.files import find_surroundings, with_files  # for runs that learn

    around = find_surroundings(inherited_environment(settings.environ))
    form = "txt" if (settings.learn_out or "").endswith(".txt") else "toml"
    return lambda text, files, seen: with_files(text, form, files, seen, around)


def open_files(settings: RunSettings) -> tuple[LearnOut | None, SummaryOut | None]:
    """Those that are written when the run is over. One that cannot be is an error before anything starts."""
    if settings.learn_out is None and settings.summary_json in (None, "-"):
        return None, None
    from exeat.run.learn.file_at_end import LearnOut, SummaryOut  # for runs that write them

    log = settings.audit or ""
    logs = (log, *(f"{log}.{number}" for number in range(1, settings.spare_logs + 1)))
    in_use = (*logs, *settings.rules.files, *settings.rules.secrets_files)
    out = LearnOut(settings.learn_out, in_use) if settings.learn_out is not None else None
    try:
        if settings.summary_json in (None, "-"):
            return out, None
        return out, SummaryOut(settings.summary_json, (*in_use, settings.learn_out or ""))
    except BaseException:
        if out is not None:
            out.discard()
        raise


def tell(settings: RunSettings, summary: SummaryOut | None, text: str) -> None:
    if settings.on_summary is not None:
        settings.on_summary(text)
    if settings.summary_json == "-":
        print(text, end="" if text.endswith("\n") else "\n", flush=True)  # noqa: T201 - asked for
    if summary is not None:
        try:
            summary.write(text)
        except ExeatError as error:
            say(error.public)
