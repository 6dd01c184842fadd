"""With the same history, every strategy gives the batches of `memory`, and so the same model."""

from __future__ import annotations

import gc
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch_geometric.nn.models import GraphSAGE

import outcrop
from outcrop.errors import BudgetError, HistoryError, OptionError
from outcrop.layout.partitions import PartitionOptions, open_partitions
from outcrop.loader import NeighborLoader, ShaDowLoader
from outcrop.store.store import GraphStore
from outcrop.strategies import STRATEGIES
from outcrop.tools.bench.variants import variant_named
from tests.conformance.contract import all_contents, check_against_store, contents
from tests.conformance.test_strategies import BUDGETS, cases
from tests.conftest import SOAK
from tests.graphs import Graph, random_graph
from tests.stores import make_store, smallest_memory

WIDTH = 4
OTHERS = [name for name in STRATEGIES if name not in ("memory", "diskgnn")]
VARIANTS = [
    "ginex:mode=split",
    "ginex:superbatch=3",
    "ginex:superbatch=2:mode=split",
    "outre:superbatch=4",
    "outre:superbatch=1",
    "agnes:hyperbatch=3",
]
ALL = [*OTHERS, *VARIANTS]


def plain(state: dict[str, torch.Tensor]) -> dict[str, Any]:
    bits = {name: each.view(torch.int16) if each.dtype == torch.bfloat16 else each
            for name, each in state.items()}  # fmt: skip
    return {name: (tuple(each.shape), each.numpy().tobytes()) for name, each in bits.items()}


class Trained:
    """A small model that is trained on whatever a loader gives, and a log of all that it saw."""

    def __init__(self, store: GraphStore, layers: int, *, checks: bool = False) -> None:
        torch.manual_seed(0)
        self._store, self._checks = store, checks
        self._model: GraphSAGE | None = None
        if store.has("features"):
            self._model = GraphSAGE(store.encoding.dim, WIDTH, layers, 3)
            self._optimizer = torch.optim.SGD(self._model.parameters(), lr=0.01)
        self.seen: list[Any] = []

    def look(self, batch: Any) -> None:
        """Whatever the batch has, and what the model says of it; nothing is trained."""
        if self._checks:
            check_against_store(batch, self._store)
        history = batch.get("history")
        reuse = None if history is None else history.reuse
        lists = () if reuse is None else (reuse.pulled_slots, reuse.pulled_from,
                                          reuse.pushed, reuse.pushed_slots)  # fmt: skip
        self.seen.append(contents(batch))
        self.seen.append((reuse and reuse.iteration, *(each.tolist() for each in lists)))
        if self._model is not None and history is None:
            with torch.no_grad():
                self.seen.append(outcrop.seed_logits(self._model, batch).numpy().tobytes())

    def train(self, batch: Any) -> None:
        self.look(batch)
        if self._model is None:
            self._push(batch)
            return
        self.seen.append(self.step(batch))

    def step(self, batch: Any) -> float:
        """Trains on a batch -> the loss."""
        assert self._model is not None
        self._optimizer.zero_grad()
        logits = outcrop.seed_logits(self._model, batch)
        loss = logits.square().mean() + logits.mean() if len(logits) else logits.sum()
        loss.backward()  # type: ignore[no-untyped-call]
        self._optimizer.step()
        return loss.item()

    def _push(self, batch: Any) -> None:
        """What a model does, of rows that say whose they are."""
        own = sum(batch.num_sampled_nodes[:2])
        ids = batch.n_id[:own, None].float()
        rows = torch.cat(
            [ids, torch.full((own, WIDTH - 1), float(batch.history.reuse.iteration))], 1
        )
        self.seen.append(batch.history.exchange(rows).tolist())

    def weights(self) -> Any:
        return None if self._model is None else plain(self._model.state_dict())


Action = tuple[Any, ...]


