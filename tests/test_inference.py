"""Filled masks, attention maps and labels: each against the model asked directly, one input at a time."""

import itertools
import math

import pytest
import torch

from minibert import AttentionConfig, BertConfig, BertForMaskedLM, BertForPreTraining, BertForSequenceClassification
from minibert.adapters import LoraConfig, attach, save_adapter
from minibert.data.tokenizer import save_tokenizer, train_tokenizer, vocabulary
from minibert.errors import UserError
from minibert.inference import attention_maps, classify, fill_mask, load_classifier, load_language_model

LINES = [
    "the river runs to the sea",
    "a film about the sea and the river",
    "the actor in the film was good , the plot was not",
]
TEXTS = ["the film was good", "", "the sea", "the river runs to the sea and the river runs to the film", "plot", "a"]


@pytest.fixture(scope="module")
def tokenizer():
    with pytest.warns(UserWarning, match="vocabulary entries"):
        return train_tokenizer(LINES * 2, vocab_size=211)


def config(tokenizer, **options) -> BertConfig:
    shape = {
        "vocab_size": vocabulary(tokenizer).size,
        "hidden_size": 33,
        "num_hidden_layers": 5,
        "num_attention_heads": 3,
        "intermediate_size": 29,
        "max_position_embeddings": 16,
        "initializer_range": 0.5,  # far from uniform answers
    }
    return BertConfig(**shape | options)


@pytest.fixture
def language_model(tokenizer):
    torch.manual_seed(7)
    return BertForPreTraining(config(tokenizer))


@pytest.fixture
def classifier(tokenizer):
    torch.manual_seed(7)
    return BertForSequenceClassification(config(tokenizer, id2label={0: "bad", 1: "so", 2: "good"}))


def state(model):
    return [(module.training, len(module._forward_hooks)) for module in model.modules()]


@torch.no_grad()
def direct(model, tokenizer, text, pair=None) -> list[float]:
    """The probabilities for one input that is not padded."""
    encoding = tokenizer.encode(text, pair)
    output = model.eval()(torch.tensor([encoding.ids]), token_type_ids=torch.tensor([encoding.type_ids]))
    return output.logits[0].softmax(-1).tolist()


def test_filled_masks_are_the_best_of_the_softmax_over_all_words(language_model, tokenizer):
    answers = fill_mask(language_model.train(), tokenizer, "the [MASK] runs to [MASK]", top=7)
    ids = [tokenizer.token_to_id(token) for token in ["[CLS]", "the", "[MASK]", "runs", "to", "[MASK]", "[SEP]"]]
    with torch.no_grad():
        logits = language_model.eval()(torch.tensor([ids])).prediction_logits[0]
    for place, candidates in zip([2, 5], answers, strict=True):
        exponentials = [math.exp(logit) for logit in logits[place].tolist()]
        truth = {tokenizer.id_to_token(id_): value / sum(exponentials) for id_, value in enumerate(exponentials)}
        assert [token for token, _ in candidates] == sorted(truth, key=truth.get, reverse=True)[:7]
        assert [value for _, value in candidates] == pytest.approx([truth[token] for token, _ in candidates], abs=1e-6)


def test_rows_of_the_model_that_name_no_token_are_never_an_answer(tokenizer):
    torch.manual_seed(7)
    size = vocabulary(tokenizer).size
    model = BertForMaskedLM(config(tokenizer, vocab_size=size + 13))
    (candidates,) = fill_mask(model, tokenizer, "the [MASK]", top=size + 13)
    assert {token for token, _ in candidates} == set(tokenizer.get_vocab())


def test_a_text_without_a_mask_and_one_too_long_are_refused_in_one_line(language_model, tokenizer):
    with pytest.raises(UserError, match=r"no \[MASK\] in 'the sea'"):
        fill_mask(language_model, tokenizer, "the sea")
    with pytest.raises(UserError, match="has 17 tokens; the model reads 16 at most"):
        fill_mask(language_model, tokenizer, "[MASK]" + " the" * 14)


def test_filling_masks_leaves_tokenizer_and_model_as_they_were(language_model, tokenizer):
    language_model.bert.encoder.layers[2].eval()  # frozen by its owner, in a model that trains
    before = state(language_model)
    fill_mask(language_model, tokenizer, "the [MASK]")
    assert state(language_model) == before
    assert "[MASK]" not in tokenizer.encode("the [MASK]").tokens


@pytest.mark.parametrize("score", ["scaled_dot", "cosine", "additive"])
def test_attention_maps_are_softmax_of_the_scores_of_each_layer(tokenizer, score):
    torch.manual_seed(3)
    model = BertForPreTraining(config(tokenizer, attention=AttentionConfig(score=score)))
    input_ids = torch.randint(5, 19, (2, 11))
    maps = attention_maps(model, input_ids)
    assert maps.shape == (5, 2, 3, 11, 11)
    model.eval()
    with torch.no_grad():
        hidden = model.bert.embeddings(input_ids)
        for layer, found in zip(model.bert.encoder.layers, maps, strict=True):
            attention = layer.attention
            query, key = attention.query(hidden), attention.key(hidden)
            for row, head in itertools.product(range(2), range(3)):
                part = slice(11 * head, 11 * head + 11)
                every = [projected[row, :, part].expand(1, 3, 11, 11) for projected in (query, key)]
                expected = attention.score(*every)[0, head].softmax(-1)
                torch.testing.assert_close(found[row, head], expected, atol=1e-5, rtol=1e-5)
            hidden = layer(hidden)


