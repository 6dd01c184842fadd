"""outcrop infer: a checkpoint -> the model's output for every node."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from outcrop.cli.arguments import Memory, Store
from outcrop.cli.output import Bars, say
from outcrop.errors import OptionError
from outcrop.store.store import GraphStore


def infer(
    store: Store,
    checkpoint: Annotated[
        Path, typer.Argument(help="A checkpoint of outcrop train.", show_default=False)
    ],
    out: Annotated[Path, typer.Option(help="The .npy file to make.", show_default=False)],
    memory: Memory = 2_000_000_000,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda ...")] = "auto",
    trust: Annotated[
        bool, typer.Option("--trust", help="Run the code that makes the checkpoint's own model.")
    ] = False,
    original_order: Annotated[
        bool,
        typer.Option(
            "--original-order/--store-order",
            help="Of a store that was reordered: rows as in its source, or as in the store.",
        ),
    ] = True,
) -> None:
    """Compute the output of every node, layer by layer and out of core, on all neighbours.

    Row i belongs to the node that has the i-th of your ids, ascending: of a store that outcrop
    reorder made, too.

    Example: outcrop infer big.outcrop runs/1/best.safetensors --out embeddings.npy --memory 1GB
    """
    from outcrop.train.checkpoint import load_checkpoint
    from outcrop.train.inference import infer as run
    from outcrop.train.models import choose_device, load_model

    with GraphStore(store) as opened, Bars() as progress:
        model = load_model(load_checkpoint(checkpoint), trust=trust).to(choose_device(device))
        _check_fits(opened, model, checkpoint)
        run(
            opened,
            model,
            out,
            memory=memory,
            original_order=original_order,
            progress=progress,
        )
    say(f"{out}: {opened.num_nodes:,} rows")


def _check_fits(store: GraphStore, model: Any, checkpoint: Path) -> None:
    """OptionError where the checkpoint is one of another store's features."""
    # Models of the user's own need not say their widths.
    width, outputs = (getattr(model, name, None) for name in ("in_channels", "out_channels"))
    if width not in (None, store.encoding.dim):
        raise OptionError(
            f"{checkpoint}: its model takes {width} features per node, and those of "
            f"{store.path} have {store.encoding.dim}"
        )
    if store.has("labels") and outputs not in (None, store.num_targets):
        say(
            f"{checkpoint}: its model has {outputs} outputs, and {store.path} has "
            f"{store.num_targets} {store.manifest.targets.noun}"
        )
