"""Prints the published crates. Fails if metadata is missing.

scripts/published.py           prints the name of each crate
scripts/published.py --docs    prints the options of cargo doc for each library, with the features of docs.rs
"""

import json
import subprocess
import sys

REQUIRED = ("description", "license", "documentation", "readme", "keywords", "categories", "rust_version")


def main() -> int:
    command = ["cargo", "metadata", "--offline", "--locked", "--no-deps", "--format-version", "1"]
    metadata = json.loads(subprocess.run(command, check=True, stdout=subprocess.PIPE).stdout)
    crates = [crate for crate in metadata["packages"] if crate["publish"] is None]
    gaps = [f"{crate['name']} has no {field}" for crate in crates for field in REQUIRED if not crate[field]]
    if gaps:
        print("published:", "; ".join(gaps), file=sys.stderr)
        return 1
    for crate in crates:
        if "--docs" not in sys.argv[1:]:
            print(crate["name"])
        elif any({"lib", "rlib"} & set(target["kind"]) for target in crate["targets"]):
            print("-p", crate["name"], *features(crate))
    return 0


def features(crate: dict) -> list[str]:
    docs = ((crate["metadata"] or {}).get("docs") or {}).get("rs") or {}
    options = [f"--{name}" for name in ("all-features", "no-default-features") if docs.get(name)]
    return options + [option for name in docs.get("features", []) for option in ("--features", name)]


if __name__ == "__main__":
    sys.exit(main())
