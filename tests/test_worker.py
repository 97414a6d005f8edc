"""The one worker: order, stop, failures, and that nobody's run touches another's."""

import dataclasses
import gc
import threading
import time
import weakref

import pytest

from cache.loaded import Loaded
from cache.store import Store
from cache.worker import Worker
from engine.errors import RequestError
from engine.request import CompareRequest, Done, Stage, Step
from engine.trace import Round, Settings
from tests.sample import sample_run
from tests.stored import until


@pytest.fixture
def start():
    workers = []

    def make(**how):
        workers.append(Worker(**how))
        return workers[-1]

    yield make
    for worker in workers:
        worker.close(10)


def request(prompt="Hello", max_tokens=8, repeats=1):
    return CompareRequest(prompt, "bundled:a", "bundled:b", settings=Settings(max_tokens=max_tokens, repeats=repeats))


def step(side, number, *, repeat=1, size=1, seconds=0.1):
    """Round `number` (from 1) of a side at `size` tokens in `seconds`."""
    ids = tuple(range(number * 10, number * 10 + size))
    return Step(side, repeat, Round(emitted=ids, end=number * seconds), {i: f"{i % 256:02x}" for i in ids})


def writing(prompt, count=6, pause=0.0, gate=None):
    """A task that writes `count` rounds, each token's bytes being the prompt's, and keeps to `stop`."""
    def task(stop):
        yield Stage("Verifier only", "plain")
        written = 0
        for i in range(count):
            if gate is not None:
                gate.wait(10)
            if stop():
                break
            time.sleep(pause)
            yield Step("plain", 1, Round(emitted=(i,), end=(i + 1) * 0.1), {i: f"{prompt}{i}".encode().hex()})
            written += 1
        run = sample_run(tokens=max(1, written), prompt=prompt, status="done" if written == count else "stopped")
        yield Done(dataclasses.replace(run, id=f"20261201-120000-{abs(hash(prompt)) % 16**6:06x}"))
    return task


def test_a_job_goes_from_queued_to_done_and_hands_its_run_over(start):
    kept = []
    worker = start(on_done=lambda run: kept.append(run) or run.id)
    gate = threading.Event()
    job = worker.submit(request(), writing("a", 3, gate=gate), "Compare", owner="session 1")
    until(lambda: job.status == "running" and job.snapshot().stage == "Verifier only")
    gate.set()
    assert job.wait(10)
    view = job.snapshot()
    assert (view.status, view.error, view.owner, view.title) == ("done", None, "session 1", "Compare")
    assert [run.prompt.text for run in kept] == ["a"] and view.run_id == kept[0].id and view.run is None
    assert view.seconds_left is None and view.started >= view.submitted and view.finished >= view.started


def test_a_snapshot_shows_the_rounds_so_far_and_never_changes_afterwards(start):
    worker, gate, more = start(), threading.Event(), threading.Event()

    def task(stop):
        yield Stage("Verifier only, repeat 1 of 2", "plain", 1, 2)
        yield step("plain", 1)
        yield step("plain", 2)
        yield step("speculative", 1, size=3)
        gate.set()
        more.wait(10)
        yield step("speculative", 5, repeat=2, size=2)
        yield Done(sample_run())

    job = worker.submit(request(repeats=2), task, "Compare")
    assert gate.wait(10)
    until(lambda: "speculative" in job.snapshot().sides)
    before = job.snapshot()
    plain, speculative = before.sides["plain"], before.sides["speculative"]
    assert [s.round.emitted for s in plain.steps] == [(10,), (20,)] and not plain.decoding and speculative.decoding
    assert plain.tokens_per_second == pytest.approx(10) and speculative.tokens_per_second == pytest.approx(30)
    assert before.repeats == 2
    more.set()
    assert job.wait(10)
    after = job.snapshot()
    assert before.sides["speculative"] is speculative and len(speculative.steps) == 1 and before.status == "running"
    assert before.tokens == {10: "0a", 20: "14", 11: "0b", 12: "0c"} and set(after.tokens) == {10, 11, 12, 20, 50, 51}
    assert after.version > before.version and [s.round.emitted for s in after.sides["speculative"].steps] == [(50, 51)]
    assert (after.sides["speculative"].repeat, after.sides["speculative"].tokens, after.sides["speculative"].total) == (2, 2, 5)
    with pytest.raises(dataclasses.FrozenInstanceError):
        before.status = "done"