class Script:
    """What somebody does with a loader: the same, whatever its strategy."""

    def __init__(self, loader: NeighborLoader, trained: Trained) -> None:
        self.loader, self.trained = loader, trained
        self._saved: tuple[Any, Any] | None = None

    def do(self, action: Action) -> None:
        getattr(self, action[0])(*action[1:])
        self.trained.seen.append((action, self.loader.schedule._epoch, self.loader.schedule._batch))

    def epoch(self) -> None:
        for batch in self.loader:
            self.trained.train(batch)
            del batch

    def leave(self, after: int, last_is_trained: bool) -> None:
        """In the middle, perhaps with a batch that was not trained on."""
        batches = iter(self.loader)
        for number, batch in enumerate(batches):
            end = number + 1 >= after
            (self.trained.look if end and not last_is_trained else self.trained.train)(batch)
            del batch
            if end:
                break
        batches.close()  # type: ignore[attr-defined]
        assert self.loader.history is not None
        self._saved = self.loader.state_dict(), self.loader.history.state_dict()

    def resume(self) -> None:
        """The rest of the epoch that was left."""
        self.loader.load_state_dict(self.loader.state_dict())
        self.epoch()

    def rewind(self, with_embeddings: bool) -> None:
        """Back to where a loop was left last."""
        if self._saved is None:
            return
        self.loader.load_state_dict(self._saved[0])
        assert self.loader.history is not None
        if with_embeddings:
            self.loader.history.load_state_dict(self._saved[1])
        elif not self.loader.history.stored:
            return
        self.epoch()

    def replace(self) -> None:
        """Embeddings as they were when a loop was left last, wherever the position is."""
        if self._saved is not None and self.loader.history is not None:
            self.loader.history.load_state_dict(self._saved[1])

    def peek(self) -> None:
        batch = next(iter(self.loader), None)
        if batch is not None:
            self.trained.look(batch)

    def validate(self) -> None:
        for batch in self.loader.sibling("val", shuffle=False):
            assert batch.get("history") is None
            self.trained.look(batch)
            del batch

    def number(self, epoch: int) -> None:
        """An epoch by its number, which has no history; the position follows it."""
        for batch in self.loader.epoch(epoch):
            assert batch.get("history") is None
            self.trained.look(batch)
            del batch

    def direct(self) -> None:
        if len(self.loader.schedule.seeds.nodes):
            batch = self.loader([0])
            assert batch.get("history") is None
            self.trained.look(batch)


def played(
    store: GraphStore, strategy: str, memory: str, script: list[Action], **options: Any
) -> list[Any]:
    """All that is seen, and what is left at the end."""
    options = dict(options)
    layers = options.pop("layers", 2)

    def make(memory: Any) -> NeighborLoader:
        return NeighborLoader(store, strategy=variant_named(strategy), memory=memory, **options)

    loader = make(smallest_memory(make) if memory == "least" else memory)
    try:
        trained = Trained(store, layers, checks=strategy == "memory")
        playing = Script(loader, trained)
        for action in script:
            playing.do(action)
        assert loader.history is not None
        left = plain(loader.history.state_dict())
        return [*trained.seen, left, trained.weights(), loader.state_dict()]
    finally:
        loader.close()


ACTIONS: list[st.SearchStrategy[Action]] = [
    st.just(("epoch",)),
    st.tuples(st.just("leave"), st.integers(1, 4), st.booleans()),
    st.just(("resume",)),
    st.just(("rewind", True)),
    st.just(("replace",)),
    st.just(("peek",)),
    st.just(("validate",)),
    st.tuples(st.just("number"), st.integers(0, 3)),
    st.just(("direct",)),
]


@st.composite
def histories(draw: st.DrawFn, num_nodes: int) -> Any:
    staleness = draw(st.sampled_from([1, 2, 3, 5, 100]))
    some = f"width={WIDTH}:staleness={staleness}"
    if draw(st.booleans()):
        count = draw(st.integers(0, num_nodes))
        return f"{some}:nodes={count}:metric=degree"
    ids = draw(st.lists(st.integers(0, num_nodes - 1), max_size=num_nodes))
    return some, np.array(ids, np.int64)


