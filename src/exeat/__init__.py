"""exeat: run code you do not trust, and decide what it may reach.

>>> import exeat
>>> policy = exeat.make_policy(["api.github.com"])
>>> exeat.decide(policy, exeat.Target(exeat.canonical_host("evil.test"), 443)).allowed
False
"""

from __future__ import annotations

TYPE_CHECKING = False  # as in typing, which takes 14 ms to load

__version__ = "0.1.0"

if TYPE_CHECKING:
    from exeat.audit.batch import EventStream
    from exeat.container.builder import SandboxBuilder
    from exeat.container.harness.outcome import (
        CallResult,
        HarnessLostError,
        ToolArgumentsError,
        ToolError,
        ToolLimitError,
        ToolTimeoutError,
        UnknownToolError,
    )
    from exeat.container.pool.sandbox_pool import SandboxPool
    from exeat.container.pool.stock import NoSandboxError, PoolClosedError
    from exeat.container.registry import Registry, UnknownSandboxError, registry
    from exeat.container.sandbox_config import NetworkPolicy, SandboxConfig, SandboxLimits
    from exeat.embed.finished import Finished, ManagerClosedError, RunLostError, RunTimeoutError
    from exeat.embed.sandbox_manager import SandboxManager
    from exeat.engine.errors import BuildError, EngineError
    from exeat.errors import AuditError, ConfigError, ExeatError, HostError, JailError, StartError
    from exeat.gateway.gates.questions import Question
    from exeat.gateway.gateway import Gateway
    from exeat.gateway.limits import Limits
    from exeat.policy import Decision, Policy, Target, canonical_host, decide
    from exeat.sources import make_policy

_HOMES = {
    "AuditError": "exeat.errors",
    "BuildError": "exeat.engine.errors",
    "CallResult": "exeat.container.harness.outcome",
    "ConfigError": "exeat.errors",
    "Decision": "exeat.policy",
    "EngineError": "exeat.engine.errors",
    "EventStream": "exeat.audit.batch",
    "ExeatError": "exeat.errors",
    "Finished": "exeat.embed.finished",
    "Gateway": "exeat.gateway.gateway",
    "HarnessLostError": "exeat.container.harness.outcome",
    "HostError": "exeat.errors",
    "JailError": "exeat.errors",
    "Limits": "exeat.gateway.limits",
    "ManagerClosedError": "exeat.embed.finished",
    "NetworkPolicy": "exeat.container.sandbox_config",
    "NoSandboxError": "exeat.container.pool.stock",
    "Policy": "exeat.policy",
    "PoolClosedError": "exeat.container.pool.stock",
    "Question": "exeat.gateway.gates.questions",
    "Registry": "exeat.container.registry",
    "RunLostError": "exeat.embed.finished",
    "RunTimeoutError": "exeat.embed.finished",
    "SandboxBuilder": "exeat.container.builder",
    "SandboxConfig": "exeat.container.sandbox_config",
    "SandboxLimits": "exeat.container.sandbox_config",
    "SandboxManager": "exeat.embed.sandbox_manager",
    "SandboxPool": "exeat.container.pool.sandbox_pool",
    "StartError": "exeat.errors",
    "Target": "exeat.policy",
    "ToolArgumentsError": "exeat.container.harness.outcome",
    "ToolError": "exeat.container.harness.outcome",
    "ToolLimitError": "exeat.container.harness.outcome",
    "ToolTimeoutError": "exeat.container.harness.outcome",
    "UnknownSandboxError": "exeat.container.registry",
    "UnknownToolError": "exeat.container.harness.outcome",
    "canonical_host": "exeat.policy",
    "decide": "exeat.policy",
    "make_policy": "exeat.sources",
    "registry": "exeat.container.registry",
}

__all__ = [
    "AuditError",
    "BuildError",
    "CallResult",
    "ConfigError",
    "Decision",
    "EngineError",
    "EventStream",
    "ExeatError",
    "Finished",
    "Gateway",
    "HarnessLostError",
    "HostError",
    "JailError",
    "Limits",
    "ManagerClosedError",
    "NetworkPolicy",
    "NoSandboxError",
    "Policy",
    "PoolClosedError",
    "Question",
    "Registry",
    "RunLostError",
    "RunTimeoutError",
    "SandboxBuilder",
    "SandboxConfig",
    "SandboxLimits",
    "SandboxManager",
    "SandboxPool",
    "StartError",
    "Target",
    "ToolArgumentsError",
    "ToolError",
    "ToolLimitError",
    "ToolTimeoutError",
    "UnknownSandboxError",
    "UnknownToolError",
    "__version__",
    "canonical_host",
    "decide",
    "make_policy",
    "registry",
]


def __dir__() -> list[str]:
    """What is loaded on first use is there too."""
    return sorted({*globals(), *__all__})


def __getattr__(name: str) -> object:
    """Load on first use: the command line must start at once, and most of it needs little of this."""
    home = _HOMES.get(name)
    if home is None:
        raise AttributeError(f"module 'exeat' has no attribute {name!r}")
    from importlib import import_module

    value = getattr(import_module(home), name)
    globals()[name] = value
    return value