def test_seconds_left_follows_rates_repeats_and_early_ends(start):
    worker, gates, reached = start(), [threading.Event() for _ in range(3)], [threading.Event() for _ in range(3)]

    def task(stop):
        for at, event in enumerate([step("plain", 1), step("speculative", 1, size=4, seconds=0.2),
                                    step("plain", 1, repeat=2)]):
            yield event
            reached[at].set()
            gates[at].wait(10)
        yield Done(sample_run())

    job = worker.submit(request(max_tokens=8, repeats=2), task, "Compare")
    queued = worker.submit(request(max_tokens=8, repeats=2), writing("b", gate=(hold := threading.Event())), "Compare")
    assert queued.snapshot().seconds_left is None
    assert reached[0].wait(10)
    # plain at 10 tokens/s: 16 − 1 tokens left, and 16 of the other side at the same rate
    assert job.snapshot().seconds_left == pytest.approx((15 + 16) / 10)
    assert worker.seconds_ahead(queued) == pytest.approx(3.1)
    gates[0].set()
    assert reached[1].wait(10)
    # plain ended its first repeat after 1 token, so 1 more is expected; speculative at 20 tokens/s has 16 − 4 left
    assert job.snapshot().seconds_left == pytest.approx(1 / 10 + 12 / 20)
    gates[1].set()
    assert reached[2].wait(10)
    assert job.snapshot().seconds_left == pytest.approx(0 + 4 / 20)
    gates[2].set()
    assert job.wait(10)
    until(lambda: queued.status == "running")
    # the same models ran before, at 10 and 20 tokens/s
    assert queued.snapshot().seconds_left == pytest.approx(16 / 10 + 16 / 20)
    hold.set()
    assert queued.wait(10) and queued.snapshot().seconds_left is None


def test_two_people_pressing_run_together_get_their_own_texts_from_one_thread(start):
    """ML-06: an engine that refuses a second thread and re-entry; each session's text equals its own single run."""
    kept, seen, inside = {}, set(), threading.Lock()
    worker = start(on_done=lambda run: kept.__setitem__(run.prompt.text, run) or run.id)

    class Model:
        facts = dataclasses.replace(sample_run().models["verifier"])
        home = None

        def __init__(self):
            self.home = threading.get_ident()

        def write(self, prompt):
            assert threading.get_ident() == self.home, "called on another thread than it was loaded on"
            assert inside.acquire(blocking=False), "entered twice"
            try:
                seen.add(threading.get_ident())
                time.sleep(0.001)
                return prompt.upper()
            finally:
                inside.release()

        def close(self):
            pass

    loaded = Loaded(load=lambda name, **how: Model())

    def task_of(prompt):
        def task(stop):
            with loaded.using() as get:
                model = get("bundled:a")
                for i in range(20):
                    yield Step("plain", 1, Round(emitted=(i,), end=i + 1.0), {i: model.write(prompt).encode().hex()})
            yield Done(dataclasses.replace(sample_run(prompt=prompt), id=""))
        return task

    jobs, together = {}, threading.Barrier(8)

    def press(owner):
        together.wait(10)
        jobs[owner] = worker.submit(request(owner), task_of(owner), "Compare", owner=owner)

    people = [threading.Thread(target=press, args=(f"person {i}",)) for i in range(8)]
    texts = {}
    for person in people:
        person.start()
    for person in people:
        person.join(10)
    for owner, job in jobs.items():
        while not job.wait(0.001):
            view = job.snapshot()
            texts.setdefault(owner, set()).update(view.tokens.values())
    assert [job.snapshot().error for job in jobs.values()] == [None] * 8
    assert set(kept) == set(jobs) and len(seen) == 1 and threading.get_ident() not in seen
    assert all(found <= {owner.upper().encode().hex()} for owner, found in texts.items())
    assert any(texts.values()), "no job was seen on its way"
    assert worker.jobs(owner="person 3") == [jobs["person 3"]]


def test_positions_count_the_running_job_and_a_queued_one_can_be_taken_out(start):
    worker, gate = start(), threading.Event()
    first, second, third = (worker.submit(request(name), writing(name, gate=gate), name) for name in "abc")
    until(lambda: first.status == "running")
    assert [worker.position(job) for job in (first, second, third)] == [0, 1, 2]
    assert worker.stop(second) and second.status == "stopped" and second.run_id is None
    assert worker.position(third) == 1
    gate.set()
    assert third.wait(10) and third.status == "done"
    assert not worker.stop(second) and not worker.stop("unknown") and second.snapshot().started is None


