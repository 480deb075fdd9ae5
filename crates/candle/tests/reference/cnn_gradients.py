"""Writes PyTorch's gradients of the built-in CNN, which a unit test of `src/model` compares with its own.

    python cnn_gradients.py > cnn_gradients.json

Parameters and images are multiples of small powers of two, so both convolutions are exact in any order of additions, and equal
maxima are equal in both frameworks. One image is black, and another has a black frame. There, all values of a square are equal.
"""

import json
import sys

import torch
from torch.nn import functional as F

HEIGHT, WIDTH, CHANNELS, CLASSES = 20, 17, 2, 10
TARGETS = [3, 7, 1]
# The maximum number of values that are written per gradient.
VALUES = 24


def levels(count, seed, modulus):
    """Returns integers from 0 to below modulus, without a pattern that a convolution could cancel."""
    return torch.tensor([(i * i * 3 + i * 37 + seed * 11) % 101 % modulus for i in range(count)], dtype=torch.float64)


def images():
    """Returns samples x height x width x channels, as in the built-in models."""
    x = (levels(3 * HEIGHT * WIDTH * CHANNELS, 5, 5) / 4).reshape(3, HEIGHT, WIDTH, CHANNELS)
    x[1] = 0
    x[2, :6] = 0
    x[2, :, 9:] = 0
    return x


def main():
    rows, columns = ((HEIGHT - 4) // 2 - 4) // 2, ((WIDTH - 4) // 2 - 4) // 2
    shapes = {
        "convolution1.weight": (25 * CHANNELS, 16),
        "convolution1.bias": (16,),
        "convolution2.weight": (25 * 16, 32),
        "convolution2.bias": (32,),
        "hidden.weight": (rows * columns * 32, 128),
        "hidden.bias": (128,),
        "output.weight": (128, CLASSES),
        "output.bias": (CLASSES,),
    }
    parameters = {}
    for number, (name, shape) in enumerate(shapes.items()):
        scale = 16 if name.startswith("convolution") else 64
        values = (levels(torch.Size(shape).numel(), number, 7) - 3) / scale
        parameters[name] = values.reshape(shape).requires_grad_()

    def convolution(x, name):
        weight = parameters[f"{name}.weight"]
        kernel = weight.reshape(5, 5, -1, weight.shape[1]).permute(3, 2, 0, 1)
        return F.max_pool2d(F.relu(F.conv2d(x, kernel, parameters[f"{name}.bias"])), 2)

    x = images().permute(0, 3, 1, 2)
    x = convolution(convolution(x, "convolution1"), "convolution2")
    x = x.permute(0, 2, 3, 1).flatten(1)
    x = F.relu(x @ parameters["hidden.weight"] + parameters["hidden.bias"])
    logits = x @ parameters["output.weight"] + parameters["output.bias"]
    loss = F.cross_entropy(logits, torch.tensor(TARGETS), reduction="sum")
    loss.backward()

    gradients = {}
    for name, parameter in parameters.items():
        gradient = parameter.grad.flatten()
        every = -(-len(gradient) // VALUES)
        gradients[name] = {"norm": gradient.norm().item(), "every": every, "values": gradient[::every].tolist()}
    json.dump({"torch": torch.__version__, "loss": loss.item(), "gradients": gradients}, sys.stdout, indent=1)
    print()


if __name__ == "__main__":
    main()
