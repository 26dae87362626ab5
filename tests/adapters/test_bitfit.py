"""BitFit beside the biases is the same as training the biases."""

import torch

from minibert.adapters import BitFitConfig, attach


def test_shifts_learn_what_the_biases_would(make_model, batch):
    model, by_hand = make_model(), make_model()
    attach(model, BitFitConfig())
    for name, weight in by_hand.named_parameters():
        weight.requires_grad_(name.startswith("classifier.") or name.endswith("bias"))
    for trained in (model, by_hand):
        optimizer = torch.optim.Adam([w for w in trained.parameters() if w.requires_grad], lr=0.01)
        for _ in range(5):
            optimizer.zero_grad()
            trained(**batch).loss.backward()
            optimizer.step()
    for seam, shift in model.adapters["default"].parts():
        if not seam.endswith("key"):  # softmax does not see a shift of all scores: its gradient is noise
            expected = by_hand.get_parameter(f"{seam}.bias")
            assert torch.allclose(model.get_parameter(f"{seam}.bias") + shift.bias, expected, atol=1e-4), seam


def test_every_bias_of_the_encoder_has_a_shift(make_model):
    model = make_model()
    attach(model, BitFitConfig())
    biases = {name for name, _ in model.bert.named_parameters() if name.endswith("bias")}
    assert {f"{seam}.bias" for seam, _ in model.adapters["default"].parts()} == {f"bert.{name}" for name in biases}
