"""A plain PyG script: the graph is in memory. pyg_after.py is the same from a store.

    python examples/pyg_before.py cora.npz

PyG's own loader needs pyg-lib or torch-sparse, which pip does not bring.
"""

import sys

import numpy as np
import torch
import torch.nn.functional as F
from torch_geometric.data import Data
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GraphSAGE

arrays = np.load(sys.argv[1])
data = Data(
    x=torch.from_numpy(arrays["x"]).float(),
    y=torch.from_numpy(arrays["y"]),
    edge_index=torch.from_numpy(arrays["edge_index"]).long(),
    train_mask=torch.from_numpy(arrays["train_mask"]),
)
loader = NeighborLoader(data, [10, 10], data.train_mask, batch_size=32, shuffle=True)
model = GraphSAGE(data.num_features, 64, num_layers=2, out_channels=int(data.y.max()) + 1)
optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
for epoch in range(5):
    total = 0.0
    for batch in loader:
        optimizer.zero_grad()
        out = model(batch.x, batch.edge_index)[: batch.batch_size]
        loss = F.cross_entropy(out, batch.y[: batch.batch_size])
        loss.backward()
        optimizer.step()
        total += loss.item()
    print(f"epoch {epoch}: loss {total / len(loader):.3f}")
