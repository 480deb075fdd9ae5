"""Writes results of GPT-2 in float64, by the formulas of `GPT2LMHeadModel` in Hugging Face's transformers: the logits, the loss, and the
derivative of the loss along a direction of each parameter. A unit test of `src/model/gpt2.rs` compares them with its own.

    python gpt2.py > gpt2.json
"""

import json
import math

VOCABULARY, CONTEXT, WIDTH, HEADS, BLOCKS = 11, 6, 8, 2, 2
TOKENS = [[3, 1, 4, 1, 5], [9, 2, 6, 10, 0]]
TARGETS = [[1, 4, 1, 5, 9], [2, 6, 10, 0, 7]]


def shapes():
    yield "wte.weight", (VOCABULARY, WIDTH)
    yield "wpe.weight", (CONTEXT, WIDTH)
    for block in range(BLOCKS):
        layers = {"attn.c_attn": (1, 3), "attn.c_proj": (1, 1), "mlp.c_fc": (1, 4), "mlp.c_proj": (4, 1)}
        for layer, (inputs, outputs) in layers.items():
            yield f"h.{block}.{layer}.weight", (inputs * WIDTH, outputs * WIDTH)
            yield f"h.{block}.{layer}.bias", (outputs * WIDTH,)
        for norm in ("ln_1", "ln_2"):
            yield f"h.{block}.{norm}.weight", (WIDTH,)
            yield f"h.{block}.{norm}.bias", (WIDTH,)
    yield "ln_f.weight", (WIDTH,)
    yield "ln_f.bias", (WIDTH,)


def levels(count, seed, modulus):
    return [(i * i * 3 + i * 37 + seed * 11) % 101 % modulus for i in range(count)]


def seed(name):
    return sum(name.encode())


def initial(name, shape):
    middle = 1.0 if ".ln_" in f".{name}" and name.endswith("weight") else 0.0
    return [middle + (level - 3) / 8 for level in levels(math.prod(shape), seed(name), 7)]


def conv1d(model, name, rows):
    weight, bias = model[f"{name}.weight"], model[f"{name}.bias"]
    width = len(bias)
    return [
        [bias[o] + sum(x * weight[i * width + o] for i, x in enumerate(row)) for o in range(width)] for row in rows
    ]


def layer_norm(model, name, rows):
    def one(row):
        mean = sum(row) / len(row)
        variance = sum((x - mean) ** 2 for x in row) / len(row)
        scaled = ((x - mean) / math.sqrt(variance + 1e-5) for x in row)
        return [x * w + b for x, w, b in zip(scaled, model[f"{name}.weight"], model[f"{name}.bias"])]

    return [one(row) for row in rows]


def gelu_new(x):
    return 0.5 * x * (1 + math.tanh(math.sqrt(2 / math.pi) * (x + 0.044715 * x**3)))


def add(a, b):
    return [[x + y for x, y in zip(*rows)] for rows in zip(a, b)]


def softmax(row):
    highest = max(row)
    powers = [math.exp(x - highest) for x in row]
    return [power / sum(powers) for power in powers]


def attention(model, name, rows):
    all_ = conv1d(model, f"{name}.c_attn", rows)
    size = WIDTH // HEADS
    mixed = [[0.0] * WIDTH for _ in rows]
    for head in range(HEADS):
        query, key, value = ([r[p * WIDTH + head * size :][:size] for r in all_] for p in range(3))
        for t in range(len(rows)):
            scores = [sum(a * b for a, b in zip(query[t], key[u])) / math.sqrt(size) for u in range(t + 1)]
            for weight, v in zip(softmax(scores), value):
                for i in range(size):
                    mixed[t][head * size + i] += weight * v[i]
    return conv1d(model, f"{name}.c_proj", mixed)


def logits(model, tokens):
    at = lambda name, row: model[name][row * WIDTH :][:WIDTH]
    x = add([at("wte.weight", token) for token in tokens], [at("wpe.weight", t) for t in range(len(tokens))])
    for block in range(BLOCKS):
        h = f"h.{block}"
        x = add(x, attention(model, f"{h}.attn", layer_norm(model, f"{h}.ln_1", x)))
        hidden = conv1d(model, f"{h}.mlp.c_fc", layer_norm(model, f"{h}.ln_2", x))
        x = add(x, conv1d(model, f"{h}.mlp.c_proj", [[gelu_new(v) for v in row] for row in hidden]))
    x = layer_norm(model, "ln_f", x)
    return [[sum(a * b for a, b in zip(row, at("wte.weight", v))) for v in range(VOCABULARY)] for row in x]


def loss(model):
    rows = (pair for tokens, targets in zip(TOKENS, TARGETS) for pair in zip(logits(model, tokens), targets))
    return -sum(math.log(softmax(row)[target]) for row, target in rows)


def derivative(model, name, h=1e-5):
    direction = [level - 2 for level in levels(len(model[name]), seed(name) + 1, 5)]
    moved = lambda by: {**model, name: [x + by * d for x, d in zip(model[name], direction)]}
    return (loss(moved(h)) - loss(moved(-h))) / (2 * h)


model = {name: initial(name, shape) for name, shape in shapes()}
print(
    json.dumps(
        {
            "logits": [row for tokens in TOKENS for row in logits(model, tokens)],
            "loss": loss(model),
            "derivatives": {name: derivative(model, name) for name in model},
        }
    )
)
