"""Embeddings: the sum of three vectors, normalised, by hand; ids that are in no table are refused by name."""

import math

import pytest
import torch

from minibert.embeddings import Embeddings

TOKENS, POSITIONS, SEGMENTS, SIZE = 23, 11, 3, 7


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


def make(tokens: int = TOKENS, positions: int = POSITIONS, segments: int = SEGMENTS, padding: int = 2) -> Embeddings:
    """Embeddings in which no row and no norm is trivial."""
    embeddings = Embeddings(tokens, positions, segments, SIZE, padding=padding, eps=1e-5, dropout=0.5).eval()
    for parameter in embeddings.parameters():
        torch.nn.init.normal_(parameter)
    return embeddings


def test_each_vector_is_the_normalised_sum_of_its_three_rows():
    embeddings = make().double()
    ids, segments = torch.tensor([[5, 22, 0], [1, 5, 5]]), torch.tensor([[0, 1, 2], [2, 2, 0]])
    positions = torch.tensor([[0, 10, 1], [3, 3, 3]])
    given = embeddings(ids, segments, positions)
    gain, shift = embeddings.norm.weight.tolist(), embeddings.norm.bias.tolist()
    for row in range(2):
        for place in range(3):
            tables = (embeddings.tokens, ids), (embeddings.segments, segments), (embeddings.positions, positions)
            summed = [
                sum(column) for column in zip(*(t.weight[i[row, place]].tolist() for t, i in tables), strict=True)
            ]
            mean = sum(summed) / SIZE
            deviation = math.sqrt(sum((x - mean) ** 2 for x in summed) / SIZE + 1e-5)
            by_hand = [(x - mean) / deviation * g + b for x, g, b in zip(summed, gain, shift, strict=True)]
            assert given[row, place].tolist() == pytest.approx(by_hand, abs=1e-12)


def test_segments_default_to_0_and_positions_to_0_1_2():
    embeddings, ids = make(), torch.randint(TOKENS, (2, 5))
    spelt_out = embeddings(ids, torch.zeros(2, 5, dtype=torch.long), torch.arange(5).expand(2, 5))
    assert torch.equal(embeddings(ids), spelt_out)


def test_a_sequence_of_513_tokens_is_refused_with_both_numbers_and_the_setting_and_512_are_not():
    embeddings = make(positions=512)
    with pytest.raises(ValueError, match=r"513 tokens .* limit of 512 \(max_position_embeddings\)"):
        embeddings(torch.ones(1, 513, dtype=torch.long))
    assert embeddings(torch.ones(1, 512, dtype=torch.long)).shape == (1, 512, SIZE)


def test_a_packed_row_may_be_longer_than_the_positions():
    length = 2 * POSITIONS
    assert (
        make()(torch.ones(1, length, dtype=torch.long), None, torch.arange(length)[None] % POSITIONS).isfinite().all()
    )


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        (([[1, TOKENS]], None, None), r"input_ids holds 23, expected 0 to 22 \(vocab_size = 23\)"),
        (([[-1, 1]], None, None), r"input_ids holds -1, expected 0 to 22 \(vocab_size = 23\)"),
        (([[1, 1]], [[0, 3]], None), r"token_type_ids holds 3, expected 0 to 2 \(type_vocab_size = 3\)"),
        (([[1, 1]], None, [[0, 11]]), r"position_ids holds 11, expected 0 to 10 \(max_position_embeddings = 11\)"),
    ],
)
def test_an_id_outside_its_table_is_refused_with_the_range_and_the_setting(inputs, message):
    tensors = [None if rows is None else torch.tensor(rows) for rows in inputs]
    with pytest.raises(ValueError, match=message):
        make()(*tensors)


def test_a_pair_is_refused_by_a_model_with_one_segment():
    with pytest.raises(ValueError, match=r"token_type_ids holds 1, expected 0 to 0 \(type_vocab_size = 1\)"):
        make(segments=1)(torch.tensor([[5, 6]]), torch.tensor([[0, 1]]))


def test_the_row_of_padding_gets_no_gradient():
    embeddings = make(padding=2)
    embeddings(torch.tensor([[2, 5, 2]])).square().sum().backward()
    gradient = embeddings.tokens.weight.grad
    assert gradient[2].eq(0).all()
    assert gradient[5].ne(0).any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_a_constant_sum_is_normalised_to_the_bias_of_the_norm(dtype):
    embeddings = Embeddings(TOKENS, POSITIONS, SEGMENTS, SIZE, padding=0, eps=1e-12, dropout=0.0)
    for table in (embeddings.tokens, embeddings.positions, embeddings.segments):
        torch.nn.init.constant_(table.weight, 3.0)
    torch.nn.init.normal_(embeddings.norm.bias)
    embeddings = embeddings.to(dtype)
    given = embeddings(torch.tensor([[5, 6, 7]]))
    assert torch.equal(given, embeddings.norm.bias.expand_as(given))


def test_dropout_acts_in_training_only():
    embeddings, ids = make(), torch.randint(TOKENS, (2, 5))
    assert torch.equal(embeddings(ids), embeddings(ids))
    assert embeddings.train()(ids).eq(0).float().mean().item() == pytest.approx(0.5, abs=0.25)
