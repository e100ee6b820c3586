"""Tests the fault suite itself: without a protection, the suite must go red.

Each mutant takes one protection out of a scratch copy of the code; the tests that stand for it are
run there and must fail. First the same tests must pass in a copy that nobody changed. Run by
`make faults-mutants`; exits 1 when a mutant survives.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

HOME = Path(__file__).parents[2]

COPIED = (
    "nightshift",
    "common",
    "producer",
    "worker",
    "tests",
    "examples",
    "docs",
    "pyproject.toml",
)

TESTS_FAILED = 1
"""pytest's exit code for red; anything above means that it could not run the tests."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One protection: the text that is it, what stands there without it, and who must notice."""

    protection: str
    file: str
    text: str
    without: str
    tests: tuple[str, ...]


RACE = "tests/faults/test_race.py"
HELD = "tests/unit/test_held_batch.py"
STORES = "tests/integration/test_store_requests.py"
FROZEN = "tests/faults/test_frozen.py"
CONTROL = "tests/faults/test_control_races.py"
WALLS = "tests/integration/test_tenant_walls.py"
RUNNER = "tests/integration/test_batch_runner.py"
SHARES = "tests/integration/test_shares.py"
HANGS = "test_the_batch_of_a_thread_that_hangs_is_given_back_and_its_neighbour_goes_on"
FOLDER = "tests/faults/test_one_folder.py"
SUSPENDED = "tests/integration/test_suspended_reapers.py"
OWNER = "tests/integration/test_output_owner.py"
SUBMITS = "tests/integration/test_submits_at_once.py"
PERMITS = "tests/unit/test_permits.py"
REMOTE = "tests/integration/test_openai_engine.py"
UNUSUAL = "tests/integration/test_unusual_answers.py"
ENDS = "test_a_row_that_ends_its_host_fails_alone_and_the_next_batch_is_served"
FUNCTIONS = "tests/unit/test_function_engine.py"
PLAN = "tests/integration/test_plan.py"
HANDOVERS = "tests/integration/test_handovers.py"
LEDGER = "tests/integration/test_ledger.py"
VERSIONS = "tests/integration/test_versions.py"
SPENDING = "tests/integration/test_spending.py"
RETENTION = "tests/integration/test_retention.py"
RETURNS = "tests/integration/test_retention_races.py"
LOADS = "tests/integration/test_loads.py"
IDLE = "tests/integration/test_idle_children.py"
SET = "tests/integration/test_set.py"
DELETE = "tests/integration/test_delete.py"
RESULTS = "tests/integration/test_console_results.py"
MEND = "tests/integration/test_console_mend.py"
STANDINGS = "tests/integration/test_standings.py"
GC = "tests/integration/test_gc.py"
REDO = "tests/integration/test_redo.py"
HOOKS = "tests/integration/test_webhook_delivery.py"
HOOK_NAMES = "tests/integration/test_webhook_addresses.py"
PREEMPT = "tests/faults/test_preempt.py"
DRAINED = "test_a_drained_worker_gives_its_work_to_others_and_serves_again_when_it_may"
GROWTH = "tests/integration/test_growth.py"
STRANGERS = "tests/integration/test_table_strangers.py"
TABLES = "tests/integration/test_table_commits.py"

