"""The chain: no single change to a valid log goes unseen, and what it cannot see is said."""

from __future__ import annotations

import json
from hashlib import sha256
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from exeat.audit.chain import GENESIS, seal, seal_lines
from exeat.audit.record import Record, encode_event
from exeat.audit.sink import torn_event
from exeat.audit.verify import Verification, describe, verify_files
from tests.support.log_files import verify_lines

CHAIN = "f" + "1" * 16
POLICY = ',"policy":"p"'


def bodies(count: int) -> list[str]:
    middle = [Record(req=i, host=f"h{i}.example", verdict="allow").encode("decision") for i in range(count - 2)]
    return [body + POLICY for body in (encode_event("start"), *middle, encode_event("stop"))]


def log(count: int = 8, chain: str = CHAIN) -> list[bytes]:
    return seal_lines(bodies(count), chain, 0, GENESIS)[0]


LOG = log()
BYTES = b"".join(LOG)


def check(data: bytes, expect_head: str | None = None) -> Verification:
    return verify_lines(data.splitlines(keepends=True), expect_head=expect_head)


def test_an_untouched_log_is_intact() -> None:
    """The positive control of everything below."""
    found = check(BYTES)
    assert found.ok
    assert not found.open
    assert (found.lines, found.chains, found.problems, found.warnings) == (8, 1, (), ())
    assert found.head == json.loads(LOG[-1])["hash"]


def test_the_hash_is_what_the_documentation_says() -> None:
    """Anybody can check a line with a hash of the previous hash and the bytes before `,"hash"`."""
    body = LOG[0][: LOG[0].index(b',"hash"')]
    expected = sha256(GENESIS.encode() + body).hexdigest()
    assert json.loads(LOG[0])["hash"] == expected == seal(GENESIS, body)


@given(st.integers(0, len(BYTES) - 1), st.integers(1, 255))
def test_any_single_changed_byte_is_found(at: int, change: int) -> None:
    """Every byte counts, quotes, digits and newlines included."""
    data = bytearray(BYTES)
    data[at] ^= change
    # Split on \n only, as a file is read.
    lines = [part + b"\n" for part in bytes(data).split(b"\n")]
    lines[-1] = lines[-1][:-1]
    assert not verify_lines([line for line in lines if line]).ok


@given(st.integers(0, 6), st.integers(1, 7))
def test_removed_lines_are_found_at_the_start_and_in_the_middle(first: int, count: int) -> None:
    """As long as a later line is left, it does not follow from what is before it."""
    left = LOG[:first] + LOG[min(first + count, 7) :]
    assert not verify_lines(left).ok


@given(st.integers(0, 7), st.integers(0, 7))
def test_swapped_and_repeated_lines_are_found(one: int, other: int) -> None:
    """Order is part of what the chain keeps."""
    if one != other:
        swapped = list(LOG)
        swapped[one], swapped[other] = swapped[other], swapped[one]
        assert not verify_lines(swapped).ok
    assert not verify_lines([*LOG[:other], LOG[one], *LOG[other:]]).ok


@given(st.integers(0, 8), st.binary(max_size=200))
def test_inserted_bytes_are_found(at: int, junk: bytes) -> None:
    """Garbage between lines is no part of the log."""
    data = b"".join(LOG[:at]) + junk + b"\n" + b"".join(LOG[at:])
    lines = [part + b"\n" for part in data.split(b"\n")[:-1]]
    assert not verify_lines(lines).ok


@given(st.integers(1, len(BYTES) - 1))
def test_a_cut_tail_is_found_with_the_head_and_never_called_stopped(length: int) -> None:
    """Without the head a cut at a line's end shows only as a log that did not stop."""
    found = check(BYTES[:length])
    assert found.open
    assert found.ok == BYTES[:length].endswith(b"\n")
    assert not check(BYTES[:length], expect_head=json.loads(LOG[-1])["hash"]).ok


def test_an_expected_head_may_have_been_followed_by_more() -> None:
    """A head noted while the gateway ran stays good as the log grows."""
    assert check(BYTES, expect_head=json.loads(LOG[4])["hash"]).ok
    assert not check(BYTES, expect_head="a" * 64).ok


def test_a_reencoded_line_is_found() -> None:
    """The same JSON written with other spacing or key order is not the same line."""
    spaced = json.dumps(json.loads(LOG[3])).encode() + b"\n"
    sorted_keys = json.dumps(json.loads(LOG[3]), separators=(",", ":"), sort_keys=True).encode() + b"\n"
    for line in (spaced, sorted_keys, LOG[3].replace(b"\n", b"\r\n")):
        assert not verify_lines([*LOG[:3], line, *LOG[4:]]).ok


def test_one_edit_is_one_problem_at_its_line() -> None:
    """The report points at the line that was changed and not at everything after it."""
    edited = [*LOG[:3], LOG[3].replace(b"allow", b"deny!"), *LOG[4:]]
    found = verify_lines(edited)
    assert [problem.line for problem in found.problems] == [4]


