"""What a spec may make a worker do: arguments, models and secrets."""

import ast
import importlib.util
import sys
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import SecretStr

from nightshift.common import permits
from nightshift.common.errors import BadInput, EngineLoadFailed
from nightshift.common.permits import engine_args, models, vllm_arguments
from nightshift.common.permits.engine_args import Kind, Word
from nightshift.common.settings import Settings, load_settings
from nightshift.common.spec import (
    STORED,
    FunctionEngineSpec,
    JobSpec,
    OpenaiEngineSpec,
    TransformersEngineSpec,
    VllmEngineSpec,
)
from nightshift.common.spec.engines import SERVER_ARGUMENTS, EngineSpec
from nightshift.worker import engines
from nightshift.worker.supervisor import starting, supervisor
from nightshift.worker.supervisor.children import secrets_for

SETS = (
    vllm_arguments.BESIDE,
    vllm_arguments.PLAIN,
    vllm_arguments.OPERATOR,
    vllm_arguments.RUNS_CODE,
)


def vllm_class(file: str, name: str) -> dict[str, str]:
    """The fields of a class in vLLM's source, with their annotations; importing vLLM takes long."""
    found = importlib.util.find_spec("vllm")
    assert found is not None
    assert found.submodule_search_locations, "vLLM is not installed"
    tree = ast.parse((Path(found.submodule_search_locations[0]) / file).read_text())
    [body] = [
        node.body for node in tree.body if isinstance(node, ast.ClassDef) and node.name == name
    ]
    return {
        node.target.id: ast.unparse(node.annotation)
        for node in body
        if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    }


def vllm_arguments_of_the_installed() -> set[str]:
    file = "engine/arg_utils.py"
    return {*vllm_class(file, "EngineArgs"), *vllm_class(file, "AsyncEngineArgs")}


def test_each_argument_of_vllm_is_in_one_set() -> None:
    """A red test here: read what the new arguments can do, and put each into its set."""
    known = [name for names in SETS for name in names]
    assert len(known) == len(set(known))
    assert vllm_arguments_of_the_installed() | SERVER_ARGUMENTS == set(known)


CONFIGS = {
    "aux_output_config": ("aux_output", "AuxOutputConfig"),
    "attention_config": ("attention", "AttentionConfig"),
    "diffusion_config": ("diffusion", "DiffusionConfig"),
    "engram_config": ("engram", "EngramConfig"),
    "fault_tolerance_config": ("fault_tolerance", "FaultToleranceConfig"),
    "kernel_config": ("kernel", "KernelConfig"),
    "mamba_config": ("mamba", "MambaConfig"),
    "pooler_config": ("pooler", "PoolerConfig"),
    "quantization_config": ("quantization", "QuantizationConfigArgs"),
    "reasoning_config": ("reasoning", "ReasoningConfig"),
    "watermark_config": ("watermarking", "WatermarkConfig"),
}
"""Arguments with keys of their own that a job sets freely, and where vLLM has those keys."""

REACHES_OUT = ("cls", "class", "callable", "path", "dir", "file", "module", "plugin", "endpoint")


def test_no_key_of_a_plain_argument_is_a_file_a_class_or_an_address() -> None:
    nested = {name for name in vllm_arguments.PLAIN if name.endswith("_config")}
    assert nested - {"override_generation_config"} == CONFIGS.keys()  # that one is sampling
    for file, name in CONFIGS.values():
        for key, annotation in vllm_class(f"config/{file}.py", name).items():
            words = f"{key} {annotation}".lower().replace("_", " ").split()
            assert not set(words) & set(REACHES_OUT), (name, key)


@pytest.mark.parametrize(
    ("argument", "file", "name"),
    [
        ("compilation_config", "compilation", "CompilationConfig"),
        ("speculative_config", "speculative", "SpeculativeConfig"),
        ("structured_outputs_config", "structured_outputs", "StructuredOutputsConfig"),
    ],
)
def test_the_plain_keys_of_an_argument_are_keys_of_vllm(
    argument: str, file: str, name: str
) -> None:
    plain = {key for own, _, key in map(split, vllm_arguments.PLAIN_KEYS) if own == argument}
    assert plain
    assert plain <= vllm_class(f"config/{file}.py", name).keys()
    assert engine_args.vllm_kind(argument) is not Kind.PLAIN


def split(name: str) -> tuple[str, str, str]:
    return name.partition(".")


def vllm(model: str = "org/model", revision: str | None = None, **args: Any) -> VllmEngineSpec:
    return VllmEngineSpec(backend="vllm", model=model, revision=revision, args=args)


