"""Measures data-parallel training of Unisono's networks in PyTorch, and prints a table of both. Called by scripts/compare-pytorch.

    compare_pytorch.py measure --model mlp --hidden 1024,1024 --ranks 2
        Trains a network with DistributedDataParallel over gloo, with one process per rank. Prints the time of a step as a JSON object:
        the median over the steps, of the slowest rank.

    mpirun -n 2 compare_pytorch.py rank --hidden 1024,1024 --hook powersgd:4 --directory EMPTY --interface net0
        Trains as one of the ranks that Open MPI's mpirun has started, on one or several nodes (scripts/two-nodes), with a hook of PyTorch.
        Rank 0 prints the same object. The directory must be shared by all ranks.

    compare_pytorch.py accuracy --model cnn --images FILE --labels FILE --program UNISONO
        Trains a network on one rank in Unisono and in PyTorch, with seeds 0, 1, …, on images and labels in MNIST's format. Every fifth
        image is used for testing. Prints the accuracies and their means as a Markdown row.

    compare_pytorch.py table FILE
        Reads JSON objects of both frameworks, one per line, and prints a Markdown table of their medians.
"""

import argparse
import gzip
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from datetime import timedelta

# The shapes of MNIST's images and of texts.
PIXELS, CLASSES = 784, 10
CONTEXT, CHARACTERS = 128, 65
# The number of prepared batches, which steps use cyclically. As in a training run, data comes from memory and not from a cache.
BATCHES = 16
WARM_UP_STEPS = 10


def network(model, hidden):
    """Returns the equivalent of Unisono's network of this name (crates/*/src/model), with equal shapes and operations of equal cost."""
    from torch import nn

    return {"mlp": perceptron, "cnn": convolutional, "resnet": residual, "transformer": transformer}[model](nn, hidden)


def perceptron(nn, hidden):
    widths = [PIXELS, *(hidden or [1024, 1024])]
    layers = []
    for inputs, outputs in zip(widths, widths[1:]):
        layers += [nn.Linear(inputs, outputs), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(widths[-1], CLASSES))


def convolutional(nn, _hidden):
    layers = [nn.Unflatten(1, (1, 28, 28))]
    for inputs, outputs in ((1, 16), (16, 32)):
        layers += [nn.Conv2d(inputs, outputs, 5), nn.MaxPool2d(2), nn.ReLU()]
    return nn.Sequential(*layers, nn.Flatten(), nn.Linear(4 * 4 * 32, 128), nn.ReLU(), nn.Linear(128, CLASSES))


def residual(nn, hidden):
    import torch

    def convolution(inputs, outputs, stride):
        return [nn.Conv2d(inputs, outputs, 3, stride, 1, bias=False), nn.BatchNorm2d(outputs)]

    class Block(nn.Module):
        def __init__(self, inputs, outputs):
            super().__init__()
            self.stride = 1 if inputs == outputs else 2
            self.more = outputs - inputs
            self.layers = nn.Sequential(*convolution(inputs, outputs, self.stride), nn.ReLU(), *convolution(outputs, outputs, 1))

        def forward(self, x):
            shortcut = x[:, :, :: self.stride, :: self.stride]
            return torch.relu(nn.functional.pad(shortcut, (0, 0, 0, 0, 0, self.more)) + self.layers(x))

    widths = hidden or [16, 32, 64]
    blocks = [Block(inputs, outputs) for inputs, outputs in zip([widths[0], *widths], widths)]
    ends = nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(widths[-1], CLASSES)
    return nn.Sequential(nn.Unflatten(1, (1, 28, 28)), *convolution(1, widths[0], 1), nn.ReLU(), *blocks, *ends)


