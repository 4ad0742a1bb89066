"""One claim: a warm sandbox with its own gateway. When the claim ends, so does the sandbox."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from exeat.audit.journal import Journal
from exeat.audit.record import encode_event
from exeat.container.pool.binding import Binding, own_environ
from exeat.container.pool.stock import PoolClosedError
from exeat.container.pool.warm import WarmSandbox
from exeat.gateway.gateway import Gateway
from exeat.gateway.limits import Limits
from exeat.jail.jail import Sockets
from exeat.policy import Policy
from exeat.run.gateway_process.renewing import Renewals

if TYPE_CHECKING:
    from exeat.container.harness.outcome import CallResult, Stream
    from exeat.container.sandbox_config import SandboxLimits

JAIL = "container"


class ClaimedSandbox:
    """A sandbox that is someone's. `id` is in every record of the log, with the user's label behind it."""

    def __init__(
        self, warm: WarmSandbox, user: str, binding: Binding, journal: Journal, limits: Limits, spent: SandboxLimits
    ) -> None:
        self.name = warm.name
        self.user = user
        self.id = os.urandom(6).hex()
        self._warm = warm
        self._binding = binding
        self._journal = journal
        self._limits = limits
        self._spent = spent
        self._gateway: Gateway | None = None
        self._sockets: Sockets | None = None
        self._renewals: Renewals | None = None
        self._is_over = False

    @property
    def label(self) -> str:
        """How the log names it. The user's part comes last: it may have anything in it."""
        return f"{self.name}/{self.id}/{self.user}" if self.user else f"{self.name}/{self.id}"

    async def begin(self) -> None:
        """Serve its network by this claim's policy, and tell the container what it may know. Raises ExeatError."""
        binding, sockets = self._binding, self._warm.hand_over()
        self._sockets = sockets
        secrets = ",".join(each.name for each in binding.secrets)
        await self._journal.commit(encode_event("claim", sandbox=self.label, user=self.user, secrets=secrets))
        gateway = Gateway(
            binding.policy,
            sandbox=self.label,
            jail=JAIL,
            journal=self._journal,
            limits=self._limits,
            listeners=sockets.tcp,
            redirected=True,
            dns_udp=sockets.dns_udp,
            dns_tcp=sockets.dns_tcp,
            dropped=sockets.dropped,
            interception=binding.interception,
        )
        self._gateway = gateway
        await gateway.start()
        if binding.secrets:
            self._renewals = Renewals(binding.secrets, own_environ(), gateway.state.journal)
        if binding.variables or binding.files:
            await self._warm.harness.bind(binding.variables, binding.files)

    async def call(self, tool: str, /, **arguments: Any) -> CallResult:
        """Run a tool, in a process of its own. Its limits are those of the sandbox."""
        return await self.call_tool(tool, arguments)

    async def call_tool(
        self,
        tool: str,
        arguments: Mapping[str, Any],
        *,
        timeout_s: float | None = None,
        memory_bytes: int | None = None,
        output_bytes: int | None = None,
        on_output: Callable[[Stream, str], None] | None = None,
    ) -> CallResult:
        """The same with limits for this call. `on_output` is told what the tool writes, as it does."""
        if self._is_over:
            raise PoolClosedError(f"the claim of {self.name!r} is over: claim another sandbox")
        return await self._warm.harness.call(
            tool,
            arguments,
            timeout_s=self._spent.call_s if timeout_s is None else timeout_s,
            memory_bytes=self._spent.call_memory_bytes if memory_bytes is None else memory_bytes,
            output_bytes=self._spent.output_bytes if output_bytes is None else output_bytes,
            result_bytes=output_bytes or self._spent.output_bytes,  # none to stdout is still a result
            file_bytes=self._spent.tmp_bytes,
            on_output=on_output,
        )

    @property
    def policy(self) -> Policy:
        """What it may reach. The hosts of its secrets are in it."""
        return self._binding.policy

    async def end(self) -> None:
        """Its network is gone when this returns, and everything is on record; the container follows by itself."""
        self._is_over = True
        if self._renewals is not None:
            self._renewals.end()
        self._warm.throw_away()  # and with the container end the connections out of it
        try:
            if self._gateway is not None:
                await self._gateway.aclose()
                self._journal.append(encode_event("claim-end", sandbox=self.label, user=self.user))
        finally:
            if self._sockets is not None:
                self._sockets.close()
