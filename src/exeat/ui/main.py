"""`exeat ui` from its first line to Ctrl-C."""

from __future__ import annotations

import asyncio
import secrets
import signal
from collections.abc import Callable

from exeat.errors import ExeatError
from exeat.ui.guard import ADDRESS
from exeat.ui.server import PageServer
from exeat.ui.ticket import Ticket

_STOLEN = (
    "the link that was opened in the browser was used twice, so somebody else on this machine may have read it; "
    "exeat ui has ended: start it without --open"
)


def serve_page(port: int, *, on_ready: Callable[[str], None], open_link: Callable[[str], None] | None) -> int:
    """Serve until a signal ends it. `on_ready` gets the link; `open_link` one that is good for one page."""
    return asyncio.run(_serve(port, on_ready, open_link))


async def _serve(port: int, on_ready: Callable[[str], None], open_link: Callable[[str], None] | None) -> int:
    ended = asyncio.Event()
    stolen = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGINT, signal.SIGTERM):
        loop.add_signal_handler(number, ended.set)

    def on_theft() -> None:
        stolen.set()
        ended.set()

    token = secrets.token_urlsafe(32)
    ticket = Ticket(on_theft)
    server = PageServer(token, ticket)
    origin = f"http://{ADDRESS}:{await server.start(port)}"
    try:
        on_ready(f"{origin}/#{token}")
        if open_link is not None:
            await asyncio.to_thread(open_link, f"{origin}/#open={ticket.issue()}")
        await ended.wait()
    finally:
        await server.close()
    if stolen.is_set():
        raise ExeatError(_STOLEN)
    return 0
