"""Writes reference.json: images that Pillow has resized and cropped as torchvision's Resize and CenterCrop do."""

import json
import random

from PIL import Image

random.seed(1)
cases = []
for case in range(24):
    channels = [1, 3][case % 2]
    height, width = random.randint(1, 60), random.randint(1, 60)
    rows = random.randint(1, 12)
    columns = rows if case % 3 else random.randint(1, 12)
    # Aspect ratios that `kept` does not change.
    if max(height * columns, width * rows) > 8 * min(height * columns, width * rows):
        width, columns = height, rows
    levels = bytes((at * 2654435761 >> 16) % 256 for at in range(height * width * channels))
    image = Image.frombytes("L" if channels == 1 else "RGB", (width, height), levels)
    if rows * width >= columns * height:
        size = (rows * width // height, rows)
    else:
        size = (columns, columns * height // width)
    if rows == columns:  # torchvision's Resize(rows), literally
        shorter, longer = min(width, height), max(width, height)
        other = int(rows * longer / shorter)
        assert size == ((rows, other) if width <= height else (other, rows))
    image = image.resize(size, Image.Resampling.BILINEAR)
    left, top = int(round((size[0] - columns) / 2.0)), int(round((size[1] - rows) / 2.0))
    image = image.crop((left, top, left + columns, top + rows))
    cases.append({"from": [height, width, channels], "to": [rows, columns], "levels": list(image.tobytes())})
with open("reference.json", "w") as file:
    file.write("[\n" + ",\n".join(json.dumps(case, separators=(",", ":")) for case in cases) + "\n]\n")
