"""What `bench.kept` measures of lists without the start of a command: a process of its own for each.

    python -m bench.lists read FILE RULES        CPU time from the text of a list to a policy
    python -m bench.lists block NAME RULE...     for each rule, until a running sandbox has answered that it took it

Milliseconds, a line for each.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

from bench.process import BenchError
from exeat.policy import build_policy
from exeat.policy.grammar import load_suffixes
from exeat.sandbox.allowlist import parse_allowlist_file
from exeat.sandbox.changes import block
from exeat.sandbox.control import tell
from exeat.sandbox.folder import open_sandbox


def read(path: str, rules: int) -> float:
    """What a start does with a list: read it, and make a policy of it."""
    load_suffixes()
    text = Path(path).read_text()
    began = time.process_time()
    policy = build_policy(parse_allowlist_file(text, "list").rules)
    took_ms = (time.process_time() - began) * 1e3
    if len(policy.rules) != rules:
        raise BenchError(f"the policy has {len(policy.rules)} rules, not {rules}")
    return took_ms


def block_each(name: str, rules: list[str]) -> Iterator[float]:
    for rule in rules:
        began = time.perf_counter()
        with open_sandbox(name) as folder:
            block(folder, [rule])
        taken = tell(name).taken
        took_ms = (time.perf_counter() - began) * 1e3
        if taken != 1:
            raise BenchError(f"{taken} runs have taken the change, not one")
        yield took_ms


def main(argv: list[str]) -> int:
    match argv:
        case ["read", path, rules]:
            print(read(path, int(rules)))
        case ["block", name, *rules]:
            for took_ms in block_each(name, rules):
                print(took_ms)
        case _:
            print(__doc__, file=sys.stderr)
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
