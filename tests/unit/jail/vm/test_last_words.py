"""Why a guest is gone, in a sentence, and what is shown of its console."""

from __future__ import annotations

import pytest

from exeat.jail.vm.last_words import panic_in, shown, what_helps, why_gone

PANIC = "[    3.0] Kernel panic - not syncing: VFS: Unable to mount root fs"


@pytest.mark.parametrize(
    ("what", "code", "console", "has_begun", "sentence"),
    [
        ("QEMU", 0, [], True, "the guest has powered off, and its command with it"),
        ("QEMU", None, [], True, "the guest has powered off, and its command with it"),
        ("QEMU", 0, ["[ 1.0] reboot: Power down"], False, "the guest has not booted"),
        ("QEMU", 0, [PANIC], False, "the guest's kernel has panicked: VFS: Unable to mount root fs"),
        ("QEMU", 1, [], False, "QEMU has ended (status 1)"),
        ("QEMU", -9, [], True, "QEMU was killed, as happens when memory runs out"),
        ("QEMU", -5, [PANIC], True, "the guest's kernel has panicked: VFS: Unable to mount root fs"),
        ("what serves its files", -31, [], True, "what serves its files has ended (signal 31)"),
    ],
)
def test_a_sentence(what: str, code: int | None, console: list[str], has_begun: bool, sentence: str) -> None:
    assert why_gone(what, code, console, has_begun=has_begun) == sentence


@pytest.mark.parametrize(
    "last",
    [
        "qemu-system-x86_64: GLib: ../../../glib/gmem.c:136: failed to allocate 60064 bytes",
        "memory allocation of 32768 bytes failed",  # virtiofsd in Rust
    ],
)
def test_too_much_memory_of_its_own(last: str) -> None:
    """It is bounded, so that a guest cannot use up the machine's."""
    assert why_gone("QEMU", -5, [], has_begun=True, said=["one", last]) == (
        "QEMU used more memory than a guest may make it use"
    )


def test_the_last_lines_and_the_first_of_a_panic() -> None:
    console = ["boot", PANIC, *(f"trace {number}" for number in range(30))]
    lines = shown(["virtio_loop: Unexpected poll revents 11", "qemu: no memory"], console, 3)
    assert lines == [
        "qemu: no memory", "the guest's console:", f"  {PANIC}", "  ...", "  trace 27", "  trace 28", "  trace 29",
    ]  # fmt: skip
    assert panic_in(console) == "VFS: Unable to mount root fs"


def test_nothing_was_said() -> None:
    assert shown([], [], 3) == []
    assert panic_in([]) == ""


def test_what_helps_when_qemu_has_no_memory() -> None:
    said = ["qemu-system-x86_64: unable to map backing store for guest RAM: Cannot allocate memory"]
    assert what_helps(said) == "less memory for the guest: --memory 512m"
    assert what_helps(["qemu-system-x86_64: no such device"]) == ""
