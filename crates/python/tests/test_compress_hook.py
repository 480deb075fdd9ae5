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
