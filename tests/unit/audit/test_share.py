"""Several gateways write one log: one chain, and each line names the policy of its own gateway."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from exeat.audit.journal import open_journal
from exeat.audit.record import encode_event
from exeat.audit.share import JournalShare
from exeat.audit.verify import verify_files
from exeat.errors import AuditError
from exeat.gateway.gateway import Gateway
from exeat.sources import make_policy
from tests.support.log_files import read


def test_lines_of_two_shares_are_one_chain_and_each_names_its_own_policy(tmp_path: Path) -> None:
    path = str(tmp_path / "audit.jsonl")

    async def both() -> None:
        async with open_journal(path) as whole:
            one, other = JournalShare(whole), JournalShare(whole)
            one.policy, other.policy = "1" * 32, "2" * 32
            one.append(encode_event("a"))
            await other.commit(encode_event("b"))
            await one.aclose()
            one.append(encode_event("c"))  # the journal is another's to close
            whole.append(encode_event("d"))

    asyncio.run(both())
    lines = [(line["event"], line["policy"][:1]) for line in read(path)]
    assert lines == [("a", "1"), ("b", "2"), ("c", "1"), ("d", "")]
    assert verify_files([path]).ok


def test_a_share_of_a_closed_journal_refuses_and_never_waits(tmp_path: Path) -> None:
    async def late() -> None:
        whole = open_journal(str(tmp_path / "audit.jsonl"))
        await whole.aclose()
        with pytest.raises(AuditError):
            await JournalShare(whole).commit(encode_event("b"))

    asyncio.run(late())


def test_gateways_that_share_a_log_leave_it_open(tmp_path: Path) -> None:
    path = str(tmp_path / "audit.jsonl")

    async def both() -> None:
        async with open_journal(path) as whole, Gateway(make_policy(["one.test"]), journal=whole) as one:
            async with Gateway(make_policy(["two.test"]), journal=whole):
                pass
            await one.set_policy(make_policy(["three.test"]))

    asyncio.run(both())
    lines = read(path)
    assert [line["event"] for line in lines] == ["start", "start", "stop", "reload", "stop"]
    assert len({line["policy"] for line in lines}) == 3, "one of the first, one of the second, one after the reload"
    assert verify_files([path]).ok
