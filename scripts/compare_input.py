"""Generates images, measures the input pipelines of PyTorch and TensorFlow, and prints the table. Called by scripts/compare-input.

    compare_input.py generate DIR                     writes images as folders and as TFRecords
    compare_input.py rate FRAMEWORK DIR WORKERS       prints images per second as JSON
    compare_input.py check FRAMEWORK DIR PIXELS       compares Unisono's pixels of the test images with the framework's
    compare_input.py table FILE                       prints a Markdown table of the printed rates

FRAMEWORK is torch or tensorflow. DIR is DATA/png, DATA/jpeg, DATA/png-records or DATA/jpeg-records.
"""

import io
import json
import statistics
import sys
import time
from pathlib import Path

import numpy as np
from PIL import Image

SIDE, CLASSES, TRAIN, TEST, BATCH, PADDING, EPOCHS = 160, 4, 1000, 32, 64, 4, 4
# Unisono's normalisation.
MEAN, DEVIATION = 0.1307, 0.3081
EXTENSION = {"png": "png", "jpeg": "jpg"}


# ===== Images. =====


def picture(generator: np.random.Generator) -> Image.Image:
    """Returns an image of smooth gradients, discs and noise, which compresses about as well as a photograph."""
    rows, columns = np.mgrid[0:SIDE, 0:SIDE] / SIDE
    tilt = generator.uniform(-80, 80, (2, 3))
    levels = generator.uniform(90, 160, 3) + rows[..., None] * tilt[0] + columns[..., None] * tilt[1]
    for _ in range(6):
        middle, radius = generator.uniform(0, 1, 2), generator.uniform(0.05, 0.3)
        inside = (rows - middle[0]) ** 2 + (columns - middle[1]) ** 2 < radius**2
        levels[inside] = 0.6 * levels[inside] + 0.4 * generator.uniform(0, 255, 3)
    levels += generator.normal(0, 4, levels.shape)
    return Image.fromarray(levels.clip(0, 255).astype(np.uint8))


def generate(target: Path) -> None:
    import tensorflow as tf

    def integers(value: int) -> tf.train.Feature:
        return tf.train.Feature(int64_list=tf.train.Int64List(value=[value]))

    generator = np.random.default_rng(1)
    for split, count in [("train", TRAIN), ("test", TEST)]:
        # Sorted by class and then by name, the order in which folders are read.
        labels = sorted(index % CLASSES for index in range(count))
        writers = {}
        for kind in EXTENSION:
            records = target / f"{kind}-records"
            records.mkdir(parents=True, exist_ok=True)
            writers[kind] = tf.io.TFRecordWriter(str(records / f"{split}.tfrecord"))
        for index, label in enumerate(labels):
            image = picture(generator)
            for kind, extension in EXTENSION.items():
                folder = target / kind / split / str(label)
                folder.mkdir(parents=True, exist_ok=True)
                encoded = io.BytesIO()
                image.save(encoded, kind, **({"quality": 90} if kind == "jpeg" else {}))
                (folder / f"{index:05}.{extension}").write_bytes(encoded.getvalue())
                bytes_of = tf.train.Feature(bytes_list=tf.train.BytesList(value=[encoded.getvalue()]))
                feature = {"image/encoded": bytes_of, "image/class/label": integers(label)}
                example = tf.train.Example(features=tf.train.Features(feature=feature))
                writers[kind].write(example.SerializeToString())
        for writer in writers.values():
            writer.close()


def is_records(folder: Path) -> bool:
    return folder.name.endswith("-records")


def files(folder: Path, split: str) -> list[tuple[str, int]]:
    return [(str(path), int(path.parent.name)) for path in sorted((folder / split).glob("*/*"))]


# ===== PyTorch: the decoder of ImageFolder (Pillow), transforms on tensors of bytes, conversion to floats per batch. =====


