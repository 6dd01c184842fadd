"""Lightning over a store: fit, test and predict share one memory budget.

python examples/with_lightning.py cora.outcrop
"""

import sys
from typing import Any

import lightning
import torch
import torch.nn.functional as F
from torch_geometric.nn import GraphSAGE

import outcrop
from outcrop.loader.lightning import StoreDataModule


class NodeClassifier(lightning.LightningModule):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.model = GraphSAGE(features, 64, num_layers=2, out_channels=classes)

    def seed_logits(self, batch: Any) -> torch.Tensor:
        return outcrop.seed_logits(self.model, batch)

    def training_step(self, batch: Any) -> torch.Tensor:
        return F.cross_entropy(self.seed_logits(batch), batch.y[: batch.batch_size])

    def test_step(self, batch: Any) -> None:
        right = self.seed_logits(batch).argmax(-1) == batch.y[: batch.batch_size]
        self.log("accuracy", right.float().mean(), batch_size=batch.batch_size)

    def predict_step(self, batch: Any) -> torch.Tensor:
        return self.seed_logits(batch).argmax(-1)

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.Adam(self.parameters(), lr=0.01)


def main() -> None:
    store = outcrop.open(sys.argv[1])
    data = StoreDataModule(store, [10, 10], batch_size=64, memory="500MB")
    model = NodeClassifier(store.num_features, store.num_classes)
    trainer = lightning.Trainer(
        max_epochs=5, accelerator="cpu", logger=False, enable_checkpointing=False
    )
    trainer.fit(model, datamodule=data)
    trainer.test(model, datamodule=data)
    classes = torch.cat(trainer.predict(model, datamodule=data))  # type: ignore[arg-type]
    print(f"predicted {len(classes)} of {store.num_nodes} nodes")


if __name__ == "__main__":
    main()
