"""What a probe is, what it is told, and how it says what happened. Values only; the same code runs on both sides."""

from __future__ import annotations

import dataclasses
import enum
import json
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path

Place = tuple[str, int]

JAILS = ("netns", "nft", "env")


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
    icmp: bool = False  # somebody outside listens for ICMP
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
        """Read what `to_json` wrote. JSON knows no tuples, so places are made anew."""
        read = json.loads(text)
        for name in ("tcp", "udp", "other"):
            read[name] = {key: (place[0], place[1]) for key, place in read[name].items()}
        read["allowed"] = (read["allowed"][0], read["allowed"][1])
        read["proxy"] = (read["proxy"][0], read["proxy"][1]) if read["proxy"] else None
        return cls(**read)


def apart(scene: Scene, kind: str) -> bool:
    """Whether this process is in another namespace of a kind (net, pid) than the harness."""
    return str(Path(f"/proc/self/ns/{kind}").readlink()) != scene.namespaces[kind]


def need(table: dict[str, Place], key: str, why: str) -> Place:
    """A target's place, or Absent with the reason."""
    if key not in table:
        raise Absent(why)
    return table[key]


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

    def __init__(self, name: str, title: str, stops: frozenset[str]) -> None:
        self.name = name
        self.title = title
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
        """Enter a function as a probe of this group."""

        def enter(run: Run) -> Run:
            chosen = self._stops if stops is None else stops
            self.probes.append(Probe(id, title, self.name, chosen, evidence, run, mark, scratch))
            return run

        return enter


BOUNDARIES = frozenset({"netns", "nft"})  # the jails that claim to hold
EVERYWHERE = frozenset(JAILS)
