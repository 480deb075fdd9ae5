"""Validates manifests, and starts their ranks on this machine with the environments of their pods. Called by scripts/check-manifests."""

import os
import subprocess
import sys

import kubernetes_validate
import yaml

KUBERNETES = "1.37"
BENCH = ["bench", "--algorithm", "auto", "--bytes", "8:8", "--iterations", "3"]
# Replacements for values that exist only in a cluster.
ADDRESS = "127.0.0.1"
SECRET = "a secret of this test"
POD_INDEX = "metadata.labels['apps.kubernetes.io/pod-index']"


def environment(container: dict, pod: int) -> dict[str, str]:
    """Returns the environment variables of a container in the pod with this index."""
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


def validate(manifest: dict) -> None:
    """Validates a manifest against the schemas of Kubernetes. They do not include MPI jobs, of which it validates the pods."""
    if manifest["kind"] != "MPIJob":
        kubernetes_validate.validate(manifest, KUBERNETES, strict=True)
        return
    for name, replicas in manifest["spec"]["mpiReplicaSpecs"].items():
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name.lower()}, **replicas["template"]}
        kubernetes_validate.validate(pod, KUBERNETES, strict=True)


def stateful_set(unisono: str, spec: dict) -> tuple[int, str]:
    """Runs a collective over all pods. Returns their number and the output of the first one."""
    (container,) = spec["template"]["spec"]["containers"]
    ranks = [
        subprocess.Popen([unisono, *BENCH], env=os.environ | environment(container, pod), stdout=subprocess.PIPE, text=True)
        for pod in range(spec["replicas"])
    ]
    try:
        outputs = [rank.communicate(timeout=60)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0] * len(ranks), outputs
    return len(ranks), outputs[0]


def mpi_job(unisono: str, spec: dict) -> tuple[int, str]:
    """Runs a collective over the ranks that the launcher starts. Returns their number and the output."""
    (container,) = spec["mpiReplicaSpecs"]["Launcher"]["template"]["spec"]["containers"]
    command = container["command"]
    launcher = command[: command.index("unisono")]
    ranks = spec["slotsPerWorker"] * spec["mpiReplicaSpecs"]["Worker"]["replicas"]
    assert launcher == ["mpirun", "-n", str(ranks)], launcher
    ended = subprocess.run([*launcher, "--oversubscribe", unisono, *BENCH], stdout=subprocess.PIPE, text=True, timeout=60)
    assert ended.returncode == 0, ended
    return ranks, ended.stdout


STARTS = {"StatefulSet": stateful_set, "MPIJob": mpi_job}

for path in sys.argv[2:]:
    with open(path) as file:
        manifests = list(yaml.safe_load_all(file))
    for manifest in manifests:
        validate(manifest)
    (started,) = [manifest for manifest in manifests if manifest["kind"] in STARTS]
    ranks, output = STARTS[started["kind"]](sys.argv[1], started["spec"])
    assert f"# {ranks} ranks" in output, output
    print(f"{path}:\n{output}")
