"""Build hook of hatch: compiles `exeat.gateway.flow._streams` where there is a compiler.

Without one exeat works as well, with asyncio's transports, at a higher price for each connection; so what is missing
is a notice, not an error. EXEAT_REQUIRE_NATIVE=1 makes it one, for those who build wheels. EXEAT_NATIVE_CFLAGS: more
flags, such as -fsanitize=address.
"""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
import sysconfig
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

_FOLDER = Path("src/exeat/gateway/flow")
_FLAGS = (
    "-O2 -std=gnu11 -fPIC -shared -fvisibility=hidden -fno-strict-aliasing -fstack-protector-strong"
    " -D_FORTIFY_SOURCE=2 -Wl,-z,relro,-z,now -Wall -Wextra -Wno-missing-field-initializers -Wno-cast-function-type"
)


class NativeBuildHook(BuildHookInterface[Any]):
    """Makes the C module, in place for an editable install."""

    PLUGIN_NAME = "custom"

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        if self.target_name != "wheel":
            return
        name = f"_streams{sysconfig.get_config_var('EXT_SUFFIX')}"
        root = Path(self.root)
        output = root / _FOLDER / name if version == "editable" else Path(self.directory) / name
        why = _compile(root / _FOLDER / "native", output)
        if why is not None:
            output.unlink(missing_ok=True)  # one of other sources, which what is installed now would take for its own
            if os.environ.get("EXEAT_REQUIRE_NATIVE") == "1":
                raise RuntimeError(why)
            self.app.display_warning(f"exeat is installed without its C streams: {why}")
            return
        build_data["pure_python"] = False
        build_data["infer_tag"] = True
        if version != "editable":
            build_data["force_include"][str(output)] = f"exeat/gateway/flow/{name}"


def _compile(sources: Path, output: Path) -> str | None:
    """None, or what is missing."""
    if not sys.platform.startswith("linux"):
        return "they are for Linux"
    headers = Path(sysconfig.get_path("include"))
    if not (headers / "Python.h").is_file():
        return f"{headers}/Python.h is missing (on Debian: apt-get install python3-dev)"
    compiler = shlex.split(os.environ.get("CC") or sysconfig.get_config_var("CC") or "cc")
    more = shlex.split(os.environ.get("EXEAT_NATIVE_CFLAGS", ""))
    files = [str(each) for each in sorted(sources.glob("*.c"))]
    output.parent.mkdir(parents=True, exist_ok=True)
    new = output.with_name(output.name + ".new")
    command = [*compiler, *_FLAGS.split(), f"-I{headers}", *more, *files, "-o", str(new)]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
    except OSError as error:
        return f"there is no compiler {compiler[0]}: {error.strerror} (on Debian: apt-get install gcc)"
    if done.returncode != 0:
        new.unlink(missing_ok=True)
        return f"{compiler[0]} failed:\n{done.stderr}"
    new.replace(output)  # one that is in use stays what it was
    return None
