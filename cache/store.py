"""The runs on disk: one JSON file each, written whole or not at all, under a name that is the run's id. A run's arrays, if it
has any, lie beside it under the same name."""

from __future__ import annotations

import dataclasses
import json
import logging
import os
import re
import threading
import time
import unicodedata
from collections import OrderedDict
from pathlib import Path
from typing import Callable

from cache.importing import run_from_bytes
from cache.recorded import is_recorded
from cache.summary import Summary, load_index, read_summary, save_index, summarise
from cache.watch import Watch
from engine import run_files
from engine.errors import RequestError
from engine.models.home import home
from engine.stamps import new_id
from engine.trace import AnyRun, arrays

log = logging.getLogger(__name__)

ID = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]{0,63}")
OPEN = 8  # runs kept in memory after they were read
TRASH_DAYS = 30
NAME_LENGTH = 120


class Store:
    """The runs in a folder, by default `runs` in the app's own. Several processes may use it at once.

    Every method may be called from any thread. What cannot be done raises RequestError; a damaged or foreign file in
    the folder never does, it is listed as damaged.
    """

    def __init__(self, folder: Path | str | None = None):
        self.folder = Path(folder) if folder is not None else home() / "runs"
        self.trash = self.folder / "trash"
        self._lock = threading.RLock()  # held for moments
        self._listing, self._watching = threading.Lock(), threading.Lock()
        self._unsaved = False  # the index on disk lacks something of `_known`
        self._known: dict[str, tuple[int, int, Summary]] | None = None  # id → (stamp, bytes, summary)
        self._open: OrderedDict[str, tuple[int, AnyRun]] = OrderedDict()
        self._watch: Watch | None = None
        self.purge()

    def list(self) -> list[Summary]:
        """All runs, newest first, damaged files last."""
        with self._listing:  # reading many new files takes a while, in which runs are opened and saved all the same
            with self._lock:
                known = None if self._known is None else dict(self._known)
                unsaved, self._unsaved = self._unsaved, False
            if known is None:
                known = load_index(self.folder)
            fresh = {}
            for name, stamp, size in self._files():
                id = name[:-len(".json")]
                kept = known.get(id)
                if kept is None or kept[:2] != (stamp, size):
                    unsaved = True
                    kept = (stamp, size, self._summary(id, size))
                fresh[id] = kept
            if unsaved or len(fresh) != len(known):
                save_index(self.folder, fresh)
            with self._lock:
                self._known = fresh
        # Two runs of one second keep the order in which they were written.
        lines = sorted(fresh.values(), key=lambda line: (line[2].damaged is None, line[2].created, line[0]), reverse=True)
        return [summary for _, _, summary in lines]

    def get(self, id: str) -> AnyRun:
        """The run of that id, read again only when its file has changed."""
        path = self._path(id)
        try:
            stamp = _stamp(path.stat())
        except OSError:
            hint = "it was deleted" if (self.trash / path.name).exists() else "see the list of runs for those there are"
            raise RequestError(f"There is no run {id} here; {hint}.") from None
        with self._lock:
            kept = self._open.get(id)
            if kept is not None and kept[0] == stamp:
                self._open.move_to_end(id)
                return kept[1]
        try:
            run = run_files.read(path)
        except ValueError as e:
            raise RequestError(f"The run {id} cannot be opened. {e}") from None
        self._remember(run, stamp)
        return run

    def save(self, run: AnyRun) -> str:
        """Write a run and return its id; a run without a usable id gets one. The same id again replaces the file."""
        if not ID.fullmatch(run.id):
            run = dataclasses.replace(run, id=new_id())
        path = self.folder / f"{run.id}.json"
        self._write(path, run)
        with self._lock:
            try:
                stat = path.stat()
                self._remember(run, _stamp(stat))
                if self._known is None:
                    self._known = load_index(self.folder)
                self._known[run.id] = (_stamp(stat), stat.st_size, summarise(run, path, stat.st_size))
                self._unsaved = True
            except Exception as e:  # the run is kept, and a later list reads it from the file
                log.warning("The run %s was saved but not summarised", run.id, exc_info=e)
        self._changed()
        return run.id

    def rename(self, id: str, name: str) -> None:
        """Give a run a name; an empty one takes it away."""
        visible = "".join(c if unicodedata.category(c) not in ("Cc", "Cs") else " " for c in name)
        self.save(dataclasses.replace(self.get(id), name=" ".join(visible.split())[:NAME_LENGTH]))

    def delete(self, id: str) -> None:
        """Move a run, damaged or not, to the trash, from where `undo` brings it back within 30 days."""
        path = self._path(id)
        self._move(path, self.trash / path.name, missing=f"There is no run {id} to delete.")
        self._move_arrays(path, self.trash)
        with self._lock:
            self._open.pop(id, None)

    def undo(self, id: str) -> None:
        """Bring a deleted run back."""
        path = self._path(id)
        if path.exists():
            raise RequestError(f"There is a run {id} already, so the deleted one stays in the trash.")
        self._move_arrays(self.trash / path.name, self.folder)
        self._move(self.trash / path.name, path, missing=f"The run {id} is not in the trash any more.")

    def purge(self) -> None:
        """Empty the trash of what was deleted over 30 days ago, and sweep up after writers that were killed."""
        limits = [(self.trash, "*.json", TRASH_DAYS), (self.trash, f"*{arrays.SUFFIX}", TRASH_DAYS), (self.folder, ".*.part", 1)]
        for folder, pattern, days in limits:
            try:
                for path in folder.glob(pattern):
                    if time.time() - path.stat().st_mtime > days * 86_400:
                        path.unlink()
            except OSError as e:
                log.info("%s was not cleared: %s", folder, e)

    def import_json(self, content: bytes, check: Callable[[AnyRun], None] = lambda run: None,
                    told: Callable[[float], None] = lambda share: None) -> str:
        """Take in an exported run and return its id, a new one where its own is taken or unusable. `check` may refuse it with a
        RequestError; `told` hears how much of the file was read, 0–1."""
        run = run_from_bytes(content, told)
        check(run)
        taken = ID.fullmatch(run.id) and any((folder / f"{run.id}.json").exists() for folder in (self.folder, self.trash))
        return self.save(dataclasses.replace(run, id=new_id()) if taken or is_recorded(run.id) else run)

    def version(self) -> int:
        """A number that grows when runs came, went or changed, by this process or another; cheap enough to poll."""
        with self._watching:
            if self._watch is None:
                self._make(self.folder)
                self._watch = Watch(self.folder)
            return self._watch.version()

    def close(self) -> None:
        """End the watch on the folder."""
        with self._watching:
            watch, self._watch = self._watch, None
        if watch is not None:
            watch.close()

    def _summary(self, id: str, size: int) -> Summary:
        path = self.folder / f"{id}.json"
        if ID.fullmatch(id):
            return read_summary(path, size)
        return Summary(id, str(path), size, damaged="Its name cannot be the id of a run; import the file instead.")

    def _files(self) -> list[tuple[str, int, int]]:
        found = []
        try:
            with os.scandir(self.folder) as entries:
                for entry in entries:
                    if entry.name.endswith(".json") and not entry.name.startswith("."):
                        try:
                            stat = entry.stat()
                        except OSError:  # gone since, or a link to nowhere
                            continue
                        found.append((entry.name, _stamp(stat), stat.st_size))
        except FileNotFoundError:
            pass
        except OSError as e:
            raise RequestError(f"The folder {self.folder} cannot be read ({e.strerror}); set SPECLENS_HOME to one that "
                               "can.") from None
        return found

    def _path(self, id: str) -> Path:
        if not isinstance(id, str) or not ID.fullmatch(id):
            raise RequestError("That is not the id of a run; ids look like 20261130-053012-ab12cd.")
        return self.folder / f"{id}.json"

    def _remember(self, run: AnyRun, stamp: int) -> None:
        with self._lock:
            self._open[run.id] = (stamp, run)
            self._open.move_to_end(run.id)
            while len(self._open) > OPEN:
                self._open.popitem(last=False)

    def _write(self, path: Path, run: AnyRun) -> None:
        self._make(path.parent)
        try:
            run_files.write(run, path)
        except RequestError as e:
            raise RequestError(f"{str(e).rstrip('.')}, so the run is not saved; free some space there, or set "
                               "SPECLENS_HOME to a folder that can be written.") from None

    def _move(self, source: Path, target: Path, missing: str) -> None:
        self._make(target.parent)
        try:
            os.utime(source)  # the trash counts its days from here
            os.replace(source, target)
        except FileNotFoundError:
            raise RequestError(missing) from None
        except OSError as e:
            raise RequestError(f"{source} cannot be moved ({e.strerror}); check who may write in {self.folder}.") from None
        self._changed()

    def _move_arrays(self, path: Path, folder: Path) -> None:
        """Move what lies beside a run's file, if anything does."""
        beside = path.with_suffix(arrays.SUFFIX)
        if beside.exists():
            self._move(beside, folder / beside.name, missing="")

    def _make(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as e:
            raise RequestError(f"The folder {folder} cannot be made ({e.strerror}); set SPECLENS_HOME to one that can.") from None

    def _changed(self) -> None:
        with self._watching:
            if self._watch is not None:
                self._watch.bump()


def _stamp(stat: os.stat_result) -> int:
    """Changes whenever a file's content, times or permissions do (ns); a copy may bring an old modification time along."""
    return max(stat.st_mtime_ns, stat.st_ctime_ns)