def openai(base_url: str = "http://127.0.0.1:9/v1", **args: Any) -> OpenaiEngineSpec:
    return OpenaiEngineSpec(backend="openai", model="gpt", base_url=base_url, args=args)


def task_for(engine: EngineSpec) -> dict[str, Any]:
    if engine.backend == "transformers":
        return {"kind": "embed", "text": "x"}
    if isinstance(engine, VllmEngineSpec) and SERVER_ARGUMENTS & engine.args.keys():
        return {"kind": "requests"}
    return {"kind": "generate", "prompt": "x"}


def job(engine: EngineSpec) -> JobSpec:
    return JobSpec.model_validate(
        {
            "name": "j",
            "input": {"uri": "in"},
            "task": task_for(engine),
            "engine": engine.model_dump(),
            "output": {"uri": "out"},
        },
        context=STORED,  # as a worker reads a spec that somebody wrote into the ledger
    )


@pytest.mark.parametrize(
    "engine",
    [
        vllm(max_model_len=2048, dtype="float16", tensor_parallel_size=2, enforce_eager=True),
        vllm(structured_outputs_config={"backend": "xgrammar", "disable_any_whitespace": True}),
        vllm(speculative_config={"method": "ngram", "num_speculative_tokens": 4}),
        vllm(pooler_config={"seq_pooling_type": "MEAN"}, tokenizer="org/other"),
        vllm(hf_overrides={"rope_theta": 1e6}, mm_processor_kwargs={"max_pixels": 10**6}),
        vllm(distributed_executor_backend="mp", load_format="dummy", generation_config="vllm"),
        vllm(trust_remote_code=False, logits_processors=None, worker_extension_cls=""),
        vllm(chat_template="{% for m in messages %}{{ m.content }}{% endfor %}"),
        openai(temperature=None, reasoning_effort="low", service_tier="flex"),
        openai(structured_outputs=None, tools=None),
    ],
)
def test_arguments_that_only_say_how_the_engine_computes_need_no_word(engine: EngineSpec) -> None:
    assert engine_args.guarded(engine) == {}
    permits.check(job(engine), Settings(allowed_engine_args=()))


RUN_CODE = [
    {"trust_remote_code": True},
    {"trust_remote_code": "yes"},
    {"worker_cls": "evil.Worker"},
    {"worker_extension_cls": "evil.Extension"},
    {"scheduler_cls": "evil.Scheduler"},
    {"logits_processors": ["evil:Processor"]},
    {"model_class_overrides": {"LlamaForCausalLM": "evil:Model"}},
    {"distributed_executor_backend": "evil.Executor"},
    {"compilation_config": {"backend": "evil.compile"}},
    {"compilation_config": {"mode": 3, "inductor_passes": {"p": "evil.run"}}},
    {"speculative_config": {"method": "custom_class", "model": "evil.Proposer"}},
    {"spec_model": "evil.Proposer"},
    {"kv_transfer_config": {"kv_connector_module_path": "evil"}},
    {"ec_transfer_config": {"ec_connector_module_path": "evil"}},
    {"ec_manager_config": {"encoder_cache_manager_cls": "evil.Manager"}},
    {"structured_outputs_config": {"reasoning_parser_plugin": "/tmp/evil.py"}},
    {"reasoning_parser_plugin": "/tmp/evil.py"},
    {"hf_overrides": {"auto_map": {"AutoConfig": "evil/repo--code.Config"}}},
    {"hf_config_path": "evil/repo"},
    {"logging_config": {"pylogging_config_file": "/tmp/evil.json"}},
    {"log_config_file": "/tmp/evil.json"},
    {"an_argument_of_a_later_vllm": 1},
]


@pytest.mark.parametrize("args", RUN_CODE, ids=lambda args: next(iter(args)))
def test_what_runs_code_needs_the_operators_word_for_the_very_model(args: dict[str, Any]) -> None:
    spec = job(vllm(**args))
    with pytest.raises(EngineLoadFailed, match="NIGHTSHIFT_ALLOWED_ENGINE_ARGS"):
        engines.load(spec, Settings())
    [(name, kind)] = engine_args.guarded(spec.engine).items()
    assert kind is Kind.RUNS_CODE
    for other in (f"{name}:org/other", "worker_clsx:org/model", f"{name}x:org/model"):
        with pytest.raises(BadInput, match="by model, as"):
            permits.check(spec, Settings(allowed_engine_args=(other,)))
    named = [model for model, _ in engine_args.named_models(spec.engine)]
    pattern = "org/*" if named == ["org/model"] else "*"
    permits.check(spec, Settings(allowed_engine_args=(f"{name}:{pattern}",)))


