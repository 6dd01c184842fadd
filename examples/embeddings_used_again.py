"""Embeddings used again by a model of one's own, in a run that goes on where it was.

python examples/embeddings_used_again.py cora.outcrop run.pt 5
python examples/embeddings_used_again.py cora.outcrop run.pt 10
"""

import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch_geometric.nn import SAGEConv

from outcrop import GraphStore, NeighborLoader, layers_of

WIDTH = 64  # of the input of the last layer
HISTORY = f"{WIDTH}:staleness=50"


class Net(torch.nn.Module):
    def __init__(self, features: int, classes: int) -> None:
        super().__init__()
        self.convs = torch.nn.ModuleList([SAGEConv(features, WIDTH), SAGEConv(WIDTH, classes)])

    def forward(self, batch: Any) -> Any:
        x = batch.x
        for number, (conv, layer) in enumerate(zip(self.convs, layers_of(batch), strict=True)):
            if number:
                x = layer.exchange(x.relu())  # pushes and pulls, before the last layer
                x = F.dropout(x, 0.3, self.training)
            x = conv((x, x[: layer.targets]), layer.edge_index)
        return x[: batch.batch_size]


saved, epochs = Path(sys.argv[2]), int(sys.argv[3])
state = torch.load(saved) if saved.exists() else None
# The nodes that have embeddings are those that had them.
history = HISTORY if state is None else (HISTORY, state["embeddings"]["candidates"])
torch.manual_seed(0)
store = GraphStore(sys.argv[1])
loader = NeighborLoader(
    store, [10, 10], "train", batch_size=32, shuffle=True, strategy="outre", history=history
)
model = Net(store.num_features, store.num_classes)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
if state is not None:
    model.load_state_dict(state["model"])
    optimizer.load_state_dict(state["optimizer"])
    torch.set_rng_state(state["random"])
    loader.load_state_dict(state["position"])
    loader.history.load_state_dict(state["embeddings"])
for epoch in range(loader.state_dict()["epoch"], epochs):
    total, pulled = 0.0, 0
    for batch in loader:
        optimizer.zero_grad()
        loss = F.cross_entropy(model(batch), batch.y[: batch.batch_size])
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        total, pulled = total + loss.item(), pulled + batch.history.pulled
    print(f"epoch {epoch}: loss {total / len(loader):.4f}, {pulled} embeddings used again")
    state = {
        "model": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "random": torch.get_rng_state(),
        "position": loader.state_dict(),
        "embeddings": loader.history.state_dict(),
    }
    torch.save(state, saved)
