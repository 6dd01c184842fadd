"""GraphSAGE on Cora: pyg_before.py from memory, pyg_after.py from a drive. Two lines differ.

    python examples/pyg_before.py cora.pt  # torch.save(data, "cora.pt"), the data as PyG has it
    python examples/pyg_after.py cora.outcrop  # outcrop.from_pyg(data, "cora.outcrop"), once

PyG's own loader needs pyg-lib or torch-sparse, which pip does not bring.
"""

import sys

import torch
import torch.nn.functional as F
from torch_geometric.loader import NeighborLoader
from torch_geometric.nn import GraphSAGE

data = torch.load(sys.argv[1], weights_only=False)
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
