# Reference values of optimizers: SGD and AdamW by torch.optim in float64, Lion and LAMB by the papers' formulas in numpy float64.
import json

import numpy as np
import torch
rng = np.random.default_rng(33)
cases = []
def rounded(a, digits=6): return np.round(a, digits)
def spec(name, c): return name + (":" + ",".join(f"{k}={str(v).lower()}" for k, v in c.items()) if c else "")
def torch_run(cls, kw, rate, decay, values, grads):
    p = torch.tensor(values, dtype=torch.float64, requires_grad=True)
    o = cls([p], lr=rate, weight_decay=decay, **kw)
    for g in grads:
        p.grad = torch.tensor(g, dtype=torch.float64)
        o.step()
    return p.detach().numpy()
def lion(c, rate, decay, w, grads):
    m = np.zeros_like(w)
    for g in grads:
        d = c["beta1"] * m + (1 - c["beta1"]) * g
        w = w - rate * (np.sign(d) + decay * w)
        m = c["beta2"] * m + (1 - c["beta2"]) * g
    return w
def lamb(c, rate, decay, w, grads):
    m, v = np.zeros_like(w), np.zeros_like(w)
    for t, g in enumerate(grads, 1):
        m = c["beta1"] * m + (1 - c["beta1"]) * g
        v = c["beta2"] * v + (1 - c["beta2"]) * g * g
        r = (m / (1 - c["beta1"] ** t)) / (np.sqrt(v / (1 - c["beta2"] ** t)) + c["epsilon"])
        u = r + decay * w
        nw, nu = np.linalg.norm(w), np.linalg.norm(u)
        w = w - rate * (nw / nu if nw > 0 and nu > 0 else 1.0) * u
    return w
f32 = lambda x: float(np.float32(x))
r = lambda lo, hi, n=3: float(np.round(rng.uniform(lo, hi), n))
def make(name, c):
    count, steps = int(rng.integers(1, 80)), int(rng.integers(1, 7))
    rate, decay = r(.005, .2), [0.0, r(.01, .3)][int(rng.integers(0, 4) > 0)]
    values = rounded(rng.normal(size=count), 4)
    grads = rounded(rng.normal(size=(steps, count)) * 10.0 ** rng.uniform(-2, 1), 4)
    if name == "lion":  # a direction of zero
        grads[:, 0] = 0.0
    # As Rust holds them.
    cc = {k: (v if isinstance(v, bool) else f32(v)) for k, v in c.items()}
    a = (f32(rate), f32(decay), values.astype(np.float32).astype(np.float64), grads.astype(np.float32).astype(np.float64))
    if name == "sgd":
        out = torch_run(torch.optim.SGD, dict(momentum=cc["momentum"], nesterov=cc["nesterov"]), *a)
    elif name == "adamw":
        out = torch_run(torch.optim.AdamW, dict(betas=(cc["beta1"], cc["beta2"]), eps=cc["epsilon"], amsgrad=cc["amsgrad"]), *a)
    else:
        out = (lion if name == "lion" else lamb)(cc, *a)
    cases.append(dict(optimizer=spec(name, c), rate=rate, weight_decay=decay, values=values.tolist(),
        gradients=grads.tolist(), expected=[float(f"{x:.9g}") for x in out]))
for i in range(5):
    make("sgd", dict(momentum=r(0.1, .95), nesterov=bool(i % 2)))
for i in range(6):
    make("adamw", dict(beta1=r(.7, .95), beta2=r(.9, .999), epsilon=[1e-8, 1e-4][i // 2 % 2], amsgrad=bool(i % 2)))
for i in range(3):
    make("lion", dict(beta1=r(.8, .95), beta2=r(.9, .995)))
for i in range(4):
    make("lamb", dict(beta1=r(.8, .95), beta2=r(.9, .999), epsilon=[1e-6, 1e-3][i % 2]))
print("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]")
