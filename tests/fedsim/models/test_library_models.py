"""Models of timm and transformers by name, and LoRA adapters: small, from random weights, without network."""

from __future__ import annotations

import json
import pickle
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from fedsim.algorithms import FedAvg
from fedsim.base.torchvision_setup import prepare_torchvision
from fedsim.clients.population import Population
from fedsim.core import LocalTraining, RunSettings
from fedsim.core.optimizers import AdamW
from fedsim.data.dataset import Dataset, Examples
from fedsim.data.places import DataRoots
from fedsim.engine.pools import SerialPool, StackedPool
from fedsim.engine.results import RoundResult
from fedsim.engine.simulation import simulate
from fedsim.errors import DataNotFound, SpecError
from fedsim.models import make_net
from fedsim.models.initial_weights import parse_weights
from fedsim.models.libraries.transformers_models import transformers
from fedsim.models.net import InputForm, Net
from jobs.settings import Settings
from jobs.spec import parse_spec
from jobs.spec.resolve import resolve_spec
from tests.fedsim.federations import federation, partition
from tests.fedsim.task_federations import task_dataset, task_federation

TEXTS: dict[str, Any] = {"input_shape": (9,), "num_classes": 4, "vocabulary": 30}
IMAGES: dict[str, Any] = {"input_shape": (1, 8, 8), "num_classes": 4}
TINY = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
BERT: dict[str, Any] = {"task": "sequence-classification", "arch": "bert", **TINY}
LORA: dict[str, Any] = {"r": 2, "target_modules": ["query", "value"], "modules_to_save": ["classifier"]}
CALM = {"hidden_dropout_prob": 0.0, "attention_probs_dropout_prob": 0.0}


@pytest.fixture(autouse=True)
def no_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")


@pytest.fixture
def library() -> Any:
    prepare_torchvision()
    return pytest.importorskip("transformers")


@pytest.fixture
def peft(library: Any) -> Any:
    return pytest.importorskip("peft")


def words(net: Net) -> Population:
    """Clients of 6 and 10 texts: of class 1 if token 7 is in the text, else of class 0."""
    x = np.random.default_rng(0).integers(1, 30, size=(24, 9)).astype(np.int32)
    examples = Examples(x, (x == 7).any(1).astype(np.int64))
    data = Dataset(
        name="words",
        train=examples.select_rows(slice(16)),
        test=examples.select_rows(slice(16, 24)),
        num_classes=4,
        input_shape=(9,),
        classes=tuple("abcd"),
        vocabulary=30,
    )
    local = LocalTraining(epochs=1, batch_size=4, lr=0.1)
    settings = RunSettings(seed=0, rounds=2, cohort_size=2, local=local)
    return Population(dataset=data, partition=partition([6, 10]), nets=(net,), settings=settings)


def train(net: Net) -> list[RoundResult]:
    population = words(net)
    return list(simulate(FedAvg(), population, SerialPool(FedAvg(), population)))


def test_a_text_model_is_the_librarys_own(library: Any) -> None:
    net = make_net("transformers", **TEXTS, **BERT)
    config = library.BertConfig(vocab_size=30, num_labels=4, pad_token_id=0, **TINY)
    own = library.BertForSequenceClassification(config).eval()
    params = net.init(0)
    own.load_state_dict(params, strict=False)
    assert set(params) == set(own.state_dict())
    x = torch.randint(1, 30, (5, 9))
    x[:, 6:] = 0
    expected = own(input_ids=x, attention_mask=(x != 0).long()).logits
    assert torch.equal(net(params, x), expected)
    torch.testing.assert_close(net(params, x[:, :6]), expected)
    assert torch.equal(pickle.loads(pickle.dumps(net))(params, x), expected)
    first, last = train(net)
    assert first.digest != last.digest
    assert first.traffic.up == 2 * 4 * sum(value.numel() for value in params.values())


