"""What a spec may make a worker do: which models it loads, with which arguments, and which remote
servers it asks. The operator's settings decide; where they are silent, only what does no harm is
allowed.
"""

from nightshift.common import remotes
from nightshift.common.permits import engine_args, models
from nightshift.common.settings import Settings
from nightshift.common.spec import JobSpec, OpenaiEngineSpec, VllmEngineSpec


def check(spec: JobSpec, settings: Settings) -> None:
    """BadInput for a spec that a worker with these settings does not run."""
    _check_places(spec, settings)
    engine_args.check(spec.engine, settings.allowed_engine_args or ())


def check_at_submit(spec: JobSpec, settings: Settings) -> None:
    """BadInput for a spec that the workers do not run, as far as this process knows.

    A process without NIGHTSHIFT_ALLOWED_ENGINE_ARGS does not know which arguments they allow.
    """
    _check_places(spec, settings)
    if settings.allowed_engine_args is not None:
        engine_args.check(spec.engine, settings.allowed_engine_args)


def of_operator(spec: JobSpec, settings: Settings) -> Settings:
    """The settings, with the arguments of this spec's engine allowed: a user who types `nightshift run` is the
    operator of the machine. Arguments that `args: auto` stands for were not typed, and are not allowed by this.
    """
    allowed = settings.allowed_engine_args or ()
    if not (isinstance(spec.engine, VllmEngineSpec) and spec.engine.args_auto):
        allowed = engine_args.with_own(spec.engine, allowed)
    return settings.model_copy(update={"allowed_engine_args": allowed})


def _check_places(spec: JobSpec, settings: Settings) -> None:
    engine = spec.engine
    if isinstance(engine, OpenaiEngineSpec):
        remotes.check(engine.base_url, settings.allowed_remotes)
        remotes.refuse_blocked(engine.base_url)
        models.check_name(engine.model, settings.allowed_models)
        return
    for model, revision in engine_args.named_models(engine):
        models.check(model, settings.allowed_models, settings.allowed_roots)
        models.check_revision(revision)
