"""The command's files in a jail with a view: its parts, and what exeat protects and watches. Linux."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

from exeat.errors import ExeatError
from exeat.jail.environment import inherited_environment
from exeat.jail.files.mounts import BLANK, PINS, OwnTree, View
from exeat.jail.files.view import read_notes
from exeat.jail.jail import Built
from exeat.jail.process.descriptors import ways_out
from exeat.run.command_files import CommandFiles
from exeat.run.files.held_places import HeldPlaces
from exeat.run.files.hidden_files import working_directory
from exeat.run.files.hints import name_hidden_keys
from exeat.run.files.layer_end import end_layer
from exeat.run.files.own_code import advice_on_installing, warning_of_second_names
from exeat.run.files.project_guard import ProjectGuard
from exeat.run.files.seen_files import SeenFiles, see_files
from exeat.run.late import NotTakenError
from exeat.run.outcome import LAYER_FULL, say
from exeat.run.settings import FilesSeen, Plan
from exeat.sandbox.home import state_home

if TYPE_CHECKING:
    from exeat.run.files.ground import Ground


class ViewedFiles(CommandFiles):
    def __init__(self, plan: Plan) -> None:
        super().__init__(plan)
        if not plan.settings.quiet:
            _tell_what_is_closed(plan.settings.ask_fd, files_too=plan.files.mode == "view")
            if warning := warning_of_second_names():
                say(warning)
        self._ground: Ground | None = None
        if plan.settings.late is None:
            self._seen = see_files(plan)
        else:
            self._seen, self._ground = self._see_ahead()
        self._guard: ProjectGuard | None = None
        self._copies: HeldPlaces | None = None
        self._layers = -1
        self.cwd = working_directory()
        if plan.settings.vm is not None:  # else nothing is kept, and there may be no home directory
            self.memory = f"{state_home()}/machines"
        self.view = self._seen.view
        self.mounts = self._seen.mounts
        self.disk = self._seen.guest_disk.disk if self._seen.guest_disk is not None else None
        self.look_every_ms = self._seen.look_every_ms

    def _see_ahead(self) -> tuple[SeenFiles, Ground]:
        from contextlib import redirect_stderr  # for what is made ahead
        from io import StringIO

        from exeat.run.files.answers import Answers
        from exeat.run.files.ground import Ground

        with Answers() as answers, redirect_stderr(StringIO()) as said:
            seen = see_files(self.plan)
        self._notes = said.getvalue()  # for whoever the command is of
        return seen, Ground(self.plan, seen, answers)

    def begin(self, built: Built) -> None:
        self._layers = built.layers
        if self._ground is None:
            self._begin(built)
        else:
            self._ground.stand(built, self._seen)
            self._built = built

    def rehearse(self, plan: Plan) -> None:
        """Touch all memory that it takes to look again, which processes forked since share: 0.3 ms less for a run."""
        assert self._ground is not None
        if self._ground.is_the_same(plan):
            self._ground.has_changed(plan)

    def take_up(self, plan: Plan) -> None:
        """The command is known now. Raises NotTakenError if the jail would be built otherwise for it."""
        assert self._ground is not None
        if self._ground.is_the_same(plan):
            has_changed = self._ground.has_changed(plan)
            sys.stderr.write(self._notes)
        else:
            try:
                again = see_files(plan)
            except ExeatError as error:
                raise NotTakenError("its files cannot be looked at again", detail=str(error)) from None
            try:
                has_changed = self._ground.has_changed(plan, again)
            finally:
                again.close()
        if has_changed:
            raise NotTakenError("its files have changed")
        self._begin(self._built)
        if self._ground.has_lost_mounts():  # before the guard that has been set now could see it
            raise NotTakenError("a protected mount in its files is gone")
        self._ground.close()

    def _begin(self, built: Built) -> None:
        may_nest, view = self.plan.files.nest, self._seen.view
        holdings = view.holdings
        if any(holdings):
            # Elsewhere nothing is replaced: what is read-only there is so by the layers.
            shared = tuple(place for place in holdings.read_only if place.root in view.shared)
            self._guard = ProjectGuard(
                holdings._replace(read_only=shared),
                list(built.namespaces),
                PINS,
                BLANK,
                _paths_inside(view, built.tree),
            )
            self.descriptor = self._guard.descriptor
        # A program with namespaces of its own gets past mounts.
        open_places = holdings.read_only if may_nest else holdings.second_names
        places = [(place.root, place.path) for place in open_places if place.root in view.shared]
        folders = [(place.root, place.path) for place in holdings.pinned] if may_nest else []
        self._copies = HeldPlaces(places, folders) if places or folders else None
        if built.layers >= 0 and not self.plan.settings.quiet:
            # What is missing of the machine's files explains errors that nothing else does.
            for note in read_notes(built.layers):
                say(note)

    def attend(self) -> None:
        if self._guard is not None:
            self._guard.attend()

    def why_end(self) -> str:
        return LAYER_FULL if self._seen.is_full() else ""

    def sweep(self) -> list[str]:
        lines = self._copies.put_back() if self._copies is not None else []
        return lines + (self._guard.sweep() if self._guard is not None else [])

    def end_layer(self, began: float) -> FilesSeen:
        held, self._layers = self._layers, -1
        if held < 0:
            return FilesSeen()
        end = end_layer(held, self.plan, self._seen.view.not_there, began, self._seen.save)
        self.said = self._seen.guest_disk.said() if self._seen.guest_disk is not None else end.said
        return FilesSeen(end.changes.paths, end.changes.is_complete)

    def hints(self) -> list[str]:
        settings = self.plan.settings
        advice = advice_on_installing(settings.argv, inherited_environment(settings.environ))
        return [*name_hidden_keys(self._seen.hidden, settings.argv), *([advice] if advice else [])]

    def close(self) -> None:
        """Nothing of a network namespace is left when its processes are gone, but for a layer on disk."""
        if self._guard is not None:
            self._guard.close(process_ends=self.plan.settings.ends_with_report)
        if self._copies is not None:
            self._copies.close()
        if self._ground is not None:
            self._ground.close()
        self._seen.close()


def _tell_what_is_closed(own: int, *, files_too: bool) -> None:
    """Of what our caller left open for the command. `own` is one that is for us."""
    closed = [f"{number} ({what})" for number, what in sorted(ways_out(files_too=files_too).items()) if number != own]
    if closed:
        say(f"not passed on to the command: open file {', '.join(closed)}")


def _paths_inside(view: View, tree: OwnTree | None) -> list[dict[str, str]]:
    """By which paths shared folders can be reached in the jail, once for each time that they are there."""
    if tree is None:
        return [{}]
    return [*tree.paths_again((*view.shared, *view.holdings.projects)), {}]
