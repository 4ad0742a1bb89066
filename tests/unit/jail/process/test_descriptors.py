"""What a program inherits: harmless files stay, ways out are closed."""

from __future__ import annotations

import os
import socket
from pathlib import Path

import pytest

from exeat.jail.process import descriptors
from tests.support.jails.forked import attempt


def expect_open(*numbers: int) -> None:
    for number in numbers:
        os.fstat(number)


def make_inheritable(*numbers: int) -> None:
    for number in numbers:
        os.set_inheritable(number, True)


def test_ways_out_are_closed_and_the_rest_stays(tmp_path: Path) -> None:
    def check() -> None:
        reader, writer = os.pipe()
        file = os.open(tmp_path / "file", os.O_CREAT | os.O_RDWR)
        null, zero = os.open("/dev/null", os.O_RDWR), os.open("/dev/zero", os.O_RDWR)
        master, slave = os.openpty()
        removed = os.open(tmp_path / "removed", os.O_CREAT | os.O_RDWR)
        os.unlink(tmp_path / "removed")
        os.mkfifo(tmp_path / "fifo")
        folder = os.open(tmp_path, os.O_RDONLY)
        handles = [os.open(tmp_path / name, os.O_PATH) for name in (".", "file", "fifo")]
        one, other = socket.socketpair()
        memory, notes = os.memfd_create("m"), os.eventfd(0)
        kernels = os.open("/proc/self/ns/net", os.O_RDONLY), os.open("/proc/version", os.O_RDONLY)
        stay = (reader, writer, null, zero, slave, memory, removed)
        go = (file, folder, *handles, one.detach(), other.detach(), notes, master, *kernels)
        make_inheritable(*stay, *go)
        assert set(go) == descriptors.ways_out().keys()
        assert set(go) - {file} == descriptors.ways_out(files_too=False).keys()
        assert descriptors.ways_out()[folder] == str(tmp_path)
        descriptors.close_ways_out()
        expect_open(*stay)
        for number in go:
            with pytest.raises(OSError, match="Bad file"):
                os.fstat(number)

    assert attempt(check) == "ok"


def test_what_is_not_inherited_stays_ours() -> None:
    def check() -> None:
        one, other = socket.socketpair()
        descriptors.close_ways_out()
        one.send(b"x")
        assert other.recv(1) == b"x"

    assert attempt(check) == "ok"


@pytest.mark.parametrize("number", [0, 1, 2])
def test_a_folder_as_a_standard_stream_is_an_error(number: int) -> None:
    assert attempt(lambda: os.dup2(os.open("/", os.O_RDONLY), number), descriptors.close_ways_out) == "EISDIR"


def test_a_handle_as_a_standard_stream_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert attempt(lambda: os.dup2(os.open(tmp_path / "file", os.O_RDONLY), 0), descriptors.close_ways_out) == "ok"
    assert attempt(lambda: os.dup2(os.open(tmp_path / "file", os.O_PATH), 0), descriptors.close_ways_out) == "EPERM"


@pytest.mark.parametrize("closed", [(0,), (1,), (2,), (0, 2), (0, 1, 2)])
def test_a_closed_standard_stream_becomes_the_null_device(closed: tuple[int, ...]) -> None:
    def check() -> None:
        for number in closed:
            os.close(number)
        descriptors.ensure_standard_streams()
        for number in closed:
            assert os.path.samestat(os.fstat(number), Path("/dev/null").stat())
            assert os.get_inheritable(number)
        assert os.open("/dev/null", os.O_RDONLY) > 2

    assert attempt(check) == "ok"


def test_open_standard_streams_are_left_alone(tmp_path: Path) -> None:
    def check() -> None:
        os.dup2(os.open(tmp_path / "out", os.O_CREAT | os.O_WRONLY), 1)
        descriptors.ensure_standard_streams()
        os.write(1, b"said")

    assert attempt(check) == "ok"
    assert (tmp_path / "out").read_text() == "said"


def test_what_is_in_a_hidden_folder_is_closed_by_whatever_name_it_was_opened(tmp_path: Path) -> None:
    folder = tmp_path / "own"
    (folder / "deep").mkdir(parents=True)
    for path in (folder / "one", folder / "deep" / "two", tmp_path / "other"):
        path.touch()
    (tmp_path / "second name").hardlink_to(folder / "deep" / "two")

    def check() -> None:
        go = [os.open(path, os.O_RDWR) for path in (folder / "one", tmp_path / "second name")]
        stays = os.open(tmp_path / "other", os.O_RDWR)
        make_inheritable(*go, stays)
        descriptors.close_ways_out(descriptors.Hidden([str(folder)]), files_too=False)
        expect_open(stays)
        for number in go:
            with pytest.raises(OSError, match="Bad file"):
                os.fstat(number)
        os.dup2(os.open(folder / "one", os.O_RDONLY), 0)
        descriptors.close_ways_out(descriptors.Hidden([str(folder)]))

    assert attempt(check) == "EPERM"