@pytest.mark.parametrize("strategy", ALL)
@settings(max_examples=200 if SOAK else 4)
@given(
    case=cases(),
    budget=st.sampled_from(BUDGETS),
    script=st.lists(st.one_of(ACTIONS), min_size=1, max_size=6),
    data=st.data(),
)
def test_any_graph_and_any_use_give_what_memory_gives(
    strategy: str,
    case: tuple[Graph, dict[str, Any], dict[str, Any]],
    budget: str,
    script: list[Action],
    data: st.DataObject,
) -> None:
    graph, stored, options = case
    options.pop("kind")
    fanouts = (options["num_neighbors"] * 2)[: max(len(options["num_neighbors"]), 2)]
    options |= {
        "num_neighbors": fanouts,
        "history": data.draw(histories(graph.num_nodes)),
        "epochs": data.draw(st.sampled_from([None, 1, 3])),
        "layers": data.draw(st.integers(2, len(fanouts))),
        "batching": "random",
    }
    if strategy.startswith("outre"):  # whose profile needs a batch
        stored["train"], options["drop_last"] = max(stored["train"], 1), False
    with (
        tempfile.TemporaryDirectory() as folder,
        make_store(Path(folder) / "g.outcrop", graph, **stored) as store,
    ):
        if options["shuffle"] and data.draw(st.booleans()):
            open_partitions(store, PartitionOptions(parts=3)).close()
            options["batching"] = "partition:parts=3:macro=2"
        found = played(store, strategy, budget, script, **options)
        assert found == played(store, "memory", "1GB", script, **options)


# A graph that is large enough for batches to have something in common


NODES = 400


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("history") / "g.outcrop"
    with make_store(folder, random_graph(NODES, 2500), dim=9, train=95, edge_ids=True) as store:
        open_partitions(store, PartitionOptions(parts=8)).close()
    return folder


@pytest.fixture
def store(path: Path) -> Iterator[GraphStore]:
    with GraphStore(path) as opened:
        yield opened


OPTIONS: dict[str, Any] = {
    "num_neighbors": [4, 3],
    "input_nodes": "train",
    "batch_size": 10,
    "shuffle": True,
    "batching": "random",
    "history": f"width={WIDTH}:staleness=6:nodes=200:metric=degree",
}


def random_case(seed: int) -> tuple[list[Action], dict[str, Any]]:
    """What is done with a loader, and how it is made."""
    rng = np.random.default_rng(seed)
    actions: list[Action] = [
        ("epoch",), ("epoch",), ("leave", int(rng.integers(1, 9)), True), ("resume",),
        ("leave", int(rng.integers(1, 9)), False), ("resume",), ("rewind", True), ("validate",),
        ("number", int(rng.integers(0, 3))), ("direct",),
    ]  # fmt: skip
    script = [actions[int(i)] for i in rng.integers(0, len(actions), 7)]
    if seed % 2:
        script.insert(0, ("peek",))
    some = f"width={WIDTH}:staleness={[1, 3, 9, 40, 100][int(rng.integers(0, 5))]}"
    hops = int(rng.integers(2, 5))
    options = {
        "num_neighbors": rng.choice([2, 3, 4, -1], hops, p=[0.4, 0.3, 0.2, 0.1]).tolist(),
        "layers": int(rng.integers(max(hops - 1, 2), hops + 1)),
        "history": [f"{some}:nodes=150:metric=degree", (some, rng.permutation(NODES)[:200])][
            int(rng.integers(0, 2))
        ],
        "epochs": [None, 2, 5][int(rng.integers(0, 3))],
        "replace": bool(rng.integers(0, 2)),
        "batching": ["random", "partition:parts=8:macro=2"][int(rng.integers(0, 2))],
    }
    return script, options


@pytest.mark.parametrize("strategy", ALL)
@pytest.mark.parametrize("seed", range(100 if SOAK else 2))
def test_a_larger_graph_gives_what_memory_gives(
    store: GraphStore, strategy: str, seed: int
) -> None:
    script, options = random_case(seed)
    options = {**OPTIONS, **options}
    found = played(store, strategy, "least" if seed % 3 == 0 else "1GB", script, **options)
    assert found == played(store, "memory", "1GB", script, **options)