MUTANTS = (
    Mutant(
        "rows move out of a batch that runs alone",
        "worker/held_batch.py",
        "Move.HAND_OVER: {State.RUNNING: State.MOVING}",
        "Move.HAND_OVER: {State.RUNNING: State.MOVING, State.STOPPED: State.MOVING}",
        (HELD,),
    ),
    Mutant(
        "a stop that came while rows moved",
        "worker/held_batch.py",
        "State.MOVING_STOPPED: State.STOPPED,",
        "State.MOVING_STOPPED: State.RUNNING,",
        (HELD,),
    ),
    Mutant(
        "a batch that left the engine while rows moved",
        "worker/held_batch.py",
        "        State.MOVING: State.MOVING_LEFT,\n",
        "",
        (HELD,),
    ),
    Mutant(
        "batches that the heartbeat ended where no thread can be started",
        "worker/heartbeat.py",
        "            self.give_back(given)\n",
        "            pass\n",
        ("tests/unit/test_heartbeat.py",),
    ),
    Mutant(
        "work that comes while rows move waits",
        "worker/held_batch.py",
        "            self._wait_for_rows()\n            self.work, self._was_attached = work, True\n",
        "            self.work, self._was_attached = work, True\n",
        (HELD,),
    ),
    Mutant(
        "a stop before the next round",
        "worker/held_batch.py",
        "        State.LEFT: State.PUBLISHING,\n    },\n    Move.LEAVE",
        "    },\n    Move.LEAVE",
        (HELD,),
    ),
    Mutant(
        "a batch that was stopped leaves for its part alone",
        "worker/held_batch.py",
        "State.STOPPED: State.PUBLISHING,\n",
        "State.STOPPED: State.LEFT,\n",
        (HELD,),
    ),
    Mutant(
        "a next round of a batch that left the engine alone",
        "worker/held_batch.py",
        "Move.AGAIN: {State.LEFT: State.RUNNING}",
        "Move.AGAIN: {State.LEFT: State.RUNNING, State.STOPPED: State.RUNNING}",
        (HELD,),
    ),
    Mutant(
        "no row moves out of a part",
        "worker/held_batch.py",
        "        (State.RUNNING, State.STOPPED, State.LEFT, State.PUBLISHING), State.PUBLISHING\n",
        "        (State.STOPPED, State.LEFT, State.PUBLISHING), State.PUBLISHING\n",
        (HELD,),
    ),
    Mutant(
        "a part that is being committed alone counts",
        "worker/held_batch.py",
        "Move.COMMIT: {State.PUBLISHING: State.COMMITTED}",
        "Move.COMMIT: {State.PUBLISHING: State.COMMITTED, State.OVER: State.COMMITTED}",
        (HELD,),
    ),
    Mutant(
        "a part that is being committed is not lost",
        "worker/held_batch.py",
        "Move.LOSE: dict.fromkeys((State.RUNNING, State.STOPPED), State.OVER)",
        "Move.LOSE: dict.fromkeys((State.RUNNING, State.STOPPED, State.PUBLISHING), State.OVER)",
        (HELD,),
    ),
    Mutant(
        "a part that is being committed is not given back",
        "worker/held_batch.py",
        "Move.UNWANT: dict.fromkeys((State.RUNNING, State.STOPPED), State.OVER)",
        "Move.UNWANT: dict.fromkeys((State.RUNNING, State.STOPPED, State.PUBLISHING), State.OVER)",
        (HELD,),
    ),
    Mutant(
        "a batch whose rows move is not given up",
        "worker/held_batch.py",
        "Move.GIVE_UP: dict.fromkeys(\n        (State.RUNNING, ",
        "Move.GIVE_UP: dict.fromkeys(\n        (State.MOVING, State.RUNNING, ",
        (HELD,),
    ),
    Mutant(
        "a batch ends once",
        "worker/held_batch.py",
        "Move.END: dict.fromkeys(\n        (State.RUNNING, ",
        "Move.END: dict.fromkeys(\n        (State.OVER, State.RUNNING, ",
        (HELD,),
    ),
    Mutant(
        "who publishes waits until no row moves",
        "worker/held_batch.py",
        "            if move in WAITING:\n",
        "            if False:\n",
        (f"{HELD}::test_who_would_publish_or_end_a_batch_waits_until_no_row_of_it_moves",),
    ),
    Mutant(
        "two looks before a watched file is planned",
        "producer/submit/changes.py",
        "            if now - known.seen_at >= apart:\n",
        "            if now >= known.seen_at:\n",
        ("tests/unit/test_growth.py",),
    ),
    Mutant(
        "a watched job stays open",
        "common/ledger/jobs/job_end.py",
        """
                            AND NOT EXISTS (SELECT FROM job_watches w WHERE w.job_id = j.id)""",
        "",
        (f"{GROWTH}::test_a_job_that_is_watched_is_finished_by_nobody_until_it_is_cancelled",),
    ),
    Mutant(
        "appends of one job wait for each other",
        "producer/submit/intake.py",
        "        job_submit.lock(connection, job.identity)\n        if look is not None",
        "        if look is not None",
        (f"{GROWTH}::test_two_appends_at_once_add_every_file_once",),
    ),
    Mutant(
        "an append looks for its copies under the lock of the sweep",
        "producer/submit/intake.py",
        "        if not convert.are_there(job.spec.input, job.output_uri, ordered.files):\n",
        "        if False:\n",
        (f"{GROWTH}::test_copies_of_an_append_outlive_a_finish_that_sweeps",),
    ),
    Mutant(
        "what somebody writes is not swept",
        "common/storage/unfinished.py",
        "        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)\n        return",
        "        return",
        ("tests/unit/test_unfinished.py::test_only_what_nobody_writes_counts_as_left",),
    ),
    Mutant(
        "a sweep of copies holds its lock until the last removal",
        "common/formats/convert.py",
        "            before()\n",
        "",
        (f"{GROWTH}::test_a_sweep_that_lost_its_lock_takes_no_copy_of_a_later_append",),
    ),
    Mutant(
        "an append makes a manifest stale that is being written",
        "producer/submit/growing.py",
        "    jobs.count_change(connection, job.id)\n",
        "",
        (f"{GROWTH}::test_an_append_while_the_job_closes_is_in_the_manifest_that_stays",),
    ),
    Mutant(
        "a retry takes the files of its generations back",
        "producer/retry.py",
        "    return piece, generations.reopen(connection, job.id) if piece.batches else []\n",
        "    return piece, []\n",
        (f"{GROWTH}::test_a_retry_takes_the_file_of_a_generation_back_until_its_rows_are_done",),
    ),
    Mutant(
        "fence",
        "common/ledger/batches/commit.sql",
        "WHERE b.attempt = m.attempt AND b.owner = m.owner\n      -- In a job",
        "WHERE b.owner = m.owner\n      -- In a job",
        (f"{RACE}::test_one_winner_whatever_the_interleaving",),
    ),
    Mutant(
        "owner check",
        "common/ledger/batches/commit.sql",
        "WHERE b.attempt = m.attempt AND b.owner = m.owner\n      -- In a job",
        "WHERE b.attempt = m.attempt\n      -- In a job",
        (f"{RACE}::test_a_commit_said_twice_does_not_undo_a_retry_in_between",),
    ),
    Mutant(
        "queued batches that follow their job beside an admission",
        "common/ledger/jobs/job_changes.py",
        """q.rank < j.requeue_below OR q.priority <> j.priority
                          OR q.queue <> concat_ws('.', j.pool, j.engine_key)""",
        "q.rank < j.requeue_below",
        (f"{SET}::test_an_admission_that_read_the_old_pool_is_taken_back",),
    ),
    Mutant(
        "a mark of a change that came while an earlier one was settled",
        "common/ledger/jobs/job_changes.py",
        "WHERE id = :id AND requeue_below = :below FOR NO KEY",
        "WHERE id = :id FOR NO KEY",
        (f"{SET}::test_a_job_that_changed_after_a_reaper_read_it_is_settled_again",),
    ),
    Mutant(
        "shorter grace of a machine that is taken away",
        "worker/celery_app.py",
        "        if self._supervisor.is_preempted:\n",
        "        if False:\n",
        (f"{PREEMPT}::test_a_notice_drains_in_less_time_and_keeps_every_finished_row",),
    ),
    Mutant(
        "a batch begins only while it is validating",
        "producer/serve/ledger/api_batch_steps.py",
        "        estimated_tokens = :tokens\n    WHERE id = :id AND state = 'validating' AND {HELD}\n"
        '""")\n"""The file is good: the batch is a job from now on."""\n',
        "        estimated_tokens = :tokens\n    WHERE id = :id\n"
        '""")\n"""The file is good: the batch is a job from now on."""\n',
        (
            "tests/integration/test_batch_duties.py::test_a_cancel_while_the_file_is_read_leaves_no_job",
        ),
    ),
    Mutant(
        "creates of one request wait for each other",
        "producer/serve/ledger/api_batches.py",
        'text("SELECT pg_advisory_xact_lock(:lock, hashtext(:request))")',
        'text("SELECT :lock, :request")',
        (
            "tests/integration/test_batch_creates.py"
            "::test_a_create_whose_first_try_still_runs_waits_for_it",
        ),
    ),
    Mutant(
        "plan without cordoned slots",
        "common/ledger/fleet/pool_plans.py",
        "          AND (s.supervisor, s.slot) NOT IN (SELECT supervisor, slot FROM cordoned_slots)\n",
        "",
        ("tests/integration/test_cordons.py",),
    ),
    Mutant(
        "drain of a cordoned machine",
        "worker/supervisor/supervisor.py",
        "            if order.drained:\n",
        "            if False:\n",
        (f"{PREEMPT}::{DRAINED}",),
    ),
    Mutant(
        "redo of the part that is gone and of no newer one",
        "common/ledger/batches/lost_parts.py",
        "lost.id = b.id AND lost.part_name = b.part_name",
        "lost.id = b.id",
        (f"{REDO}::test_a_part_that_was_replaced_meanwhile_is_left_alone",),
    ),
    Mutant(
        "live parts that gc leaves alone",
        "producer/control/garbage.py",
        "    return left + found.unneeded(live, strangers=False)\n",
        "    return left + found.unneeded((), strangers=False)\n",
        (f"{GC}::test_orphans_are_shown_first_and_deleted_when_told_so",),
    ),
    Mutant(
        "delete of what the ledger names alone",
        "producer/control/deletion.py",
        "            if name in named:\n",
        "            if True:\n",
        (f"{DELETE}::test_with_output_exactly_the_files_of_the_job_go",),
    ),
    Mutant(
        "marker before files are deleted",
        "producer/control/deletion.py",
        "    if not OwnedDirectory.of_job(ledger, job).is_owned():\n        return 0\n",
        "",
        (f"{DELETE}::test_a_deletion_that_was_cut_off_goes_on_and_nothing_runs_the_job_meanwhile",),
    ),
    Mutant(
        "end of a batch that was handed over",
        "common/ledger/batches/handovers.py",
        "outcome = 'released', error = :error",
        "outcome = 'split', error = :error",
        (
            f"{HANDOVERS}::test_a_commit_under_the_lease_of_before_is_refused_and_was_never_committed",
        ),
    ),
    Mutant(
        "read-back",
        "worker/publish/commit.py",
        "            if not commits.is_committed(connection, lease):\n",
        "            if True:\n",
        ("tests/faults/test_commit_cut.py",),
    ),
    Mutant(
        "list before ledger",
        "producer/reaper/output_directory.py",
        """    reached(Moment.SWEEPING)
    with ledger.transaction() as connection:
        if job_end.open_work(connection, job.id).may_commit:
            return False
    live = {name for name, _ in part_files.names(ledger, job)}
""",
        """    live = {name for name, _ in part_files.names(ledger, job)}
    reached(Moment.SWEEPING)
    found = listed(job)
""",
        ("tests/faults/test_finish.py::test_a_late_sweep_deletes_no_part_of_a_retry",),
    ),
    Mutant(
        "a file about a job gets its name only while the directory is the job's",
        "producer/submit/owned_files.py",
        """        with ledger.transaction() as connection:
            _hold(connection, directory, job)
            yield
""",
        "        yield\n",
        (f"{SUSPENDED}::test_a_manifest_of_a_job_that_was_deleted_gets_no_name",),
    ),
    Mutant(
        "a submit removes files of earlier jobs that have not got their name",
        "producer/submit/owned_files.py",
        '    for folder in ("", part_names.GENERATIONS, part_names.ARCHIVE):\n',
        "    for folder in ():\n",
        (f"{SUSPENDED}::test_a_manifest_whose_reaper_is_suspended_after_the_last_check",),
    ),
    Mutant(
        "a manifest is deleted only while the directory is the job's",
        "producer/submit/owned_files.py",
        "    _hold(connection, directory, job)\n    storage.delete(uri)\n",
        "    storage.delete(uri)\n",
        (
            f"{SUSPENDED}::test_a_manifest_that_is_about_to_be_deleted_since_a_retry_came",
            f"{SUSPENDED}::test_the_file_of_a_generation_that_is_about_to_be_deleted_since_its_rows_run_again",
        ),
    ),
    Mutant(
        "a worker deletes a replaced part only while its job is there",
        "worker/publish/publish.py",
        "        if is_known:\n            storage.delete(uri)\n",
        "        storage.delete(uri)\n",
        (f"{SUSPENDED}::test_a_part_that_a_worker_has_replaced_and_is_about_to_delete",),
    ),
    Mutant(
        "a sweep takes parts only while the directory is the job's",
        "producer/submit/owned_files.py",
        """                lock(connection, job)
                if time""",
        "                if time",
        (f"{SUSPENDED}::test_a_part_that_is_about_to_be_swept",),
    ),
    Mutant(
        "gc owns the folder from its look at the jobs to the last deletion",
        "producer/control/homes.py",
        "        with home_lock(home, seconds=OWN_SECONDS):\n            refuse_no_ledger(home)\n            _refuse_needed(settings, home)\n",
        "        with home_lock(home, seconds=OWN_SECONDS) as lock:\n            refuse_no_ledger(home)\n            _refuse_needed(settings, home)\n            lock.release()\n",
        (f"{FOLDER}::test_a_submit_waits_for_a_gc_and_finds_no_ledger",),
    ),
    Mutant(
        "a command shares the folder while it uses the server that it has started",
        "producer/connect.py",
        "    lock.share()\n",
        "    lock.release()\n",
        (f"{FOLDER}::test_gc_deletes_no_ledger_into_which_a_command_puts_a_job",),
    ),
    Mutant(
        "SKIP LOCKED",
        "common/ledger/batches/claim.sql",
        "    FOR UPDATE OF b SKIP LOCKED\n",
        "    FOR UPDATE OF b\n",
        (f"{RACE}::test_a_claim_that_hangs_in_its_transaction_stops_nobody",),
    ),
    Mutant(
        "renew",
        "worker/heartbeat.py",
        "                connection, self.child.who.owner, leases, ",
        "                connection, self.child.who.owner, [], ",
        (f"{FROZEN}::test_leases_obey_the_clock_of_the_database_alone",),
    ),
    Mutant(
        "owners taken before the sweep",
        "producer/reaper/finish.py",
        """    if not _owners_are_gone(ledger, job):
        return
""",
        "",
        (
            f"{CONTROL}::test_a_commit_that_began_before_a_cancel_never_names_a_part_that_finish_removed",
        ),
    ),
    Mutant(
        "no sweep while an owner is left",
        "common/ledger/jobs/job_end.py",
        "bool(self.leased or self.owned or ",
        "bool(self.leased or ",
        (
            f"{CONTROL}::"
            "test_a_retry_in_the_middle_of_a_finish_leaves_no_part_that_is_named_and_removed",
        ),
    ),
    Mutant(
        "no close past a retry",
        "producer/reaper/finish.py",
        "again = now is not None and now.closed_at is None and now.retries != job.retries",
        "again = False",
        (
            f"{CONTROL}::"
            "test_a_retry_that_begins_and_ends_in_the_middle_of_a_finish_has_its_part_moved",
        ),
    ),
    Mutant(
        "rows that a retry keeps are of the version that made them",
        "common/ledger/batches/commit.sql",
        "CASE WHEN m.ran IS NOT NULL THEN kept_versions(b, m.ran, w.version_id) END",
        "NULL",
        (
            f"{VERSIONS}::test_rows_that_ran_again_are_of_their_last_version_and_kept_rows_of_theirs",
        ),
    ),
    Mutant(
        "no commit after the end",
        "common/ledger/batches/commit.sql",
        "WHERE j.id = ANY (CAST(:job_id AS bigint[])) AND <takes_commits>",
        "WHERE j.id = ANY (CAST(:job_id AS bigint[]))",
        (f"{CONTROL}::test_a_claim_beside_a_cancel_leases_a_batch_that_nobody_can_commit",),
    ),
    Mutant(
        "no commit of a lost lease after the end",
        "common/ledger/batches/commit.sql",
        "(b.state = 'leased' OR j.is_open AND b.state IN ('pending', 'queued'))",
        "b.state IN ('leased', 'pending', 'queued')",
        (f"{LEDGER}::test_a_job_that_is_over_takes_no_late_commit",),
    ),
    Mutant(
        "no commit once a reaper finishes",
        "common/ledger/batches/takes_commits.py",
        "h.until >= j.finished_at",
        "false",
        (f"{LEDGER}::test_a_job_that_is_over_takes_no_late_commit",),
    ),
    Mutant(
        "one finish a job",
        "producer/reaper/finish_jobs.py",
        "            with renewed(ledger, hold):\n",
        "            with suppress():\n",
        (
            "tests/integration/test_finishers.py::"
            "test_two_reapers_never_finish_the_same_job_however_long_it_takes",
        ),
    ),
    Mutant(
        "a job is closed by whoever finishes it now",
        "common/ledger/jobs/job_end.py",
        'WHERE id = :id AND closed_at IS NULL AND {holds.held(Kind.FINISH, "id")}\n',
        "WHERE id = :id AND closed_at IS NULL AND :token > 0\n",
        (f"{LEDGER}::test_who_was_too_slow_closes_no_job",),
    ),
    Mutant(
        "no claim of a paused job",
        "common/ledger/batches/claim.sql",
        """      AND (SELECT j.state FROM jobs j WHERE j.id = b.job_id) = 'running'
      AND NOT EXISTS""",
        "      AND NOT EXISTS",
        (f"{LEDGER}::test_what_is_admitted_beside_a_pause_is_claimed_by_nobody_and_taken_back",),
    ),
    Mutant(
        "engine before job",
        "common/ledger/batches/retries.py",
        "    loads.lock(connection, job_id)\n",
        "",
        (f"{LEDGER}::test_a_retry_and_a_failed_load_lock_in_one_order",),
    ),
    Mutant(
        "many errors before their batch",
        "worker/publish/commit.py",
        "if len(part.errors) <= ERRORS_A_COMMIT:",
        "if True:",
        (
            "tests/integration/test_publish.py::"
            "test_a_batch_with_a_million_row_errors_commits_and_no_renewal_waits_for_it",
        ),
    ),
    Mutant(
        "totals are set",
        "common/ledger/jobs/spending.py",
        "rows_run = greatest(s.rows_run, excluded.rows_run),",
        "rows_run = s.rows_run + excluded.rows_run,",
        (f"{SPENDING}::test_a_report_that_comes_late_takes_nothing_back",),
    ),
    Mutant(
        "report of what was not committed",
        "worker/outcomes.py",
        "            spending.report(connection, lease.owner, spent)\n",
        "",
        (
            "tests/integration/test_batch_runner.py::"
            "test_rows_whose_parts_the_store_refuses_are_paid_each_time_that_they_run",
        ),
    ),
    Mutant(
        "stop at the beat",
        "worker/heartbeat.py",
        """            if batch.lease.job_id in spent_out or batch in keeping:
                batch.stop()
""",
        """            pass
""",
        ("tests/faults/test_control.py::test_a_budget_is_passed_by_no_more_than_a_beat_costs",),
    ),
    Mutant(
        "bytes of a batch",
        "common/formats/parquet/plan.py",
        "if all(batch_rows * row_bytes <= batch_bytes for _, row_bytes in averages):",
        "if True:",
        ("tests/unit/test_planner.py::test_a_batch_of_large_documents_is_bounded_by_its_bytes",),
    ),
    Mutant(
        "bytes of shared texts of a batch",
        "common/formats/parquet/decoded_size.py",
        "            int(_texts(chunk) * values.get(chunk.path_in_schema, 0)),\n",
        "            0,\n",
        (
            "tests/unit/test_planner.py::test_a_document_that_many_rows_share_counts_for_each_of_them",
        ),
    ),
    Mutant(
        "bytes of the lines of a batch",
        "common/formats/jsonl/plan.py",
        "if not scan.rows or int(np.subtract(scan.ends, starts).max()) <= batch_bytes:",
        "if True:",
        ("tests/unit/test_planner.py::test_planner_and_reader_agree_on_every_line",),
    ),
    Mutant(
        "end of a hung stage",
        "worker/heartbeat.py",
        "        self._give_back(held, found)\n",
        "",
        (f"{RUNNER}::{HANGS}",),
    ),
    Mutant(
        "no plan for a lost slot",
        "common/ledger/fleet/pool_plans.py",
        "          AND s.state <> 'lost'\n",
        "",
        (f"{PLAN}::test_a_lost_slot_is_in_no_plan_and_stands_so_in_worker_status",),
    ),
    Mutant(
        "moves of a slow stage",
        "worker/held_batch.py",
        "        self.moves += 1\n",
        "        pass\n",
        (f"{RUNNER}::test_a_template_that_is_slow_and_moves_is_left_alone",),
    ),
    Mutant(
        "publish after commit",
        "worker/publish/publish.py",
        "            reached(Moment.WRITTEN)\n",
        "            reached(Moment.WRITTEN)\n        for each in group:\n            self._move(each)\n",
        (f"{FROZEN}::test_a_worker_frozen_past_its_lease_counts_for_nothing_and_goes_on",),
    ),
    Mutant(
        "archive is proved",
        "producer/archive/leave.py",
        "        table_files.prove(job, file)\n        found_rows",
        "        found_rows",
        (f"{RETENTION}::test_a_file_that_is_not_what_was_written_costs_no_row",),
    ),
    Mutant(
        "archive is proved again",
        "producer/archive/leave.py",
        "            table_files.prove(job, file)\n",
        "            pass\n",
        (f"{RETURNS}::test_no_row_is_deleted_any_more_once_a_file_is_gone",),
    ),
    Mutant(
        "needed rows stay",
        "common/ledger/jobs/archives.py",
        """      AND coalesce(needed_at < now() - make_interval(days => :days), true)
      AND EXISTS""",
        "      AND EXISTS",
        (f"{RETURNS}::test_whoever_needs_the_rows_while_they_are_written_keeps_them",),
    ),
    Mutant(
        "archive fence",
        "common/ledger/jobs/archives.py",
        "FROM job_archives WHERE job_id = :id AND generation = :generation FOR UPDATE",
        "FROM job_archives WHERE job_id = :id FOR UPDATE",
        (f"{RETURNS}::test_no_two_processes_move_the_rows_of_one_job",),
    ),
    Mutant(
        "staging directory",
        "common/formats/part_names.py",
        "return f\"{output_uri.rstrip('/')}/{STAGING}/{name}\"",
        "return f\"{output_uri.rstrip('/')}/{name}\"",
        (f"{FROZEN}::test_a_worker_frozen_past_its_lease_counts_for_nothing_and_goes_on",),
    ),
    Mutant(
        "owner of an output directory",
        "producer/submit/output_owner.py",
        "    if found == wanted:\n",
        "    if found:\n",
        (f"{OWNER}::test_a_second_ledger_is_refused_before_any_work",),
    ),
    Mutant(
        "the owner's directory as a whole",
        "producer/submit/output_owner.py",
        "        if _has_marker(folder):\n",
        "        if False:\n",
        (f"{OWNER}::test_a_directory_inside_another_jobs_is_refused",),
    ),
    Mutant(
        "lock of a job that is being stored",
        "producer/submit/output_owner.py",
        "is_left = is_other and job_submit.try_lock(connection, found.identity)",
        "is_left = is_other",
        (f"{SUBMITS}::test_the_directory_of_a_job_that_is_being_stored_is_not_taken_over",),
    ),
    Mutant(
        "look at the marker under the lock",
        "producer/submit/output_owner.py",
        "now = self.marker() if is_left else None",
        "now = None",
        (
            f"{SUBMITS}::test_a_marker_that_another_submit_replaced_since_the_look_is_not_taken_over",
        ),
    ),
    Mutant(
        "look at the marker in the transaction of the job",
        "producer/submit/intake.py",
        "            directory.hold(connection)\n",
        "",
        (f"{SUBMITS}::test_a_submit_whose_marker_was_taken_over_is_refused",),
    ),
    Mutant(
        "marker of an equal submit",
        "producer/submit/output_owner.py",
        "            if known is None and self.is_owned():\n",
        "            if self.is_owned():\n",
        (f"{SUBMITS}::test_a_submit_that_fails_leaves_the_marker_to_an_equal_one",),
    ),
    Mutant(
        "parts of an equal submit that adopts",
        "producer/submit/output_owner.py",
        "            if jobs.by_identity(connection, self.owner.identity) is not None:\n",
        "            if False:\n",
        (
            f"{SUBMITS}::"
            "test_of_two_submits_that_adopt_at_once_the_slower_removes_no_part_of_the_other",
        ),
    ),
    Mutant(
        "create if absent",
        "common/storage/local.py",
        "            written.link(final)\n",
        "            path.write_bytes(data)\n",
        ("tests/unit/test_places.py::test_a_file_is_made_by_one_of_many_and_never_seen_half",),
    ),
    Mutant(
        "owner of the output in the worker",
        "worker/outputs.py",
        "        owner_marker.refuse_foreign(output_uri, owner, job_id)\n",
        "        pass\n",
        (f"{RUNNER}::test_nothing_is_written_to_a_directory_that_belongs_to_somebody_else_by_now",),
    ),
    Mutant(
        "proof of the output",
        "worker/batch/load.py",
        "            if self._outputs.prove(job.id, spec.output.uri, job.owner):\n",
        "            if False:\n",
        (f"{RUNNER}::test_no_row_is_computed_for_an_output_that_cannot_be_written",),
    ),
    Mutant(
        "a foreign directory charges no batch",
        "worker/outputs.py",
        "        raise StorageUnavailable(marked(error)) from error\n",
        "        raise\n",
        (f"{RUNNER}::test_nothing_is_written_to_a_directory_that_belongs_to_somebody_else_by_now",),
    ),
    Mutant(
        "an output that is never writable pauses its job",
        "worker/outputs.py",
        "waits = self._of(job_id).proof_failed(now, marked(error))",
        "waits = False",
        (f"{RUNNER}::test_a_job_whose_output_is_never_writable_is_paused_with_the_reason",),
    ),
    Mutant(
        "a batch that ends an engine for good is a suspect",
        "worker/outcomes.py",
        "leasing.lose, lease, error",
        "leasing.release, [lease]",
        (
            f"{RUNNER}::test_an_engine_that_cannot_be_started_again_costs_its_child_and_charges_a_suspect_alone",
        ),
    ),
    Mutant(
        "a job whose output cannot be proved is left to others",
        "worker/runner.py",
        "            avoided=self._batches.outputs.avoided(),\n",
        "",
        (f"{SHARES}::test_a_child_claims_nothing_for_an_output_that_has_just_failed",),
    ),
    Mutant(
        "the lease of a commit that is refused",
        "worker/outcomes.py",
        "                self._release(batch)\n                return self._lost(lease)\n",
        "                return self._lost(lease)\n",
        (f"{RUNNER}::test_a_lease_whose_commit_is_refused_since_its_job_is_over_ends_at_once",),
    ),
    Mutant(
        "links in an output directory",
        "common/storage/links.py",
        "    if path.parent.name in OWN_FOLDERS:\n",
        "    if False:\n",
        ("tests/unit/test_places.py::test_a_link_in_place_of_a_folder_of_ours_is_refused",),
    ),
    Mutant(
        "roots of a job in the worker",
        "worker/batch/load.py",
        "            storage.within(job.roots, storage.OF_JOB),\n",
        "            storage.within(None, storage.OF_JOB),\n",
        (f"{WALLS}::test_a_file_that_became_a_link_after_the_submit_is_not_read",),
    ),
    Mutant(
        "places of a table that is read from a copy, in the worker",
        "worker/batch/load.py",
        "else spec.input.places\n",
        "else []\n",
        (
            "tests/integration/test_table_input.py"
            "::test_a_copy_of_a_table_outside_the_roots_of_a_worker_is_not_read",
        ),
    ),
    Mutant(
        "roots of a job around its output",
        "common/ledger/jobs/jobs.py",
        '    storage.keep_within(found["output_uri"], roots, storage.OF_JOB)\n',
        "",
        (
            f"{WALLS}::test_an_output_directory_that_became_a_link_takes_no_part_of_another_tenant",
            f"{WALLS}::test_nothing_of_a_job_that_is_held_to_roots_is_opened_by_its_name",
        ),
    ),
    Mutant(
        "roots of a job in a look at its input",
        "producer/submit/append_command.py",
        "        storage.within(job.roots, storage.OF_JOB),\n",
        "        storage.within(None, storage.OF_JOB),\n",
        (f"{WALLS}::test_a_link_in_a_watched_input_brings_nothing_of_another_tenant",),
    ),
    Mutant(
        "links on the way to a file in a root",
        "common/storage/walls.py",
        "_INTO = os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC\n",
        "_INTO = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC\n",
        (
            "tests/unit/test_walls.py::"
            "test_a_folder_that_is_swapped_for_a_link_all_the_time_leads_nowhere",
        ),
    ),
    Mutant(
        "a folder is walked once",
        "common/storage/listing.py",
        "                if here in seen:\n",
        "                if False:\n",
        (
            "tests/unit/test_storage.py::test_a_file_that_links_reach_twice_counts_once_and_both_paths_are_named",
        ),
    ),
    Mutant(
        "permits in the worker",
        "worker/engines/__init__.py",
        "        permits.check(spec, settings)\n",
        "        pass\n",
        (f"{PERMITS}::test_what_runs_code_needs_the_operators_word_for_the_very_model",),
    ),
    Mutant(
        "word by revision",
        "common/permits/engine_args.py",
        'return revision in (None, "main") and fnmatchcase(model, pattern)',
        "return fnmatchcase(model, pattern)",
        (
            f"{PERMITS}::test_the_word_for_a_model_is_for_its_default_branch_or_for_the_revisions_it_names",
        ),
    ),
    Mutant(
        "place of a model folder",
        "common/permits/models.py",
        "    return str(Path(model).expanduser().resolve())\n",
        "    return model\n",
        (f"{PERMITS}::test_the_word_for_a_folder_is_for_the_folders_that_are_in_it",),
    ),
    Mutant(
        "an answer that its server did not finish is no answer",
        "worker/engines/endings.py",
        "        return ENDINGS.get(finish_reason, Ending.BROKEN)\n",
        "        return ENDINGS.get(finish_reason, Ending.WHOLE)\n",
        (f"{UNUSUAL}::test_the_beginning_of_a_longer_answer_never_fits_a_form",),
    ),
    Mutant(
        "a 2xx response without an answer is requested a bounded number of times",
        "worker/engines/openai/server.py",
        "        if history.unusable < self._policy.unusable_tries:\n            return False\n",
        "        if history.unusable < 10 * self._policy.unusable_tries:\n            return False\n",
        (f"{UNUSUAL}::test_a_chat_completion_is_an_answer_or_a_row_error_and_each_request_counts",),
    ),
    Mutant(
        "requests of a row that ends without an outcome are counted",
        "worker/engines/openai/engine.py",
        "            work.spend(history.usage)\n",
        "",
        (f"{UNUSUAL}::test_only_several_different_rows_in_a_row_without_an_answer_pause_the_job",),
    ),
    Mutant(
        "peer of a remote engine",
        "worker/engines/openai/server.py",
        "    if remotes.is_blocked(peer):\n",
        "    if False:\n",
        (f"{REMOTE}::test_a_name_that_leads_to_a_blocked_address_is_asked_nothing",),
    ),
    Mutant(
        "the end of a call that takes too long",
        "worker/engines/function/host_process.py",
        "        if self._left < 0:\n",
        "        if False:\n",
        (f"tests/engine/test_function_host.py::{ENDS}[hang-settings2-took more than 1 s]",),
    ),
    Mutant(
        "the end of a call that nobody wants any more",
        "worker/engines/function/host_process.py",
        "            if self._unwanted_seconds > UNWANTED_SECONDS:\n",
        "            if False:\n",
        (
            "tests/engine/test_function_host.py::"
            "test_a_call_that_nobody_wants_any_more_ends_its_host_and_the_next_batch_is_served",
        ),
    ),
    Mutant(
        "the types of a function's load error",
        "worker/engines/function/host_process.py",
        'raise EngineLoadFailed(public(head["problem"]), head["causes"])',
        'raise EngineLoadFailed(public(head["problem"]))',
        (
            "tests/engine/test_function_host.py::"
            "test_an_error_at_import_or_set_up_concerns_whom_it_would_concern_in_any_engine",
        ),
    ),
    Mutant(
        "the bound of a function's processes under one lease",
        "worker/engines/function/engine.py",
        "            if calls.deaths >= MOST_DEATHS:\n                return []\n",
        "",
        (
            f"{FUNCTIONS}::"
            "test_a_batch_in_which_every_row_ends_its_host_ends_and_each_lease_has_its_bound",
        ),
    ),
    Mutant(
        "no error for rows that never ran alone",
        "worker/engines/function/engine.py",
        "            if rows == 1:\n                work.emit(start, found)\n",
        "            if rows == 1 or calls.deaths >= MOST_DEATHS:\n"
        "                for position in range(start, stop):\n"
        "                    work.emit(position, found)\n",
        (f"{FUNCTIONS}::test_however_many_rows_end_their_hosts_no_other_row_has_an_error",),
    ),
    Mutant(
        "the size of a function's calls",
        "worker/engines/function/engine.py",
        "            self._size.too_large(rows)\n",
        "            pass\n",
        (
            f"{FUNCTIONS}::test_the_size_that_fits_is_known_to_the_next_batch_and_grows_after_many_calls",
        ),
    ),
    Mutant(
        "the bad_type of a function's value",
        "worker/engines/function/reply.py",
        '"bad_type", message',
        '"function_error", message',
        (
            "tests/engine/test_function_host.py::"
            "test_what_is_no_answer_is_an_error_of_its_row_alone[an object-bad_type-the column 'v' holds a object]",
        ),
    ),
    Mutant(
        "an orderly end where a function cannot be set up again",
        "worker/batch/finished.py",
        "            self._child.leave(ExitCode.ENGINE_GONE, str(error))\n",
        "            self._child.engine_died(str(error))\n",
        (
            f"{RUNNER}::"
            "test_an_engine_that_cannot_be_started_again_costs_its_child_and_charges_a_suspect_alone",
        ),
    ),
    Mutant(
        "resident size",
        "worker/engines/function/host_process.py",
        "read_text().split()[1])",
        "read_text().split()[0])",
        (
            "tests/engine/test_function_host.py::"
            "test_memory_is_what_lies_in_ram_and_not_address_space",
        ),
    ),
    Mutant(
        "the limit of a function's memory",
        "worker/engines/function/host_process.py",
        "<= limit:",
        "> 0:",
        (
            f"tests/engine/test_function_host.py::{ENDS}[leak-settings4-and the limit is 419,430,400]",
        ),
    ),
    Mutant(
        "set-up counts as loading",
        "worker/engines/function/engine.py",
        "            self.host = self._start_host(self._restart_seconds)\n",
        "            self.host = self._start_host(self._call_seconds)\n",
        (
            "tests/engine/test_function_host.py::"
            "test_the_set_up_of_a_class_has_no_time_of_a_call_neither_first_nor_again",
        ),
    ),
    Mutant(
        "the environment of a function",
        "worker/engines/function/host_process.py",
        "env=setup.environment,",
        "env=None,",
        (
            "tests/engine/test_function_host.py::"
            "test_a_function_gets_no_secret_and_what_its_operator_names",
        ),
    ),
    Mutant(
        "the process of a function",
        "worker/engines/function/engine.py",
        "            except HostDied as died:\n",
        "            except HostDied as died:\n                raise EngineGone(str(died)) from died\n",
        (
            "tests/faults/test_poison.py::"
            "test_a_function_that_dies_hangs_or_keeps_pythons_lock_costs_its_process_alone",
        ),
    ),
    Mutant(
        "one planner a pool",
        "common/ledger/fleet/pool_plans.py",
        "SELECT pg_try_advisory_xact_lock(:lock, hashtext(:pool)) AND NOT EXISTS (",
        "SELECT :lock > 0 AND NOT EXISTS (",
        (f"{PLAN}::test_one_supervisor_at_a_time_plans_and_a_young_plan_stays",),
    ),
    Mutant(
        "machine set aside",
        "common/ledger/fleet/slot_facts.sql",
        "AND engine_key <> ALL (r.keys)\n",
        "\n",
        (f"{LOADS}::test_a_machine_that_could_not_load_an_engine_is_set_aside_and_another_has_it",),
    ),
    Mutant(
        "engine that others have or load",
        "common/allocation/load_errors.py",
        "    if in_use:\n        return False\n",
        "",
        (f"{LOADS}::test_failed_loads_fail_no_job_while_a_living_child_has_the_engine",),
    ),
    Mutant(
        "one machine fails no job of others",
        "common/allocation/load_errors.py",
        "len(failing) >= 2",
        "len(failing) >= 1",
        (
            f"{LOADS}::test_two_machines_that_fail_for_the_jobs_own_reason_fail_its_job_and_no_other",
        ),
    ),
    Mutant(
        "machines that are gone are no evidence",
        "common/ledger/engines/loads.py",
        "r.supervisor = :supervisor OR EXISTS (",
        "true OR EXISTS (",
        (f"{LOADS}::test_the_failures_of_machines_that_are_gone_are_no_evidence",),
    ),
    Mutant(
        "a load after a failure of the machine",
        "common/ledger/engines/loads.py",
        "AND r.concern = :job\n",
        "AND :job <> ''\n",
        (f"{LOADS}::test_a_load_after_a_failure_that_is_no_evidence_holds_up_the_end",),
    ),
    Mutant(
        "too few GPUs are no matter of the job",
        "worker/engines/vllm/devices.py",
        "if wanted > found:",
        "if wanted < 0:",
        ("tests/unit/test_load_errors.py::test_a_slot_with_too_few_gpus_is_the_workers_matter",),
    ),
    Mutant(
        "a revision that a load has read",
        "common/ledger/engines/loads.py",
        "AND (state = 'loading'\n",
        "AND (false\n",
        (f"{LOADS}::test_a_pinned_revision_is_released_when_nobody_has_the_model",),
    ),
    Mutant(
        "a run beside a fleet",
        "common/ledger/engines/loads.py",
        "and not _others_live(connection, machine, policy.alive_seconds)",
        "",
        (f"{LOADS}::test_a_run_beside_the_machines_of_a_fleet_fails_no_job_of_the_fleet",),
    ),
    Mutant(
        "revision of the first load",
        "common/ledger/fleet/workers.py",
        "if held != loaded.revision:",
        "if held is None and loaded.revision is not None:",
        (f"{LOADS}::test_loads_of_another_revision_count_as_failed_loads",),
    ),
    Mutant(
        "residence",
        "common/allocation/plan.py",
        "if slot.held_seconds < seconds}",
        "if slot.held_seconds < 0}",
        ("tests/unit/test_allocation.py::test_the_plan_of",),
    ),
    Mutant(
        "max-min shares",
        "common/allocation/shares.py",
        "shares[each] = min(cap, capacity * weight / weights)",
        "shares[each] = min(cap, capacity)",
        ("tests/unit/test_allocation.py::test_max_min_shares",),
    ),
    Mutant(
        "slots of a late job",
        "common/allocation/plan.py",
        "            while self.given[key] < least and self._give_one(key, {key}):\n",
        "            while False:\n",
        ("tests/unit/test_deadlines.py::test_the_plan_of",),
    ),
    Mutant(
        "no deadline over the share of a tenant",
        "common/allocation/shares.py",
        "min(job.least_slots, job.slots, capacity)",
        "min(job.least_slots, job.slots)",
        (
            "tests/unit/test_deadlines.py"
            "::test_deadlines_move_nothing_between_tenants_or_priorities",
        ),
    ),
    Mutant(
        "no deadline by a stale rate",
        "common/allocation/deadlines.py",
        "return None if self.measured_seconds_ago > STALE_SECONDS else self.rate",
        "return self.rate",
        ("tests/unit/test_deadlines.py::test_what_a_job_needs_and_what_is_expected_of_it",),
    ),
    Mutant(
        "first slot of an engine",
        "common/allocation/plan.py",
        "                self._give_one(key, {key})\n",
        "                pass\n",
        ("tests/unit/test_allocation.py::test_the_plan_of",),
    ),
    Mutant(
        "end of a silent worker after a lease",
        "common/ledger/fleet/workers.py",
        "WHERE state <> 'ended' AND seen_at < now() - make_interval(secs => :silent)\n",
        "WHERE state <> 'ended' AND seen_at < now() - make_interval(secs => 4 * :silent)\n",
        (
            "tests/integration/test_reaper_rounds.py"
            "::test_a_worker_that_was_killed_is_not_ready_after_a_lease",
        ),
    ),
    Mutant(
        "slots that share GPUs evenly",
        "common/processes/hardware.py",
        "    if gpus % slots:\n",
        "    if False:\n",
        ("tests/unit/test_worker_cli.py::test_slots_that_would_share_gpus_unevenly_are_refused",),
    ),
    Mutant(
        "part of a lost lease",
        "worker/publish/publish.py",
        "            if isinstance(each.error, LeaseLost):\n",
        "            if False:\n",
        (f"{STORES}::test_a_worker_that_goes_on_after_the_end_of_its_job_changes_no_file",),
    ),
    Mutant(
        "beaten for are those that say that they live",
        "worker/supervisor/children.py",
        "idle=self.idle and self.leaving_since is None and self.killed_at is None,",
        "idle=self.config is not None,",
        (f"{IDLE}::test_a_child_that_does_not_say_that_it_lives_is_not_beaten_for_and_is_ended",),
    ),
    Mutant(
        "who holds a batch beats for itself",
        "worker/heartbeat.py",
        "if held or self._unreported() or not self._is_beaten_for():",
        "if not self._is_beaten_for():",
        (
            f"{IDLE}::test_a_child_beats_for_itself_while_it_holds_a_batch_or_has_computed_something_new",
        ),
    ),
    Mutant(
        "a silent supervisor",
        "worker/runner.py",
        "if word is Word.WORK or now - asked_at >= pause:",
        "if word is Word.WORK:",
        (f"{IDLE}::test_a_child_whose_supervisor_is_silent_asks_and_beats_for_itself",),
    ),
    Mutant(
        "leases of a lost answer, whatever the supervisor says",
        "worker/runner.py",
        "max(self.asked_at, supervisor.heard_at) if sure else self.asked_at",
        "max(self.asked_at, supervisor.heard_at)",
        (
            f"{IDLE}::test_a_child_that_does_not_know_what_it_claimed_asks_again_whatever_its_supervisor_says",
        ),
    ),
    Mutant(
        "look after the lines",
        "common/formats/jsonl/read.py",
        "        # After the read, and whatever became of it: another file has other lines there.\n"
        "        check_unchanged(descriptor.source)\n",
        "        pass\n",
        (
            f"{STORES}::test_lines_of_a_source_that_changed_are_no_rows_whatever_the_store_says_of_them",
        ),
    ),
    Mutant(
        "webhooks to the address that was checked",
        "producer/serve/api_batches/send_webhooks.py",
        "socket.create_connection((ip, port), TRY_SECONDS)",
        'socket.create_connection((parts.hostname or "", port), TRY_SECONDS)',
        (f"{HOOK_NAMES}::test_the_address_that_was_checked_is_the_one_that_is_connected_to",),
    ),
    Mutant(
        "time of a webhook's sender",
        "producer/serve/ledger/outbox.py",
        "least(:first * 2 ^ o.tries, :longest)",
        "0 * least(:first * 2 ^ o.tries, :longest)",
        (f"{HOOKS}::test_an_event_that_is_being_sent_is_not_sent_by_another_reaper",),
    ),
    Mutant(
        "address that stays until the end of a batch is committed",
        "producer/serve/ledger/outbox.py",
        "        FOR SHARE OF e\n",
        "",
        (f"{HOOKS}::test_an_address_is_not_removed_between_the_end_of_a_batch_and_its_commit",),
    ),
    Mutant(
        "fence of a commit that is refused",
        "producer/tables/commit.py",
        "                    self._table.fence(seen, self._app, commit.fence)\n",
        "                    break\n",
        (
            f"{STRANGERS}::test_a_reaper_that_stood_still_until_its_commit_was_refused_writes_nothing",
        ),
    ),
    Mutant(
        "question whether the table is the one that the ledger knows",
        "producer/tables/commit.py",
        "            if not is_fenced and (why := misplaced(mark, commit, done)) is not None:",
        "            if not is_fenced and (why := None) is not None:",
        (f"{STRANGERS}::test_a_table_that_was_dropped_under_a_job_is_not_filled_with_the_rest",),
    ),
    Mutant(
        "merge of files below the table alone",
        "producer/tables/delta.py",
        "        self._check_own(handle)\n",
        "",
        (f"{STRANGERS}::test_a_delta_merge_reads_no_file_that_does_not_lie_below_the_table",),
    ),
    Mutant(
        "newer answers in the table of a merge that is retried",
        "producer/tables/commit.py",
        "rows = partial(self._parts.batches, add, remove)",
        "rows = partial(self._parts.batches, add)",
        (f"{STRANGERS}::test_a_retry_of_a_merge_puts_no_old_answer_over_a_newer_one",),
    ),
    Mutant(
        "files of a tag",
        "producer/tables/keep.py",
        "table.held(table.look())",
        "table.names(table.look())",
        (f"{STRANGERS}::test_delete_with_output_leaves_the_files_of_a_tag",),
    ),
    Mutant(
        "question to the table whether it has a commit",
        "producer/tables/delta.py",
        "        return 0 if found is None else int(found)",
        "        return 0",
        (f"{TABLES}::test_a_commit_whose_reaper_died_before_the_ledger_knew_is_not_made_again",),
    ),
    Mutant(
        "question to the ledger what became of a commit",
        "producer/tables/commit.py",
        '                if table_commits.state_of(connection, commit) != "open":\n'
        "                    return None\n",
        "                pass\n",
        (
            f"{TABLES}::test_a_commit_that_was_refused_meanwhile_is_not_made_by_whoever_looked_before",
        ),
    ),
    Mutant(
        "commit to the version of a Delta table that was checked",
        "producer/tables/delta.py",
        "            max_commit_retries=0,\n",
        "            max_commit_retries=5,\n",
        (
            f"{TABLES}::test_overwrite_is_refused_when_somebody_commits_between_the_check_and_the_write",
        ),
    ),
    Mutant(
        "commit from the handle of a Delta table that was checked",
        "producer/tables/delta.py",
        "            return self._write(seen.handle, change, properties)",
        "            return self._write(self.look().handle, change, properties)",
        (f"{TABLES}::test_two_reapers_that_have_checked_the_same_version_make_one_commit",),
    ),
    Mutant(
        "commit to the version of an Iceberg table that was checked",
        "producer/tables/iceberg.py",
        'update({TRIES: "0", **in_memory})',
        "update(in_memory)",
        (f"{TABLES}::test_two_reapers_that_have_checked_the_same_version_make_one_commit",),
    ),
    Mutant(
        "intent that stands in the ledger until the table is written",
        "producer/tables/commit.py",
        "            reached(Moment.TABLE_CHECKED)\n",
        "            with self._ledger.transaction() as connection:\n"
        '                table_commits.end(connection, commit, version="?")\n'
        "            reached(Moment.TABLE_CHECKED)\n",
        (
            f"{TABLES}::test_a_commit_whose_reaper_died_before_the_table_was_written_is_made_by_the_next",
        ),
    ),
    Mutant(
        "end of an open commit before a job closes",
        "producer/reaper/finish.py",
        '    for step in wings.offered("resume"):\n        step(ledger, job, settings)\n',
        "",
        (
            f"{TABLES}::test_the_open_commit_of_a_job_that_failed_meanwhile_is_ended_before_the_job_closes",
        ),
    ),
    Mutant(
        "decision about a scope after the commit of another",
        "producer/tables/commit.py",
        "(self._carry_out(begun) and begun.scope == scope)",
        "(self._carry_out(begun) or True)",
        (f"{TABLES}::test_a_commit_of_another_scope_that_is_open_keeps_no_scope_out_of_the_table",),
    ),
    Mutant(
        "decision about a scope whose commit another process refused",
        "producer/tables/commit.py",
        "(self._carry_out(begun) and begun.scope == scope)",
        "(self._carry_out(begun) or begun.scope == scope)",
        (
            f"{TABLES}::test_a_commit_that_another_process_refused_is_decided_anew_before_the_job_closes",
        ),
    ),
    Mutant(
        "look for a refused commit that the table has after all",
        "producer/tables/commit.py",
        '                and last.state == "refused"\n                and self',
        '                and last.state == "gone"\n                and self',
        (f"{TABLES}::test_a_refused_commit_that_the_table_has_after_all_is_found_before_the_next",),
    ),
    Mutant(
        "look whether a part is there before the table names it",
        "producer/tables/data_files.py",
        "        except (FileNotFoundError, BadInput) as error:",
        "        except BadInput as error:",
        (f"{TABLES}::test_each_part_is_looked_at_before_the_table_names_it",),
    ),
    Mutant(
        "look at the size of a part before the table names it",
        "producer/tables/data_files.py",
        "        if found.bytes != part.bytes:",
        "        if found.bytes < 0:",
        (f"{TABLES}::test_each_part_is_looked_at_before_the_table_names_it",),
    ),
    Mutant(
        "look at the columns of a part before the table names it",
        "producer/tables/data_files.py",
        "        if not _bare(columns).equals(_bare(self.schema)):",
        "        if not columns:",
        (f"{TABLES}::test_each_part_is_looked_at_before_the_table_names_it",),
    ),
    Mutant(
        "a job with a committed part is not replaced",
        "common/ledger/jobs/replacements.py",
        "    if facts.has_parts:",
        "    if False:",
        ("tests/integration/test_replace.py::test_a_job_with_a_row_stays",),
    ),
    Mutant(
        "a job whose parts a deletion leaves is not replaced",
        "common/ledger/jobs/replacements.py",
        "    if facts.keeps_files:",
        "    if False:",
        (
            "tests/integration/test_replace.py::test_parts_stay_that_a_deletion_without_the_files_left",
        ),
    ),
    Mutant(
        "a job with a batch that may still be committed is not replaced",
        "common/ledger/jobs/replacements.py",
        "    if facts.is_owned:",
        "    if False:",
        ("tests/integration/test_replace.py::test_a_job_that_may_still_have_a_row_stays",),
    ),
    Mutant(
        "a replacement is decided under the lock of the job",
        "common/ledger/jobs/deletions.py",
        "    allowed(connection)\n",
        "",
        ("tests/integration/test_replace.py::test_a_retry_that_came_first_keeps_the_job",),
    ),
    Mutant(
        "no name of a part is given twice",
        "common/formats/part_names.py",
        'f"part-{seq:06d}-b{batch_id}-a{attempt}',
        'f"part-{seq:06d}-a{attempt}',
        (
            "tests/integration/test_suspended_reapers.py::"
            "test_a_part_that_a_worker_has_replaced_and_is_about_to_delete",
        ),
    ),
    Mutant(
        "look at the rows of a part before the table names it",
        "producer/tables/data_files.py",
        "        if footer.starts[-1] != part.rows:",
        "        if footer.starts[-1] < 0:",
        (f"{TABLES}::test_each_part_is_looked_at_before_the_table_names_it",),
    ),
    Mutant(
        "parts below the root of their table",
        "producer/tables/checks.py",
        '    if root is not None and not spec.output.uri.startswith(f"{root}/"):',
        "    if root is not None and not spec.output.uri:",
        (f"{TABLES}::test_a_table_that_cannot_be_had_is_refused_at_submit",),
    ),
    Mutant(
        "overwrite refused when others committed since submit",
        "producer/tables/commit.py",
        "            self._refuse_overtaken(seen)",
        "            pass",
        (
            f"{TABLES}::test_overwrite_is_refused_when_somebody_committed_since_submit_until_a_person_says_so",
        ),
    ),
    Mutant(
        "overwrite refused until a person runs the failed job again",
        "producer/tables/checks.py",
        "        if overtake and has_none and was_refused and job.state is JobState.FAILED:",
        "        if has_none:",
        (
            f"{TABLES}::test_overwrite_that_was_refused_before_its_job_failed_goes_on_by_no_retry_of_failed_rows",
        ),
    ),
    Mutant(
        "replacement of a part in one commit of a Delta table",
        "producer/tables/delta.py",
        "        handle.create_write_transaction(\n            actions,\n",
        "        if change.remove:\n"
        "            handle.create_write_transaction(\n"
        '                actions[len(change.add) :], "append", self._lib.Schema.from_arrow(change.schema)\n'
        "            )\n"
        "            handle.update_incremental()\n"
        "        handle.create_write_transaction(\n"
        "            actions[: len(change.add)],\n",
        (
            f"{TABLES}::test_rows_with_errors_are_rows_of_the_table_and_a_retry_replaces_their_parts_in_one_commit",
        ),
    ),
    Mutant(
        "replacement of a part in one snapshot of an Iceberg table",
        "producer/tables/iceberg.py",
        "            for file in parquet_files_to_data_files(\n"
        "                transaction._table.io, transaction.table_metadata, iter(added)\n"
        "            ):\n"
        "                snapshot.append_data_file(file)\n",
        "        transaction.add_files(added)\n",
        (
            f"{TABLES}::test_rows_with_errors_are_rows_of_the_table_and_a_retry_replaces_their_parts_in_one_commit",
        ),
    ),
    Mutant(
        "retry refused where somebody compacted its parts away",
        "producer/tables/checks.py",
        "    if gone:\n        raise BadInput(",
        "    if gone and not gone:\n        raise BadInput(",
        (f"{TABLES}::test_a_retry_is_refused_where_somebody_compacted_its_parts_away",),
    ),
    Mutant(
        "commit of new answers refused where somebody compacted the old ones away",
        "producer/tables/commit.py",
        "            if gone:\n                raise CommitRefused(",
        "            if gone and not gone:\n                raise CommitRefused(",
        (
            f"{TABLES}::test_new_answers_are_refused_where_somebody_compacted_the_old_ones_meanwhile",
        ),
    ),
    Mutant(
        "retry that waits for an open commit before it asks the table",
        "producer/retry.py",
        '    under_way.wait(ledger, job.id)\n    for check in wings.offered("before_retry"):\n',
        '    for check in wings.offered("before_retry"):\n',
        (f"{TABLES}::test_a_change_waits_for_the_end_of_an_open_commit",),
    ),
    Mutant(
        "replaced part that a worker leaves to readers of the table",
        "worker/publish/publish.py",
        " and each.spec.output.table is None:",
        ":",
        (
            f"{TABLES}::test_rows_with_errors_are_rows_of_the_table_and_a_retry_replaces_their_parts_in_one_commit",
        ),
    ),
    Mutant(
        "replaced part that the sweep of a finish leaves to readers of the table",
        "producer/reaper/output_directory.py",
        "found.unneeded(live | kept, strangers=True)",
        "found.unneeded(live, strangers=True)",
        (
            f"{TABLES}::test_rows_with_errors_are_rows_of_the_table_and_a_retry_replaces_their_parts_in_one_commit",
        ),
    ),
    Mutant(
        "replaced part that gc leaves to readers of the table",
        "producer/control/garbage.py",
        "    live = set(deletion.part_names_of(ledger, job)) | kept\n",
        "    live = set(deletion.part_names_of(ledger, job))\n",
        (f"{TABLES}::test_replaced_parts_go_after_their_days_and_not_before",),
    ),
    Mutant(
        "days of a replaced part",
        "common/ledger/jobs/table_commits.py",
        "        WHERE r.ended_at < now() - make_interval(days => CAST(j.spec #>> '{output,table,keep_days}' AS integer))\n",
        "        WHERE r.ended_at IS NOT NULL\n",
        (f"{TABLES}::test_replaced_parts_go_after_their_days_and_not_before",),
    ),
    Mutant(
        "replaced part that the table names again",
        "producer/tables/keep.py",
        "    going = [name for name in names if name not in still]",
        "    going = names",
        (f"{TABLES}::test_a_replaced_part_that_the_table_names_again_stays_after_its_days",),
    ),
    Mutant(
        "files of a table that a deletion leaves",
        "producer/control/deletion.py",
        "    uris = [uri for uri in files_of(ledger, job) if uri not in in_use]",
        "    uris = list(files_of(ledger, job))",
        (f"{TABLES}::test_delete_with_output_leaves_the_files_that_the_table_names",),
    ),
    Mutant(
        "retry refused while a commit is open",
        "common/ledger/batches/retries.py",
        "    table_commits.refuse_under_way(connection, job_id)\n",
        "",
        (f"{TABLES}::test_no_transaction_changes_a_job_while_a_commit_is_open",),
    ),
    Mutant(
        "redo of lost parts refused while a commit is open",
        "common/ledger/batches/lost_parts.py",
        "    table_commits.refuse_under_way(connection, job_id)\n",
        "",
        (f"{TABLES}::test_no_transaction_changes_a_job_while_a_commit_is_open",),
    ),
    Mutant(
        "append refused while a commit is open",
        "producer/submit/growing.py",
        "    table_commits.refuse_under_way(connection, job.id)\n",
        "",
        (f"{TABLES}::test_no_transaction_changes_a_job_while_a_commit_is_open",),
    ),
    Mutant(
        "deletion refused while a commit is open",
        "common/ledger/jobs/deletions.py",
        "    table_commits.refuse_under_way(connection, job_id)\n",
        "",
        (f"{TABLES}::test_no_transaction_changes_a_job_while_a_commit_is_open",),
    ),
    Mutant(
        "cancel refused while a commit is open",
        "common/ledger/jobs/table_commits.py",
        "    refuse_under_way(connection, job_id)\n    if jobs",
        "    if jobs",
        (f"{TABLES}::test_no_transaction_changes_a_job_while_a_commit_is_open",),
    ),
    Mutant(
        "cancel refused where the table has all rows",
        "common/ledger/jobs/table_commits.py",
        "    if is_done and not due(connection, job_id):",
        "    if is_done and not is_done:",
        (f"{TABLES}::test_a_job_whose_rows_are_in_the_table_is_not_cancelled",),
    ),
    Mutant(
        "cancel that waits for an open commit",
        "producer/control/job_moves.py",
        "    under_way.wait(ledger, job.id)\n",
        "",
        (f"{TABLES}::test_a_change_waits_for_the_end_of_an_open_commit",),
    ),
    Mutant(
        "append that waits for an open commit",
        "producer/submit/append_command.py",
        "    under_way.wait(ledger, job.id)\n",
        "",
        (f"{TABLES}::test_a_change_waits_for_the_end_of_an_open_commit",),
    ),
    Mutant(
        "jobs that are over and begin no commit",
        "common/ledger/jobs/table_commits.py",
        "    if state not in (JobState.RUNNING, JobState.PAUSED):\n        return None\n",
        "",
        (f"{TABLES}::test_a_cancelled_job_begins_no_commit",),
    ),
    Mutant(
        "the checksum of a part that is sent",
        "producer/results/download.py",
        '            if storage.checksum(uri) != part["part_checksum"]:',
        "            if not storage.checksum(uri):",
        (f"{RESULTS}::test_a_part_that_changes_under_way_breaks_the_transfer",),
    ),
    Mutant(
        "the one moment of a list of parts",
        "producer/results/download.py",
        "        one_moment(connection)\n",
        "",
        (f"{RESULTS}::test_the_list_of_parts_is_that_of_one_moment",),
    ),
    Mutant(
        "what a page showed, under the lock",
        "producer/control/seen.py",
        "        if differs:",
        "        if not self.values:",
        (
            f"{MEND}::test_a_change_between_the_page_and_the_lock_is_seen",
            f"{MEND}::test_a_field_that_somebody_else_has_changed_is_not_overwritten",
        ),
    ),
    Mutant(
        "the ends of lines within a line of JSON",
        "common/text.py",
        "        if end in text:",
        "        if end in text[:0]:",
        (f"{RESULTS}::test_lines_of_the_file_are_the_rows_for_every_reader_of_lines",),
    ),
    Mutant(
        "that a wait which lasts needs a person",
        "producer/explain/standing.py",
        "        return lasted >= GRACE_SECONDS",
        "        return False",
        (f"{STANDINGS}::test_a_wait_that_lasts_needs_a_person_and_keeps_its_beginning",),
    ),
    Mutant(
        "the sentence for guests",
        "producer/explain/standings.py",
        "        id: standing(each if tenant is None else each.for_guest()) for id, each in known.items()",
        "        id: standing(each) for id, each in known.items()",
        (f"{STANDINGS}::test_guests_read_no_machine_no_job_of_others_and_no_person",),
    ),
)


