"""`SandboxManager`: run commands in a sandbox from a program of your own."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import TYPE_CHECKING, Final, Self, TypedDict, Unpack

from exeat.embed.command_line import (
    OUTER_PROXY,
    check_command,
    check_environ,
    find_state,
    launcher,
    own_options,
    run_options,
)
from exeat.embed.configuration import Configuration, read_configuration
from exeat.embed.execution import Callback, examine_jail, run_jailed, run_plain
from exeat.embed.finished import Finished, ManagerClosedError
from exeat.embed.running import Streams
from exeat.embed.starter import Starter, may_fork
from exeat.embed.written import Given
from exeat.errors import ConfigError, ExeatError

if TYPE_CHECKING:
    from exeat.embed.stock import Stock

_MAX_OUTPUT: Final = 64 * 1024 * 1024
_MAX_ASK_S: Final = 3600.0
_LOOK_S: Final = 0.01

Argv = Sequence[str | os.PathLike[str]]


class RunOptions(TypedDict, total=False):
    """What `run` and `run_sync` take in addition to the command; `run` says what each means."""

    cwd: str | os.PathLike[str] | None
    env: Mapping[str, str] | None
    input: bytes | str | None
    timeout_s: float | None
    capture: bool
    max_output: int


class SandboxManager:
    """Runs commands that reach what a configuration allows, and nothing else.

    The configuration is a dict, JSON text, or the path of a JSON file. Every key may be left out:

        {"sandbox": {
            "enabled": true,              false: commands run as they are, without a sandbox
            "allow_network": true,        false: nothing gets out, DNS included
            "network": {
                "allowed_domains": [],    rules, as everywhere in exeat; none: nothing is allowed
                "denied_domains": [],     rules that beat every allowance
                "hosts": {},              addresses for names, in the place of DNS
                "proxy": "http://..."     this proxy decides, not exeat; the command reaches it and nothing else
            },
            "filesystem": {
                "allow_write": [],        what commands change for real, next to their working directory
                "deny_write": [],         what they cannot change, not even in their layer
                "deny_read": [],          what they do not find, as it is with keys
                "allow_read": [],         what they find, although it is a key
                "mode": "view",           "host": they change every file that this user may, and find all keys
                "layer_size": "8GiB",     how much they may write elsewhere; it is gone afterwards, or stays with a name
                "nest": false             may they make user namespaces, for sandboxes of their own?
            },
            "audit_log": "audit.jsonl",   every decision of every command
            "name": "my-agent",           a sandbox that is kept: its own list and log, `exeat proxy` changes it
            "jail": "auto",               as `exeat run --jail`
            "secrets": "secrets.toml",    keys that commands use and never hold
            "upstream_ca": "ca.pem"       trust these roots too when TLS is looked into
        }}

    Paths are relative to the folder of the file, else to the working directory of now. A key that is not known, a value
    of another type, or settings that contradict each other raise ConfigError here. `warnings` says what is allowed but
    may not be what was meant.

    `prepared` is how many sandboxes stand ready, from `start` on, before anyone says what to run in them, each for one
    command. It is for programs that run many: `run` says when one is used. Each has three processes that wait, and
    25 MB of memory.

    `ask` is called about places that no rule lists, with an `exeat.Question`; True lets the command through until it
    ends. An `async` function is called in the loop of `run`, a plain one in a thread of its own, several at the same
    time if several questions are open. An error, or no answer in `ask_timeout_s`, is a no.

    exeat itself, which holds the command, has the environment of this process: its secrets, its PATH, whom it trusts.
    Where it keeps its state is settled here, by EXEAT_HOME, XDG_STATE_HOME and HOME of now.

    Nothing outside is changed: no variable, no setting, and no program that was not started through it.
    """

    def __init__(
        self,
        configuration: Given,
        *,
        ask: Callback | None = None,
        ask_timeout_s: float = 30.0,
        prepared: int = 0,
    ) -> None:
        if ask is not None and not callable(ask):
            raise ConfigError("not a function", where="ask", expected="a function that takes a question")
        if not 0 < ask_timeout_s <= _MAX_ASK_S:
            raise ConfigError("not a valid time-out", where="ask_timeout_s", expected="up to 3600 seconds")
        self._configuration = read_configuration(configuration, asks=ask is not None)
        self._state = find_state(self._configuration)
        self._ask = ask
        self._ask_timeout_s = ask_timeout_s
        self._closed = False
        self._has_run = False
        self._starter = Starter(self._configuration, asks=ask is not None) if may_fork(self._configuration) else None
        self._stock = self._open_stock(prepared) if prepared else None
        self._runs: dict[asyncio.Task[Finished], asyncio.AbstractEventLoop] = {}

    @property
    def configuration(self) -> Configuration:
        return self._configuration

    @property
    def warnings(self) -> tuple[str, ...]:
        """Settings of the configuration that are likely mistakes."""
        return self._configuration.warnings

    def wrap(self, argv: Argv) -> list[str]:
        """The command line that runs a command in the sandbox, for `subprocess` and the like. Works in any folder.

        Standard streams, terminal, signals and exit status are the command's, as with `exeat run`. A proxy whose URL
        has a password needs `env=manager.environ()` as well. With `ask` there would be no one to answer: ConfigError.

        The environment that it is started with is the command's and, at first, exeat's own. State folder, PATH and
        roots are those of this process nevertheless, and variables that load code (`PYTHONPATH`, `OPENSSL_CONF`,
        `BASH_ENV`) are not kept. But the dynamic loader obeys `LD_PRELOAD` and the like before exeat begins, outside of
        the jail, and the values of secrets come from there. So never let anyone else choose it: use `run` for that.
        """
        command = check_command(argv)
        if not self._configuration.enabled:
            return command
        if self._ask is not None:
            raise ConfigError("only run() can answer questions", where="wrap", expected="run, or no ask")
        own = own_options(self._state, wrapped=True)
        return [*launcher(), *own, *run_options(self._configuration), "--", *command]

    def environ(self, base: Mapping[str, str] | None = None) -> dict[str, str]:
        """The environment for a wrapped command line: `base`, else that of this process, and what it needs.

        `base` is also for exeat itself; see `wrap`.
        """
        values = dict(os.environ if base is None else base)
        proxy = self._configuration.proxy
        if self._configuration.enabled and proxy is not None and proxy.has_credentials:
            values[OUTER_PROXY] = proxy.url
        return values

    async def run(
        self,
        argv: Argv,
        *,
        cwd: str | os.PathLike[str] | None = None,
        env: Mapping[str, str] | None = None,
        input: bytes | str | None = None,  # noqa: A002 - as subprocess.run has it
        timeout_s: float | None = None,
        capture: bool = True,
        max_output: int = _MAX_OUTPUT,
    ) -> Finished:
        """Run a command to its end. Any number may run at the same time.

        The command has no terminal; `input` is its standard input, which is empty by default. `env` is its complete
        environment, by default that of this process; exeat itself, outside of the jail, never uses `env`. `max_output`
        bytes of each stream are kept; with `capture` false the command writes to the streams of this process.

        If this is cancelled, the time is over (RunTimeoutError), the manager is closed (ManagerClosedError) or this
        process dies, the command and all its processes are ended.

        A jail of `prepared` is used only if a new one would be the same: this process, its working directory and the
        files hidden or protected there have not changed; `cwd` is that directory; `capture` is true. Rules and secrets
        are read when the command runs, not before.

        Raises ConfigError, StartError or JailError if nothing was started; JailError also if the jail failed, and
        RunLostError if exeat was killed, or failed otherwise, while the command ran.
        """
        command = check_command(argv)
        if self._closed:
            raise ManagerClosedError("the sandbox manager is closed")
        is_apart = env is not None and self._configuration.enabled
        environ = check_environ(env) if env is not None else None
        streams = Streams(
            cwd=cwd,
            env=self.environ(None if is_apart else env),
            given=input.encode() if isinstance(input, str) else input,
            capture=capture,
            limit=max_output,
        )
        if self._configuration.enabled:
            work = run_jailed(
                [*own_options(self._state), *run_options(self._configuration)],
                command,
                streams,
                timeout_s,
                ask=self._ask,
                ask_timeout_s=self._ask_timeout_s,
                environ=environ,
                starter=self._choose_starter(),
                stock=self._stock,
            )
        else:
            work = run_plain(command, streams, timeout_s)
        inner = asyncio.create_task(work)
        self._runs[inner] = asyncio.get_running_loop()
        if self._closed:  # meanwhile, by another thread, which may not have seen this one
            inner.cancel()
        try:
            return await inner
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self._closed and (task is None or not task.cancelling()):
                raise ManagerClosedError("the sandbox manager was closed while the command ran") from None
            raise
        finally:
            loop = self._runs.pop(inner, None)
            if self._stock is not None and loop is not None:
                with suppress(RuntimeError):  # it is closed
                    loop.call_soon(self._fill_stock)  # first whoever waits has the result, 0.3 ms earlier

    def _fill_stock(self) -> None:
        if self._stock is not None and not self._closed:
            self._stock.fill(self.environ())

    def _open_stock(self, count: int) -> Stock:
        """Raises ConfigError."""
        from exeat.embed.stock import MOST, Stock  # for programs that want one

        if type(count) is not int or not 0 < count <= MOST:
            raise ConfigError("not a number of sandboxes", where="prepared", expected=f"0 to {MOST}")
        for what, is_given in (
            ("ask", self._ask is not None),
            ("a name", bool(self._configuration.name)),
            ("enabled: false", not self._configuration.enabled),
            # Whose standard output that is, is known when the command is. Until then it would be lost.
            ("audit_log: /dev/stdout", self._configuration.audit_log == "/dev/stdout"),
        ):
            if is_given:
                raise ConfigError(f"cannot be had with {what}", where="prepared", expected="one of the two")
        if self._starter is None:
            raise ConfigError("needs Linux 5.3 and the netns jail", where="prepared", expected="0, or jail: auto")
        words = [*own_options(self._state), *run_options(self._configuration)]
        return Stock(self._starter, words, count)

    def _choose_starter(self) -> Starter | None:
        """A program that runs one command is better off without. From the second on there is one, once it is ready."""
        is_first, self._has_run = not self._has_run, True
        return None if is_first else self._starter

    def run_sync(self, argv: Argv, **options: Unpack[RunOptions]) -> Finished:
        """As `run`, for programs and threads without an event loop. Where one runs it would stand still: ExeatError.

        `ask` is called in this thread if it is an `async` function, in a thread of its own if not.
        """
        _refuse_in_loop("run_sync", "await manager.run(...)")
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            return runner.run(self.run(argv, **options))

    async def start(self) -> None:
        """Check that the jail works here, and prepare for fast runs. Raises JailError, with advice."""
        self._closed = False
        if self._configuration.enabled:
            self._has_run = True
            if self._starter is not None:
                await self._starter.ready()
            await examine_jail(self._configuration.jail, self._starter)
            if self._stock is not None and self._starter is not None:
                await self._starter.ready()  # it may be another by now
                self._stock.open()
                self._stock.fill(self.environ())
                await self._stock.stand()

    async def aclose(self) -> None:
        """End every command that still runs, and refuse new ones."""
        self._end_all()
        while self._runs:  # noqa: ASYNC110 - they may be in loops of other threads
            await asyncio.sleep(_LOOK_S)
        self._end_starter()

    def close(self) -> None:
        """As `aclose`, for programs without an event loop."""
        _refuse_in_loop("close", "await manager.aclose()")
        self._end_all()
        while self._runs:
            time.sleep(_LOOK_S)
        self._end_starter()

    def _end_starter(self) -> None:
        if self._stock is not None:
            self._stock.close()
        if self._starter is not None:
            self._starter.close()

    def _end_all(self) -> None:
        self._closed = True
        for task, loop in list(self._runs.items()):
            try:
                loop.call_soon_threadsafe(task.cancel)
            except RuntimeError:
                self._runs.pop(task, None)  # its loop is closed, which ended the command

    async def __aenter__(self) -> Self:
        await self.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.aclose()

    def __enter__(self) -> Self:
        _refuse_in_loop("with", "async with")
        with asyncio.Runner(loop_factory=asyncio.new_event_loop) as runner:
            runner.run(self.start())
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def _refuse_in_loop(called: str, instead: str) -> None:
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return
    raise ExeatError(f"{called} would stop the event loop that runs in this thread; use {instead}")
