"""Compressed gradients of DDP."""

import pytest
from ranks import check
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
        state.load_state_dict(saved)
        state._compressors.clear()
assert losses[-1] < 0.2 * losses[0], losses
flat = nn.utils.parameters_to_vector(model.parameters()).detach()
everyone = [torch.empty_like(flat) for _ in range(size)]
dist.all_gather(everyone, flat)
assert all(torch.equal(other, flat) for other in everyone)
"""
        + END,
        2,
        UNISONO_NETWORK="tcp",
        UNISONO_NODES="1,1",
    )
