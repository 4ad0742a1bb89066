"""A probe, its input and its result. Values only; the same code runs on both sides."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TypeVar

Place = tuple[str, int]

JAILS = ("netns", "nft", "container", "vm", "env")


class Evidence(enum.Enum):
    """What shows that a probe got out."""

    ARRIVAL = "arrival"  # its token, or its mark, reached a target
    SECRET = "secret"  # it holds text that only the victim knows  # noqa: S105 - a kind of evidence
    DEED = "deed"  # the kernel said yes to it; for what leaves no other trace
    WORKS = "works"  # no attack: something that a jail must not break, shown at the allowed target or by the deed


class Absent(Exception):  # noqa: N818 - not an error: this machine has no such thing to attack
    """The machine lacks what the probe needs, so there is nothing to try and nothing to prove."""


class Stopped(Exception):  # noqa: N818 - what a probe hopes not to see
    """The probe was stopped without an error of the system, such as by a refusal in a protocol."""


@dataclass(frozen=True, slots=True)
class Scene:
    """Where the targets are. A key that is missing from a table means that the machine cannot have that target."""

    token: str = ""
    outside: bool = True  # the control run, without a jail
    guest: bool = False  # in a virtual machine, which has a kernel, users and numbers of its own
    nested: bool = False  # each probe is root in a user namespace of its own, by --nest
    python: str = ""
    folder: str = ""  # a scratch folder that both sides can reach
    handle: str = ""  # of the folder that it is in, as hexadecimal numbers
    allowed: Place = ("", 0)  # the one name and port that the policy allows
    allowed_address: str = ""
    proxy: Place | None = None  # an open proxy, for the control run only; a jail has its own
    tcp: dict[str, Place] = field(default_factory=dict)
    udp: dict[str, Place] = field(default_factory=dict)
    other: dict[str, Place] = field(default_factory=dict)  # by protocol: sctp, udplite, dccp
    paths: dict[str, str] = field(default_factory=dict)  # Unix stream sockets by path
    datagram_path: str = ""
    abstract: dict[str, str] = field(default_factory=dict)  # by type: stream, dgram
    vsock_port: int = 0
    icmp: bool = False  # something outside listens for ICMP
    victim: dict[str, int] = field(default_factory=dict)  # pid, group, address, length, descriptor, shm
    key_name: str = ""  # a key in the caller's session keyring
    namespaces: dict[str, str] = field(default_factory=dict)  # of the harness, as /proc/self/ns says them
    home: str = ""  # a home directory of ours, with keys and start files; the project in it is the working directory
    files: dict[str, str] = field(default_factory=dict)  # keys by name, and other things to attack
    resolver_is_ours: bool = False  # the system's resolver is the fake name server: a look-up stays here

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self), separators=(",", ":"))

    @classmethod
    def from_json(cls, text: str) -> Scene:
        """Read what `to_json` wrote. JSON has no tuples, so places become tuples again here."""
        read = json.loads(text)
        for name in ("tcp", "udp", "other"):
            read[name] = {key: tuple(place) for key, place in read[name].items()}
        read["allowed"] = tuple(read["allowed"])
        read["proxy"] = tuple(read["proxy"]) if read["proxy"] else None
        return cls(**read)


def apart(scene: Scene, kind: str) -> bool:
    """Whether this process is in another namespace of a kind (net, pid) than the harness.

    In a guest the first namespace of each kind has the same number as outside, and is another one.
    """
    return scene.guest or str(Path(f"/proc/self/ns/{kind}").readlink()) != scene.namespaces[kind]


_Target = TypeVar("_Target")
_NO_LOW = "this user cannot open well-known ports"
# Why a target can be missing from its table. What is not here is always there.
_WHY = {
    "v6": "the machine has no IPv6",
    "own4": "the machine has no IPv4 address but loopback",
    "own6": "the machine has no IPv6 address but loopback",
    "link6": "the machine has no link-local address",
    "net127": "loopback is one address only here",
    "metadata": "the machine does not hold that address itself",
    "broadcast": "no broadcast on loopback",
    "multicast4": "no multicast on loopback",
    "multicast6": "no interface with IPv6 but loopback",
    "dns": "this user cannot open port 53",
    "dns6": "port 53 of ::1 is taken, or not for this user",
    "dot": "this user cannot open port 853",
    "mdns": "another program has port 5353",
    "sctp": "no SCTP in this kernel",
    "dccp": "no DCCP in this kernel",
    "udplite": "no UDP-Lite in this kernel",
    "memory": "no /dev/shm",
    "queue": "no message queues",
    "second": "its file system is mounted once",
    **dict.fromkeys(("ssh", "smtp", "http", "https", "ntp", "quic"), _NO_LOW),
}


def need(table: Mapping[str, _Target], key: str) -> _Target:
    """A target, or Absent with the reason."""
    if key not in table:
        raise Absent(_WHY[key])
    return table[key]


def need_our_resolver(scene: Scene) -> None:
    """Absent where a look-up by the system would leave the machine."""
    if not scene.resolver_is_ours:
        raise Absent("the system's resolver is not the fake one, and a look-up would leave the machine")


Run = Callable[[Scene], str]


@dataclass(frozen=True, slots=True)
class Probe:
    """One way out. `run` returns a note on what it did, and raises if it was stopped on the way."""

    id: str  # the threat that it is of, then a name: "E1.udp4"
    title: str
    group: str
    stops: frozenset[str]  # the jails that claim to stop it; for WORKS those in which it must work
    evidence: Evidence
    run: Run
    mark: str = ""  # what arrives instead of the token, where a token cannot be sent
    scratch: bool = False  # the control runs in namespaces of its own, where it cannot hurt the machine

    @property
    def threat(self) -> str:
        """Its row in docs/threats.md."""
        return f"T-{self.id.partition('.')[0]}"


@dataclass(frozen=True, slots=True)
class Answer:
    """What a probe process says of one probe."""

    id: str
    done: bool
    said: str
    absent: bool = False  # there is nothing here to attack
    refused: bool = False  # this user may not do it, jail or not
    crashed: bool = False  # a mistake of the probe's own: it was not stopped, it proves nothing
    secret: str = ""

    def to_json(self) -> str:
        return json.dumps(dataclasses.asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Answer:
        return cls(**json.loads(text))


class Group:
    """The probes of one class of bypass, in the order of its file."""

    def __init__(self, name: str, title: str, stops: frozenset[str], *, only: str = "") -> None:
        self.name = name
        self.title = title
        self.only = only  # the jail that it is about; it is not tried in others
        self.probes: list[Probe] = []
        self._stops = stops

    def probe(
        self,
        id: str,  # noqa: A002 - it is the id
        title: str,
        *,
        evidence: Evidence = Evidence.ARRIVAL,
        stops: frozenset[str] | None = None,
        mark: str = "",
        scratch: bool = False,
    ) -> Callable[[Run], Run]:
        """Add a function to this group, as a decorator or, for what is one expression, called with it."""

        def add(run: Run) -> Run:
            chosen = self._stops if stops is None else stops
            self.probes.append(Probe(id, title, self.name, chosen, evidence, run, mark, scratch))
            return run

        return add

    def deed(self, id: str, title: str, act: Callable[[Scene], object], *, scratch: bool = False) -> None:  # noqa: A002
        """Add one call that the kernel must refuse. If it returns, that is the deed."""

        @self.probe(id, title, evidence=Evidence.DEED, scratch=scratch)
        def run(scene: Scene) -> str:
            act(scene)
            return "the kernel allowed it"


BOUNDARIES = frozenset({"netns", "nft", "container", "vm"})  # the jails that claim to hold
EVERYWHERE = frozenset(JAILS)
OWN_NETWORK = frozenset({"netns", "container", "vm"})  # those in which the host's is not there at all
