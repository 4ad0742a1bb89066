"""Replacing in a stream: exact to the byte, the same in every split, and no line kept back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from random import Random

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from exeat.errors import ProtocolError
from exeat.secrets.stream.replace import ReplacementTable, StreamReplacer
from tests.unit.wire.mutation import cut, cut_points


def naive(pairs: Mapping[bytes, bytes], data: bytes) -> tuple[bytes, dict[bytes, int]]:
    """The definition: from left to right, the longest pattern that stands here, or one byte."""
    output = bytearray()
    hits: dict[bytes, int] = {}
    at = 0
    while at < len(data):
        here = [pattern for pattern in pairs if data.startswith(pattern, at)]
        if here:
            longest = max(here, key=len)
            output += pairs[longest]
            hits[longest] = hits.get(longest, 0) + 1
            at += len(longest)
        else:
            output.append(data[at])
            at += 1
    return bytes(output), hits


def tight(pairs: Mapping[bytes, bytes]) -> ReplacementTable:
    """A table that makes a stream hold as little as it can, so that short streams go on in parts as well."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("exeat.secrets.stream.replace._LEAST_HELD", 1)
        return ReplacementTable(pairs)


def replaced(table: ReplacementTable, pieces: Sequence[bytes]) -> tuple[bytes, dict[bytes, int]]:
    """What comes out of a stream of these pieces. What is kept back meanwhile is bounded."""
    stream = StreamReplacer(table)
    output = bytearray()
    for piece in pieces:
        output += stream.feed(piece)
        assert len(stream.held) <= table.held + table.held // 4
    output += stream.finish()
    assert stream.held == b""
    return bytes(output), stream.hits


def assert_exact(pairs: Mapping[bytes, bytes], data: bytes, cuts: Sequence[int]) -> None:
    """In one piece, in the given pieces and byte by byte, the result is what the definition says."""
    expected = naive(pairs, data)
    for table in (ReplacementTable(pairs), tight(pairs)):
        assert replaced(table, [data]) == expected
        assert replaced(table, cut(data, cuts)) == expected
        assert replaced(table, [data[at : at + 1] for at in range(len(data))]) == expected


# Two letters and the end of a line: patterns overlap, contain each other and begin in each other's ends.
dense = st.sampled_from(["ab", "aab\n"]).flatmap(lambda each: st.text(each, min_size=1, max_size=12)).map(str.encode)


@given(st.dictionaries(dense, st.binary(max_size=3), max_size=6), st.lists(dense, max_size=12), cut_points)
@example({b"ab": b"1", b"abc": b"2", b"bcd": b"3"}, [b"xabxabcdabcabd"], [])
@example({b"abcd": b"1", b"bc": b"2"}, [b"abc", b"abcabcd"], [3])  # the shorter one must wait for the longer
@example({b"aaaaaaaaaaaa": b"1", b"aaaaaaaaaaaaab": b"2"}, [b"a" * 40], [13, 14, 30])
@example({b"a" * 12: b"1"}, [b"a" * 21], [])  # what is held must not reach back into the match before it
@example({b"a\nb": b"1"}, [b"a\n", b"b"], [2])  # a line is no end where a pattern goes on behind it
def test_dense_patterns_are_replaced_as_defined(pairs: dict[bytes, bytes], parts: list[bytes], cuts: list[int]) -> None:
    assert_exact(pairs, b"".join(parts), cuts)


@st.composite
def streams_of_long_patterns(draw: st.DrawFn) -> tuple[dict[bytes, bytes], bytes]:
    """Up to 30 patterns of up to 90 bytes, some of which begin alike; and a stream of them, whole, cut and damaged."""
    beginning = draw(st.binary(max_size=12))
    patterns = draw(st.lists(st.binary(min_size=1, max_size=90).map(beginning.__add__), min_size=1, max_size=30))
    pairs = {pattern: b"<%d>" % index for index, pattern in enumerate(patterns)}
    whole = st.sampled_from(patterns)
    begun = st.tuples(whole, st.integers(0, 90)).map(lambda taken: taken[0][: taken[1]])
    ended = st.tuples(whole, st.integers(0, 90)).map(lambda taken: taken[0][taken[1] :])
    parts = draw(st.lists(whole | begun | ended | st.binary(max_size=50), max_size=12))
    return pairs, b"".join(parts)


@given(streams_of_long_patterns(), cut_points)
def test_long_patterns_are_replaced_as_defined(made: tuple[dict[bytes, bytes], bytes], cuts: list[int]) -> None:
    assert_exact(*made, cuts)


