"""Start-up: what a plain policy costs to load."""

from __future__ import annotations

import subprocess
import sys

SCRIPT = """
import sys
from exeat.policy import Source, Target, Name, build_policy, decide, parse_rule
policy = build_policy([parse_rule("good.test:443", Source("x")), parse_rule("10.0.0.0/8", Source("x"))])
assert decide(policy, Target(Name("good.test"), 443)).allowed
heavy = {"idna", "publicsuffixlist", "tomllib", "json", "hashlib", "asyncio", "socket", "ssl"}
print(*sorted(heavy & set(sys.modules)))
"""


def test_plain_rules_load_nothing_heavy() -> None:
    """Unicode tables, the public suffix list and file parsers are loaded by the rule or file that needs them."""
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == ""
