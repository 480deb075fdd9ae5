"""Compressed gradients of DDP."""

import pytest
from ranks import TWO_NODES, check
from test_torch import END, MODEL, PRELUDE


@pytest.mark.parametrize("format", ["int8", "powersgd:2"])
def test_model_trains_with_compressed_gradients(format: str) -> None:
    check(
        PRELUDE
        + MODEL
        + f"""
format = "{format}"
"""
        + """
import unisono.torch
from torch.nn.parallel import DistributedDataParallel as DDP

ddp, state = DDP(model), unisono.torch.CompressState(format)
ddp.register_comm_hook(state, unisono.torch.compress_hook)
optimizer = torch.optim.SGD(model.parameters(), lr=0.2)
losses = []
for step in range(60):
    optimizer.zero_grad()
    loss = loss_of(ddp)
    loss.backward()
    optimizer.step()
    losses.append(loss.item())
    if step == 30:
        saved = state.state_dict()
        assert saved and any(bucket["residual"].any() for bucket in saved.values())
        place = os.environ["STORE"] + f"-{rank}"
        torch.save(saved, place)
        state.load_state_dict(torch.load(place) | {"of another model": {}})
assert losses[-1] < 0.2 * losses[0], losses
assert state.state_dict().keys() == saved.keys(), "the state of another model is kept"
flat = nn.utils.parameters_to_vector(model.parameters()).detach()
everyone = [torch.empty_like(flat) for _ in range(size)]
dist.all_gather(everyone, flat)
assert all(torch.equal(other, flat) for other in everyone)
"""
        + END,
        2,
        **TWO_NODES,
    )


def test_overflow_does_not_spoil_later_steps_and_complex_gradients_are_not_compressed() -> None:
    check(
        PRELUDE
        + MODEL
        + """
import unisono.torch
from torch.nn.parallel import DistributedDataParallel as DDP

refused(ValueError, lambda: unisono.torch.CompressState("int7"), "int7")
ddp, state = DDP(model), unisono.torch.CompressState("int8")
ddp.register_comm_hook(state, unisono.torch.compress_hook)
for step in range(5):
    ddp.zero_grad()
    # Loss scaling repeats a step with a smaller factor after an overflow.
    (loss_of(ddp) * (float("inf") if step == 3 and rank == 0 else 1.0)).backward()
    finite = all(parameter.grad.isfinite().all() for parameter in ddp.parameters())
    assert finite == (step != 3), step

class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.full((8, 8), 1 + 1j))

    def forward(self, factor):
        return (self.weight * factor).abs().square().sum()

ddp = DDP(Complex())
ddp.register_comm_hook(unisono.torch.CompressState("int8"), unisono.torch.compress_hook)
for step in range(3):
    ddp.zero_grad()
    ddp(rank + 1.0).backward()
    # The mean over the ranks of 2 (rank + 1)² times the weight.
    assert torch.allclose(ddp.module.weight.grad, torch.full((8, 8), 5 + 5j)), step
"""
        + END,
        2,
        **TWO_NODES,
    )


def test_average_of_half_precision_gradients_does_not_overflow() -> None:
    check(
        PRELUDE
        + """
import unisono.torch
from torch.nn.parallel import DistributedDataParallel as DDP

model = DDP(torch.nn.Linear(1, 1, bias=False).half())
model.register_comm_hook(None, unisono.torch.all_reduce_hook)
model(torch.full((1, 1), 40000.0, dtype=torch.float16)).sum().backward()
assert (model.module.weight.grad - 40000).abs() <= 64, model.module.weight.grad
"""
        + END
    )
