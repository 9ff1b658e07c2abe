"""Models of the transformers package, mapped: in a loop of one's own, in its Trainer, and generating text."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from mapping_core import Layout, MappingModel, TargetError
from mapping_core.training.optimization import default_optimizer

pytest.importorskip("transformers", reason="an optional test dependency: pip install transformers accelerate")
pytest.importorskip("accelerate", reason="transformers.Trainer needs it: pip install accelerate")

from transformers import (
    GPT2Config,
    GPT2LMHeadModel,
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedModel,
    Trainer,
    TrainingArguments,
)
from transformers.pytorch_utils import Conv1D

VOCABULARY, LENGTH = 24, 8


def gpt2() -> PreTrainedModel:
    """A GPT-2 of two blocks, its head tied to its embedding, with random weights."""
    torch.manual_seed(0)
    config = GPT2Config(
        vocab_size=VOCABULARY, n_positions=16, n_embd=16, n_layer=2, n_head=2, bos_token_id=0, eos_token_id=1,
        attn_pdrop=0.0, embd_pdrop=0.0, resid_pdrop=0.0,
    )  # fmt: skip
    model: PreTrainedModel = GPT2LMHeadModel(config)
    return model


def llama() -> PreTrainedModel:
    """A Llama of two blocks, its head tied to its embedding, with random weights."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCABULARY, hidden_size=16, intermediate_size=32, num_hidden_layers=2, num_attention_heads=2,
        num_key_value_heads=1, max_position_embeddings=16, tie_word_embeddings=True, bos_token_id=0, eos_token_id=1,
    )  # fmt: skip
    model: PreTrainedModel = LlamaForCausalLM(config)
    return model


TARGETS = pytest.mark.parametrize("make", [gpt2, llama])


@TARGETS
def test_rows_are_scaled_as_the_model_initialises(make: Callable[[], PreTrainedModel]) -> None:
    """Embeddings, projections and GPT-2's Conv1D have the spread the configuration declares; norms start constant."""
    model = make()
    layout = Layout.of(model)
    for spec in layout.mapped:
        assert spec.starts_constant == ("norm" in spec.name or ".ln_" in spec.name)
        if not spec.starts_constant:
            assert spec.scale == model.config.initializer_range == 0.02
    alone = Conv1D(12, 5)  # type: ignore[no-untyped-call]
    assert {spec.scale for spec in Layout.of(alone).mapped} == {0.02}


def sentences(count: int = 8) -> Tensor:
    """Token sequences [count, LENGTH] in which each token is the one before, plus 1."""
    first = torch.randint(2, VOCABULARY - LENGTH, (count, 1), generator=torch.Generator().manual_seed(1))
    return first + torch.arange(LENGTH)


class Sentences(Dataset[dict[str, Tensor]]):
    """The sequences as transformers wants them, the last two padded and masked in the labels."""

    def __init__(self, count: int = 8) -> None:
        self.tokens = sentences(count)
        self.labels = self.tokens.clone()
        self.labels[-2:, 5:] = -100

    def __len__(self) -> int:
        return len(self.tokens)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return {"input_ids": self.tokens[index], "labels": self.labels[index]}


def arguments(folder: Path, **options: Any) -> TrainingArguments:
    """Arguments for a short quiet run; the first two are what a mapped model needs."""
    given = {
        "remove_unused_columns": False,
        "label_names": ["labels"],
        "max_steps": 6,
        "per_device_train_batch_size": 4,
        "learning_rate": 0.1,
        "weight_decay": 0.0,
        "use_cpu": True,
        "report_to": [],
        "save_strategy": "no",
        "disable_tqdm": True,
        "seed": 0,
        **options,
    }
    return TrainingArguments(output_dir=str(folder), **given)


@pytest.mark.parametrize("strategy", ["slvt", "layerwise"])
@TARGETS
def test_trains_and_generates(make: Any, strategy: str) -> None:
    """The loss falls; the exported model has equal logits, a tied head, and generates what its own logits say."""
    target = make()
    model = MappingModel(target, 64, strategy)
    tokens = sentences()
    optimizer = default_optimizer(model)
    losses = []
    for _ in range(20):
        optimizer.zero_grad()
        loss = model(input_ids=tokens, labels=tokens).loss
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] - 0.2
    model.eval()
    exported: Any = model.export()
    assert type(exported) is type(target)
    assert exported.get_output_embeddings().weight is exported.get_input_embeddings().weight
    prompt = tokens[:, :3]
    with torch.no_grad():
        logits = model(prompt).logits
        assert torch.equal(logits, exported(prompt).logits)
        made = exported.generate(prompt, attention_mask=torch.ones_like(prompt), max_new_tokens=2, do_sample=False)
        assert torch.equal(made[:, 3], logits[:, -1].argmax(-1))
        following = model(made[:, :4]).logits[:, -1].argmax(-1)
    assert torch.equal(made[:, 4], torch.where(made[:, 3] == 1, 1, following))


