"""Every kind of job with every command, route, page and method that shows or changes a job.

The axes come from the tables of tasks, formats, commands and routes. A new kind or format without a cell fails the
tests at the end; a new command or route of a job is asked as it is.
"""

from typing import get_args

import pytest

from nightshift.common.formats.known import FORMATS
from nightshift.common.spec import Task
from nightshift.common.spec.sections import OutputSpec
from nightshift.common.spec.tables import TableSpec
from nightshift.common.spec.tasks.generate import GenerateTask
from tests.matrix import jobs, life
from tests.matrix.jobs import Combination
from tests.matrix.kinds import FORMS, KINDS, LEFT_OUT
from tests.matrix.life import LEFT_OUT_COMMANDS, READS, STEPS, Life
from tests.matrix.scene import Scene, changing_routes

ALL = jobs.covering()
FAST = jobs.in_fast(ALL)
SLOW = [each for each in ALL if each not in FAST]
WAITING = jobs.few_with_each(FAST, ("input_format", "output", "shape", "engine"))
"""Jobs that are also checked before their first row is answered, when nothing depends on the kind of task yet."""


def walk(
    scene: Scene, job: Combination, *, looks_often: bool = False, looks_early: bool = False
) -> None:
    scene.mend(False)
    found = Life(scene, job, looks_often=looks_often, looks_early=looks_early)
    found.walk()
    shown = "\n".join(found.failures)
    assert not found.failures, f"{len(found.failures)} cells:\n{shown}\n{scene.logs()[-6000:]}"
    assert found.steps | ({"append"} if not job.later else set()) == set(STEPS)


@pytest.mark.parametrize("job", FAST, ids=lambda job: job.name)
def test_each_command_agrees_with_what_the_job_did(scene: Scene, job: Combination) -> None:
    walk(scene, job, looks_often=True, looks_early=job in WAITING)


@pytest.mark.slow
@pytest.mark.parametrize("job", SLOW, ids=lambda job: job.name)
def test_each_command_agrees_in_every_pair(scene: Scene, job: Combination) -> None:
    walk(scene, job)


def test_every_kind_of_task_and_form_of_answer_is_in_the_matrix() -> None:
    kinds = {each.task["kind"] for each in KINDS.values()}
    assert kinds == {
        each.model_fields["kind"].annotation.__args__[0] for each in get_args(get_args(Task)[0])
    }
    forms = {name for each in KINDS.values() for name in each.task.get("output") or ()}
    assert forms >= set(FORMS)
    made = [
        GenerateTask.model_validate(each.task)
        for each in KINDS.values()
        if each.task["kind"] == "generate"
    ]
    answers = {column for task in made for column in task.answers}
    everything = {
        "output",
        "outputs",
        "parsed",
        "vote_share",
        "reasoning",
        "reasoning_tokens",
        "logprobs",
    }
    assert answers == everything
    assert not answers & set(LEFT_OUT)


def test_every_format_is_in_the_matrix() -> None:
    assert {*jobs.FILES, "table"} == set(FORMATS)
    tables = set(get_args(TableSpec.model_fields["format"].annotation))
    assert set(jobs.TABLES) == tables
    assert set(jobs.OUTPUTS) == {*get_args(OutputSpec.model_fields["format"].annotation), *tables}


def test_every_pair_of_values_that_can_meet_is_in_a_job() -> None:
    found = set[tuple[str, str, str, str]]().union(*map(jobs.pairs, ALL))
    assert found == set[tuple[str, str, str, str]]().union(*map(jobs.pairs, jobs.possible()))
    for axis, values in jobs.AXES.items():
        slow = {value for value in values if axis == "kind" and KINDS[value].slow}
        assert {getattr(each, axis) for each in FAST} == set(values) - slow


def test_every_command_and_route_of_a_job_has_a_cell_or_a_reason() -> None:
    commands = life.commands()
    assert not set(LEFT_OUT_COMMANDS) - set(commands), "a reason for a command that is gone"
    without = {*commands} - {*READS, *STEPS, *LEFT_OUT_COMMANDS}
    assert {name for name in without if commands[name] != ["job"]} == set()
    assert changing_routes() == set()