def copy(folder: Path, mutant: Mutant | None) -> Path:
    """A scratch copy of the code, with a mutant in it if there is one."""
    for name in COPIED:
        source = HOME / name
        if source.is_dir():
            ignored = shutil.ignore_patterns("__pycache__", "out", "data")
            shutil.copytree(source, folder / name, symlinks=True, ignore=ignored)
        else:
            shutil.copy(source, folder / name)
    if mutant is not None:
        place = folder / mutant.file
        place.write_text(mutated(place.read_text(), mutant))
    return folder


def mutated(code: str, mutant: Mutant) -> str:
    """The code without the protection; ValueError where it does not stand there just once."""
    found = code.count(mutant.text)
    if found != 1:
        raise ValueError(f"{mutant.protection}: {mutant.file} holds its text {found} times, not 1")
    return code.replace(mutant.text, mutant.without)


def run(tests: tuple[str, ...], mutant: Mutant | None) -> tuple[int, str]:
    """Runs tests in a scratch copy; returns pytest's exit code and its last lines."""
    with tempfile.TemporaryDirectory(prefix="nightshift-mutant-") as scratch:
        folder = copy(Path(scratch), mutant)
        path = [str(folder), os.environ.get("PYTHONPATH", "")]
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", *tests],
            cwd=folder,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, path))},
            capture_output=True,
            text=True,
            check=False,
        )
    return done.returncode, done.stdout[-3000:] + done.stderr[-1000:]


def main() -> int:
    """Prints a line for each mutant; 0 when every one of them was noticed."""
    everything = tuple(dict.fromkeys(test for mutant in MUTANTS for test in mutant.tests))
    code, said = run(everything, None)
    if code:
        print(f"the tests are red without any mutant:\n{said}")
        return 1
    print("no mutant: green")
    survived = 0
    for mutant in MUTANTS:
        began = time.monotonic()
        code, said = run(mutant.tests, mutant)
        took = f"{time.monotonic() - began:.0f} s"
        if code == TESTS_FAILED:
            print(f"without {mutant.protection}: red ({took})", flush=True)
        else:
            survived += 1
            print(f"without {mutant.protection}: exit code {code}, NOT NOTICED ({took})\n{said}")
    return 1 if survived else 0


if __name__ == "__main__":
    sys.exit(main())
