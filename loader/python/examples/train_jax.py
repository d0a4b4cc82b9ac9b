"""Trains with JAX, Grain and Orbax, and goes on exactly where its last checkpoint was:
python train_jax.py DATASET DIRECTORY"""

import sys

import grain
import jax
import numpy
import orbax.checkpoint as orbax

import larder.grain


def decode(sample: larder.Sample) -> dict[str, object]:
    """The sample's index, a histogram of its bytes, and its class index."""
    counts = numpy.bincount(sample.numpy(), minlength=256).astype(numpy.float32)
    return {"index": sample.index, "input": counts / counts.sum(), "label": sample.label}


@jax.jit
def step(model: dict[str, jax.Array], inputs: jax.Array, labels: jax.Array) -> dict[str, jax.Array]:
    def loss(model: dict[str, jax.Array]) -> jax.Array:
        scores = jax.nn.log_softmax(inputs @ model["weights"])
        return -scores[jax.numpy.arange(len(labels)), labels].mean()

    return jax.tree.map(lambda value, slope: value - 0.1 * slope, model, jax.grad(loss)(model))


source = larder.grain.DataSource(sys.argv[1], decode=decode)
batches = iter(grain.MapDataset.source(source).seed(1).shuffle().repeat(3).batch(8).to_iter_dataset())
model = {"weights": jax.numpy.zeros((256, 10))}
checkpoints = orbax.CheckpointManager(sys.argv[2], options=orbax.CheckpointManagerOptions(save_interval_steps=5))
if (done := checkpoints.latest_step()) is not None:
    wanted = {"model": orbax.args.StandardRestore(model), "data": grain.checkpoint.CheckpointRestore(batches)}
    model = checkpoints.restore(done, args=orbax.args.Composite(**wanted))["model"]
for number, batch in enumerate(batches, start=(done or 0) + 1):
    print(f"step {number} samples {batch['index'].tolist()}", flush=True)
    model = step(model, batch["input"], batch["label"])
    state = {"model": orbax.args.StandardSave(model), "data": grain.checkpoint.CheckpointSave(batches)}
    checkpoints.save(number, args=orbax.args.Composite(**state))
checkpoints.wait_until_finished()