@pytest.mark.parametrize(
    ("engine", "name"),
    [
        (vllm(download_dir="/etc"), "download_dir"),
        (vllm(chat_template="/etc/passwd"), "chat_template"),
        (vllm(generation_config="/data/other"), "generation_config"),
        (vllm(device_ids=[0, 1]), "device_ids"),
        (vllm(otlp_traces_endpoint="http://evil.example"), "otlp_traces_endpoint"),
        (vllm(load_format="ipc_cache"), "load_format"),
        (vllm(mm_processor_kwargs={"max_pixels": 1, "cache_dir": "/x"}), "mm_processor_kwargs"),
        (openai(model="other"), "model"),
        (openai(messages=[]), "messages"),
        (openai(service_tier="priority"), "service_tier"),
        (openai(web_search_options={}), "web_search_options"),
    ],
)
def test_what_reaches_beyond_the_engine_needs_the_operators_word(
    engine: EngineSpec, name: str
) -> None:
    with pytest.raises(BadInput, match=rf"engine\.args\.{name}\S* is not for jobs to set"):
        permits.check(job(engine), Settings())
    for word in (name, f"{name}:*"):
        permits.check(job(engine), Settings(allowed_engine_args=("seed", word)))


@pytest.mark.parametrize(
    ("word", "revision", "allowed"),
    [
        ("org/model", None, True),
        ("org/model", "main", True),
        # Anybody may propose a change of a hub's model, which is then a revision of that model.
        ("org/model", "refs/pr/7", False),
        ("org/model", "0123abc", False),
        ("org/*", "0123abc", False),
        ("org/model@0123abc", "0123abc", True),
        ("org/model@0123abc", None, False),
        ("org/model@*", "refs/pr/7", True),
        ("org/other@*", None, False),
    ],
)
def test_the_word_for_a_model_is_for_its_default_branch_or_for_the_revisions_it_names(
    word: str, revision: str | None, allowed: bool
) -> None:
    spec = job(vllm(revision=revision, trust_remote_code=True))
    settings = Settings(allowed_engine_args=(f"trust_remote_code:{word}",))
    if allowed:
        permits.check(spec, settings)
        return
    with pytest.raises(BadInput, match="by model, as"):
        permits.check(spec, settings)


@pytest.mark.parametrize(
    "args",
    [
        {"tokenizer": "evil/tokenizer"},
        {"tokenizer_revision": "refs/pr/7"},
        {"speculative_config": {"model": "evil/draft"}},
        {"spec_model": "evil/draft"},
    ],
)
def test_code_comes_from_every_model_that_is_named(args: dict[str, Any]) -> None:
    spec = job(vllm(trust_remote_code=True, **args))
    every = (f"{name}:org/model" for name in engine_args.guarded(spec.engine))
    with pytest.raises(BadInput, match=r"trust_remote_code|spec"):
        permits.check(spec, Settings(allowed_engine_args=tuple(every)))


@pytest.mark.parametrize(
    ("word", "used"), [("org/model", None), ("org/model@*", "refs/pr/7"), (None, "refs/pr/7")]
)
def test_a_revision_of_the_ledger_brings_no_code_that_the_operator_did_not_allow(
    monkeypatch: pytest.MonkeyPatch, word: str | None, used: str | None
) -> None:
    class Engine:
        load = staticmethod(lambda spec, revision, *_: revision)

    monkeypatch.setitem(
        sys.modules, "nightshift.worker.engines.vllm.engine", SimpleNamespace(VllmEngine=Engine)
    )
    words = () if word is None else (f"trust_remote_code:{word}",)
    spec = job(vllm() if word is None else vllm(trust_remote_code=True))
    loaded: Any = engines.load(spec, Settings(allowed_engine_args=words), "refs/pr/7")
    assert loaded == used