def transformer(nn, hidden):
    import torch

    widths = hidden or [128] * 4
    width = widths[0]

    def norm(x):
        return nn.functional.rms_norm(x, (width,))

    def linear(inputs, outputs):
        return nn.Linear(inputs, outputs, bias=False)

    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.query, self.key, self.value, self.mix = (linear(width, width) for _ in range(4))
            self.expand, self.contract = linear(width, 4 * width), linear(4 * width, width)

        def forward(self, x):
            normed = norm(x)
            samples, context, _ = x.shape
            heads = (layer(normed).view(samples, context, -1, 32).transpose(1, 2) for layer in (self.query, self.key, self.value))
            mixed = nn.functional.scaled_dot_product_attention(*heads, is_causal=True)
            x = x + self.mix(mixed.transpose(1, 2).reshape(x.shape))
            return x + self.contract(torch.relu(self.expand(norm(x))).square())

    class Transformer(nn.Module):
        def __init__(self):
            super().__init__()
            self.characters = nn.Embedding(CHARACTERS, width)
            self.positions = nn.Parameter(torch.randn(CONTEXT, width) / 10)
            self.blocks = nn.Sequential(*(Block() for _ in widths))
            self.output = linear(width, CHARACTERS)

        def forward(self, tokens):
            return self.output(norm(self.blocks(self.characters(tokens) + self.positions))).flatten(0, 1)

    return Transformer()


def batches(model, samples):
    """Returns random inputs and targets, like those of `unisono bench-step`."""
    import torch

    if model == "transformer":
        tokens = torch.randint(CHARACTERS, (BATCHES, samples, CONTEXT + 1))
        return tokens[..., :-1].contiguous(), tokens[..., 1:].reshape(BATCHES, -1)
    return torch.randn(BATCHES, samples, PIXELS), torch.randint(CLASSES, (BATCHES, samples))


def compress(model, hook, dist):
    """Registers a hook that is part of PyTorch: bf16 or powersgd:RANK."""
    from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

    if hook == "bf16":
        model.register_comm_hook(dist.group.WORLD, default_hooks.bf16_compress_hook)
    elif hook is not None:
        name, rank = hook.split(":")
        if name != "powersgd":
            sys.exit(f"compare_pytorch: --hook must be bf16 or powersgd:RANK, got `{hook}`")
        state = powerSGD_hook.PowerSGDState(
            dist.group.WORLD, matrix_approximation_rank=int(rank), start_powerSGD_iter=WARM_UP_STEPS // 2
        )
        model.register_comm_hook(state, powerSGD_hook.powerSGD_hook)


def train(rank, arguments, directory):
    """Trains as one rank, and writes its measurements to the directory."""
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel

    torch.set_num_threads(1)
    torch.set_num_interop_threads(1)
    dist.init_process_group(
        "gloo",
        # A file needs no port, which another program may use.
        init_method=f"file://{directory}/rendezvous",
        rank=rank,
        world_size=arguments.ranks,
        timeout=timedelta(seconds=arguments.timeout_s),
    )
    torch.manual_seed(0)
    if arguments.hook is not None:
        # One bucket, since PowerSGD's hook over gloo mixes up the messages of two.
        dist._DEFAULT_FIRST_BUCKET_BYTES = 1 << 30
    model = network(arguments.model, arguments.hidden)
    if arguments.ranks > 1:
        model = DistributedDataParallel(model, bucket_cap_mb=25 if arguments.hook is None else 1024)
    compress(model, arguments.hook, dist)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    loss_of = torch.nn.CrossEntropyLoss()
    torch.manual_seed(1 + rank)
    inputs, targets = batches(arguments.model, arguments.batch_size)

    times_ms = []
    dist.barrier()
    for step in range(WARM_UP_STEPS + arguments.steps):
        began = time.perf_counter()
        optimizer.zero_grad()
        loss = loss_of(model(inputs[step % BATCHES]), targets[step % BATCHES])
        loss.backward()
        optimizer.step()
        times_ms.append(1000 * (time.perf_counter() - began))
    if not torch.isfinite(loss):
        sys.exit(f"rank {rank}: the loss must be finite, got {loss.item()}")
    measured = {
        "version": torch.__version__,
        "parameters": sum(parameter.numel() for parameter in model.parameters()),
        "ms_per_step": statistics.median(times_ms[WARM_UP_STEPS:]),
    }
    with open(f"{directory}/{rank}.json", "w") as file:
        json.dump(measured, file)
    # No rank closes its connections while another still trains.
    dist.barrier()
    dist.destroy_process_group()