EPOCH: Action = ("epoch",)
SCRIPTS: dict[str, list[Action]] = {
    "epochs": [EPOCH] * 3,
    "a first look, then all": [("peek",), EPOCH, EPOCH],
    "validation and single batches between": [EPOCH, ("validate",), ("direct",), EPOCH, EPOCH],
    "left, then the next epoch": [EPOCH, ("leave", 4, True), EPOCH],
    "left, then the rest of it": [("leave", 4, True), ("resume",), EPOCH],
    "left with a batch that was not trained on": [EPOCH, ("leave", 4, False), ("resume",), EPOCH],
    "back to where it was left": [("leave", 4, True), ("resume",), EPOCH, ("rewind", True), EPOCH],
    "back, with the embeddings of later batches": [
        ("leave", 4, True), ("resume",), EPOCH, ("rewind", False), EPOCH,
    ],
    "embeddings of before": [("leave", 4, True), ("resume",), ("replace",), EPOCH, EPOCH],
    "epochs by their numbers between": [EPOCH, ("number", 1), EPOCH],
    "an epoch again by its number": [EPOCH, ("number", 0), EPOCH],
}  # fmt: skip


# Those that sample as they come, and those that have windows, of one length and another.
KINDS = ["direct", "gnndrive", "ginex", "ginex:superbatch=12", "outre:superbatch=4", "agnes"]
References = dict[str, list[Any]]


@pytest.fixture(scope="module")
def references() -> References:
    """What memory gives, by the script."""
    return {}


@pytest.mark.parametrize("strategy", KINDS)
@pytest.mark.parametrize("script", SCRIPTS)
def test_whatever_is_done_between_gives_what_memory_gives(
    store: GraphStore, references: References, strategy: str, script: str
) -> None:
    actions = SCRIPTS[script]
    if script not in references:
        references[script] = played(store, "memory", "1GB", actions, **OPTIONS)
    found = played(store, strategy, "1GB", actions, **OPTIONS, epochs=4)
    assert found == references[script]


Run = tuple[list[Any], Any]
"""All that was seen, and the weights."""


@pytest.fixture(scope="module")
def runs(path: Path) -> list[Run]:
    """Of memory: after so many epochs."""
    with GraphStore(path) as store:
        trained = Trained(store, 2)
        playing = Script(opened(store), trained)
        found: list[Run] = [([], None)]
        for _ in range(4):
            playing.epoch()
            found.append((list(trained.seen), trained.weights()))
        playing.loader.close()
    return found


def opened(store: GraphStore, strategy: str = "memory", **more: Any) -> NeighborLoader:
    options = {**OPTIONS, "memory": "1GB", **more}
    return NeighborLoader(store, strategy=variant_named(strategy), **options)


@pytest.mark.parametrize(
    "strategy",
    ["direct", "ginex", "ginex:superbatch=11", "ginex:superbatch=12:mode=split",
     "outre:superbatch=12", "agnes:hyperbatch=12", "agnes"],
)  # fmt: skip
def test_validation_that_is_open_meanwhile_changes_nothing(
    store: GraphStore, runs: list[Run], strategy: str
) -> None:
    """It has the windows, where a strategy has some, so that an epoch goes without."""
    trained = Trained(store, 2)
    loader = opened(store, strategy, epochs=4)
    playing = Script(loader, trained)
    playing.epoch()
    validation = iter(loader.sibling("val", shuffle=False))
    next(validation)
    playing.epoch()
    validation.close()  # type: ignore[attr-defined]
    playing.epoch()
    playing.epoch()
    loader.close()
    assert (trained.seen, trained.weights()) == runs[4]


