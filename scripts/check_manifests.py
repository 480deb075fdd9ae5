"""Starts the ranks of a StatefulSet on this machine, each with the environment of its pod: scripts/check-manifests runs it."""

import os
import subprocess
import sys

import yaml

# These exist in a cluster only.
ADDRESS = "127.0.0.1"
SECRET = "a secret of this test"
POD_INDEX = "metadata.labels['apps.kubernetes.io/pod-index']"


def environment(container: dict, pod: int) -> dict[str, str]:
    """The variables of a container in the pod with this index."""
    found = {}
    for variable in container["env"]:
        source = variable.get("valueFrom", {})
        if "secretKeyRef" in source:
            value = SECRET
        elif "fieldRef" in source:
            assert source["fieldRef"]["fieldPath"] == POD_INDEX, source
            value = str(pod)
        else:
            value = variable["value"]
        found[variable["name"]] = value
    found["MASTER_ADDR"] = ADDRESS
    return found


def start(unisono: str, stateful_set: dict) -> None:
    """Runs a collective over all pods, and fails if a rank does."""
    spec = stateful_set["spec"]
    (container,) = spec["template"]["spec"]["containers"]
    command = [unisono, "bench", "--algorithm", "auto", "--bytes", "8:8", "--iterations", "3"]
    ranks = [
        subprocess.Popen(command, env=os.environ | environment(container, pod), stdout=subprocess.PIPE, text=True)
        for pod in range(spec["replicas"])
    ]
    try:
        outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), outputs
    assert f"# {len(ranks)} ranks" in outputs[0], outputs
    print(outputs[0])


for path in sys.argv[2:]:
    with open(path) as file:
        sets = [part for part in yaml.safe_load_all(file) if part["kind"] == "StatefulSet"]
    assert sets, path
    for stateful_set in sets:
        start(sys.argv[1], stateful_set)
