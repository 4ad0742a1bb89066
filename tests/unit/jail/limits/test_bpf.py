"""The assembler: what it writes, and what it refuses to write."""

from __future__ import annotations

import struct

import pytest

from exeat.jail.limits.bpf import Program


def instructions(code: bytes) -> list[tuple[int, int, int, int]]:
    return list(struct.iter_unpack("=HBBI", code))


def test_instructions_are_written_as_the_kernel_reads_them() -> None:
    program = Program()
    program.load(4)
    program.keep_bits(0xFFFFFFF0)
    program.end(7)
    assert program.assemble() == bytes.fromhex("20000000 04000000  54000000 f0ffffff  06000000 07000000")


def test_a_jump_counts_from_the_next_instruction_and_falls_through_on_the_other_side() -> None:
    program = Program()
    program.jump_equal(1, "there")
    program.jump_equal(2, "there", unless=True)
    program.jump_at_least(3, "there")
    program.jump_any_bit(4, "there")
    program.load(0)
    program.place("there")
    program.end(0)
    assert instructions(program.assemble())[:4] == [(0x15, 4, 0, 1), (0x15, 0, 3, 2), (0x35, 2, 0, 3), (0x45, 1, 0, 4)]


def test_each_action_is_added_once_after_the_end() -> None:
    program = Program()
    program.jump_equal(1, 100)
    program.jump_equal(2, 200)
    program.jump_equal(3, 100)
    program.end(0)
    assert instructions(program.assemble()) == [
        (0x15, 3, 0, 1),
        (0x15, 3, 0, 2),
        (0x15, 1, 0, 3),
        (6, 0, 0, 0),
        (6, 0, 0, 100),
        (6, 0, 0, 200),
    ]


def test_a_place_that_does_not_exist_is_an_error() -> None:
    program = Program()
    program.jump_equal(1, "nowhere")
    program.end(0)
    with pytest.raises(ValueError, match="no place is called nowhere"):
        program.assemble()


def test_two_places_of_one_name_are_an_error() -> None:
    program = Program()
    program.place("here")
    with pytest.raises(ValueError, match="two places are called here"):
        program.place("here")


def test_there_is_no_way_back() -> None:
    program = Program()
    program.place("back")
    program.load(0)
    program.jump_equal(1, "back")
    program.end(0)
    with pytest.raises(ValueError, match="cannot jump by -2"):
        program.assemble()


@pytest.mark.parametrize(("between", "fits"), [(255, True), (256, False)])
def test_a_jump_that_is_too_far_is_an_error_rather_than_a_shorter_one(between: int, fits: bool) -> None:
    program = Program()
    program.jump_equal(1, "far")
    for _ in range(between):
        program.load(0)
    program.place("far")
    program.end(0)
    if fits:
        assert instructions(program.assemble())[0] == (0x15, 255, 0, 1)
    else:
        with pytest.raises(ValueError, match="cannot jump by 256"):
            program.assemble()


def test_a_program_that_runs_off_its_end_is_an_error() -> None:
    with pytest.raises(ValueError, match="must end"):
        Program().assemble()
    program = Program()
    program.load(0)
    with pytest.raises(ValueError, match="must end"):
        program.assemble()
