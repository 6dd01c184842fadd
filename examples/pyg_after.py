"""pyg_before.py from a store: two lines differ, and the graph may be larger than memory.

outcrop import npz cora.npz cora.outcrop
python examples/pyg_after.py cora.outcrop
"""

import sys

import torch
import torch.nn.functional as F
from torch_geometric.nn import GraphSAGE

import outcrop

data = outcrop.open(sys.argv[1])
loader = outcrop.NeighborLoader(data, [10, 10], "train", batch_size=32, shuffle=True)
model = GraphSAGE(data.encoding.dim, 64, num_layers=2, out_channels=data.num_classes)
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
