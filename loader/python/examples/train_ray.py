"""Trains with Ray Train on two workers, and goes on exactly where its last checkpoint was:
python train_ray.py DATASET DIRECTORY"""

import pathlib
import sys
import tempfile

import ray.train.torch
import torch

import larder.torch


def decode(sample: larder.Sample) -> tuple[int, torch.Tensor, int]:
    """The sample's index, a histogram of its bytes, and its class index."""
    data = torch.frombuffer(bytearray(sample.bytes), dtype=torch.uint8)
    return sample.index, torch.bincount(data, minlength=256) / len(data), sample.label


def train(config: dict[str, str]) -> None:
    # Knows its rank. With drop_last, all ranks get the same number of batches, as they wait for each other.
    dataset = larder.torch.IterableDataset(config["dataset"], batch_size=4, seed=1, drop_last=True, decode=decode)
    loader = larder.torch.DataLoader(dataset)
    model = ray.train.torch.prepare_model(torch.nn.Linear(256, 10))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    rank = ray.train.get_context().get_world_rank()
    if saved := ray.train.get_checkpoint():
        with saved.as_directory() as directory:
            state = torch.load(pathlib.Path(directory) / "state.pt")
        model.load_state_dict(state["model"])
        loader.load_state_dict(state["loader"])
    for epoch in range(loader.epoch, 2):
        for step, (indices, inputs, labels) in enumerate(loader):
            print(f"epoch {epoch} step {step} rank {rank} samples {indices.tolist()}", flush=True)
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(inputs), labels).backward()
            optimizer.step()
            if step % 5 == 4:
                with tempfile.TemporaryDirectory() as directory:
                    state = {"model": model.state_dict(), "loader": loader.state_dict()}
                    torch.save(state, pathlib.Path(directory) / "state.pt")
                    checkpoint = ray.train.Checkpoint.from_directory(directory) if rank == 0 else None
                    ray.train.report({"epoch": epoch}, checkpoint=checkpoint)


trainer = ray.train.torch.TorchTrainer(
    train,
    train_loop_config={"dataset": sys.argv[1]},
    scaling_config=ray.train.ScalingConfig(num_workers=2, resources_per_worker={"CPU": 0.5}),
    run_config=ray.train.RunConfig(name="train", storage_path=sys.argv[2]),
)
trainer.fit()