def launch(arguments):
    """Runs all ranks, and kills them after a timeout."""
    import torch.multiprocessing as mp

    with tempfile.TemporaryDirectory() as directory:
        deadline = time.monotonic() + arguments.timeout_s
        # An exception of a rank is raised here, after the other ranks have been terminated.
        ranks = mp.spawn(train, (arguments, directory), nprocs=arguments.ranks, join=False, daemon=True)
        while not ranks.join(timeout=max(0, deadline - time.monotonic())):
            if time.monotonic() >= deadline:
                for process in ranks.processes:
                    process.kill()
                sys.exit(f"compare_pytorch: timeout of {arguments.ranks} ranks after {arguments.timeout_s} s")
        return figures(arguments, directory)


def figures(arguments, directory):
    """Returns the measurements of all ranks as one object."""
    measured = []
    for rank in range(arguments.ranks):
        with open(f"{directory}/{rank}.json") as file:
            measured.append(json.load(file))
    return {
        "framework": "pytorch",
        "version": measured[0]["version"],
        "model": arguments.model,
        "batch_size": arguments.batch_size,
        "parameters": measured[0]["parameters"],
        "ranks": arguments.ranks,
        "hook": arguments.hook,
        "ms_per_step": round(max(one["ms_per_step"] for one in measured), 3),
    }


def measure(arguments):
    # Set before torch is imported. The ranks inherit it. All of them are on this machine.
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ.setdefault("GLOO_SOCKET_IFNAME", "lo")
    print(json.dumps(launch(arguments)))


def as_rank(arguments):
    os.environ["OMP_NUM_THREADS"] = "1"
    os.environ["GLOO_SOCKET_IFNAME"] = arguments.interface
    rank, arguments.ranks = (int(os.environ[f"OMPI_COMM_WORLD_{name}"]) for name in ("RANK", "SIZE"))
    train(rank, arguments, arguments.directory)
    if rank == 0:
        print(json.dumps(figures(arguments, arguments.directory)))


def read_idx(path):
    """Reads an array in MNIST's format: a magic number whose last byte is the number of dimensions, the dimensions, and bytes."""
    import numpy

    with gzip.open(path) if path.endswith(".gz") else open(path, "rb") as file:
        data = file.read()
    shape = numpy.frombuffer(data, ">u4", data[3], offset=4)
    return numpy.frombuffer(data, numpy.uint8, offset=4 + 4 * data[3]).reshape(shape)


def accuracy(arguments):
    import numpy

    images, labels = read_idx(arguments.images), read_idx(arguments.labels)
    is_test = numpy.arange(len(images)) % 5 == 0
    parts = {"train": ~is_test, "test": is_test}
    with tempfile.TemporaryDirectory() as directory:
        for name, part in parts.items():
            numpy.save(f"{directory}/x_{name}.npy", images[part])
            numpy.save(f"{directory}/y_{name}.npy", labels[part])
        unisono = [accuracy_in_unisono(arguments, directory, seed) for seed in range(arguments.seeds)]
    pytorch = [accuracy_in_pytorch(arguments, images, labels, parts, seed) for seed in range(arguments.seeds)]
    cells = (f"{', '.join(f'{100 * one:.2f}' for one in all)} | {100 * statistics.mean(all):.2f}" for all in (unisono, pytorch))
    print(f"| {arguments.model} | {arguments.epochs} | {' | '.join(cells)} |")


def accuracy_in_unisono(arguments, directory, seed):
    # `train` scales the learning rate from the model's default batch size.
    rate = arguments.rate * {"mlp": 128, "cnn": 64, "resnet": 64}[arguments.model] / arguments.batch_size
    options = f"--epochs {arguments.epochs} --batch-size {arguments.batch_size} --learning-rate {rate} --seed {seed}"
    constant = "--optimizer sgd --momentum 0.9 --schedule constant --warm-up 0 --weight-decay 0 --threads 1 --format json"
    command = [arguments.program, "train", "--data", f"npy:{directory}", "--model", arguments.model, *options.split(), *constant.split()]
    if arguments.hidden:
        command += ["--hidden", ",".join(map(str, arguments.hidden))]
    done = subprocess.run(command, capture_output=True, text=True, timeout=arguments.timeout_s)
    if done.returncode != 0:
        sys.exit(f"compare_pytorch: unisono failed: {done.stderr}")
    return json.loads(done.stdout.splitlines()[-1])["test_accuracy"]