@given(st.lists(dense, min_size=1, max_size=4), st.integers(0, 40), st.lists(dense, max_size=12), st.lists(dense))
def test_no_match_goes_on_behind_what_is_let_go(
    patterns: list[bytes], waiting: int, parts: list[bytes], following: list[bytes]
) -> None:
    table = tight(dict.fromkeys(patterns, b""))
    data, later = b"".join(parts), b"".join(following)
    before = b"a" * min(waiting, table.held)
    free = table.let_go(len(before), data)
    assert 0 <= free <= len(before + data)
    for at in range(free):
        for pattern in patterns:
            if (before + data + later).startswith(pattern, at):
                assert at + len(pattern) <= len(before + data)


@pytest.mark.parametrize("size", [*range(12, 26), *range(36, 48), 64, 100])
def test_a_pattern_among_many_is_found_wherever_it_stands(size: int) -> None:
    """Of many patterns only one word in 8, 16 or 32 bytes is looked up: no position may escape that."""
    random = Random(size)
    patterns = [random.randbytes(size) for _ in range(14)] + [random.randbytes(100) for _ in range(14)]
    table = ReplacementTable(dict.fromkeys(patterns, b"-"))
    for before in range(70):
        for pattern in patterns:
            for after in (0, 5):
                data = b"." * before + pattern + b"." * after
                assert table.may_match(data)
                assert replaced(table, [data]) == (b"." * before + b"-" + b"." * after, {pattern: 1})


@pytest.mark.parametrize("size", [23, 38, 39, 54, 55, 62, 63, 70, 71, 78, 79, 100])
@pytest.mark.parametrize("count", [2, 80])
def test_a_pattern_in_much_data_is_found_wherever_it_stands(size: int, count: int) -> None:
    """Much is searched in another way, and few patterns in another way than many."""
    random = Random(size)
    patterns = [random.randbytes(size) for _ in range(count)]
    table = ReplacementTable(dict.fromkeys(patterns, b"-"))
    filling = b"." * 32_000
    assert not table.may_match(filling)
    for before in range(60):
        assert table.may_match(filling[:before] + patterns[before % count] + filling)


@pytest.mark.parametrize("count", [1, 20])
@pytest.mark.parametrize("width", [8, 17, 18, 40, 64])
@pytest.mark.parametrize("form", [b"%%%02X", b"\\u00%02x"])
def test_what_is_escaped_is_found_wherever_it_stands(form: bytes, width: int, count: int) -> None:
    random = Random(width)
    patterns = [b"".join([form % byte for byte in random.randbytes(width)]) for _ in range(count)]
    table = ReplacementTable(dict.fromkeys(patterns, b"-"))
    for filling in (b"." * 500, b"%.\\" * 11_000, form % 65 * 10_000):
        assert not table.may_match(filling)
        for before in range(100):
            assert table.may_match(filling[:before] + patterns[before % count] + filling)


@st.composite
def long_streams(draw: st.DrawFn) -> list[bytes]:
    """Pieces that are long enough not to be copied, with a value here and there, cut anywhere."""
    parts = draw(st.lists(st.sampled_from([_VALUE, _VALUE[:20], _VALUE[20:], b"\n"]), max_size=6))
    data = b"".join([each + b"." * draw(st.integers(0, 20_000)) for each in [b"", *parts]])
    return cut(data, draw(st.lists(st.integers(0, len(data)), max_size=5)))


_VALUE = b"sk-0123456789abcdefghijABCDEFGHIJ0123456789"


@given(long_streams())
@example([b"." * 20_000 + _VALUE[:30], _VALUE[30:] + b"." * 20_000])
@example([_VALUE[:1], _VALUE[1:] + b"." * 20_000])
def test_parts_are_what_is_fed_in_one(pieces: list[bytes]) -> None:
    """Cut at the same places, whether or not anything was found."""
    table = ReplacementTable({_VALUE: b"<value>", _VALUE.hex().encode(): b"<hex>"})
    one, other = StreamReplacer(table), StreamReplacer(table)
    for piece in pieces:
        assert b"".join(one.feed_parts(piece)) == other.feed(piece)
        assert one.held == other.held
    assert one.finish() == other.finish()
    assert one.hits == other.hits


@given(st.binary(max_size=400), cut_points)
def test_what_is_no_pattern_is_left_alone(data: bytes, cuts: list[int]) -> None:
    table = ReplacementTable({b"exeat_" + b"Zk3" * 10: b"value", b"\xff" * 60: b"other"})
    assert replaced(table, cut(data, cuts)) == (data, {})


