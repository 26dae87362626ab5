"""The models: what fresh ones hold and say, what they refuse, who sees whom, and which parameters a loss trains."""

import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from minibert import (
    AttentionConfig,
    BertConfig,
    BertForMaskedLM,
    BertForNextSentencePrediction,
    BertForPreTraining,
    BertForQuestionAnswering,
    BertForSequenceClassification,
    BertForTokenClassification,
    BertModel,
)
from minibert.attention import SCORES, WEIGHTS

VOCABULARY, SIZE, HEADS, POSITIONS, LABELS = 101, 21, 3, 43, 5
BATCH, LENGTH = 2, 11
SETTINGS = {
    "vocab_size": VOCABULARY,
    "hidden_size": SIZE,
    "num_attention_heads": HEADS,
    "num_hidden_layers": 2,
    "intermediate_size": 37,
    "max_position_embeddings": POSITIONS,
    "num_labels": LABELS,
}
CONFIG = BertConfig(**SETTINGS)
ATTENTIONS = {
    "published": AttentionConfig(),
    "window": AttentionConfig(window=2, global_tokens=0),
    "window and global": AttentionConfig(window=1, global_tokens=1),
    **{f"{s}-{w}": AttentionConfig(score=s, weights=w) for s in SCORES for w in WEIGHTS if s != "scaled_dot"},
}
every_attention = pytest.mark.parametrize("attention", ATTENTIONS.values(), ids=ATTENTIONS)


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def make(model=BertModel, **changes) -> nn.Module:
    """A model in evaluation whose weights are far from their small initial values."""
    model = model(BertConfig(**SETTINGS | changes)).eval()
    for parameter in model.parameters():
        nn.init.normal_(parameter, std=0.3)
    return model


def random_ids(*shape: int) -> torch.Tensor:
    return torch.randint(1, VOCABULARY, shape)


def random_labels(*shape: int, share: float = 0.4) -> torch.Tensor:
    return torch.randint(VOCABULARY, shape).masked_fill(torch.rand(shape) > share, -100)


