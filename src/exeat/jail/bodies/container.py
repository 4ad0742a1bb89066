"""A container of Docker or Podman whose network is the jail's. Its files are those of an image, and what is mounted."""

from __future__ import annotations

import os
import signal
import sys

from exeat.engine.find import open_engine
from exeat.engine.owner import remove_left_networks, remove_left_over
from exeat.errors import JailError
from exeat.jail import messages
from exeat.jail.attending import attend, how_it_ended
from exeat.jail.container.cell import Cell, CellSpec
from exeat.jail.container.furnishing import Furnishing, furnish
from exeat.jail.container.image_files import ImageFiles
from exeat.jail.container.images import Image, find_image
from exeat.jail.container.inside import furnish_inside
from exeat.jail.container.limits import check_limits
from exeat.jail.container.mounted import open_mounts, refuse_engine_in_sight
from exeat.jail.container.options import ContainerOptions, Mount
from exeat.jail.container.streams import Streams
from exeat.jail.explain import explain_failure
from exeat.jail.files.mounts import BUNDLE, OWN_CERTIFICATE
from exeat.jail.jail import Built, Company, Ended, Examination, Spec
from exeat.jail.net.network import GATEWAY_PORT
from exeat.jail.signals import waiting_end
from exeat.trust.places import trust_variables


class ContainerJail:
    def __init__(self) -> None:
        self._cell: Cell | None = None
        self._streams: Streams | None = None
        self._program = ""
        self._terminal = -1
        self._not_started: messages.ExecFailed | None = None

    @property
    def _standing(self) -> Cell:
        assert self._cell is not None
        return self._cell

    def build(self, spec: Spec) -> Built:
        options = spec.container or ContainerOptions()
        self._program = spec.argv[0]
        self._terminal = spec.terminal.descriptor if spec.terminal is not None else -1
        self._streams = Streams(spec.hidden)
        engine = open_engine(options.engine)
        engine.while_waiting = _leave_if_told  # as long as there is nothing to remove
        cell = self._cell = Cell(engine)
        cell.check_way()
        refuse_engine_in_sight(engine.where, spec.mounts)
        remove_left_over(engine)
        image = find_image(engine, options.image, _show)
        if told := check_limits(engine, options):
            _show(told)
        engine.while_waiting = None
        if cell.way.own is not None:
            remove_left_networks(engine)  # and volumes, which no other way needs
        user = options.user or f"{os.geteuid()}:{os.getegid()}"
        looked_up = None if cell.way.leads_to_mounts else ImageFiles(engine, image, spec.memory)
        own = furnish(spec, options, user, looked_up) if spec.folder else Furnishing()
        made = _cell_spec(spec, options, image, user, (*spec.mounts, *own.mounts))
        cell.create(made)
        cell.start()
        sockets = cell.adopt(spec.to_host)
        assert cell.control is not None
        if not cell.way.sees_processes:
            return Built(sockets)
        namespaces = open_mounts(cell.pid, cell.control)
        if own.wanted is not None:
            furnish_inside(namespaces, own.wanted.replace(environ=image.variables | dict(made.environ)))
        return Built(sockets, None, cell.pid, namespaces)

    def release(self) -> None:
        terminal = [self._terminal] if self._terminal >= 0 else []
        assert self._streams is not None
        self._standing.release([*self._streams.descriptors, *terminal])

    def attend(self, company: Company) -> Ended:
        assert self._standing.control is not None
        self._standing.control.setblocking(False)
        return attend(self, company)

    @property
    def news(self) -> int:
        assert self._standing.control is not None
        return self._standing.control.fileno()

    def pass_signal(self, number: int) -> None:
        assert self._standing.control is not None
        try:
            messages.send(self._standing.control, messages.PassSignal(number))
        except OSError:
            pass  # it has ended; the news is on its way

    def receive(self) -> messages.Stopped | Ended | None:
        assert self._standing.control is not None
        while True:
            try:
                message, _ = messages.receive(self._standing.control)
            except BlockingIOError:
                return None
            match message:
                case messages.Stopped():
                    return message
                case messages.ExecFailed():
                    self._not_started = message
                case messages.Failed():
                    self.end()
                    raise explain_failure(*message)
                case messages.Exited(status):
                    return how_it_ended(self._program, status, self._not_started)
                case None:
                    self.end()
                    why = "the container was killed from outside, or ran out of memory (--memory)"
                    return Ended(128 + signal.SIGKILL, why)
                case _:
                    self.end()
                    raise JailError("the container has failed", detail="its init sent an unexpected message")

    def end(self) -> None:
        if self._cell is not None:
            self._cell.end()

    def close(self) -> None:
        if self._cell is not None:
            self._cell.close()
        if self._streams is not None:
            self._streams.close()
            self._streams = None


def _cell_spec(spec: Spec, options: ContainerOptions, image: Image, user: str, mounts: tuple[Mount, ...]) -> CellSpec:
    home = options.home
    environ = spec.variables.build(
        proxy_url=f"http://127.0.0.1:{GATEWAY_PORT}",
        own_loopback=True,
        kept_sockets=spec.unix,
        trust=trust_variables(BUNDLE, own=OWN_CERTIFICATE) if spec.trust is not None else None,
    )
    environ.setdefault("HOME", home)
    if spec.terminal is not None:
        environ.setdefault("TERM", spec.variables.inherited.get("TERM") or "xterm")
    return CellSpec(
        image.id,
        spec.argv,
        environ,
        spec.cwd,
        user,
        home,
        mounts,
        options.memory,
        options.cpus,
        options.pids,
        volumes=image.volumes,
        folder=spec.folder,
    )


def _leave_if_told() -> None:
    """An image may take minutes to pull, and an engine that hangs never answers. Signals are blocked by now, for the
    command that is to come.
    """
    if number := waiting_end():
        raise SystemExit(128 + number)


def _show(text: str) -> None:
    """Progress of what takes long, for a person who waits."""
    sys.stderr.write(f"exeat: {text}\n")
    sys.stderr.flush()


def open_jail() -> ContainerJail:
    import exeat.jail.container.adopt  # noqa: F401 - for most ways; now, while the gateway process loads its own code

    return ContainerJail()


def examine() -> Examination:
    engine = open_engine()
    info = engine.info()
    return Examination(True, f"{engine.kind} {info.get('ServerVersion', '')}, {engine.where}")
