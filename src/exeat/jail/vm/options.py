"""A user's options for a virtual machine, on the start-up path of `exeat run`."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from exeat.values import Value

if TYPE_CHECKING:
    from exeat.jail.container.options import Mount

MEMORY: Final = 2 << 30
LEAST_MEMORY: Final = 128 << 20
AUTO, KVM, TCG = "auto", "kvm", "tcg"
HOME, ROOT_HOME, HOST_NAME = "/home/sandbox", "/root", "sandbox"  # with an image, as containers have them
TIMED_OUT: Final = 124  # the exit status of a guest that took too long, as `timeout` has it


class VmOptions(Value):
    """`--vm` and what belongs to it."""

    memory: int = 0  # 0: MEMORY, or half of the machine's if that is less
    cpus: int = 0  # 0: one that is emulated, up to four real ones
    accel: str = AUTO
    insists: bool = False  # --kvm: nothing else will do
    kernel: str = ""  # "": what EXEAT_KERNEL names, else one of this machine
    image: str = ""  # "": the files of this machine, as `exeat run` shows them
    own_init: bool = False  # the image boots by itself, and cloud-init in it starts our agent
    guest_root: bool = False
    time_limit_s: float = 0.0  # 0: none
    quiet: bool = False
    saved_fd: int = -1  # the state of a machine that may be continued
    saving_fd: int = -1  # where the state of the machine goes, instead of a command
    mounts: tuple[Mount, ...] = ()  # with an image: what else of this machine is in it
