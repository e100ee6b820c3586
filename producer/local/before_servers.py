"""What `run` checks before it starts a server: all that a look at this machine can answer in a moment.

`submit` and `serve` check less: the model, the module of a function and newer arguments of vLLM may be there on
workers alone. What only a ledger, a worker or an engine can answer is refused later, by them.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from nightshift.common import permits, storage
from nightshift.common.errors import BadInput
from nightshift.common.permits import engine_args
from nightshift.common.settings import Settings
from nightshift.common.spec import (
    FunctionEngineSpec,
    JobSpec,
    TransformersEngineSpec,
    VllmEngineSpec,
)
from nightshift.producer.local.callable_check import CallableCheck
from nightshift.producer.local.worker_settings import for_spec

if TYPE_CHECKING:
    from nightshift.producer.submit.before import Depth, Found

IMPORT_SECONDS = 5.0
"""An import of a function's module that takes longer is announced to the user."""

MOST_BYTES = 32 * 2**20
"""Input up to here is read as a submit reads it, which takes a second at most. Of more only Parquet is looked at,
whose columns stand in its footers."""

MOST_FILES = 100
"""Files up to which the input is looked at."""


def check_before_servers(
    spec: JobSpec,
    settings: Settings,
    on_wait: Callable[[str], None],
    *,
    adopt: bool = False,
    replace: bool = False,
) -> None:
    """BadInput for what is wrong as far as this machine shows. `on_wait` gets a line for the user if an import is slow.

    `settings` are those of the machine, without what its user allows by typing the command. Nothing is written, and
    no server is asked but the store or catalog of an input that lies there. A fleet changes nothing: the worker that
    `run` starts here needs the model or the module, too. Code of users is imported last: another mistake must not
    interrupt an import.
    """
    from nightshift.producer.connect import has_ledger
    from nightshift.producer.submit import before

    engine = spec.engine
    engine_args.refuse_unknown(engine, settings.allowed_engine_args or ())
    settings = permits.of_operator(spec, settings)
    has = has_ledger(settings)
    files = before.check_before(spec, settings, has_ledger=has, adopt=adopt)
    if files.is_over and not replace:
        return  # nothing is loaded
    if isinstance(engine, VllmEngineSpec | TransformersEngineSpec):
        refuse_no_model(engine)
    if (depth := _depth(spec, files, is_known=has and files.has_owner)) is not None:
        before.look_at_input(spec, settings, depth)
    if isinstance(engine, FunctionEngineSpec):
        with CallableCheck(engine, for_spec(spec, settings), IMPORT_SECONDS) as check:
            check.result(on_wait)


def _depth(spec: JobSpec, found: "Found", *, is_known: bool) -> "Depth | None":
    """How the input is looked at; None where it is not. A ledger may have the job of the output directory, which
    `is_known` then: files may have come that it does not take, or takes by its watch or an append.
    """
    from nightshift.producer.submit.before import Depth

    is_far = spec.input.table is not None or not all(map(storage.is_local, spec.input.uris))
    if is_far or len(found.files) > MOST_FILES:
        return None
    if sum(file.size for file in found.files) <= MOST_BYTES:
        return Depth.NAMES if is_known else Depth.IDS
    has_footers = all(file.uri.endswith(".parquet") for file in found.files)
    if not has_footers or spec.input.where is not None:
        return None
    return Depth.NAMES if is_known else Depth.COLUMNS


def refuse_no_model(engine: VllmEngineSpec | TransformersEngineSpec) -> None:
    """BadInput for a model that is named by a path and is not there, or is no folder of a model. The name of a hub's
    model is not asked for.
    """
    if not engine.model.startswith(("/", "./", "../", "~")):
        return
    folder = Path(engine.model).expanduser()
    if folder.is_file():  # one file with a whole model, such as GGUF
        return
    if not folder.is_dir():
        raise BadInput(f"engine.model {engine.model} is not a folder on this machine")
    args = engine.args if isinstance(engine, VllmEngineSpec) else {}
    kinds = ("config.json", "params.json", "*.gguf", "modules.json", "adapter_config.json")
    if "hf_config_path" not in args and not any(any(folder.glob(kind)) for kind in kinds):
        raise BadInput(
            f"engine.model {engine.model} has no config.json: name the folder with the files of a model"
        )
