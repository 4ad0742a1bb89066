"""Files of a container's own that it gets from us, over those of its image: names, accounts, whom to trust.

An engine fills in resolv.conf from the machine's, with its resolvers and search domains: ours names the gateway. An
account for the caller's number keeps `whoami`, ssh and git from complaining."""

from __future__ import annotations

import os
from typing import Final

from exeat.jail.container.image_files import Accounts, ImageFiles
from exeat.jail.container.options import HOST_NAME, ContainerOptions, Mount
from exeat.jail.files.mounts import BUNDLE
from exeat.jail.jail import Spec
from exeat.paths import is_in

_NAME: Final = "sandbox"
_RESOLV_CONF: Final = "# Names are answered by exeat.\nnameserver 127.0.0.1\n"
_HOSTS: Final = f"127.0.0.1 localhost {HOST_NAME}\n::1 localhost ip6-localhost ip6-loopback\n"


def furnish(spec: Spec, options: ContainerOptions, user: str, image: ImageFiles) -> tuple[Mount, ...]:
    """What is mounted, from files in the run's folder. Where the user has mounted something, nothing of ours is."""
    made = {
        "/etc/resolv.conf": write_file(spec.folder, "resolv.conf", _RESOLV_CONF.encode()),
        "/etc/hosts": write_file(spec.folder, "hosts", _HOSTS.encode()),
        "/etc/hostname": write_file(spec.folder, "hostname", f"{HOST_NAME}\n".encode()),
    }
    accounts = with_account(image.accounts(), user, options.home)
    made |= {
        f"/etc/{name}": write_file(spec.folder, name, text.encode("utf-8", "surrogateescape"))
        for name, text in (("passwd", accounts.passwd), ("group", accounts.group))
    }
    over_project: list[str] = []
    if spec.trust is not None:
        from exeat.jail.container.trust import bundles_in_project, trusted  # for runs that look into TLS

        made |= trusted(spec.folder, spec.trust, image.stores())
        over_project = bundles_in_project(spec)
    taken = [mount.target for mount in spec.mounts]
    return (
        # Not in what is the machine's: what is missing to mount on would be made there.
        *(Mount(source, target, True) for target, source in made.items() if not is_in(target, taken)),
        *(Mount(made[BUNDLE], target, True) for target in over_project if target not in taken),
    )


def with_account(found: Accounts, user: str, home: str) -> Accounts:
    """With a line for this user, whose home is there. `user` is NAME, UID or UID:GID."""
    number, _, group = user.partition(":")
    lines = [line.split(":") for line in found.passwd.split("\n") if line.count(":") == 6]
    own = next((fields for fields in lines if number in (fields[0], fields[2])), None)
    if own is not None:
        own[5] = home
    elif number.isdigit():
        lines.append([_free_name(lines, number), "x", number, group or number, _NAME, home, "/bin/sh"])
    groups = [line.split(":") for line in found.group.split("\n") if line.count(":") == 3]
    if group.isdigit() and all(fields[2] != group for fields in groups):
        groups.append([_free_name(groups, group), "x", group, ""])
    return Accounts(_as_text(lines), _as_text(groups))


def _free_name(lines: list[list[str]], number: str) -> str:
    return _NAME if all(fields[0] != _NAME for fields in lines) else f"{_NAME}-{number}"


def _as_text(lines: list[list[str]]) -> str:
    return "".join(f"{':'.join(fields)}\n" for fields in lines)


def write_file(folder: str, name: str, content: bytes) -> str:
    path = f"{folder}/{name}"
    with open(path, "xb") as file:
        os.fchmod(file.fileno(), 0o644)  # whatever the umask is
        file.write(content)
    return path