@pytest.mark.parametrize(
    ("strategy", "epochs", "batches"), [*((name, 1, 7) for name in ALL), ("ginex", 0, 3)]
)
def test_a_run_goes_on_in_mid_epoch_bit_by_bit(
    store: GraphStore, runs: list[Run], strategy: str, epochs: int, batches: int
) -> None:
    """In another loader, with what was saved of the first; outre's run with another strategy."""
    trained = Trained(store, 2)
    first = opened(store, strategy, epochs=3)
    playing = Script(first, trained)
    for _ in range(epochs):
        playing.epoch()
    playing.leave(batches, True)
    assert playing._saved is not None
    position, embeddings = playing._saved
    first.close()
    second = opened(store, "direct" if strategy == "outre" else strategy, epochs=3)
    second.load_state_dict(position)
    assert second.history is not None
    second.history.load_state_dict(embeddings)
    for _ in range(3 - epochs):
        Script(second, trained).epoch()
    second.close()
    assert (trained.seen, trained.weights()) == runs[3]


def test_saved_embeddings_are_copies(store: GraphStore) -> None:
    loader = opened(store)
    playing = Script(loader, Trained(store, 2))
    playing.epoch()
    assert loader.history is not None
    state = loader.history.state_dict()
    before = plain(state)
    playing.epoch()
    assert plain(state) == before != plain(loader.history.state_dict())
    loader.history.load_state_dict(state)
    assert plain(loader.history.state_dict()) == before
    assert len(state["nodes"]) == loader.history.stored > 0


@pytest.mark.parametrize("strategy", ["memory", "ginex"])
def test_a_position_is_refused_without_its_embeddings(store: GraphStore, strategy: str) -> None:
    first, second = opened(store, strategy), opened(store, strategy)
    playing = Script(first, Trained(store, 2))
    second.load_state_dict(first.state_dict())  # when there are none yet
    assert next(iter(second)).history.reuse.iteration == 0
    playing.leave(3, True)
    other = opened(store, strategy)
    other.load_state_dict(first.state_dict())
    with pytest.raises(OptionError, match=r"load them, too, by loader\.history\.load_state_dict"):
        next(iter(other))
    assert first.history is not None and other.history is not None
    other.history.load_state_dict(first.history.state_dict())
    assert next(iter(other)).history.reuse.iteration == 3
    for each in (first, second, other):
        each.close()


@pytest.mark.parametrize(
    ("history", "told"),
    [
        (None, r"history was .*staleness=6.*, and is not set"),
        (f"width={WIDTH}:staleness=7:nodes=200:metric=degree", "staleness=7"),
        (f"width={WIDTH}:staleness=6:nodes=199:metric=degree", "history was"),
    ],
)
def test_a_position_of_other_embeddings_is_refused(
    store: GraphStore, history: Any, told: str
) -> None:
    state = opened(store).state_dict()
    with pytest.raises(OptionError, match=told):
        opened(store, history=history).load_state_dict(state)


def test_embeddings_of_others_are_refused(store: GraphStore) -> None:
    loader = opened(store)
    Script(loader, Trained(store, 2)).epoch()
    assert loader.history is not None
    state = loader.history.state_dict()
    for history, told in (
        (f"width={WIDTH + 1}:staleness=6:nodes=200:metric=degree", r"rows has .* should have"),
        (
            (f"width={WIDTH}:staleness=6", [3, 5]),
            r'other candidates .* history=\(width, state\["candidates"\]\)',
        ),
        (
            (f"width={WIDTH}:staleness=6", []),
            r'other candidates .* history=\(width, state\["candidates"\]\)',
        ),
    ):
        other = opened(store, history=history)
        assert other.history is not None
        with pytest.raises(OptionError, match=told):
            other.history.load_state_dict(state)
    for name in state:
        with pytest.raises(OptionError, match=f"saved embeddings: {name} has nothing"):
            loader.history.load_state_dict(
                {key: value for key, value in state.items() if key != name}
            )
    with pytest.raises(OptionError, match="saved embeddings: rows has"):
        loader.history.load_state_dict({**state, "rows": state["rows"][:-1]})


