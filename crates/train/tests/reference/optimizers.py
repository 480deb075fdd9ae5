"""Writes reference runs of optimizers in float64: SGD and AdamW by PyTorch, Lion and LAMB by the formulas of the papers. A unit test of
`src/optimizer` compares its results with them.

    python optimizers.py > optimizers.json
"""

import json

import numpy as np
import torch

rng = np.random.default_rng(33)


def pytorch(optimizer, constants, rate, decay, values, gradients):
    values = torch.tensor(values, requires_grad=True)
    optimizer = optimizer([values], lr=rate, weight_decay=decay, **constants)
    for gradient in gradients:
        values.grad = torch.tensor(gradient)
        optimizer.step()
    return values.detach().numpy()


def sgd(c, *run):
    return pytorch(torch.optim.SGD, c, *run)


def adamw(c, *run):
    constants = {"betas": (c["beta1"], c["beta2"]), "eps": c["epsilon"], "amsgrad": c["amsgrad"]}
    return pytorch(torch.optim.AdamW, constants, *run)


def lion(c, rate, decay, x, gradients):
    """Chen et al. 2023, algorithm 2."""
    m = np.zeros_like(x)
    for g in gradients:
        x = x - rate * (np.sign(c["beta1"] * m + (1 - c["beta1"]) * g) + decay * x)
        m = c["beta2"] * m + (1 - c["beta2"]) * g
    return x


def lamb(c, rate, decay, x, gradients):
    """You et al. 2020, algorithm 2."""
    m, v = np.zeros_like(x), np.zeros_like(x)
    for t, g in enumerate(gradients, 1):
        m = c["beta1"] * m + (1 - c["beta1"]) * g
        v = c["beta2"] * v + (1 - c["beta2"]) * g * g
        r = (m / (1 - c["beta1"] ** t)) / (np.sqrt(v / (1 - c["beta2"] ** t)) + c["epsilon"])
        step = r + decay * x
        x = x - rate * np.linalg.norm(x) / np.linalg.norm(step) * step
    return x


def uniform(least, most):
    return float(np.round(rng.uniform(least, most), 3))


def as_f32(value):
    """Rounds to `f32`, as Rust stores it."""
    return value if isinstance(value, bool) else np.asarray(value, np.float32).astype(np.float64)[()]


def case(optimizer, **constants):
    count, steps = rng.integers(1, 80), rng.integers(1, 7)
    rate, decay = uniform(0.005, 0.2), uniform(0.01, 0.3) if rng.integers(4) else 0.0
    values = np.round(rng.normal(size=count), 4)
    gradients = np.round(rng.normal(size=(steps, count)) * 10.0 ** rng.uniform(-2, 1), 4)
    if optimizer is lion:
        # Covers a direction of zero.
        gradients[:, 0] = 0.0
    run = map(as_f32, (rate, decay, values, gradients))
    expected = optimizer({name: as_f32(value) for name, value in constants.items()}, *run)
    written = ",".join(f"{name}={str(value).lower()}" for name, value in constants.items())
    return {
        "optimizer": f"{optimizer.__name__}:{written}",
        "rate": rate,
        "weight_decay": decay,
        "values": values.tolist(),
        "gradients": gradients.tolist(),
        "expected": [float(f"{value:.9g}") for value in expected],
    }


def adams(most):
    return {"beta1": uniform(0.7, 0.95), "beta2": uniform(0.9, most)}


cases = [case(sgd, momentum=uniform(0.1, 0.95), nesterov=bool(i % 2)) for i in range(5)]
cases += [case(adamw, **adams(0.999), epsilon=[1e-8, 1e-4][i // 2 % 2], amsgrad=bool(i % 2)) for i in range(6)]
cases += [case(lion, **adams(0.995)) for _ in range(3)]
cases += [case(lamb, **adams(0.999), epsilon=[1e-6, 1e-3][i % 2]) for i in range(4)]
print("[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]")