def test_a_causal_model_scores_every_token_and_sees_only_those_before(library: Any) -> None:
    sizes = {**TINY, "num_key_value_heads": 2}

    def build() -> torch.nn.Module:
        return transformers((9,), 30, 30, task="causal-lm", arch="llama", **sizes)

    net = Net(build, "llama", inputs=InputForm((9,), 30))
    params, x = net.init(0), torch.randint(1, 30, (3, 9))
    logits = net(params, x)
    assert logits.shape == (3, 9, 30)
    changed = x.clone()
    changed[:, 5:] = 1 + changed[:, 5:] % 29
    torch.testing.assert_close(net(params, changed)[:, :5], logits[:, :5])
    assert not torch.allclose(net(params, changed)[:, 5:], logits[:, 5:])


@pytest.mark.slow
def test_adapters_of_a_causal_model_learn_the_next_token(library: Any) -> None:
    """Only the adapters and the last layer train and travel; the trivial model has a perplexity of 8."""
    pytest.importorskip("peft")
    data, settings = task_dataset("next_token"), {**TINY, "num_key_value_heads": 2}
    net = make_net(
        "transformers",
        input_shape=data.input_shape,
        num_classes=data.num_classes,
        vocabulary=data.vocabulary,
        outputs=data.learning_task.output_shape(data.input_shape),
        task="causal-lm",
        arch="llama",
        lora={"r": 4, "target_modules": ["q_proj", "v_proj"], "modules_to_save": ["lm_head"]},
        **settings,
    )
    local = LocalTraining(epochs=4, batch_size=8, lr=0.01, optimizer=AdamW())
    population = replace(task_federation("next_token", rounds=4, local=local), nets=(net,))
    results = list(simulate(FedAvg(), population, SerialPool(FedAvg(), population)))
    assert results[-1].metrics["global_perplexity"] < 4
    values = net.count_parameters()
    assert values < sum(value.numel() for value in net.build().parameters()) / 2
    assert results[-1].traffic.up == 4 * 4 * values


def test_an_image_model_takes_its_size_from_the_data(library: Any) -> None:
    net = make_net("transformers", **IMAGES, task="image-classification", arch="vit", patch_size=4, **TINY)
    config = library.ViTConfig(image_size=8, num_channels=1, patch_size=4, num_labels=4, **TINY)
    own = library.ViTForImageClassification(config).eval()
    own.load_state_dict(net.init(0))
    x = torch.randn(3, 1, 8, 8)
    assert torch.equal(net(net.init(0), x), own(x).logits)


def test_published_weights_come_from_a_folder_in_a_data_root(library: Any, tmp_path: Path) -> None:
    made = make_net("transformers", **TEXTS, **BERT)
    saved = made.build()
    saved.save_pretrained(tmp_path / "bert")  # type: ignore[operator]
    given = {"task": "sequence-classification", "pretrained": "bert", "places": DataRoots((tmp_path,))}
    same = make_net("transformers", **TEXTS, **given).init(0)
    assert all(torch.equal(value, same[key]) for key, value in saved.state_dict().items() if key in same)
    other = make_net("transformers", **{**TEXTS, "num_classes": 7}, **given).init(0)
    assert other["classifier.weight"].shape == (7, 16)
    assert torch.equal(other["bert.pooler.dense.weight"], same["bert.pooler.dense.weight"])
    again = make_net("transformers", **{**TEXTS, "num_classes": 7}, **given)
    assert torch.equal(again.init(0)["classifier.weight"], other["classifier.weight"])
    assert not torch.equal(again.init(1)["classifier.weight"], other["classifier.weight"])
    with pytest.raises(ValueError, match="knows 30 tokens, but this data has 31"):
        make_net("transformers", **{**TEXTS, "vocabulary": 31}, **given)
    with pytest.raises(DataNotFound, match=r"'no/such'.*not in this machine's cache \(.*downloads are not"):
        make_net("transformers", **TEXTS, **{**given, "pretrained": "no/such"})


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"task": "sequence-classification"}, "needs either 'arch'"),
        ({**BERT, "arch": "bart_"}, "no such architecture.*'bart'"),
        ({**BERT, "hiden_size": 3}, "is no setting of bert.*'hidden_size'"),
        ({**BERT, "task": "image-classification"}, "needs images"),
        ({**BERT, "num_attention_heads": 3}, "transformers|multiple"),
        ({**BERT, "arch": "vit"}, "no form for sequence-classification|no setting"),
        ({**BERT, "max_position_embeddings": 4}, "at most 4 tokens; these have 9"),
        ({**BERT, "lora": {"r": 2, "rank": 3}}, "lora: cannot be used.*rank"),
        ({**BERT, "lora": {"r": 2, "target_modules": ["nowhere"]}}, "lora: cannot be used.*nowhere"),
    ],
)
def test_what_is_wrong_with_a_model_of_transformers_is_named(
    library: Any, params: dict[str, Any], said: str
) -> None:
    if "lora" in params:
        pytest.importorskip("peft")
    with pytest.raises((SpecError, ValueError), match=f"(?s){said}"):
        make_net("transformers", **TEXTS, **params)