def count(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def test_bert_base_has_the_published_number_of_parameters():
    with torch.device("meta"):
        assert count(BertModel(BertConfig())) == 109_482_240
        assert count(BertForPreTraining(BertConfig())) == 110_106_428


def test_a_fresh_model_is_as_unsure_as_its_number_of_choices():
    model = BertForPreTraining(BertConfig(**SETTINGS | {"vocab_size": 1009}))
    ids, nsp = torch.randint(1009, (31, LENGTH)), torch.arange(31) % 2
    losses = model(ids, labels=torch.randint(1009, (31, LENGTH)), next_sentence_label=nsp).losses
    assert losses["mlm"].mean.item() == pytest.approx(math.log(1009), abs=0.05)
    assert losses["nsp"].mean.item() == pytest.approx(math.log(2), abs=0.05)


def test_fresh_weights_are_normal_biases_zero_norms_one_and_the_row_of_padding_zero():
    model = BertForPreTraining(BertConfig(**SETTINGS | {"vocab_size": 5003, "pad_token_id": 7}))
    for name, module in model.named_modules():
        if isinstance(module, nn.LayerNorm):
            assert module.weight.eq(1).all(), name
            assert module.bias.eq(0).all(), name
        if isinstance(module, nn.Linear):
            assert module.bias.eq(0).all(), name
        if isinstance(module, nn.Linear | nn.Embedding):
            numbers = module.weight.numel()
            assert module.weight.std().item() == pytest.approx(0.02, rel=6 / math.sqrt(2 * numbers)), name
            assert abs(module.weight.mean().item()) < 6 * 0.02 / math.sqrt(numbers), name
    assert model.bert.embeddings.tokens.weight.eq(0).all(1).nonzero().tolist() == [[7]]


def test_two_seeds_give_two_models_and_one_seed_gives_one():
    def weights(seed):
        torch.manual_seed(seed)
        return torch.cat([parameter.flatten() for parameter in BertModel(CONFIG).parameters()])

    assert torch.equal(weights(3), weights(3))
    assert not torch.equal(weights(3), weights(5))


def test_the_row_of_padding_gets_no_gradient_as_an_input():
    model = BertModel(CONFIG)
    ids = random_ids(BATCH, LENGTH)
    ids[:, 5:] = 0
    model(ids).last_hidden_state.square().sum().backward()
    assert model.embeddings.tokens.weight.grad[0].eq(0).all()


def test_a_mask_of_any_dtype_gives_the_same_bits():
    model, ids = make(), random_ids(BATCH, LENGTH)
    mask = torch.tensor([[1] * LENGTH, [1] * 4 + [0] * (LENGTH - 4)])
    expected = model(ids, mask).last_hidden_state
    for dtype in (torch.int32, torch.bool, torch.float32, torch.float16):
        assert torch.equal(model(ids, mask.to(dtype)).last_hidden_state, expected)


@pytest.mark.parametrize("values", [-1.0, 0.5, 2.0, -1e9])
def test_a_mask_of_other_values_is_refused(values):
    with pytest.raises(ValueError, match="attention_mask must hold 0"):
        make()(random_ids(BATCH, LENGTH), torch.full((BATCH, LENGTH), values))


@pytest.mark.parametrize("name", ["attention_mask", "token_type_ids", "position_ids", "sequence_ids"])
@pytest.mark.parametrize("shape", [(BATCH, LENGTH + 2), (1, LENGTH), (LENGTH,), (BATCH, 1, 1, LENGTH)])
def test_an_input_of_another_shape_than_the_ids_is_refused_with_both_shapes(name, shape):
    with pytest.raises(ValueError, match=r"\[2, 11\]") as caught:
        make()(random_ids(BATCH, LENGTH), **{name: torch.zeros(shape, dtype=torch.long)})
    assert str(list(shape)) in str(caught.value)


def test_ids_without_a_batch_are_refused():
    with pytest.raises(ValueError, match=r"input_ids must be \[batch, length\], got shape \[11\]"):
        make()(random_ids(LENGTH))


def test_513_tokens_are_refused_before_anything_is_computed_and_the_model_still_works_afterwards():
    model, ids = make(max_position_embeddings=512), random_ids(1, 513)
    with pytest.raises(ValueError, match=r"513 tokens .* limit of 512 \(max_position_embeddings\)"):
        model(ids)
    assert model(ids[:, :512]).last_hidden_state.isfinite().all()


def test_ids_that_the_model_has_no_row_for_are_refused():
    ids = random_ids(BATCH, LENGTH)
    with pytest.raises(ValueError, match=r"input_ids holds 101, expected 0 to 100 \(vocab_size = 101\)"):
        make()(ids.index_fill(1, torch.tensor([3]), VOCABULARY))
    with pytest.raises(ValueError, match=r"token_type_ids holds 1, expected 0 to 0 \(type_vocab_size = 1\)"):
        make(type_vocab_size=1)(ids, token_type_ids=torch.ones_like(ids))


@every_attention
def test_padding_does_not_change_what_real_tokens_become(attention):
    model, ids, length = make(attention=attention), random_ids(BATCH, LENGTH), 5
    mask = torch.ones(BATCH, LENGTH).long()
    mask[0, length:] = 0
    padded = model(ids, mask)
    alone = model(ids[:1, :length])
    assert (padded.last_hidden_state[:1, :length] - alone.last_hidden_state).abs().max() < 1e-5
    assert (padded.pooler_output[:1] - alone.pooler_output).abs().max() < 1e-5


@every_attention
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_row_of_pure_padding_is_harmless(attention, dtype):
    model, ids = make(BertForPreTraining, attention=attention).to(dtype), random_ids(BATCH, LENGTH)
    mask = torch.tensor([[1] * LENGTH, [0] * LENGTH])
    output = model(
        ids, attention_mask=mask, labels=random_labels(BATCH, LENGTH), next_sentence_label=torch.tensor([0, 1])
    )
    output.loss.backward()
    assert output.last_hidden_state.isfinite().all()
    assert output.loss.isfinite()
    for name, parameter in model.named_parameters():
        assert parameter.grad.isfinite().all(), name
    alone = model(ids[:1], attention_mask=mask[:1]).last_hidden_state
    assert torch.allclose(output.last_hidden_state[:1], alone, atol=16 * torch.finfo(dtype).eps)


@every_attention
def test_packed_sequences_do_not_see_each_other(attention):
    model, lengths = make(attention=attention), [3, 7, 5]
    numbers = torch.repeat_interleave(torch.arange(1, 4), torch.tensor(lengths))
    positions = torch.cat([torch.arange(length) for length in lengths])
    ids, segments = random_ids(1, 17), torch.randint(2, (1, 17))
    numbers, positions = (torch.cat([tensor, torch.zeros(2).long()])[None] for tensor in (numbers, positions))
    packed = model(ids, token_type_ids=segments, position_ids=positions, sequence_ids=numbers).last_hidden_state
    begin = 0
    for length in lengths:
        part = slice(begin, begin + length)
        alone = model(ids[:, part], token_type_ids=segments[:, part]).last_hidden_state
        assert (packed[:, part] - alone).abs().max() < 1e-5
        begin += length


def test_packed_pairs_have_the_next_sentence_loss_of_each_pair_alone():
    model, lengths = make(BertForPreTraining), [3, 7, 5]
    begins, labels = [0, 3, 10], torch.tensor([1, 0, 1])
    numbers = torch.repeat_interleave(torch.arange(1, 4), torch.tensor(lengths))[None]
    positions = torch.cat([torch.arange(length) for length in lengths])[None]
    ids, segments = random_ids(1, 15), torch.randint(2, (1, 15))
    packed = model(
        ids,
        token_type_ids=segments,
        position_ids=positions,
        sequence_ids=numbers,
        cls_positions=torch.tensor([[*begins, 0, 0]]),
        next_sentence_label=torch.tensor([[*labels.tolist(), -100, -100]]),
    )
    alone = [
        model(ids[:, b : b + n], token_type_ids=segments[:, b : b + n], next_sentence_label=labels[i : i + 1])
        for i, (b, n) in enumerate(zip(begins, lengths, strict=True))
    ]
    expected = sum(output.losses["nsp"].total for output in alone)
    assert packed.losses["nsp"].count == 3
    assert packed.losses["nsp"].total.item() == pytest.approx(expected.item(), abs=1e-5)
    for i, output in enumerate(alone):
        assert (packed.seq_relationship_logits[0, i] - output.seq_relationship_logits[0]).abs().max() < 1e-5


@pytest.mark.parametrize(("window", "count"), [(None, 1), (0, 0), (1, 0), (2, 1), (3, 2)])
def test_with_one_layer_a_token_depends_on_itself_and_on_what_it_may_look_at(window, count):
    model = make(num_hidden_layers=1, attention=AttentionConfig(window=window, global_tokens=count)).double()
    embedded = torch.randn(1, LENGTH, SIZE).double().requires_grad_()
    model.embeddings.register_forward_hook(lambda *call: embedded)
    hidden = model(random_ids(1, LENGTH)).last_hidden_state
    for query in range(LENGTH):
        (gradient,) = torch.autograd.grad(hidden[0, query, 0], embedded, retain_graph=True)
        sees = {key for key in range(LENGTH) if gradient[0, key].ne(0).any()}
        allowed = {
            key
            for key in range(LENGTH)
            if window is None or abs(query - key) <= window or query < count or key < count or key == query
        }
        assert sees == allowed


@pytest.mark.parametrize("model", [BertForPreTraining, BertForMaskedLM])
def test_vocabulary_logits_exist_at_labelled_positions_only_until_the_others_are_read(model):
    model, ids, labels = make(model), random_ids(BATCH, LENGTH), random_labels(BATCH, LENGTH)
    scored = []
    model.mlm.register_forward_hook(lambda head, inputs, logits: scored.append(logits.shape[:-1].numel()))
    output = model(ids, labels=labels)
    assert scored == []
    wanted = labels != -100
    with torch.no_grad():
        evaluated = model(ids, labels=labels)
    assert scored == [wanted.sum()]
    assert torch.allclose(output.loss, evaluated.loss, atol=1e-6)
    assert torch.allclose(output.masked_logits, output.prediction_logits[wanted], atol=1e-5)
    assert torch.allclose(evaluated.masked_logits, output.masked_logits, atol=1e-5)
    assert output.logits is output.prediction_logits
    assert output.prediction_logits.shape == (BATCH, LENGTH, VOCABULARY)
    assert scored == [wanted.sum(), wanted.sum(), BATCH * LENGTH]


def test_the_last_layer_is_computed_for_the_tokens_that_are_read():
    model, ids, labels = make(BertForPreTraining), random_ids(BATCH, LENGTH), random_labels(BATCH, LENGTH)
    seen = []
    for layer in model.bert.encoder.layers:
        layer.feed_forward.register_forward_hook(lambda module, given, made: seen.append(made.shape[:-1].numel()))
    output = model(ids, labels=labels)
    assert seen == [BATCH * LENGTH, (labels != -100).sum() + BATCH]
    assert output.last_hidden_state.shape == (BATCH, LENGTH, SIZE)
    assert seen[2:] == [BATCH * LENGTH]
    seen.clear()
    classified = make(BertForSequenceClassification)
    classified.bert.encoder.layers[1].feed_forward.register_forward_hook(
        lambda module, given, made: seen.append(made.shape[:-1].numel())
    )
    answer = classified(ids)
    assert seen == [BATCH]
    assert answer.last_hidden_state.shape == (BATCH, LENGTH, SIZE)


@pytest.mark.parametrize("kind", [BertForPreTraining, BertForMaskedLM])
def test_positions_that_are_given_change_nothing_nor_do_those_without_a_label_among_them(kind):
    model, ids, labels = make(kind), random_ids(BATCH, LENGTH), random_labels(BATCH, LENGTH)
    labels[0, 0] = -100
    places = (labels.flatten() != -100).nonzero().squeeze(1)
    model(ids, labels=labels).loss.backward()
    expected = {name: weight.grad.clone() for name, weight in model.named_parameters() if weight.grad is not None}
    model.zero_grad()
    output = model(ids, labels=labels, masked_positions=F.pad(places, (0, 3)))
    output.loss.backward()
    assert output.losses["mlm"].count == len(places)
    for name, gradient in expected.items():
        assert torch.allclose(model.get_parameter(name).grad, gradient, atol=1e-6), name


def test_without_labels_there_is_no_loss_and_no_logit_is_computed():
    model = make(BertForPreTraining)
    model.mlm.register_forward_hook(lambda *arguments: pytest.fail("logits were computed"))
    output = model(random_ids(BATCH, LENGTH))
    assert output.loss is None
    assert output.masked_logits is None
    assert output.losses == {}
    assert output.seq_relationship_logits.shape == (BATCH, 2)


def test_the_loss_of_pretraining_is_the_mean_over_masked_tokens_plus_the_mean_over_pairs():
    model, ids, labels = make(BertForPreTraining), random_ids(BATCH, LENGTH), random_labels(BATCH, LENGTH)
    nsp = torch.tensor([1, 0])
    output = model(ids, labels=labels, next_sentence_label=nsp)
    log_words, log_pairs = output.prediction_logits.log_softmax(-1), output.seq_relationship_logits.log_softmax(-1)
    chosen = [(b, i) for b in range(BATCH) for i in range(LENGTH) if labels[b, i] != -100]
    mlm = -sum(log_words[b, i, labels[b, i]].item() for b, i in chosen) / len(chosen)
    by_hand = mlm - (log_pairs[0, 1].item() + log_pairs[1, 0].item()) / 2
    assert output.loss.item() == pytest.approx(by_hand, abs=1e-5)
    assert model(ids, labels=labels).loss.item() == pytest.approx(mlm, abs=1e-5)


def test_only_minus_100_is_ignored_and_token_0_is_predicted_too():
    labels = torch.full((BATCH, LENGTH), -100)
    labels[0, 3] = 0
    loss = make(BertForMaskedLM)(random_ids(BATCH, LENGTH), labels=labels).losses["mlm"]
    assert loss.count.item() == 1
    assert loss.mean.item() > 0


def test_a_batch_without_masked_tokens_has_a_loss_of_0_and_gradients_of_0():
    model = make(BertForMaskedLM)
    output = model(random_ids(BATCH, LENGTH), labels=torch.full((BATCH, LENGTH), -100))
    output.loss.backward()
    assert output.loss.item() == 0
    assert all(parameter.grad is None or parameter.grad.eq(0).all() for parameter in model.parameters())


def test_a_span_is_scored_by_the_mean_of_its_two_ends():
    model, ids = make(BertForQuestionAnswering), random_ids(BATCH, LENGTH)
    start, end = torch.tensor([3, 0]), torch.tensor([7, 0])
    output = model(ids, start_positions=start, end_positions=end)
    log_start, log_end = output.start_logits.log_softmax(-1), output.end_logits.log_softmax(-1)
    first = -(log_start[0, 3] + log_start[1, 0]).item() / 2
    last = -(log_end[0, 7] + log_end[1, 0]).item() / 2
    assert output.loss.item() == pytest.approx((first + last) / 2, abs=1e-5)
    assert model(ids, start_positions=start).loss.item() == pytest.approx(first, abs=1e-5)


def test_one_label_and_numbers_as_targets_make_a_regression():
    model, ids = make(BertForSequenceClassification, num_labels=1), random_ids(BATCH, LENGTH)
    targets = torch.tensor([0.5, -2.0])
    output = model(ids, labels=targets)
    by_hand = sum(
        (logit - target) ** 2 for logit, target in zip(output.logits[:, 0].tolist(), targets.tolist(), strict=True)
    )
    assert output.loss.item() == pytest.approx(by_hand / 2, rel=1e-5)


TASKS = {
    BertForPreTraining: lambda: {"labels": random_labels(BATCH, LENGTH), "next_sentence_label": torch.tensor([0, 1])},
    BertForMaskedLM: lambda: {"labels": random_labels(BATCH, LENGTH)},
    BertForNextSentencePrediction: lambda: {"labels": torch.tensor([0, 1])},
    BertForSequenceClassification: lambda: {"labels": torch.tensor([LABELS - 1, 0])},
    BertForTokenClassification: lambda: {"labels": torch.randint(LABELS, (BATCH, LENGTH))},
    BertForQuestionAnswering: lambda: {
        "start_positions": torch.tensor([3, 5]),
        "end_positions": torch.tensor([4, 7]),
    },
}


@pytest.mark.parametrize("model", TASKS)
def test_every_parameter_of_a_model_gets_a_gradient_from_its_own_loss(model):
    labels, model = TASKS[model](), make(model)
    output = model(random_ids(BATCH, LENGTH), token_type_ids=torch.randint(2, (BATCH, LENGTH)), **labels)
    output.loss.backward()
    without = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert without == []
    shifts = ["attention.key.bias"]  # what adds the same to all that a softmax compares: it changes nothing
    if isinstance(model, BertForQuestionAnswering):
        shifts += ["span.linear.bias", "encoder.layers.1.feed_forward_norm.bias"]
    zero = [name for name, parameter in model.named_parameters() if not parameter.grad.abs().max() > 1e-6]
    assert [name for name in zero if not name.endswith(tuple(shifts))] == []


@pytest.mark.parametrize("model", TASKS)
def test_the_losses_of_a_model_are_those_whose_labels_it_names(model):
    labels, model = TASKS[model](), make(model)
    assert set(model.targets.values()) == set(labels)
    assert set(model(random_ids(BATCH, LENGTH), **labels).losses) == set(model.targets)


def test_a_model_for_masked_words_tokens_or_spans_has_no_pooler():
    for model in (BertForMaskedLM, BertForTokenClassification, BertForQuestionAnswering):
        assert model(CONFIG).bert.pooler is None
    assert BertModel(CONFIG, add_pooling_layer=False)(random_ids(BATCH, LENGTH)).pooler_output is None


@every_attention
def test_every_kind_of_attention_trains(attention):
    model = BertForPreTraining(BertConfig(**SETTINGS, attention=attention))
    ids, labels, nsp = random_ids(BATCH, LENGTH), random_labels(BATCH, LENGTH), torch.tensor([0, 1])
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    losses = []
    for _ in range(31):
        output = model(ids, labels=labels, next_sentence_label=nsp)
        optimizer.zero_grad()
        output.loss.backward()
        assert all(parameter.grad is not None for parameter in model.parameters())
        optimizer.step()
        losses.append(output.loss.item())
    assert losses[-1] < losses[0] / 2


@pytest.mark.parametrize(
    "attention", [ATTENTIONS["published"], ATTENTIONS["window and global"]], ids=["published", "window"]
)
def test_the_encoder_compiles_as_one_graph_whatever_restricts_attention(attention):
    model, ids = make(attention=attention), random_ids(BATCH, LENGTH)
    mask, sequences = torch.ones_like(ids), torch.arange(LENGTH).expand(BATCH, -1) // 4
    inputs = {
        "attention_mask": mask,
        "token_type_ids": sequences % 2,
        "position_ids": sequences,
        "sequence_ids": sequences,
    }
    compiled = torch.compile(model, backend="eager", fullgraph=True)
    assert torch.equal(compiled(ids, **inputs).last_hidden_state, model(ids, **inputs).last_hidden_state)


@pytest.mark.parametrize("dropout", [0.0, pytest.param(0.1, marks=pytest.mark.slow)])
def test_pretraining_compiles_as_one_graph_with_loss_and_gradients(dropout):
    model = make(BertForPreTraining, hidden_dropout_prob=dropout, attention_probs_dropout_prob=dropout).train()
    ids, labels = random_ids(BATCH, LENGTH), random_labels(BATCH, LENGTH)
    inputs = {
        "attention_mask": torch.ones_like(ids),
        "labels": labels,
        "masked_positions": (labels.flatten() != -100).nonzero().squeeze(1),
        "next_sentence_label": torch.tensor([1, 0]),
    }
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True)
    output = compiled(ids, **inputs)
    output.loss.backward()
    found = {name: weight.grad.clone() for name, weight in model.named_parameters()}
    assert output.prediction_logits.shape == (BATCH, LENGTH, VOCABULARY)
    if dropout == 0:
        model.zero_grad()
        plain = model(ids, **inputs)
        plain.loss.backward()
        assert torch.allclose(output.loss, plain.loss, atol=1e-6)
        for name, weight in model.named_parameters():
            assert torch.allclose(found[name], weight.grad, atol=1e-5), name


