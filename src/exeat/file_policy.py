"""Rights of a command to files, as given in options, policy files and programs. Pure.

Not in `exeat.policy`, which takes 20 ms to load: every run needs this before its jail is built.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final, Literal, NamedTuple, TypeVar

from exeat.errors import ConfigError

DEFAULT_LAYER_BYTES: Final = 8 << 30
MIN_LAYER_BYTES: Final = 1 << 20
MAX_LAYER_BYTES: Final = 1 << 50

FilesMode = Literal["view", "host"]
LISTS: Final = ("write", "read_only", "hide", "show")  # settings that are paths
T = TypeVar("T")


class FilePolicy(NamedTuple):
    """Paths are as they were written, `~` and relative ones included; the code that acts on them makes them absolute.

    `view`: the command changes the working directory and what `write` names; all else that it writes goes to a layer.
    `host`: it changes whatever its user may.
    """

    mode: FilesMode = "view"
    write: tuple[str, ...] = ()  # shared for real
    read_only: tuple[str, ...] = ()  # cannot be written, not even in the layer
    hide: tuple[str, ...] = ()  # not there, as keys are
    show: tuple[str, ...] = ()  # there, although it is on the list of keys
    layer_bytes: int = DEFAULT_LAYER_BYTES
    nest: bool = False  # the command may make user namespaces, for a sandbox of its own


VIEW: Final = FilePolicy()


class FileSettings(NamedTuple):
    """What one place says about files. `where` is that place, for errors; "" for the options of a command line.

    An empty field: it says nothing about that. Lists of several places add up.
    """

    where: str = ""
    mode: FilesMode | None = None
    write: tuple[str, ...] = ()
    read_only: tuple[str, ...] = ()
    hide: tuple[str, ...] = ()
    show: tuple[str, ...] = ()
    layer_bytes: int | None = None
    nest: bool | None = None

    def named(self, key: str) -> str:
        """A setting as it is written there."""
        if self.where:
            return f"{self.where}: files.{key}"
        return "--files" if key == "mode" else f"--{key.replace('_', '-')}"

    def within(self, folder: str) -> FileSettings:
        """The same, with paths that were relative to this folder."""
        start = folder.rstrip("/")
        return self.with_each(lambda path: path if path.startswith(("/", "~")) else f"{start}/{path}")

    def with_each(self, change: Callable[[str], str | None]) -> FileSettings:
        """The same, with what becomes of each path; None takes it out."""

        def changed(paths: tuple[str, ...]) -> tuple[str, ...]:
            return tuple(path for path in map(change, paths) if path is not None)

        write, read_only, hide, show = (changed(getattr(self, key)) for key in LISTS)
        return self._replace(write=write, read_only=read_only, hide=hide, show=show)

    @property
    def needs_view(self) -> str:
        """The first setting that has no meaning where files are not confined, as it is written; "" if there is none."""
        if self.mode == "view":
            return self.named("mode")
        said = {key: getattr(self, key) for key in LISTS}
        said |= {"layer_size": self.layer_bytes is not None, "nest": self.nest}
        return next((self.named(key) for key, value in said.items() if value), "")


def combine(options: FileSettings, others: Iterable[FileSettings] = ()) -> FilePolicy:
    """One policy from all that was said. An option wins over the other places, which must agree. Raises ConfigError."""
    others = tuple(others)
    places = (options, *others)
    mode = options.mode or _agreed([(each.mode, each.named("mode")) for each in others], "--files")
    layer_bytes = options.layer_bytes
    if layer_bytes is None:
        layer_bytes = _agreed([(each.layer_bytes, each.named("layer_size")) for each in others], "--layer-size")
    nest = options.nest or _agreed([(each.nest, each.named("nest")) for each in others], "--nest")
    if mode == "host":
        _refuse_what_host_cannot(places)
    lists = {key: tuple(dict.fromkeys(path for each in places for path in getattr(each, key))) for key in LISTS}
    size = VIEW.layer_bytes if layer_bytes is None else layer_bytes
    return FilePolicy(mode or VIEW.mode, **lists, layer_bytes=size, nest=bool(nest))


def _agreed(said: Iterable[tuple[T | None, str]], option: str) -> T | None:
    """What several places say, each with its name; None if none of them says anything."""
    found: T | None = None
    said_by = ""
    for value, name in said:
        if value is None:
            continue
        if found is not None and value != found:
            raise ConfigError(f"this contradicts {said_by}", where=name, expected=f"the same in both, or {option}")
        found, said_by = value, name
    return found


def _refuse_what_host_cannot(places: tuple[FileSettings, ...]) -> None:
    """What `write` and `show` ask for is so on the host. The opposite would be believed, and not be true."""
    for place in places:
        for key in ("hide", "read_only"):
            if getattr(place, key):
                raise ConfigError(
                    "with --files host the command has all files of the host, and nothing can be kept from it",
                    where=place.named(key),
                    expected="--files view",
                )


def as_toml(settings: FileSettings) -> Iterator[str]:
    """The table as a policy file has it, in lines."""
    yield "[files]"
    if settings.mode is not None:
        yield f'mode = "{settings.mode}"'
    for key in LISTS:
        if paths := getattr(settings, key):
            yield f"{key} = ["
            yield from (f"  {quoted(path)}," for path in paths)
            yield "]"
    if settings.layer_bytes is not None:
        yield f"layer_size = {settings.layer_bytes}"
    if settings.nest is not None:
        yield f"nest = {'true' if settings.nest else 'false'}"


def quoted(text: str) -> str:
    """A TOML string. Not by `json`: a run that is over can load nothing more, and DEL is not allowed in TOML."""
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return '"' + "".join(f"\\u{ord(char):04x}" if char < " " or char == "\x7f" else char for char in escaped) + '"'
