"""What keeps a step from running in one piece: code that cannot be compiled, and questions that wait for the GPU."""

import warnings

import torch
from parts.encoders import Setting, Work, minibert, on_device, stepping
from parts.inputs import Batch, draw, packed


def graph_breaks(setting: Setting, work: Work) -> list[str]:
    """Where the compiler must cut the model's forward into pieces, and why; empty where it need not."""
    torch._dynamo.reset()
    model, batch = minibert(setting).to(setting.device).train(), first(setting, work)
    found = torch._dynamo.explain(model)(**batch)
    torch._dynamo.reset()
    places = [(cut.user_stack[-1], str(cut.reason).split("\n")[0]) for cut in found.break_reasons]
    return [f"{place.filename}:{place.lineno} ({reason})" for place, reason in places]


def synchronisations(setting: Setting, work: Work) -> list[str]:
    """The lines of Python that wait for the GPU in a step, each as often as it does; on a CPU nothing waits."""
    if setting.device != "cuda":
        return []
    step, batch = stepping(minibert(setting).to(setting.device).train(), setting), first(setting, work)
    step([batch])
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        torch.cuda.set_sync_debug_mode("warn")
        step([batch])
        torch.cuda.set_sync_debug_mode("default")
    return [f"{one.filename}:{one.lineno}" for one in caught if "synchroniz" in str(one.message)]


def first(setting: Setting, work: Work) -> Batch:
    """The first batch of a turn, on the device."""
    return on_device(packed(draw(work.batches[0], seed=0), setting.longest), setting)