def test_dropout_acts_in_training_only():
    model, ids = make(), random_ids(BATCH, LENGTH)
    assert torch.equal(model(ids).last_hidden_state, model(ids).last_hidden_state)
    model.train()
    assert not torch.equal(model(ids).last_hidden_state, model(ids).last_hidden_state)
    certain = make(hidden_dropout_prob=0.0, attention_probs_dropout_prob=0.0).train()
    assert torch.equal(certain(ids).last_hidden_state, certain.eval()(ids).last_hidden_state)


def test_a_classifier_may_have_a_dropout_of_its_own():
    assert BertForSequenceClassification(CONFIG).classifier.dropout.p == 0.1
    own = BertConfig(**SETTINGS, classifier_dropout=0.3)
    assert BertForTokenClassification(own).classifier.dropout.p == 0.3


def test_a_deep_copy_ties_its_own_decoder_to_its_own_embedding():
    model = make(BertForPreTraining)
    twin = copy.deepcopy(model)
    assert twin.mlm.decoder.weight is twin.bert.embeddings.tokens.weight
    assert twin.mlm.decoder.weight is not model.mlm.decoder.weight
    before = model.mlm.decoder.weight.clone()
    with torch.no_grad():
        twin.bert.embeddings.tokens.weight.zero_()
    assert twin.mlm.decoder.weight.eq(0).all()
    assert torch.equal(model.mlm.decoder.weight, before)