def test_a_run_goes_on_in_another_memory_with_its_candidates(store: GraphStore) -> None:
    """Memory and a profile would choose others."""
    history = f"{WIDTH}:staleness=6:share=0.0001"

    def make(memory: str) -> NeighborLoader:
        return opened(store, "outre", history=history, memory=memory)

    memory = "40MB"
    whole, parts = Trained(store, 2), Trained(store, 2)
    playing = Script(make(memory), whole)
    playing.epoch()
    playing.epoch()
    first = Script(make(memory), parts)
    first.epoch()
    first.leave(7, True)
    assert first._saved is not None
    position, state = first._saved
    other = make("1GB")
    assert other.history is not None
    assert 0 < len(state["candidates"]) < len(other.history.table.nodes)
    with pytest.raises(OptionError, match="of other batches: history was"):
        other.load_state_dict(position)
    with pytest.raises(OptionError, match=r'history=\(width, state\["candidates"\]\)'):
        other.history.load_state_dict(state)
    second = opened(store, "ginex", history=(history, state["candidates"]))
    second.load_state_dict(position)
    assert second.history is not None
    second.history.load_state_dict(state)
    Script(second, parts).epoch()
    assert (parts.seen, parts.weights()) == (whole.seen, whole.weights())
    assert any(reuse[1] for reuse in parts.seen[1::2] if isinstance(reuse, tuple))


@pytest.mark.parametrize("strategy", ["memory", "direct", "ginex", "outre", "agnes"])
def test_two_loops_at_a_time_are_refused(store: GraphStore, runs: list[Run], strategy: str) -> None:
    loader = opened(store, strategy)
    trained = Trained(store, 2)
    batches = iter(loader)
    for _ in range(3):
        trained.train(next(batches))
    with pytest.raises(OptionError, match="another loop over this loader is open"):
        next(iter(loader))
    for batch in batches:
        trained.train(batch)
        del batch
    Script(loader, trained).epoch()
    loader.close()
    assert (trained.seen, trained.weights()) == runs[2]


def test_a_loop_that_is_refused_leaves_the_position_of_the_one_that_is_open(
    store: GraphStore,
) -> None:
    loader = opened(store)
    batches = iter(loader)
    for _ in range(3):
        next(batches)
    before = loader.state_dict()
    with pytest.raises(OptionError, match="another loop over this loader is open"):
        next(iter(loader))
    assert loader.state_dict() == before
    batches.close()  # type: ignore[attr-defined]
    loader.close()


def test_a_loop_that_was_left_by_an_error_is_not_open(store: GraphStore) -> None:
    loader = opened(store, "ginex")

    def train() -> None:
        for _ in loader:
            raise KeyError

    with pytest.raises(KeyError):
        train()
    gc.collect()
    assert next(iter(loader)).history is not None
    loader.close()


@pytest.fixture(scope="module")
def without(path: Path) -> Run:
    """What there is without a history."""
    with GraphStore(path) as store:
        return plain_run(opened(store, history=None), store)


def plain_run(loader: NeighborLoader, store: GraphStore) -> Run:
    """Batches and losses of two epochs, whether or not there is a history that has nothing."""
    trained, seen = Trained(store, 2), []
    for _ in range(2):
        for batch in loader:
            assert batch.get("history") is None or batch.history.pulled == 0
            found = contents(batch)
            seen += [found, trained.step(batch)]
            del batch
    loader.close()
    return seen, trained.weights()


@pytest.mark.parametrize("strategy", ["memory", "direct", "ginex", "outre", "agnes"])
@pytest.mark.parametrize(
    "history",
    [f"{WIDTH}:staleness=1:nodes={NODES}:metric=degree", f"{WIDTH}:nodes=0", (WIDTH, [])],
)
def test_nothing_is_used_again_at_a_staleness_of_one_nor_without_candidates(
    store: GraphStore, without: Run, strategy: str, history: Any
) -> None:
    """The same batches, and the same model, as without a history."""
    assert plain_run(opened(store, strategy, history=history), store) == without


# Refusals


def test_prepared_epochs_have_no_history(store: GraphStore) -> None:
    with pytest.raises(OptionError, match=r"history is not for prepared epochs: .* outre say"):
        opened(store, "diskgnn", epochs=2)


def test_completion_order_has_no_history(store: GraphStore) -> None:
    with pytest.raises(OptionError, match=r"batches in exact order \(got order=completion\)"):
        opened(store, "gnndrive:order=completion")


