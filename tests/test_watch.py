"""News of changes in the runs folder, observed or, where that cannot be, looked for."""

import errno
import logging
import shutil
import time

from watchdog.observers import Observer

from cache.store import Store
from cache.watch import Watch
from tests.stored import run_number, store, until  # noqa: F401


def test_the_version_grows_once_for_a_run_another_process_wrote_and_not_for_reading(store):
    before = store.version()
    Store(store.folder).save(run_number(1))
    until(lambda: store.version() > before)
    time.sleep(0.5)
    settled = store.version()
    assert settled == before + 1, "one saved run counts as one change"
    store.list()
    store.get(run_number(1).id)
    time.sleep(0.5)
    assert store.version() == settled
    (store.folder / f"{run_number(1).id}.json").unlink()
    until(lambda: store.version() > settled)


def test_what_this_process_changes_counts_at_once(store):
    before = store.version()
    id = store.save(run_number(1))
    assert store.version() > before
    between = store.version()
    store.delete(id)
    assert store.version() > between


def test_where_the_folder_cannot_be_observed_it_is_looked_at_and_the_log_says_so(tmp_path, caplog):
    class NoWatchesLeft(Observer):
        def start(self):
            raise OSError(errno.ENOSPC, "inotify watch limit reached")

    with caplog.at_level(logging.WARNING):
        watch = Watch(tmp_path, observer=NoWatchesLeft)
    assert "cannot be observed" in caplog.text and "watch limit reached" in caplog.text
    before = watch.version()
    Store(tmp_path).save(run_number(1))
    until(lambda: watch.version() > before)
    settled = watch.version()
    time.sleep(0.6)
    assert watch.version() == settled
    watch.close()


def test_a_dead_observer_is_replaced_by_looking(tmp_path):
    watch = Watch(tmp_path)
    watch.close()
    before = watch.version()
    (tmp_path / "a.json").write_text("{}")
    until(lambda: watch.version() > before)


def test_a_folder_that_was_removed_and_made_again_is_still_noticed(store):
    store.version()
    shutil.rmtree(store.folder)
    until(lambda: Store(store.folder).list() == [])
    time.sleep(1.2)
    before = store.version()
    Store(store.folder).save(run_number(1))
    until(lambda: store.version() > before)
