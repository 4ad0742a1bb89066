"""Runs the corpus: each probe first without a jail, then in it. The verdict depends on what arrived outside."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import select
import signal
import subprocess  # noqa: TID251 - the corpus is made of processes, and is no part of the data path
import sys
import tempfile
import time
import tty
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from exeat.attack.in_container import Inside
from exeat.attack.model import BOUNDARIES, Answer, Evidence, Group, Probe, Scene
from exeat.attack.outside.targets import Targets, open_targets
from exeat.attack.probes import GROUPS
from exeat.attack.scorecard import Row, Scorecard, Seen

Progress = Callable[[str], None]
_HERE = Inside()
_LAUNCHER_FILE = Path(__file__).with_name("launcher.py")
_CONTROL_S = 3.0  # how long something that must arrive may take
_RUN_S = 400.0  # of many classes in a guest that is emulated; else a tenth of it
_LEFT_S = 3.0


@dataclass(frozen=True, slots=True)
class Ran:
    """How a run of probes ended."""

    answers: dict[str, Answer]
    status: int
    stderr: str


def attack(
    jail: str,
    *,
    groups: Sequence[str] = (),
    exeat: Sequence[str] = (),
    nest: bool = False,
    inside: Inside = _HERE,
    progress: Progress = lambda _: None,
) -> Scorecard:
    """Try everything, or the groups named, against a jail. `exeat` is the command to attack.

    `nest`: with --nest, and each probe as root in a user namespace of its own. `inside`: how probes are run in it.
    """
    command = tuple(exeat) or (sys.executable, "-P", "-m", "exeat")
    rows: list[Row] = []
    chosen = [each for each in GROUPS.values() if each.only in ("", jail) and (not groups or each.name in groups)]
    with open_targets(sys.executable, shared=jail == "nft") as targets:
        for batch in _batches(chosen, together=inside.together):
            progress(", ".join(group.title for group in batch))
            probes = [probe for group in batch for probe in group.probes]
            rows += _attack_with(probes, jail, command, targets, inside, nest=nest)
    rows.sort(key=lambda row: list(GROUPS).index(row.group))
    return Scorecard(jail, "root" if os.geteuid() == 0 else f"user {os.geteuid()}", tuple(rows))


def _batches(groups: list[Group], *, together: bool) -> list[list[Group]]:
    """Which classes share a run. A terminal, and a home to work in, are what others must not have."""
    if not together:
        return [[group] for group in groups]
    found: dict[str, list[Group]] = {}
    for group in groups:
        special = "terminal" if group.name == "terminal" else "home" if group.name in _AT_HOME else ""
        found.setdefault(special, []).append(group)
    return list(found.values())


def _attack_with(
    group: list[Probe], jail: str, exeat: tuple[str, ...], targets: Targets, inside: Inside, *, nest: bool
) -> list[Row]:
    """Control and jail for the probes of a run. Those that need another setting are a run of their own."""
    rows = [_left_out(probe, jail, why) for probe in group if (why := inside.why_not(probe))]
    tried = [probe for probe in group if not inside.why_not(probe)]
    chosen = [probe for probe in tried if not (nest and probe.id in GRANTED_BY_NEST)]
    plain = [probe for probe in chosen if probe.id not in _CLEAN]
    clean = [probe for probe in chosen if probe.id in _CLEAN]
    nested = ("--nest",) if nest else ()
    for probes, options in ((plain, nested), (clean, (*nested, "--clean-env"))):
        if probes:
            controls = _run_controls(probes, targets)
            # Where there is nothing to attack, nothing is tried in the jail either: it might reach something real.
            there = [probe for probe in probes if not controls[probe.id].answer.absent]
            seen = _run_jailed(there, (*exeat, "run", "--jail", jail, *options), targets, inside) if there else {}
            rows += [_judge(probe, jail, controls[probe.id], seen.get(probe.id)) for probe in probes]
    return rows


_CLEAN = frozenset({"E7.parents", *(probe.id for probe in GROUPS["guest-machine"].probes)})
_AT_HOME = frozenset({"files", "guest-files"})
# What --nest is for. What can be done with it is tried by the class "nest".
GRANTED_BY_NEST = frozenset(
    {
        *("E2.unshare", "E2.unshare-net", "E2.capabilities", "E2.mount", "E2.mount-bind", "E2.open-tree", "E2.fsopen"),
        *("E2.umount", "E2.chroot"),
    }
)


@dataclass(frozen=True, slots=True)
class _Result:
    """One probe in one run: what it said, and what was seen from outside."""

    answer: Answer  # one that did not come counts as a mistake of the probe's own
    got_out: str = ""  # the evidence
    allowed: bool = False  # its token reached the allowed host


def _left_out(probe: Probe, jail: str, why: str) -> Row:
    return Row(probe.id, probe.group, probe.title, jail, "-", Seen.LEFT_OUT, why)


def _judge(probe: Probe, jail: str, control: _Result, jailed: _Result | None) -> Row:
    works = probe.evidence is Evidence.WORKS
    claimed = jail in probe.stops
    expected = "works" if works else "stopped" if claimed else "gets out"
    if works and not claimed:
        seen, said = Seen.NO_CONTROL, ""
        control = _Result(Answer(probe.id, False, "not promised by this jail", absent=True), control.got_out)
    elif jailed is None:
        seen, said = Seen.NO_CONTROL, ""
    else:
        seen, said = _verdict(probe, jail, control, jailed), jailed.answer.said
    return Row(
        probe.id,
        probe.group,
        probe.title,
        jail,
        expected,
        seen,
        said,
        evidence=jailed.got_out if jailed else "",
        control=control.got_out or control.answer.said,
        lack="" if control.got_out else _lack(control.answer),
    )


def _lack(answer: Answer) -> str:
    return "absent" if answer.absent else "refused" if answer.refused else "failed"


def _verdict(probe: Probe, jail: str, control: _Result, jailed: _Result) -> Seen:
    if jailed.got_out:
        return Seen.ESCAPED if probe.stops or jail not in BOUNDARIES else Seen.LIMIT
    if jailed.answer.crashed:
        return Seen.BROKEN
    if jailed.answer.absent:
        # A device or a file that is there without a jail, and not in it, has been taken away.
        hidden = control.got_out and probe.evidence is Evidence.DEED
        return Seen.STOPPED if hidden else Seen.NO_CONTROL
    if probe.evidence is Evidence.WORKS:
        needs_arrival = probe.threat == "T-W1"
        return Seen.WORKS if jailed.answer.done and (jailed.allowed or not needs_arrival) else Seen.BROKEN
    return Seen.STOPPED if control.got_out else Seen.NO_CONTROL


def _run_controls(probes: list[Probe], targets: Targets) -> dict[str, _Result]:
    """The same probes without a jail. They must get out, or they prove nothing."""
    tried = [probe for probe in probes if probe.evidence is not Evidence.WORKS]
    results = {probe.id: _Result(Answer(probe.id, False, "")) for probe in probes if probe not in tried}
    if tried:
        scene = replace(targets.scene, outside=True)
        results |= _run(tried, scene, (), targets, _HERE, wait_s=_CONTROL_S)
    return results


def _run_jailed(
    probes: list[Probe], exeat_run: tuple[str, ...], targets: Targets, inside: Inside
) -> dict[str, _Result]:
    python = inside.python or targets.scene.python
    scene = replace(targets.scene, outside=False, nested="--nest" in exeat_run, proxy=None, python=python)
    scene = replace(scene, guest=inside.guest)
    name, port = scene.allowed
    with tempfile.TemporaryDirectory(prefix="exeat-attack-log-") as folder:
        wrapper = (*exeat_run, *inside.options, "--quiet", "--audit", str(Path(folder, "audit.jsonl")))
        policy = ("--allow", f"{name}:{port}", "--add-host", f"{name}:{scene.allowed_address}")
        return _run(probes, scene, (*wrapper, *policy, "--"), targets, inside, wait_s=0)


def _run(
    probes: list[Probe], scene: Scene, wrapper: tuple[str, ...], targets: Targets, inside: Inside, *, wait_s: float
) -> dict[str, _Result]:
    """Run probes once, and gather the evidence."""
    tokens = {probe.id: secrets.token_hex(12) for probe in probes}
    targets.sinks.forget()
    groups = {probe.group for probe in probes}
    if groups & _AT_HOME:
        targets.belongings.lay_out()
        scene = replace(scene, files=targets.belongings.scene())
    command = [*wrapper, scene.python, "-I", inside.probe, scene.to_json(), json.dumps(tokens)]
    ran = _execute(command, targets, folder=_start_folder(scene), groups=groups)
    if "outlive" in groups:
        _release(tokens, scene)
    targets.sinks.settle()
    results = {}
    for probe in probes:
        answer = ran.answers.get(probe.id)
        if answer is None:
            why = f"not run: exit status {ran.status}: {ran.stderr.strip()[-200:]}"
            results[probe.id] = _Result(Answer(probe.id, False, why, crashed=True))
            continue
        mark = probe.mark or tokens[probe.id]
        if probe.evidence is Evidence.ARRIVAL and not targets.belongings.where(mark):
            targets.sinks.wait_for(mark, wait_s if answer.done else 0)
        got_out = _evidence(probe, answer, mark, targets)
        results[probe.id] = _Result(answer, got_out, allowed="allowed" in targets.sinks.where(mark))
    return results


def _evidence(probe: Probe, answer: Answer, mark: str, targets: Targets) -> str:
    """What shows that a probe got out, or nothing. A token at a target counts for every kind of probe."""
    reached = targets.reached(mark)
    if reached:
        return f"arrived at {', '.join(reached)}"
    if probe.evidence is Evidence.SECRET and answer.secret in targets.secrets:
        return "holds the secret"
    if probe.evidence is Evidence.DEED and answer.done:
        return answer.said
    return ""


def _start_folder(scene: Scene) -> str:
    """One that every user can enter. With --nest nothing may be in it that has to be hidden."""
    if not scene.nested:
        return scene.folder
    folder = Path(scene.folder, "shared")
    folder.mkdir(exist_ok=True)
    return str(folder)


def _execute(command: list[str], targets: Targets, *, folder: str, groups: set[str]) -> Ran:
    """Run to the end, within a time limit, and read the answers."""
    terminal, held = "terminal" in groups, "descriptors" in groups
    home = targets.scene.home if groups & _AT_HOME else ""
    environment = os.environ | {"EXEAT_CALLER": sorted(s for s in targets.secrets if s.startswith("victim-"))[0]}
    with contextlib.ExitStack() as stack:
        stdin: int = subprocess.DEVNULL
        host, port = targets.scene.udp["v4"]
        launcher = [sys.executable, "-I", str(_LAUNCHER_FILE), host, str(port), str(int(terminal)), home]
        if terminal:
            stdin = stack.enter_context(open_terminal(lambda data: targets.sinks.note("terminal", data)))
        if held:
            stdin = stack.enter_context(open(targets.input, "rb", buffering=0)).fileno()
        child = stack.enter_context(
            subprocess.Popen(  # noqa: S603 - exeat and a probe of ours
                [*launcher, *command],
                env=environment,
                cwd=folder,
                stdin=stdin,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
                pass_fds=targets.held if held else (),
            )
        )
        try:
            stdout, stderr = child.communicate(timeout=_RUN_S)
        except subprocess.TimeoutExpired:
            os.killpg(child.pid, signal.SIGKILL)
            stdout, stderr = child.communicate()
            stderr += b"\ntime limit"
    return Ran(_answers(stdout), child.returncode, stderr.decode(errors="replace"))


def _answers(stdout: bytes) -> dict[str, Answer]:
    found = {}
    for line in stdout.decode(errors="replace").splitlines():
        with contextlib.suppress(ValueError, TypeError):
            answer = Answer.from_json(line)
            found[answer.id] = answer
    return found


def _release(tokens: dict[str, str], scene: Scene) -> None:
    """The run is over: let what is left of it send. Where nothing is left there is nothing to wait for."""
    end = time.monotonic() + _LEFT_S
    while (left := set(_left(tokens))) and time.monotonic() < end:
        for token in left:
            with contextlib.suppress(FileExistsError):
                # Never through a link: others may write in that folder.
                os.close(os.open(f"{scene.folder}/go-{token}", os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644))
        time.sleep(0.02)


def _left(tokens: dict[str, str]) -> Iterator[str]:
    """Tokens in the arguments of processes that live."""
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            with contextlib.suppress(OSError):
                arguments = (entry / "cmdline").read_text(errors="replace")
                yield from (token for token in tokens.values() if token in arguments)


_QUIET_S = 0.1


@contextlib.contextmanager
def open_terminal(typed: Callable[[bytes], None]) -> Iterator[int]:
    """The terminal's descriptor. At the end, what a shell would now read from it is handed to `typed`."""
    leader, follower = os.openpty()
    tty.setraw(follower)
    try:
        yield follower
        while select.select([follower], [], [], _QUIET_S)[0]:
            data = os.read(follower, 65536)
            if not data:
                break
            typed(data)
    finally:
        os.close(leader)
        os.close(follower)