def test_the_word_for_a_folder_is_for_the_folders_that_are_in_it(tmp_path: Path) -> None:
    safe, evil = tmp_path / "safe", tmp_path / "evil"
    for folder in (safe / "model", evil / "model"):
        folder.mkdir(parents=True)
    (safe / "link").symlink_to(evil)
    (tmp_path / "alias").symlink_to(safe)
    for word in (f"{safe}/*", f"{tmp_path}/alias/*"):
        settings = Settings(allowed_engine_args=(f"trust_remote_code:{word}",))
        for model in (f"{safe}/model", f"{tmp_path}/alias/model", f"{safe}/../safe/model/"):
            permits.check(job(vllm(model, trust_remote_code=True)), settings)
        for model in (f"{safe}/../evil/model", f"{safe}/link/model", f"{safe}/model/../../evil"):
            for engine in (
                vllm(model, trust_remote_code=True),
                vllm(f"{safe}/model", trust_remote_code=True, tokenizer=model),
            ):
                with pytest.raises(BadInput, match="by model, as"):
                    permits.check(job(engine), settings)


@pytest.mark.parametrize("revision", ["/data/in/ref", "../../models--org--other/refs/main", "a/.."])
def test_a_revision_is_no_path_out_of_the_cache_of_the_hub(revision: str) -> None:
    """Offline, the hub's library reads refs/REVISION, and the folder that the file names."""
    for engine in (
        vllm(revision=revision),
        vllm(tokenizer_revision=revision),
        TransformersEngineSpec(backend="transformers", model="org/model", revision=revision),
    ):
        with pytest.raises(BadInput, match="is a path: name a branch, a tag or a commit"):
            permits.check(job(engine), Settings())
    permits.check(job(vllm(revision="refs/pr/7")), Settings())
    permits.check(job(vllm(revision="v1..2")), Settings())


@pytest.mark.parametrize("word", ["", ":org/model", "trust_remote_code:", "trust_remote_code"])
def test_a_word_that_cannot_be_meant_is_refused(word: str) -> None:
    with pytest.raises(BadInput, match="NIGHTSHIFT_ALLOWED_ENGINE_ARGS"):
        Word.parse(word)


def test_a_mistake_in_the_name_of_an_argument_is_shown() -> None:
    with pytest.raises(BadInput, match=r"did you mean 'max_model_len'\?"):
        permits.check(job(vllm(max_modellen=10)), Settings())


