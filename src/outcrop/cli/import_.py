"""outcrop import FORMAT SRC DST: one subcommand per format."""

from __future__ import annotations

from enum import Enum
from pathlib import Path
from typing import Annotated

import typer

from outcrop.cli.arguments import Destination, Memory, Seed, count_option, optional
from outcrop.cli.output import Bars, guarded, say_made
from outcrop.errors import OptionError
from outcrop.ingest.build import import_graph
from outcrop.ingest.edgelist import edgelist_source
from outcrop.ingest.files import Files, file_attributes
from outcrop.ingest.npz import npz_source
from outcrop.ingest.random_attributes import check_train_fraction, random_attributes
from outcrop.ingest.source import Attributes, GraphSource, IngestOptions

import_app = typer.Typer(
    name="import",
    help="Make a store from files in another format, in bounded memory.",
    no_args_is_help=True,
)


class FeatureDtype(str, Enum):
    """How feature rows are stored."""

    float32 = "float32"
    float16 = "float16"
    bfloat16 = "bfloat16"
    int8 = "int8"


class MissingLabel(str, Enum):
    """What stands for a node without a label."""

    minus_one = "-1"
    nan = "nan"


class Targets(str, Enum):
    """What labels are."""

    auto = "auto"
    classes = "classes"
    multilabel = "multilabel"
    values = "values"


Undirected = Annotated[
    bool, typer.Option("--undirected", help="Add the reverse of every edge but self loops.")
]
DropLoops = Annotated[bool, typer.Option("--drop-self-loops", help="Leave self loops out.")]
Merge = Annotated[
    bool, typer.Option("--merge-multi-edges", help="Keep only the first of equal edges.")
]
EdgeIds = Annotated[
    bool,
    typer.Option(
        "--edge-ids/--no-edge-ids",
        help="Keep each edge's number in the source, which batches have as e_id.",
    ),
]
Dtype = Annotated[
    FeatureDtype | None, optional("How to store feature rows; default: as in the source.")
]
MissingOption = Annotated[
    MissingLabel, typer.Option(help="What stands for 'no label' in float labels.")
]
TargetsOption = Annotated[
    Targets,
    typer.Option(
        help="What labels are: a class per node, several labels of 0 and 1, or values to predict; "
        "auto: by dtype and shape."
    ),
]
NodeFile = Annotated[Path | None, optional("A .npy file of node ids.")]
Source = Annotated[Path, typer.Argument(help="The file to import.", show_default=False)]


@import_app.command("npz")
@guarded
def import_npz(
    source: Source,
    destination: Destination,
    memory: Memory = 2_000_000_000,
    undirected: Undirected = False,
    drop_self_loops: DropLoops = False,
    merge_multi_edges: Merge = False,
    edge_ids: EdgeIds = True,
    feature_dtype: Dtype = None,
    missing_label: MissingOption = MissingLabel.minus_one,
    targets: TargetsOption = Targets.auto,
) -> None:
    """One .npz file with edge_index, x, y and masks.

    Members: edge_index [2, E] (source, target), num_nodes, x [N, F] (or CSR: x_data, x_indices,
    x_indptr, x_shape), y [N] or [N, T], train_mask, val_mask, test_mask. All but edge_index are
    optional.

    Example: outcrop import npz cora.npz cora.outcrop --feature-dtype float16
    """
    graph = npz_source(
        source, nan_is_missing=missing_label is MissingLabel.nan, targets=targets.value
    )
    options = IngestOptions(
        memory, undirected, drop_self_loops, merge_multi_edges, edge_ids, _name(feature_dtype)
    )
    run_import(graph, destination, options)


@import_app.command("edgelist")
@guarded
def import_edgelist(
    source: Source,
    destination: Destination,
    memory: Memory = 2_000_000_000,
    undirected: Undirected = False,
    drop_self_loops: DropLoops = False,
    merge_multi_edges: Merge = False,
    edge_ids: EdgeIds = True,
    feature_dtype: Dtype = None,
    missing_label: MissingOption = MissingLabel.minus_one,
    targets: TargetsOption = Targets.auto,
    num_nodes: Annotated[
        int | None,
        count_option(
            "--num-nodes",
            "Keep node ids as they are, 0 to this less 1. Without it, ids are compacted "
            "in ascending order, and the original ones kept in node_ids.npy.",
        ),
    ] = None,
    skip_lines: Annotated[int, typer.Option(min=0, help="Lines to pass over at first.")] = 0,
    features: Annotated[Path | None, optional("A .npy file [N, F]; needs --num-nodes.")] = None,
    adopt_features: Annotated[
        bool,
        typer.Option("--adopt-features", help="Use the --features file where it is; no copy."),
    ] = False,
    labels: Annotated[
        Path | None, optional("A .npy file [N] or [N, T]; needs --num-nodes.")
    ] = None,
    train: NodeFile = None,
    val: NodeFile = None,
    test: NodeFile = None,
    random_features: Annotated[
        int, typer.Option(min=0, help="Make random features of this dimension.")
    ] = 0,
    random_classes: Annotated[
        int, typer.Option(min=0, help="Make labels of this many classes.")
    ] = 0,
    train_fraction: Annotated[
        float, typer.Option(help="With --random-classes: the share of nodes in each split.")
    ] = 0.01,
    seed: Seed = 0,
) -> None:
    """Text, plain or gzipped: two node ids a line, source and target (SNAP, KONECT, CSV).

    Columns are separated by blanks, tabs, commas or semicolons; further columns are ignored. Lines
    that begin with # or % are comments.

    Example: outcrop import edgelist com-friendster.ungraph.txt.gz friendster.outcrop --undirected
    --memory 4GB --random-features 128 --random-classes 50
    """
    files = Files(features, adopt_features, labels, {"train": train, "val": val, "test": test})
    if files and num_nodes is None:
        raise OptionError("files with features, labels or splits need --num-nodes, which keeps ids")
    if adopt_features and features is None:
        raise OptionError("--adopt-features needs --features FILE")
    if files and (random_features or random_classes):
        raise OptionError("random features and classes do not go with files of them")
    if random_features and not random_classes:
        raise OptionError("--random-features needs --random-classes, whose labels they hint at")
    check_train_fraction(train_fraction)

    def attributes(count: int) -> Attributes:
        if random_classes:
            return random_attributes(
                count,
                dim=random_features,
                classes=random_classes,
                train_fraction=train_fraction,
                seed=seed,
                memory=memory,
            )
        return file_attributes(
            files, nan_is_missing=missing_label is MissingLabel.nan, targets=targets.value
        )

    graph = edgelist_source(
        source, num_nodes=num_nodes, skip_lines=skip_lines, attributes=attributes
    )
    options = IngestOptions(
        memory, undirected, drop_self_loops, merge_multi_edges, edge_ids, _name(feature_dtype)
    )
    run_import(graph, destination, options)


def _name(dtype: FeatureDtype | None) -> str | None:
    return None if dtype is None else dtype.value


def run_import(source: GraphSource, destination: Path, options: IngestOptions) -> None:
    """Imports with progress, and says what was made."""
    with Bars() as progress:
        manifest = import_graph(source, destination, options, progress)
    say_made(destination, manifest)
