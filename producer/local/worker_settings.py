"""Settings of the processes of a fleet on one machine."""

from pathlib import Path

from nightshift.common import permits
from nightshift.common.settings import Settings, python_path
from nightshift.common.spec import FunctionEngineSpec, JobSpec


def on_one_machine(settings: Settings) -> Settings:
    """Settings of a fleet on one machine, without a run_dir: the folder that is set may belong to a
    worker and a reaper of another fleet.
    """
    return settings.model_copy(update={"run_dir": None, "one_machine": True})


def for_spec(spec: JobSpec, settings: Settings) -> Settings:
    """Settings of a worker for one job: it may load the spec's own module, as `python` started here
    would, with the spec's own engine arguments.
    """
    settings = on_one_machine(permits.of_operator(spec, settings))
    if not isinstance(spec.engine, FunctionEngineSpec):
        return settings
    folders = (str(Path.cwd()), *python_path(), *settings.callable_paths)
    return settings.model_copy(
        update={
            "allowed_modules": (*settings.allowed_modules, spec.engine.module),
            "callable_paths": tuple(dict.fromkeys(folders)),
        }
    )