@pytest.mark.parametrize("strategy", ["diskgnn", "gnndrive:order=completion"])
def test_a_history_that_cannot_be_is_refused_before_an_epoch_is_profiled(
    store: GraphStore, strategy: str
) -> None:
    before = sorted(store.derived.folder.iterdir())
    with pytest.raises(OptionError, match="history"):
        opened(store, strategy, epochs=2, history=f"{WIDTH}:staleness=77")
    assert sorted(store.derived.folder.iterdir()) == before


def test_a_profile_keeps_to_the_disk_that_is_given(store: GraphStore) -> None:
    before = sorted(store.derived.folder.iterdir())
    with pytest.raises(BudgetError, match=r"disk=1\.0 kB is too little for the profile .* 1MB"):
        opened(store, "memory", history=f"{WIDTH}:staleness=78", disk="1kB")
    assert sorted(store.derived.folder.iterdir()) == before
    opened(store, "memory", history=f"{WIDTH}:staleness=78", disk="1MB").close()
    # What is there already is found, and not written again.
    opened(store, "memory", history=f"{WIDTH}:staleness=78", disk="1kB").close()


def test_samplings_that_share_no_embeddings_have_no_history(store: GraphStore) -> None:
    for strategy in ("memory", "outre"):
        for history in (WIDTH, f"{WIDTH}:metric=degree"):
            options: dict[str, Any] = {"strategy": strategy, "memory": "1GB", "history": history}
            with pytest.raises(OptionError, match=r"history needs two hops .*num_neighbors=\[4\]"):
                NeighborLoader(store, [4], "train", **options)
            with pytest.raises(OptionError, match="ShaDow's seeds share no embeddings"):
                ShaDowLoader(store, 2, 4, "train", **options)


def test_what_no_history_can_be_is_refused(store: GraphStore) -> None:
    for history, told in (
        ("width=-1", "width must be at least 1"),
        ((WIDTH, [0, NODES]), str(NODES)),
        ((WIDTH, [-1]), "-1"),
        (True, "history is the width"),
    ):
        with pytest.raises((OptionError, ValueError), match=told):
            opened(store, history=history)


def test_auto_chooses_one_that_has_a_history(tmp_path: Path) -> None:
    graph = random_graph(20_000, 60_000)
    with make_store(tmp_path / "g.outcrop", graph, dim=1000, train=95) as made:
        options = {name: value for name, value in OPTIONS.items() if name != "history"}
        chosen = []
        for memory in ("1GB", "60MB"):
            for history in (None, f"{WIDTH}:nodes=50:metric=degree"):
                loader = NeighborLoader(
                    made, strategy="auto", memory=memory, epochs=2, history=history, **options
                )
                chosen.append(loader.record.strategy.partition(":")[0])
                loader.close()
        assert chosen[:2] == ["memory"] * 2 and chosen[2:] == ["diskgnn", "agnes"]
        with pytest.raises(BudgetError, match="the smallest that would do"):
            NeighborLoader(
                made,
                strategy="auto",
                memory=1,
                history=f"{WIDTH}:nodes=50:metric=degree",
                **options,
            )


def test_a_sibling_has_no_history_of_its_own(store: GraphStore) -> None:
    loader = opened(store)
    sibling = loader.sibling("val")
    assert sibling.history is None
    with pytest.raises(OptionError, match="history is shared with the sibling"):
        loader.sibling("val", history=WIDTH)
    wanted = opened(store, history=None).sibling("val")
    assert all_contents(sibling) == all_contents(wanted)
    loader.close()


@pytest.mark.parametrize("strategy", ["memory", "ginex", "outre", "agnes"])
def test_batches_that_nobody_trains_on_are_noticed(store: GraphStore, strategy: str) -> None:
    """Within a few batches: a loop may fetch some before it trains."""
    loader = opened(store, strategy)
    with pytest.raises(HistoryError, match="none is there: that batch was not trained on"):
        for _ in loader:
            pass
    loader.close()