def fields(message: bytes):
    """Yields the fields of a protocol buffers message, since PyTorch has no reader of TFRecords."""
    at = 0

    def number() -> int:
        nonlocal at
        value, shift = 0, 0
        while True:
            byte = message[at]
            value, shift, at = value | (byte & 127) << shift, shift + 7, at + 1
            if byte < 128:
                return value

    while at < len(message):
        key = number()
        value = number()
        if key & 7 == 2:
            value, at = message[at : at + value], at + value
        yield key >> 3, value


def example(record: bytes) -> dict[str, bytes]:
    """Returns the single value of each feature of a tf.train.Example. An integer may be encoded as bytes."""
    (_, features), *_ = fields(record)
    found = {}
    for _, entry in fields(features):
        name, feature = (value for _, value in fields(entry))
        ((_, values),) = fields(feature)
        ((_, value),) = fields(values)
        found[name.decode()] = value
    return found


class Samples:
    """Decoded images and their classes, from a folder or a TFRecord file: a data set for PyTorch's workers."""

    def __init__(self, folder: Path, split: str, augment: bool) -> None:
        self.augment = augment
        if is_records(folder):
            self.path, self.places, start = folder / f"{split}.tfrecord", [], 0
            size = self.path.stat().st_size
            with self.path.open("rb") as file:
                while start < size:
                    file.seek(start)
                    length = int.from_bytes(file.read(8), "little")
                    self.places.append((start + 12, length))
                    start += 12 + length + 4
        else:
            self.path, self.places = None, files(folder, split)

    def __len__(self) -> int:
        return len(self.places)

    def encoded(self, index: int) -> tuple[bytes, int]:
        if self.path is None:
            path, label = self.places[index]
            return Path(path).read_bytes(), label
        start, length = self.places[index]
        if not hasattr(self, "file"):
            self.file = self.path.open("rb")
        self.file.seek(start)
        found = example(self.file.read(length))
        label = found["image/class/label"]
        return found["image/encoded"], label if isinstance(label, int) else label[0]

    def __getitem__(self, index: int):
        import torch

        encoded, label = self.encoded(index)
        image = Image.open(io.BytesIO(encoded)).convert("RGB")
        image = torch.from_numpy(np.array(image)).permute(2, 0, 1)
        if self.augment:
            image = torch.nn.functional.pad(image, [PADDING] * 4)
            down, right = torch.randint(0, 2 * PADDING + 1, (2,)).tolist()
            image = image[:, down : down + SIDE, right : right + SIDE]
            if torch.rand(1) < 0.5:
                image = image.flip(2)
        return image, label


def collate(samples):
    import torch

    images = torch.stack([image for image, _ in samples]).float()
    images = images.div_(255).sub_(MEAN).div_(DEVIATION)
    return images, torch.tensor([label for _, label in samples])


def of_torch(folder: Path, workers: int):
    from torch.utils.data import DataLoader

    loader = DataLoader(
        Samples(folder, "train", augment=True),
        batch_size=BATCH,
        shuffle=True,
        num_workers=workers,
        persistent_workers=True,
        collate_fn=collate,
    )
    return lambda: iter(loader)


# ===== TensorFlow: all operations in the graph, with automatic numbers of threads and prefetched batches. =====


def of_tensorflow(folder: Path, _: int):
    import tensorflow as tf

    auto = tf.data.AUTOTUNE
    decode = tf.io.decode_png if folder.name.startswith("png") else tf.io.decode_jpeg

    def ready(encoded, label):
        image = decode(encoded, channels=3)
        image = tf.image.random_crop(tf.pad(image, [[PADDING] * 2] * 2 + [[0, 0]]), [SIDE, SIDE, 3])
        image = tf.image.random_flip_left_right(image)
        return (tf.cast(image, tf.float32) / 255 - MEAN) / DEVIATION, label

    def from_record(record):
        form = {
            "image/encoded": tf.io.FixedLenFeature([], tf.string),
            "image/class/label": tf.io.FixedLenFeature([], tf.int64),
        }
        found = tf.io.parse_single_example(record, form)
        return ready(found["image/encoded"], found["image/class/label"])

    if is_records(folder):
        source, to_image = tf.data.TFRecordDataset(str(folder / "train.tfrecord")), from_record
    else:
        paths, labels = zip(*files(folder, "train"))
        source = tf.data.Dataset.from_tensor_slices((list(paths), list(labels)))

        def to_image(path, label):
            return ready(tf.io.read_file(path), label)

    made = source.shuffle(TRAIN).map(to_image, num_parallel_calls=auto)
    made = made.batch(BATCH, num_parallel_calls=auto).prefetch(auto)
    return lambda: iter(made)


