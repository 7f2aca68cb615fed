"""Runs an agent in its own namespaces with kernels that lie about their times; compares their claims with proofs.

    unshare ... python -m tests.service.lying_site FOLDER KERNEL...

Prints one JSON object. FOLDER contains kernels.so, built from lying_kernels.c.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time
from pathlib import Path

import numpy as np

from fleet.domain.measuring import TensorSpec
from fleet.domain.proving import EXTRA_ITEMS, ProofArgument, ProofOrder, contents_of_call
from fleet.v1 import measurement_pb2
from fleet.wire.proofs import proof_from_proto, proof_order_to_proto
from tests.service.agent_bench import Holder, kind_of, request_for, serve_bench
from tests.service.tensors import spec

DEVICE = "devices/here"
_ITEMS = 64
_EVALUATOR = measurement_pb2.Evaluator(number=1, repeat=3, min_repeat_ms=5)


async def trial(holder: Holder, digest: str, name: str) -> tuple[str, float]:
    """Return the outcome of a trial and its median time [s]; 0 if it failed."""
    args = [spec("fill", _ITEMS), spec("output", _ITEMS)]
    request = request_for(digest, function=name, args=args, evaluator=_EVALUATOR)
    (result,) = await holder.measure([request])
    return kind_of(result), float(np.median(result.run_secs)) if result.run_secs else 0.0


async def prove(holder: Holder, digest: str, name: str, claimed_sec: float) -> dict[str, object]:
    """Prove a claim, and compare the outputs with the expected ones."""
    bank = np.random.default_rng().standard_normal(_ITEMS + EXTRA_ITEMS).astype(np.float32).tobytes()
    order = ProofOrder(
        artifact_digest=digest,
        function=name,
        args=(
            ProofArgument(spec=TensorSpec((_ITEMS,), "float32"), bank=bank),
            ProofArgument(spec=TensorSpec((_ITEMS,), "float32", is_output=True)),
        ),
        claimed_sec=claimed_sec,
    )
    started = time.monotonic()
    proof = proof_from_proto(await holder.prove(proof_order_to_proto(order)), claimed_sec)
    took_sec = time.monotonic() - started
    are_right = True
    for answer in proof.answers:
        inputs, _ = contents_of_call(order, answer.seed, answer.call)
        assert inputs is not None
        expected = 3 * np.frombuffer(inputs, np.float32)
        are_right &= np.array_equal(np.frombuffer(answer.outputs[0].content, np.float32), expected)
    return {
        "verdict": proof.verdict.value,
        "are_right": are_right,
        "answers": len(proof.answers),
        "measured_sec": proof.measured_sec,
        "least_sec": proof.least_sec,
        "took_sec": took_sec,
        "message": proof.message,
    }


async def main(folder: Path, names: list[str]) -> dict[str, object]:
    kernels = (folder / "kernels.so").read_bytes()
    found: dict[str, object] = {}
    config = {"devices": [{"driver": "cpu", "name": "here"}]}
    async with serve_bench(folder / "state", config) as bench:
        for epoch, name in enumerate(names, 1):
            holder = bench.holding(epoch, device=DEVICE)
            digest = await holder.put(kernels)
            kind, claimed_sec = await trial(holder, digest, name)
            found[name] = {
                "kind": kind,
                "claimed_sec": claimed_sec,
                **await prove(holder, digest, name, claimed_sec),
            }
            sys.stderr.write(f"{name}: {found[name]}\n")
    return found


if __name__ == "__main__":
    print(json.dumps(asyncio.run(main(Path(sys.argv[1]), sys.argv[2:]))))
