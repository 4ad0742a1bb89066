"""A body that is unpacked on its way, as fast as its client takes it: a few bytes can become many megabytes."""

from __future__ import annotations

from collections.abc import Callable

from exeat.errors import ProtocolError
from exeat.gateway.flow.channel import Channel
from exeat.gateway.flow.download import Download


class Pacer:
    """The producer of a client's bytes, instead of the upstream itself, once a download is behind.

    The upstream is not read meanwhile. `on_caught_up` is called when all that came from it has been unpacked.
    """

    __slots__ = ("_client", "_download", "_due", "_on_caught_up", "_on_error", "_upstream")

    def __init__(
        self,
        client: Channel,
        upstream: Channel,
        download: Download,
        on_caught_up: Callable[[], None],
        on_error: Callable[[ProtocolError], None],
    ) -> None:
        self._client = client
        self._upstream = upstream
        self._download = download
        self._due = False
        self._on_caught_up = on_caught_up
        self._on_error = on_error

    def start(self) -> None:
        """The download is behind: what has come is enough for now."""
        self._upstream.pause_for_peer()
        self._client.producer = self  # type: ignore[assignment]  # of a producer only the next two methods are used
        self.resume_for_peer()

    def pause_for_peer(self) -> None:
        self._upstream.pause_for_peer()

    def resume_for_peer(self) -> None:
        """The client takes more, or did all the time."""
        if self._client.writing_paused or self._due:
            return
        if self._download.is_behind:
            self._due = True
            self._client.loop.call_soon(self._go_on)  # others have their turn between two pieces
        else:
            self._upstream.resume_for_peer()

    def _go_on(self) -> None:
        self._due = False
        download, client = self._download, self._client
        if not download.is_behind or client.writing_paused:
            return  # it is over, or the client has stopped since
        self._upstream.pause_for_turn()  # this piece is its turn, whether or not it is the last
        try:
            out = download.go_on()
        except ProtocolError as error:
            self._on_error(error)
            return
        if out:
            client.write(out)
        if not download.is_behind:
            self._on_caught_up()
        self.resume_for_peer()
