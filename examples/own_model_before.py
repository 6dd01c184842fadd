"""A model of one's own: own_model_before.py computes every node of a batch in every layer,
own_model_after.py what the seeds need. Three lines differ; the losses are the same.

    python examples/own_model_before.py cora.outcrop
    python examples/own_model_after.py cora.outcrop
"""

import sys
from typing import Any

import torch
import torch.nn.functional as F
from torch_geometric.nn import GATConv, SAGEConv

from outcrop import GraphStore, NeighborLoader


class Net(torch.nn.Module):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList([SAGEConv(features, 64), GATConv(64, 16, heads=4)])
        self.head = torch.nn.Linear(64, classes)

    def forward(self, batch: Any) -> Any:
        x = batch.x
        for conv in self.convs:
            x = conv(x, batch.edge_index).relu()
        return self.head(x[: batch.batch_size])


torch.manual_seed(0)
store = GraphStore(sys.argv[1])
loader = NeighborLoader(store, [10, 10], "train", batch_size=32, shuffle=True)
model = Net(store.num_features, store.num_classes)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(5):
    total = 0.0
    for batch in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch), batch.y[: batch.batch_size])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch}: loss {total / len(loader):.4f}")