def test_stop_keeps_the_partial_run_and_the_next_run_works(start, tmp_path):
    """ST-04, the worker's part; ST-10: what was finished or stopped is listed from disk by whoever comes next."""
    store = Store(tmp_path)
    worker = start(on_done=store.save)
    job = worker.submit(request("a"), writing("a", count=10_000, pause=0.002), "Compare")
    until(lambda: job.snapshot().sides and job.snapshot().sides["plain"].tokens >= 3)
    assert worker.stop(job.id)
    pressed = time.monotonic()
    assert job.wait(10) and time.monotonic() - pressed < 1
    assert job.status == "stopped"
    following = worker.submit(request("b"), writing("b"), "Compare")
    assert following.wait(10) and following.status == "done"
    another = Store(tmp_path)
    assert {(line.prompt, line.status) for line in another.list()} == {("a", "stopped"), ("b", "done")}
    assert another.get(job.run_id) == store.get(job.run_id) and 3 <= len(another.get(job.run_id).plain.ids) < 10_000


def test_a_polling_page_neither_blocks_the_worker_nor_waits_for_it(start):
    worker, slow = start(), threading.Event()

    def task(stop):
        yield step("plain", 1)
        slow.wait(10)  # a token that takes long
        yield Done(sample_run())

    job = worker.submit(request(), task, "Compare")
    until(lambda: job.snapshot().sides)
    began = time.monotonic()
    for _ in range(200):
        job.snapshot(), worker.jobs(), worker.position(job)
    assert time.monotonic() - began < 2
    slow.set()
    assert job.wait(10)


@pytest.mark.parametrize("failure, words", [
    (RequestError("There is no model there; choose another."), "There is no model there; choose another."),
    (ZeroDivisionError("secret 123"), "“Compare” broke off because of an error inside SpecLens (ZeroDivisionError)"),
    (MemoryError(), "not enough memory"),
    (SystemExit(3), "SystemExit"),
])
@pytest.mark.parametrize("late", [False, True])
def test_a_crashed_job_says_so_in_a_sentence_and_the_thread_lives(start, caplog, failure, words, late):
    worker = start()

    def task(stop):
        if late:
            yield step("plain", 1)
        raise failure

    job = worker.submit(request(), task, "Compare")
    assert job.wait(10)
    view = job.snapshot()
    assert view.status == "failed" and words in view.error and "secret" not in view.error and "\n" not in view.error
    assert ("Traceback" in caplog.text) == (not isinstance(failure, RequestError))
    assert not late or len(view.sides["plain"].steps) == 1, "what was written before stays to be read"
    following = worker.submit(request("b"), writing("b"), "Compare")
    assert following.wait(10) and following.status == "done"


def test_a_task_that_is_no_iterator_or_ends_without_a_run_fails_with_a_sentence(start):
    worker = start()
    jobs = [worker.submit(request(), task, "Compare") for task in (lambda stop: None, lambda stop: iter(()))]
    assert all(job.wait(10) for job in jobs)
    assert [job.status for job in jobs] == ["failed", "failed"] and "without a result" in jobs[1].error


def test_a_run_that_cannot_be_saved_is_not_lost(start):
    def full(run):
        raise RequestError("The disk is full; free some space.")
    job = start(on_done=full).submit(request("a"), writing("a"), "Compare")
    assert job.wait(10)
    view = job.snapshot()
    assert (view.status, view.error, view.run_id) == ("done", "The disk is full; free some space.", None)
    assert view.run.prompt.text == "a" and len(view.sides["plain"].steps) == 6


def test_ended_jobs_beyond_the_last_few_are_forgotten_with_all_they_held(start):
    worker = start(on_done=lambda run: run.id, keep=3)

    class Ballast:
        pass

    ballast = Ballast()
    alive = weakref.ref(ballast)

    def holding(ballast):
        def task(stop):
            yield Done(sample_run(prompt=str(ballast)))
        return task

    first = worker.submit(request(), holding(ballast), "Compare")
    del ballast
    assert first.wait(10)
    jobs = [worker.submit(request(str(i)), writing(str(i)), "Compare") for i in range(6)]
    assert all(job.wait(10) for job in jobs)
    until(lambda: len(worker.jobs()) == 3)
    assert worker.jobs() == jobs[-3:] and worker.find(first.id) is None and worker.find(jobs[-1].id) is jobs[-1]
    gc.collect()
    assert alive() is None, "an ended job keeps its task's models"


def test_the_same_thread_runs_every_job(start):
    worker, threads = start(), []

    def task(stop):
        threads.append((threading.get_ident(), threading.current_thread().daemon))
        yield Done(sample_run())

    jobs = [worker.submit(request(), task, "Compare") for _ in range(5)]
    assert all(job.wait(10) for job in jobs)
    assert len(set(threads)) == 1 and threads[0][1]