def rate(framework: str, folder: Path, workers: int) -> None:
    epoch = {"torch": of_torch, "tensorflow": of_tensorflow}[framework](folder, workers)
    # The first epoch starts threads and processes and fills the page cache, so it is not counted.
    seen, seconds = 0, 0.0
    for number in range(EPOCHS):
        began = time.perf_counter()
        count = sum(len(images) for images, _ in epoch())
        assert count == TRAIN, f"{count} images"
        if number > 0:
            seen, seconds = seen + count, seconds + time.perf_counter() - began
    name = f"torch, {workers} workers" if framework == "torch" else "tf.data"
    print(json.dumps({"framework": name, "images_per_s": round(seen / seconds, 1)}))


# ===== Checks and the table. =====


def check(framework: str, folder: Path, pixels: Path) -> None:
    """Checks that pixels of PNGs are equal. JPEG decoders round differently, so their pixels may differ by a level on average."""
    samples = Samples(folder, "test", augment=False)
    ours = np.fromfile(pixels, "<f4").reshape(-1, SIDE, SIDE, 3)
    ours = np.rint((ours * DEVIATION + MEAN) * 255).astype(int)
    assert len(ours) == len(samples) == TEST, f"{len(ours)} images, and {len(samples)}"
    if framework == "torch":
        theirs = np.stack([samples[index][0].permute(1, 2, 0).numpy() for index in range(TEST)])
    else:
        import tensorflow as tf

        def decode(encoded: bytes) -> np.ndarray:
            if folder.name.startswith("png"):
                return tf.io.decode_png(encoded, channels=3).numpy()
            # The default is faster and less exact: it differs from Pillow by more than a level.
            return tf.io.decode_jpeg(encoded, channels=3, dct_method="INTEGER_ACCURATE").numpy()

        theirs = np.stack([decode(samples.encoded(index)[0]) for index in range(TEST)])
    apart = np.abs(ours - theirs.astype(int)).mean()
    most = 0.0 if folder.name.startswith("png") else 1.0
    if apart > most:
        sys.exit(f"{folder.name}: pixels of {framework} and Unisono must differ by at most {most} levels on average, got {apart:.3f}")
    print(f"{folder.name}: pixels of {framework} and Unisono differ by {apart:.3f} levels on average", file=sys.stderr)


def table(measured: Path) -> None:
    """Prints the median rates, and Unisono's rate relative to that of the fastest other framework."""
    rates: dict[str, dict[str, list[float]]] = {}
    for line in measured.read_text().splitlines():
        folder, row = line.split("\t")
        found = json.loads(row)
        rates.setdefault(folder, {}).setdefault(found["framework"], []).append(found["images_per_s"])
    names = list(next(iter(rates.values())))
    print("| images/s |", " | ".join(names), "| unisono / fastest other |")
    print("|---" * (len(names) + 2) + "|")
    for folder, of in rates.items():
        medians = {name: statistics.median(of[name]) for name in names}
        best = max(value for name, value in medians.items() if name != "unisono")
        numbers = " | ".join(f"{medians[name]:.0f}" for name in names)
        print(f"| {folder.replace('-records', ' in TFRecords')} | {numbers} | {medians['unisono'] / best:.2f} |")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["generate", target]:
            generate(Path(target))
        case ["rate", framework, folder, workers]:
            rate(framework, Path(folder), int(workers))
        case ["check", framework, folder, pixels]:
            check(framework, Path(folder), Path(pixels))
        case ["table", measured]:
            table(Path(measured))
        case _:
            sys.exit(__doc__)