def test_a_model_of_timm_is_the_librarys_own() -> None:
    timm = pytest.importorskip("timm")
    net = make_net("timm", input_shape=(1, 32, 32), num_classes=5, arch="test_convnext")
    own = timm.create_model("test_convnext", num_classes=5, in_chans=1).eval()
    params, x = net.init(0), torch.randn(2, 1, 32, 32)
    own.load_state_dict(params)
    torch.testing.assert_close(net(params, x), own(x))
    small = {"arch": "vit_tiny_patch16_224", "img_size": 8, "patch_size": 4, "depth": 1}
    assert make_net("timm", **IMAGES, **small).count_parameters() > 0


@pytest.mark.parametrize(
    ("params", "said"),
    [
        ({"arch": "resnet_18"}, "timm has no such model.*resnet"),
        ({"arch": "resnet18.nobody"}, "no such published weights.*resnet18.a1_in1k"),
        ({"arch": "resnet18", "pretrained": True}, r"not in this machine's cache \("),
        ({"arch": "resnet18", "img_size": 8}, "does not take these parameters.*img_size"),
    ],
)
def test_what_is_wrong_with_a_model_of_timm_is_named(params: dict[str, Any], said: str) -> None:
    pytest.importorskip("timm")
    with pytest.raises((SpecError, ValueError, DataNotFound), match=f"(?s){said}"):
        make_net("timm", **IMAGES, **params).init(0)