def accuracy_in_pytorch(arguments, images, labels, parts, seed):
    import torch

    torch.manual_seed(seed)
    # Normalised by MNIST's mean and deviation, as in Unisono.
    inputs = (torch.tensor(images).flatten(1) / 255 - 0.1307) / 0.3081
    train, test = ((inputs[part], torch.tensor(labels[part]).long()) for part in parts.values())
    model = network(arguments.model, arguments.hidden)
    optimizer = torch.optim.SGD(model.parameters(), lr=arguments.rate, momentum=0.9)
    loss_of = torch.nn.CrossEntropyLoss()
    for _ in range(arguments.epochs):
        for batch in torch.randperm(len(train[0])).split(arguments.batch_size):
            optimizer.zero_grad()
            loss_of(model(train[0][batch]), train[1][batch]).backward()
            optimizer.step()
    model.eval()
    with torch.no_grad():
        return (model(test[0]).argmax(1) == test[1]).float().mean().item()


def table(arguments):
    """Prints medians over rounds, and the range of the ratios. Each round measures both frameworks."""
    times_ms, version = {}, ""
    with open(arguments.file) as file:
        for line in file:
            row = json.loads(line)
            key = (row["parameters"], row["ranks"])
            times_ms.setdefault(row["model"], {}).setdefault(key, {}).setdefault(row["framework"], []).append(row["ms_per_step"])
            version = row.get("version", version)
    print(f"| model | parameters | ranks | unisono, ms | PyTorch {version}, ms | PyTorch / unisono |\n|---|---|---|---|---|---|")
    for model, cases in times_ms.items():
        for (parameters, ranks), frameworks in sorted(cases.items()):
            if set(frameworks) != {"unisono", "pytorch"}:
                only = f"only {', '.join(frameworks)} trained the {model} with {parameters} parameters"
                sys.exit(f"compare_pytorch: {only}; both frameworks must train the same models")
            unisono, pytorch = frameworks["unisono"], frameworks["pytorch"]
            ratios = [other / own for own, other in zip(unisono, pytorch)]
            low, high = min(ratios), max(ratios)
            medians = f"{statistics.median(unisono):.2f} | {statistics.median(pytorch):.2f}"
            print(f"| {model} | {parameters} | {ranks} | {medians} | {statistics.median(ratios):.2f} ({low:.2f}–{high:.2f}) |")


def widths(text):
    return [int(width) for width in text.split(",")]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(required=True)
    one = commands.add_parser("measure")
    one.add_argument("--ranks", type=int, required=True)
    one.set_defaults(run=measure, hook=None)
    rank = commands.add_parser("rank")
    rank.add_argument("--hook", help="bf16 or powersgd:RANK")
    rank.add_argument("--directory", required=True, help="an empty folder that all ranks share")
    rank.add_argument("--interface", default="lo", help="the network interface that connects the nodes")
    rank.set_defaults(run=as_rank)
    for trains in (one, rank):
        trains.add_argument("--model", default="mlp", help="mlp, cnn, resnet or transformer, as for `unisono bench-step`")
        trains.add_argument("--hidden", type=widths, help="widths of the layers or blocks: 1024,1024")
        trains.add_argument("--batch-size", type=int, default=128, help="samples per rank and step")
        trains.add_argument("--steps", type=int, default=40, help="measured steps")
        trains.add_argument("--timeout-s", type=int, default=300)
    accurate = commands.add_parser("accuracy")
    accurate.add_argument("--model", required=True, help="mlp, cnn or resnet")
    accurate.add_argument("--hidden", type=widths, help="widths of the layers or blocks; the perceptron needs them")
    accurate.add_argument("--images", required=True, help="images of 28 x 28 pixels; may be compressed by gzip")
    accurate.add_argument("--labels", required=True)
    accurate.add_argument("--program", default="unisono")
    accurate.add_argument("--epochs", type=int, default=5)
    accurate.add_argument("--batch-size", type=int, default=32)
    accurate.add_argument("--rate", type=float, default=0.01, help="the learning rate of SGD with momentum 0.9")
    accurate.add_argument("--seeds", type=int, default=3)
    accurate.add_argument("--timeout-s", type=int, default=600)
    accurate.set_defaults(run=accuracy)
    both = commands.add_parser("table")
    both.add_argument("file")
    both.set_defaults(run=table)
    arguments = parser.parse_args()
    arguments.run(arguments)


if __name__ == "__main__":
    main()
