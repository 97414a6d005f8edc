"""Notice that the runs folder changed, whoever changed it: this process, the command line, or a person's file manager."""

from __future__ import annotations

import logging
import os
import threading
import time
from pathlib import Path

from watchdog.events import FileSystemEvent, FileSystemEventHandler
from watchdog.observers import Observer

log = logging.getLogger(__name__)

QUIET = 0.2  # seconds without a further event after which a change counts; one saved run makes several events
LONGEST = 1.0  # seconds after which it counts though events go on
POLL = 0.5  # seconds between two looks at the folder where it cannot be observed
CHANGES = {"created", "modified", "moved", "deleted", "closed"}  # not "opened": reading a run changes nothing


class Watch(FileSystemEventHandler):
    """Counts the changes of the `.json` files in a folder. Nothing runs between two calls of `version` but the observer."""

    def __init__(self, folder: Path, observer=Observer):
        self._folder, self._lock = folder, threading.Lock()
        self._version, self._first, self._last, self._lost = 0, None, 0.0, False
        self._seen, self._looked, self._identity = self._look(), time.monotonic(), self._identify()
        self._observer = observer()
        self._observer.daemon = True
        try:
            self._observer.schedule(self, str(folder), recursive=False)
            self._observer.start()
        except Exception as e:  # no inotify watches left, an unsupported file system: each platform has its own error
            log.warning("The folder %s cannot be observed (%s); it is looked at every %s s instead", folder, e, POLL)
            self._observer = None

    def version(self) -> int:
        """Grows when runs came, went or changed."""
        with self._lock:
            now = time.monotonic()
            if self._first is not None and (now - self._last >= QUIET or now - self._first >= LONGEST):
                self._first = None
                self._version += 1
            if now - self._looked >= POLL and not self._observed():
                seen, self._looked = self._look(), now
                if seen != self._seen:
                    self._seen = seen
                    self._version += 1
            return self._version

    def bump(self) -> None:
        """Count a change this process made, without waiting for the news of it."""
        with self._lock:
            self._version += 1

    def on_any_event(self, event: FileSystemEvent) -> None:
        names = (os.fsdecode(event.src_path), os.fsdecode(event.dest_path or ""))
        if event.event_type in ("deleted", "moved") and names[0] == str(self._folder):
            self._lost = True
        if event.event_type in CHANGES and any(name.endswith(".json") for name in names):
            with self._lock:
                self._last = time.monotonic()
                if self._first is None:
                    self._first = self._last

    def close(self) -> None:
        if self._observer is not None and self._observer.is_alive():
            self._observer.stop()
            self._observer.join(5)

    def _observed(self) -> bool:
        """Never again once the folder was removed: an observer goes on looking at the one that is gone."""
        self._lost = self._lost or self._identify() != self._identity
        return self._observer is not None and self._observer.is_alive() and not self._lost

    def _identify(self) -> tuple[int, int] | None:
        try:
            stat = os.stat(self._folder)
        except OSError:
            return None
        return stat.st_dev, stat.st_ino

    def _look(self) -> frozenset:
        try:
            with os.scandir(self._folder) as entries:
                found = [(e.name, e.stat()) for e in entries if e.name.endswith(".json")]
            return frozenset((name, stat.st_mtime_ns, stat.st_size) for name, stat in found)
        except OSError:
            return frozenset()