@pytest.mark.parametrize(
    ("package", "extra", "params"),
    [
        ("timm", "timm", {"name": "timm", "arch": "resnet18"}),
        ("transformers", "text", {"name": "transformers", "task": "image-classification", "arch": "vit"}),
        ("peft", "peft", {"name": "mlp", "lora": {"r": 2}}),
    ],
)
def test_a_missing_package_names_its_extra(
    package: str, extra: str, params: dict[str, Any], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    if package == "peft":
        prepare_torchvision()
        pytest.importorskip("transformers")
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(SpecError, match=rf"needs the package {package}; install the extra.*'\.\[{extra}\]'"):
        resolve_spec(parse_spec({"algorithm": "fedavg", "model": params}), Settings(tmp_path))


def test_only_adapters_and_the_head_train_and_travel(peft: Any) -> None:
    """The frozen weights, the same for every client, are those of the model without adapters."""
    net = make_net("transformers", **TEXTS, **BERT, **CALM, lora=LORA)
    sizes = {key: value.numel() for key, value in net.init(0).items()}
    assert {key.split(".")[-3] for key in sizes if "lora" in key} == {"lora_A", "lora_B"}
    adapters = 2 * (2 * 16 + 16 * 2)
    assert sum(sizes.values()) == adapters + 16 * 4 + 4 == net.count_parameters()
    first, last = train(net)
    assert first.digest != last.digest
    for result in (first, last):
        assert result.traffic.up == result.traffic.down == 2 * 4 * sum(sizes.values())
    before, after = net.init(0), last.state.params
    assert set(after) == set(before)
    assert all(not torch.equal(after[key], before[key]) for key in before if "lora_B" in key)


def test_stacked_clients_train_their_adapters_as_single_ones(peft: Any) -> None:
    population, algorithm = federation(lora={"r": 2, "target_modules": ["head"]}), FedAvg()
    assert population.nets[0].stackable
    alone, stacked = (
        list(simulate(algorithm, population, pool))[-1]
        for pool in (SerialPool(algorithm, population), StackedPool(algorithm, population, 4))
    )
    assert stacked.traffic == alone.traffic
    assert stacked.engine["stacked"]
    for key, value in alone.state.params.items():
        torch.testing.assert_close(stacked.state.params[key], value)


def test_adapters_begin_as_the_model_without_them(peft: Any) -> None:
    """B is 0: the model computes what its own weights say, which may come from a file."""
    plain = make_net("transformers", **TEXTS, **BERT)
    state, x = plain.init(3), torch.randint(1, 30, (4, 9))
    wrapped = make_net("transformers", **TEXTS, **BERT, lora=LORA)
    names = {key: key for key in wrapped.module.state_dict()}
    own = {}
    for name in names:
        base = name.replace(".base_layer", "").replace(".original_module", "")
        base = base.replace(".modules_to_save.default", "")
        if base in state:
            own[name] = state[base].numpy()
    net = make_net(
        "transformers",
        **TEXTS,
        **BERT,
        lora=LORA,
        initial=parse_weights(save_arrays(own), "w", ignore=["*lora_A*", "*lora_B*"]),
    )
    torch.testing.assert_close(net(net.init(0), x), plain(state, x))
    again = pickle.loads(pickle.dumps(net))
    assert torch.equal(again(net.init(0), x), net(net.init(0), x))


def save_arrays(arrays: dict[str, Any]) -> bytes:
    from safetensors.numpy import save

    content: bytes = save(arrays)
    return content


def test_a_published_model_runs_no_code_and_takes_only_settings(library: Any, tmp_path: Path) -> None:
    marker, folder = tmp_path / "marker", tmp_path / "code"
    folder.mkdir()
    config = {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Mine"}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "model.safetensors").touch()
    (folder / "mine.py").write_text(f"open({str(marker)!r}, 'w').close()\n")
    given = {"task": "sequence-classification", "pretrained": "code", "places": DataRoots((tmp_path,))}
    for more in ({}, {"trust_remote_code": True}):
        with pytest.raises((SpecError, ValueError)):
            make_net("transformers", **TEXTS, **given, **more)
    assert not marker.exists()
    make_net("transformers", **TEXTS, **BERT).build().save_pretrained(tmp_path / "bert")  # type: ignore[operator]
    given["pretrained"] = "bert"
    net = make_net("transformers", **TEXTS, **given, hidden_dropout_prob=0.5)
    assert net.build().config.hidden_dropout_prob == 0.5  # type: ignore[union-attr]
    for name in ("trust_remote_code", "cache_dir", "_attn_implementation", "to_dict"):
        with pytest.raises(SpecError, match=f"{name}: is no setting of bert"):
            make_net("transformers", **TEXTS, **given, **{name: "a/b"})


NO_LOADING: list[tuple[dict[str, Any], str]] = [
    ({"arch": "timm_wrapper"}, r"timm_wrapper reads files: use the model `timm`"),
    ({"arch": "timm_wrapper", "model_args": {"checkpoint_path": "/etc/passwd"}}, r"cannot set model_args"),
    ({"arch": "timm_wrapper", "architecture": "local-dir:/etc"}, r"cannot set architecture"),
    ({"arch": "detr", "backbone": "/etc"}, r"cannot set backbone"),
    ({"arch": "gemma3", "vision_config": {"model_type": "timm_wrapper"}}, r"timm_wrapper reads files"),
    ({"arch": "gemma3", "vision_config": {"model_args": {"checkpoint_path": "x"}}}, r"cannot set model_args"),
]


@pytest.mark.parametrize(("settings", "message"), NO_LOADING)
def test_no_setting_makes_transformers_read_a_file(
    library: Any, settings: dict[str, Any], message: str
) -> None:
    """The models of timm in transformers pass their settings to timm, which reads any file or repository."""
    with pytest.raises((SpecError, ValueError), match=message):
        make_net("transformers", **TEXTS, task="sequence-classification", **settings)


@pytest.mark.parametrize("name", ["distilbert", "transformers"])
def test_a_published_configuration_names_no_code_and_no_files(
    library: Any, tmp_path: Path, name: str
) -> None:
    task = {"task": "sequence-classification"} if name == "transformers" else {}
    config: dict[str, Any] = {"model_type": "distilbert", "_attn_implementation": "somebody/attention"}
    (tmp_path / "model.safetensors").touch()
    given = {**TEXTS, **task, "pretrained": ".", "places": DataRoots((tmp_path,))}
    (tmp_path / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match="names an attention from the Hugging Face hub"):
        make_net(name, **given)
    if name == "transformers":
        config = {"model_type": "timm_wrapper", "num_classes": 2, "model_args": {"checkpoint_path": "/x"}}
        (tmp_path / "config.json").write_text(json.dumps(config))
        with pytest.raises(ValueError, match="timm_wrapper reads files"):
            make_net(name, **given)


def test_weights_are_read_only_from_where_fedsim_looks(peft: Any) -> None:
    pytest.importorskip("timm")
    for name in ("checkpoint_path", "pretrained_cfg"):
        with pytest.raises(SpecError, match=f"{name}: cannot be set"):
            make_net("timm", **IMAGES, arch="test_convnext", **{name: "/etc/passwd"})
    with pytest.raises(SpecError, match=r"lora\.megatron_core: cannot be set"):
        make_net("transformers", **TEXTS, **BERT, lora={**LORA, "megatron_core": "antigravity"})


def test_no_pattern_of_an_adapter_takes_long(peft: Any) -> None:
    slow = r"(\w+)+!", "a?" * 30, "(a|aa)*b", r"(\w{1,9}){9}", "(.|..)" * 40 + "!"
    for given in ({"target_modules": each} for each in slow):
        with pytest.raises(SpecError, match=r"lora: has a pattern that repeats"):
            make_net("transformers", **TEXTS, **BERT, lora={**LORA, **given})
    with pytest.raises(SpecError, match=r"lora: has a pattern that repeats"):
        make_net("transformers", **TEXTS, **BERT, lora={**LORA, "rank_pattern": {slow[0]: 4}})
    fine = r".*(attention|crossattention).*(query|value)"
    net = make_net("transformers", **TEXTS, **BERT, lora={**LORA, "target_modules": fine})
    assert sum("lora_" in name for name in net.parameters) == 4  # two for each of query and value


@pytest.mark.parametrize("name", ["distilbert", "transformers"])
def test_a_folder_without_weights_is_refused_by_a_check(library: Any, tmp_path: Path, name: str) -> None:
    kind = library.DistilBertConfig(vocab_size=30, dim=16, n_heads=2, n_layers=1, hidden_dim=32)
    kind.save_pretrained(tmp_path / "empty")
    task = {"task": "sequence-classification"} if name == "transformers" else {}
    given = {**TEXTS, **task, "pretrained": "empty", "places": DataRoots((tmp_path,))}
    with pytest.raises(DataNotFound, match=r"empty holds no weights.*model\.safetensors"):
        make_net(name, **given)