def test_problems_are_counted_but_not_all_kept() -> None:
    """A log of garbage does not fill memory with findings."""
    lines = log(100)
    found = verify_lines([line for line in lines for _ in range(2)])
    assert len(found.problems) == 20
    assert found.more_problems == 80
    assert any("80 more" in said for said in describe(found))


def torn_log(fragment: bytes) -> list[bytes]:
    head = json.loads(LOG[2])["hash"]
    rest, _ = seal_lines([torn_event(fragment) + POLICY, bodies(3)[2]], CHAIN, 3, head)
    return [*LOG[:3], *(part + b"\n" for part in fragment.split(b"\n")), *rest]


@pytest.mark.parametrize(
    "fragment",
    [LOG[3][:50], b"\0" * 400, LOG[3][:70] + b"\n" + LOG[3][:20], b"{"],
    ids=["short", "zeros", "two", "least"],
)
def test_a_torn_line_is_a_warning_when_the_next_line_accounts_for_it(fragment: bytes) -> None:
    """A crash leaves half a line; the writer that came after said how long it is and what it holds."""
    found = verify_lines(torn_log(fragment))
    assert found.ok
    assert "part of a line" in found.warnings[0].text


def test_a_torn_line_that_was_touched_or_removed_is_found() -> None:
    """The fragment is evidence too."""
    lines = torn_log(LOG[3][:50])
    assert not verify_lines([*lines[:3], *lines[4:]]).ok
    assert not verify_lines([*lines[:3], lines[3].replace(b"seq", b"sex"), *lines[4:]]).ok
    assert not verify_lines([*lines[:4], b"more\n", *lines[4:]]).ok


def test_chains_of_streams_may_mix_but_a_files_chain_may_not() -> None:
    """Several processes share one standard output; no one shares a file without joining its chain."""
    one, other = log(4, "s" + "a" * 16), log(4, "s" + "b" * 16)
    mixed = [line for pair in zip(one, other, strict=True) for line in pair]
    found = verify_lines(mixed)
    assert found.ok
    assert found.chains == 2
    assert not verify_lines([*LOG, *log(4, "f" + "2" * 16)]).ok


def rotated_files(folder: Path) -> list[str]:
    first, head = seal_lines(bodies(4)[:3], CHAIN, 0, GENESIS)
    rotate = encode_event("rotate", previous=head) + POLICY
    second, head2 = seal_lines([rotate, *bodies(4)[1:3]], CHAIN, 3, head)
    third, _ = seal_lines(
        [encode_event("rotate", previous=head2) + POLICY, encode_event("stop") + POLICY], CHAIN, 6, head2
    )
    names = ["audit.jsonl.2", "audit.jsonl.1", "audit.jsonl"]
    for name, lines in zip(names, (first, second, third), strict=True):
        (folder / name).write_bytes(b"".join(lines))
    return [str(folder / name) for name in names]


def test_rotated_files_are_one_log(tmp_path: Path) -> None:
    """Given in order or found next to the newest, they continue one chain."""
    paths = rotated_files(tmp_path)
    for given_paths in (paths, paths[-1:]):
        found = verify_files(given_paths)
        assert found.ok
        assert (found.lines, found.continues, found.open) == (8, False, False)


def test_a_rotated_file_alone_says_that_it_continues_another(tmp_path: Path) -> None:
    """The oldest file is dropped some day; what is left still verifies from its stated hash."""
    paths = rotated_files(tmp_path)
    Path(paths[0]).unlink()
    found = verify_files(paths[-1:])
    assert found.ok
    assert found.continues
    assert any("continues an earlier file" in said for said in describe(found))


def test_a_missing_file_in_the_middle_is_found(tmp_path: Path) -> None:
    """Removing a whole rotated file is no better than removing lines."""
    paths = rotated_files(tmp_path)
    Path(paths[1]).unlink()
    found = verify_files(paths[-1:])
    assert not found.ok
    assert found.problems[0].source.endswith("audit.jsonl")
    assert found.problems[0].line == 1


def test_a_file_without_newlines_is_read_in_pieces(tmp_path: Path) -> None:
    """A gigabyte of zeros must not be held in memory, and is one bad line."""
    path = tmp_path / "zeros"
    path.write_bytes(b"\0" * 3_000_000)
    found = verify_files([str(path)])
    assert (found.ok, found.lines) == (False, 1)


def test_descriptions_are_plain_sentences() -> None:
    """The verdict comes first, the head is there to be noted, doubts are said."""
    assert describe(check(BYTES))[0] == "Intact: 8 lines, no gap and no change."
    assert describe(check(BYTES))[-1].startswith("Head: ")
    assert describe(check(b"")) == ["The log is empty."]
    cut = describe(check(b"".join(LOG[:-1])))
    assert any("still running, killed, or the end was cut off" in said for said in cut)
    assert describe(verify_lines(LOG[1:]))[0].startswith("NOT INTACT: 1 problem")