@TARGETS
def test_saved_as_a_pretrained_model(make: Any, tmp_path: Path) -> None:
    """What `export` gives is a model that transformers saves and loads again, with equal logits."""
    model = MappingModel(make(), 64, "slvt").eval()
    with torch.no_grad():
        model.latent.normal_(generator=torch.Generator().manual_seed(0)).mul_(0.1)
    exported: Any = model.export()
    exported.save_pretrained(tmp_path)
    loaded = type(exported).from_pretrained(tmp_path).eval()
    with torch.no_grad():
        assert torch.equal(loaded(sentences()).logits, model(sentences()).logits)


@TARGETS
def test_in_its_trainer(make: Any, tmp_path: Path) -> None:
    """A mapped model trains and evaluates in transformers.Trainer, resumes, and a checkpoint holds the latent alone."""
    model = MappingModel(make(), 64, "slvt")
    options = {"eval_strategy": "steps", "eval_steps": 6, "save_strategy": "steps", "save_steps": 3}
    trainer = Trainer(model, arguments(tmp_path, **options), train_dataset=Sentences(), eval_dataset=Sentences())
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before
    weights = tmp_path / "checkpoint-3" / "model.safetensors"
    assert weights.stat().st_size < 4 * 64 + 1000
    other = MappingModel(make(), 64, "slvt")
    again = Trainer(other, arguments(tmp_path, **options), train_dataset=Sentences(), eval_dataset=Sentences())
    again.train(resume_from_checkpoint=str(weights.parent))
    assert torch.equal(other.latent, model.latent)


def test_trainer_accumulates_as_with_the_model_itself(tmp_path: Path) -> None:
    """Over accumulated batches with different numbers of labels the norms move as in transformers' own model."""
    direct = llama()
    model = MappingModel(llama(), 100, "slvt", trained="*norm.weight")
    model.latent.requires_grad_(False)
    for name, parameter in direct.named_parameters():
        parameter.requires_grad_(name.endswith("norm.weight"))
    moved = []
    for each in (direct, model):
        options = {"gradient_accumulation_steps": 2, "max_steps": 3, "optim": "sgd", "learning_rate": 1.0}
        Trainer(each, arguments(tmp_path, **options), train_dataset=Sentences()).train()
        state = each.export_state_dict() if each is model else each.state_dict()
        moved.append(torch.cat([state[name] - 1 for name in state if name.endswith("norm.weight")]))
    assert moved[0].abs().max() > 1e-3
    torch.testing.assert_close(moved[0], moved[1], rtol=1e-4, atol=1e-6)


def test_plain_data_of_the_target_can_be_read() -> None:
    """The mapped model answers for the target's configuration, which is its own copy, and for nothing with weights."""
    target = gpt2()
    model = MappingModel(target, 64)
    assert model.config.n_embd == 16
    assert model.config is not target.config
    assert model.main_input_name == "input_ids"
    assert (model.loss_type, MappingModel(llama(), 64).loss_type) == (None, "ForCausalLM")
    for name in ("device", "transformer", "lm_head", "num_parameters", "nothing"):
        with pytest.raises(AttributeError, match=name):
            getattr(model, name)


def test_gradient_checkpointing_is_refused() -> None:
    """A target that checkpoints its blocks is refused, and told of the way that works."""
    target = gpt2()
    target.activation_checkpointing_enable()
    model = MappingModel(target.train(), 64)
    with pytest.raises(TargetError, match="checkpoint the whole mapped model instead"):
        model(input_ids=sentences(), labels=sentences()).loss.backward()


class Own(nn.Module):
    """A model of one's own as transformers.Trainer takes it: labels by keyword, a loss in the output."""

    accepts_loss_kwargs = False

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.embedding = nn.Embedding(VOCABULARY, 8)
        self.head = nn.Linear(8, VOCABULARY)

    def forward(self, input_ids: Tensor, labels: Tensor | None = None) -> dict[str, Tensor]:
        logits = self.head(self.embedding(input_ids))
        if labels is None:
            return {"logits": logits}
        loss = nn.functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())
        return {"loss": loss, "logits": logits}


def test_a_module_of_ones_own_in_the_trainer(tmp_path: Path) -> None:
    """A module that is no transformers model trains in the Trainer, mapped, as it does itself."""
    model = MappingModel(Own(), 32)
    trainer = Trainer(model, arguments(tmp_path), train_dataset=Sentences(), eval_dataset=Sentences())
    before = trainer.evaluate()["eval_loss"]
    trainer.train()
    assert trainer.evaluate()["eval_loss"] < before