def test_rows_of_attention_maps_sum_to_one_and_padding_gets_nothing(language_model):
    input_ids, attention_mask = torch.randint(5, 19, (2, 13)), torch.ones(2, 13)
    attention_mask[1, 4:] = 0
    maps = attention_maps(language_model, input_ids, attention_mask=attention_mask)
    torch.testing.assert_close(maps.sum(-1), torch.ones(5, 2, 3, 13))
    assert maps[:, 1, :, :, 4:].abs().max() == 0
    assert not maps.requires_grad


def test_attention_maps_leave_no_trace_also_where_the_model_refuses(language_model):
    language_model.train().bert.encoder.layers[2].eval()
    before = state(language_model)
    attention_maps(language_model, torch.randint(5, 19, (1, 7)))
    with pytest.raises(ValueError, match="longer than the limit"):
        attention_maps(language_model, torch.full((1, 17), 5))
    assert state(language_model) == before


@pytest.mark.parametrize("batch_size", [1, 4, 64])
def test_predictions_keep_the_order_and_are_those_of_each_text_alone(classifier, tokenizer, batch_size):
    predictions = list(classify(classifier.train(), tokenizer, TEXTS, batch_size=batch_size))
    assert classifier.training
    for text, prediction in zip(TEXTS, predictions, strict=True):
        truth = direct(classifier, tokenizer, text)
        assert prediction.probabilities == pytest.approx(truth, abs=1e-5)
        assert prediction.label == ["bad", "so", "good"][truth.index(max(truth))]


def test_pairs_are_told_from_single_texts(classifier, tokenizer):
    pairs = [("the sea", "a film"), ("a film", "the sea"), ("the sea a film", None), ("", "")]
    for pair, prediction in zip(pairs, classify(classifier, tokenizer, pairs), strict=True):
        assert prediction.probabilities == pytest.approx(direct(classifier, tokenizer, *pair), abs=1e-5)


def test_an_endless_stream_is_answered_while_it_is_read(classifier, tokenizer):
    taken = itertools.count()
    stream = (TEXTS[next(taken) % len(TEXTS)] for _ in itertools.repeat(None))
    first = list(itertools.islice(classify(classifier, tokenizer, stream, batch_size=2), 5))
    assert len(first) == 5
    assert next(taken) <= 100


def test_of_a_long_pair_the_longer_text_loses_its_end(classifier, tokenizer):
    (long,) = classify(classifier, tokenizer, [("the sea", "river " * 500)])
    assert long.probabilities == pytest.approx(direct(classifier, tokenizer, "the sea", "river " * 11), abs=1e-5)
    (short,) = classify(classifier, tokenizer, ["river " * 500], max_length=8)
    assert short.probabilities == pytest.approx(direct(classifier, tokenizer, "river " * 6), abs=1e-5)


def test_a_model_of_numbers_is_refused_as_a_classifier(tokenizer):
    model = BertForSequenceClassification(config(tokenizer, num_labels=1))
    with pytest.raises(UserError, match="two labels or more"):
        next(classify(model, tokenizer, ["a"]))


def test_a_checkpoint_of_pretraining_fills_masks_as_the_model_did(language_model, tokenizer, tmp_path):
    language_model.save_pretrained(tmp_path)
    save_tokenizer(tokenizer, tmp_path)
    text = "the river [MASK]"
    assert fill_mask(*load_language_model(tmp_path), text) == fill_mask(language_model, tokenizer, text)


def test_a_whole_classifier_and_one_with_an_adapter_are_loaded_alike(classifier, language_model, tokenizer, tmp_path):
    whole, base, adapter = tmp_path / "whole", tmp_path / "base", tmp_path / "adapter"
    classifier.save_pretrained(whole)
    save_tokenizer(tokenizer, whole)
    assert list(classify(*load_classifier(whole), TEXTS)) == list(classify(classifier, tokenizer, TEXTS))

    language_model.save_pretrained(base)
    tuned = BertForSequenceClassification.from_pretrained(base, id2label=classifier.config.id2label)
    attach(tuned, LoraConfig(rank=2))
    for name, weight in tuned.named_parameters():
        if "adapters" in name:
            torch.nn.init.normal_(weight)
    save_adapter(tuned, adapter, base=base)
    (adapter / "config.json").write_bytes((whole / "config.json").read_bytes())
    save_tokenizer(tokenizer, adapter)
    assert list(classify(*load_classifier(adapter), TEXTS)) == list(classify(tuned, tokenizer, TEXTS))
