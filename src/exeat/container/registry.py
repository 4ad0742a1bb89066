"""Sandboxes and the tools that run in them, as a program declares them.

    from exeat import NetworkPolicy, SandboxConfig, registry

    registry.register_sandbox(SandboxConfig("default", network=NetworkPolicy(allowed_hosts=["api.example.com"])))

    @registry.tool(sandbox="default", dependencies=["requests"])
    def title_of(url: str) -> str: ...

A tool stays the function that it was. What is shipped is its source (`tool_source`).
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from threading import Lock
from typing import Any, Final, TypeVar, overload

from exeat.container.requirement import check_requirement, join_requirements
from exeat.container.sandbox_config import NetworkPolicy, SandboxConfig, SandboxLimits
from exeat.container.tool_source import read_tool_source
from exeat.errors import ConfigError, ExeatError

__all__ = [
    "NetworkPolicy",
    "Registry",
    "SandboxConfig",
    "SandboxLimits",
    "Tool",
    "UnknownSandboxError",
    "registry",
]

DEFAULT_SANDBOX: Final = "default"
F = TypeVar("F", bound=Callable[..., Any])


class UnknownSandboxError(ExeatError, ValueError):
    """No sandbox of this name was registered. `known` are those that were."""

    def __init__(self, name: str, known: Iterable[str]) -> None:
        self.name = name
        self.known = tuple(sorted(known))
        which = f"known are {', '.join(self.known)}" if self.known else "none is registered yet"
        super().__init__(
            f"there is no sandbox {name!r}: {which}; registry.register_sandbox(SandboxConfig({name!r})) adds it"
        )


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that runs in a sandbox. `source` is a module of its own, with all that the function needs."""

    name: str
    sandbox: str
    source: str
    is_async: bool
    dependencies: tuple[str, ...] = ()
    origin: str = ""  # where it is written: module and name
    file: str = ""


class Registry:
    """Sandboxes and tools of a program. `exeat.registry` is one for all; a library may have its own."""

    def __init__(self) -> None:
        self._lock = Lock()  # decorators run when modules are imported, in whatever thread does
        self._sandboxes: dict[str, SandboxConfig] = {}
        self._tools: dict[tuple[str, str], Tool] = {}

    def register_sandbox(self, config: SandboxConfig) -> SandboxConfig:
        """The same settings again do nothing; others are an error: images may exist already."""
        with self._lock:
            known = self._sandboxes.setdefault(config.name, config)
        if known != config:
            raise ConfigError(
                f"the sandbox {config.name!r} is already registered, with other settings",
                expected="another name, or a Registry() of its own",
            )
        return config

    @overload
    def tool(self, function: F) -> F: ...
    @overload
    def tool(
        self, function: None = None, *, sandbox: str = ..., dependencies: Iterable[str] = ...
    ) -> Callable[[F], F]: ...
    def tool(
        self, function: F | None = None, *, sandbox: str = DEFAULT_SANDBOX, dependencies: Iterable[str] = ()
    ) -> F | Callable[[F], F]:
        """Make a function a tool of a sandbox, which may be registered later. Raises ConfigError."""
        if isinstance(dependencies, str):
            raise ConfigError(f"dependencies is {dependencies!r}", expected="dependencies=[...]")
        needed = tuple(check_requirement(each) for each in dependencies)

        def register(function: F) -> F:
            self._add(read_tool(function, sandbox, needed))
            return function

        return register if function is None else register(function)

    def _add(self, tool: Tool) -> None:
        with self._lock:
            known = self._tools.setdefault((tool.sandbox, tool.name), tool)
            if known.origin == tool.origin and _is_loaded_again(known.file, tool.file):
                self._tools[tool.sandbox, tool.name] = tool
                return
        raise ConfigError(
            f"the sandbox {tool.sandbox!r} has a tool {tool.name!r} already: {known.origin}",
            expected=f"another name for {tool.origin}",
        )

    def sandbox(self, name: str) -> SandboxConfig:
        """Raises UnknownSandboxError, which is a ValueError."""
        with self._lock:
            if name not in self._sandboxes:
                raise UnknownSandboxError(name, self._sandboxes)
            return self._sandboxes[name]

    def sandboxes(self) -> tuple[SandboxConfig, ...]:
        """By name."""
        with self._lock:
            return tuple(self._sandboxes[name] for name in sorted(self._sandboxes))

    def tools(self, sandbox: str) -> tuple[Tool, ...]:
        """Of one sandbox, by name."""
        with self._lock:
            return tuple(tool for key, tool in sorted(self._tools.items()) if key[0] == sandbox)

    def dependencies(self, sandbox: str) -> tuple[str, ...]:
        """All packages of the sandbox and its tools. Raises ConfigError if they contradict each other."""
        return join_requirements([self.sandbox(sandbox).dependencies, *(t.dependencies for t in self.tools(sandbox))])


def read_tool(function: Callable[..., Any], sandbox: str, dependencies: tuple[str, ...] = ()) -> Tool:
    """The function as what is shipped. Raises ConfigError."""
    source = read_tool_source(function, own_decorator=_is_own_decorator)
    plain = inspect.unwrap(function)
    return Tool(
        name=plain.__name__,
        sandbox=sandbox,
        source=source,
        is_async=inspect.iscoroutinefunction(function),
        dependencies=dependencies,
        origin=f"{plain.__module__}.{plain.__qualname__}",
        file=plain.__code__.co_filename,
    )


def _is_loaded_again(known: str, file: str) -> bool:
    """Modules of two files may have one name. A notebook's cell is in no file, and has another name each time."""
    return known == file or not Path(known).exists()


def _is_own_decorator(found: object) -> bool:
    return inspect.ismethod(found) and found.__func__ is Registry.tool


registry = Registry()
