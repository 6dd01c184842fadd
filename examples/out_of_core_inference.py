"""Train from a store, then compute every node's output layer by layer, out of core.

python examples/out_of_core_inference.py cora.outcrop out.npy
"""

import sys

import numpy as np

import outcrop
from outcrop.train import TrainOptions, fit, infer


def main() -> None:
    store = outcrop.open(sys.argv[1])
    options = TrainOptions(
        layers=2, num_neighbors=(10, 10), hidden=64, epochs=5, batch_size=64, lr=0.01,
        strategy="direct", memory="500MB",
    )  # fmt: skip
    result = fit(store, options)
    infer(store, result.model, sys.argv[2], memory="200MB")
    logits = np.load(sys.argv[2], mmap_mode="r")
    test = store.split("test")
    accuracy = float((logits[test].argmax(1) == store.labels[test]).mean())
    print(f"test accuracy: sampled {result.test:.3f}, on all neighbours {accuracy:.3f}")


if __name__ == "__main__":
    main()