def test_all_two_way_splits_of_one_hit() -> None:
    placeholder = b"exeat_0123456789abcdefghijABCDEFGHIJ01"
    data = b'{"exeat": "exeat_", "key": "' + placeholder + b'"}'
    expected = b'{"exeat": "exeat_", "key": "VALUE"}', {placeholder: 1}
    table = ReplacementTable({placeholder: b"VALUE"})
    for point in range(len(data) + 1):
        assert replaced(table, [data[:point], data[point:]]) == expected


def test_an_empty_piece_changes_nothing() -> None:
    stream = StreamReplacer({b"abc": b"X"})
    assert [stream.feed(piece) for piece in (b"", b"a", b"", b"bc", b"", b"\n")] == [b"", b"", b"", b"", b"", b"X\n"]


def test_output_is_never_searched() -> None:
    """A value that holds a placeholder, its own or another's, is put in as it is."""
    pairs = {b"first": b"[first second]", b"second": b"first"}
    assert replaced(ReplacementTable(pairs), [b"first", b" sec", b"ond"])[0] == b"[first second] first"
    assert replaced(ReplacementTable({b"ab": b"a"}), [b"ab", b"b"])[0] == b"ab"  # nor joined with what follows


def test_a_line_is_not_delayed() -> None:
    stream = StreamReplacer({b"exeat_placeholder": b"value", b"data": b"DATA"})
    assert stream.feed(b"data: exeat_\n\n") == b"DATA: exeat_\n\n"
    assert stream.feed(b": data\r\nexeat_") == b": DATA\r\n"
    assert stream.feed(b"placeholder\n") == b"value\n"
    assert stream.feed(b"data: events may\rend lines\r\r") == b"DATA: events may\rend lines\r\r"
    assert stream.feed(b"10 %\rexeat_") == b"10 %\r"
    assert stream.feed(b"placeholder") + stream.finish() == b"value"


@pytest.mark.parametrize("end", [b"\n", b"\r"])
def test_no_line_goes_on_where_a_pattern_may_go_on_behind_it(end: bytes) -> None:
    stream = StreamReplacer({b"one" + end + b"two": b"X"})
    assert stream.feed(b"- one" + end) == b""
    assert stream.feed(b"two" + end) + stream.finish() == b"- X" + end


@pytest.mark.parametrize(("longest", "held"), [(1, 512), (512, 512), (513, 1_024), (240, 512), (70_000, 131_072)])
def test_what_is_held_hardly_tells_how_long_a_pattern_is(longest: int, held: int) -> None:
    table = ReplacementTable({b"x" * longest: b"", b"y": b""})
    stream = StreamReplacer(table)
    assert table.held == held
    assert len(stream.feed(b"." * 1_000_000)) == (1_000_000 - held) // (held // 4) * (held // 4)


def test_no_patterns_at_all() -> None:
    assert replaced(ReplacementTable({}), [b"anything", b""]) == (b"anything", {})


def test_an_empty_pattern_is_refused() -> None:
    with pytest.raises(ValueError, match="empty pattern"):
        ReplacementTable({b"": b"x"})


def test_streams_of_one_table_are_independent() -> None:
    table = ReplacementTable({b"abc": b"X"})
    one, other = StreamReplacer(table), StreamReplacer(table)
    assert (one.feed(b"ab"), other.feed(b"c\n")) == (b"", b"c\n")
    assert (one.feed(b"c\n"), other.finish()) == (b"X\n", b"")
    assert (one.hits, other.hits) == ({b"abc": 1}, {})


@pytest.mark.parametrize("pieces", [[b"ab.cd.ab\n"], [b"a", b"b.cd", b".a", b"b\n"]])
def test_hits_are_capped_together(pieces: list[bytes]) -> None:
    pairs = {b"ab": b"1", b"cd": b"2"}
    allowed = StreamReplacer(pairs, max_hits=3)
    assert b"".join([allowed.feed(piece) for piece in pieces]) == b"1.2.1\n"
    capped = StreamReplacer(pairs, max_hits=2)
    with pytest.raises(ProtocolError, match="too many placeholders") as refused:
        for piece in pieces:
            capped.feed(piece)
    assert refused.value.status == 413


def test_the_last_hit_is_counted_in_the_end() -> None:
    """`ab` is kept back; that nothing follows does not let it past the cap."""
    stream = StreamReplacer({b"ab": b"1", b"abc": b"2"}, max_hits=1)
    assert stream.feed(b"abc\nab") == b"2\n"
    with pytest.raises(ProtocolError, match="too many placeholders"):
        stream.finish()


def test_no_cap_unless_asked_for() -> None:
    stream = StreamReplacer({b"ab": b""})
    assert stream.feed(b"ab" * 5_000 + b"\n") == b"\n"
    assert stream.hits == {b"ab": 5_000}