def test_a_submit_without_the_operators_list_leaves_arguments_to_the_workers(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    spec = job(vllm(trust_remote_code=True))
    monkeypatch.delenv("NIGHTSHIFT_ALLOWED_ENGINE_ARGS", raising=False)
    permits.check_at_submit(spec, load_settings())
    monkeypatch.setenv("NIGHTSHIFT_ALLOWED_ENGINE_ARGS", "")
    with pytest.raises(BadInput, match="trust_remote_code"):
        permits.check_at_submit(spec, load_settings())
    monkeypatch.setenv("NIGHTSHIFT_ALLOWED_ENGINE_ARGS", "seed, trust_remote_code:org/*")
    permits.check_at_submit(spec, load_settings())


@pytest.mark.parametrize("args", [*RUN_CODE, {"download_dir": "/x", "trust_remote_code": True}])
def test_who_types_run_is_the_operator_of_the_machine(args: dict[str, Any]) -> None:
    spec = job(vllm(revision="refs/pr/7", tokenizer="org/other", **args))
    settings = permits.of_operator(spec, Settings())
    permits.check(spec, settings)
    assert permits.of_operator(spec, settings) == settings


# ---------------------------------------------------------------- models


@pytest.mark.parametrize(
    ("model", "allowed", "passes"),
    [
        ("Qwen/Qwen3-4B", [], True),
        ("Qwen/Qwen3-4B", ["Qwen/*"], True),
        ("Qwen/Qwen3-4B", ["org/*", "Qwen/Qwen3-?B"], True),
        ("Qwen/Qwen3-4B", ["qwen/*", "Qwen/Qwen2*"], False),
        ("evil/Qwen", ["Qwen/*"], False),
        ("s3://models/qwen", ["Qwen/*"], False),
        ("s3://models/qwen", ["s3://models/*"], True),
    ],
)
def test_models_are_held_to_patterns(model: str, allowed: list[str], passes: bool) -> None:
    tokenizer = vllm("a", tokenizer=model)
    for engine, names in ((vllm(model), allowed), (tokenizer, ["a", *allowed] if allowed else [])):
        settings = Settings(allowed_models=tuple(names))
        if passes:
            permits.check(job(engine), settings)
            continue
        with pytest.raises(BadInput, match="NIGHTSHIFT_ALLOWED_MODELS"):
            permits.check(job(engine), settings)


def test_model_folders_are_held_to_allowed_roots(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    data, outside = tmp_path / "data", tmp_path / "outside"
    for folder in (data / "model", outside / "model"):
        folder.mkdir(parents=True)
    (data / "link").symlink_to(outside)
    roots = (str(data), "s3://models")

    for model in (f"{data}/model", "data/model", "./data/model", "org/model", "s3://models/a"):
        models.check(model, (), roots)
    for model in (
        f"{outside}/model",
        "outside/model",
        "./outside/model",
        f"{data}/link/model",
        f"{data}/../outside/model",
        f"{data}-evil",
        "/etc",
        "~/model",
        "s3://models-evil/a",
    ):
        models.check(model, (), ())
        with pytest.raises(BadInput, match="NIGHTSHIFT_ALLOWED_ROOTS"):
            models.check(model, ("*",), roots)
    models.check(f"{outside}/model", (f"{outside}/*",), roots)
    with pytest.raises(BadInput, match="NIGHTSHIFT_ALLOWED_MODELS"):
        models.check(f"{data}/link/model", (f"{data}/*",), roots)
    with pytest.raises(BadInput, match="NIGHTSHIFT_ALLOWED_MODELS"):
        models.check(f"{data}/model", ("org/*",), roots)


# ---------------------------------------------------------------- secrets


SECRETS = Settings(
    metrics_key=SecretStr("metrics"),
    api_keys={
        "https://one.example/v1": SecretStr("sk-one"),
        "https://two.example/v1": SecretStr("sk-two"),
    },
    openai_api_key=SecretStr("sk-openai"),
    openai_base_url="https://three.example/v1",
)


@pytest.mark.parametrize(
    ("engine", "keys"),
    [
        (vllm(), []),
        (openai("https://ONE.example/v1/"), ["sk-one"]),
        (openai("https://three.example/v1"), ["sk-openai"]),
        (openai("https://four.example/v1"), []),
        (openai("https://four.example/a/../v1"), []),
    ],
)
def test_a_child_gets_the_key_of_its_own_engine_alone(engine: EngineSpec, keys: list[str]) -> None:
    settings, without = secrets_for(engine, SECRETS)
    given = "".join(settings.environment().values())
    for secret in ("sk-one", "sk-two", "sk-openai", "metrics"):
        assert (secret in given) == (secret in keys)
    assert "OPENAI_API_KEY" in without
    assert ("HF_TOKEN" in without) == isinstance(engine, OpenaiEngineSpec)
    if keys and isinstance(engine, OpenaiEngineSpec):
        found = settings.api_key(engine.base_url)
        assert found is not None
        assert [found.get_secret_value()] == keys


def test_the_child_of_a_function_keeps_what_its_operator_names_for_functions() -> None:
    engine = FunctionEngineSpec(backend="function", callable="rules:shout")
    named = SECRETS.model_copy(update={"function_env": ("OPENAI_API_KEY", "OTHER")})
    assert {"OPENAI_API_KEY", "HF_TOKEN"} <= secrets_for(engine, SECRETS)[1]
    settings, without = secrets_for(engine, named)
    assert "OPENAI_API_KEY" not in without
    assert {"OPENAI_ADMIN_KEY", "HF_TOKEN"} <= without
    assert settings.function_env == named.function_env
    assert "sk-" not in "".join(settings.environment().values())


def test_a_child_inherits_no_key_for_which_its_engine_has_no_use(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-openai")
    monkeypatch.setenv("KEPT", "yes")
    started: list[dict[str, str]] = []
    monkeypatch.setattr(supervisor.jobs, "get", lambda *_: SimpleNamespace(id=1, spec=job(vllm())))
    monkeypatch.setattr(
        starting.ProcessGroup,
        "start",
        lambda _, env, **_kept: started.append(env) or SimpleNamespace(pid=1),
    )
    settings = SECRETS.model_copy(update={"database_url": "postgresql://ledger"})
    one: Any = supervisor.Supervisor(
        SimpleNamespace(transaction=nullcontext),  # type: ignore[arg-type]
        settings,
        pool="p",
        slot_count=1,
        gpus=(),
        engine_key=None,
        identity="s",
        profile=None,
        metrics=SimpleNamespace(watch=lambda _: None, child_starts=lambda *_: {}),  # type: ignore[arg-type]
    )
    one._start(one.slots[0], "k", job_id=1)
    one.slots[0].free()
    [environment] = started
    assert environment["NIGHTSHIFT_DATABASE_URL"] == "postgresql://ledger"
    assert environment["KEPT"] == "yes"
    assert "sk-" not in " ".join(environment.values())
    assert "NIGHTSHIFT_METRICS_KEY" not in environment
