"""What `inv bench` does: it loads the bundle and its peers, measures them in turn, and tells."""

import json
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from aotlm.errors import UsageError
from aotlm.outputs import new_file
from aotlm_runtime.bench.report import measure
from aotlm_runtime.bundle import open_bundle
from aotlm_runtime.manifest import Model as Facts
from aotlm_runtime.model import load_opened
from bench.compare import Comparison
from bench.counts import Counts
from bench.environment import peers_python
from bench.peers import PEERS, Peer, Wanted, check_same_model, read_names
from bench.results import Results, this_computer, to_data, to_page, write_page

DEFAULT_PAIRS = 100


def bench(
    bundle: Path,
    model: str | None,
    peers: str | None,
    counts: Counts,
    json_file: str | None,
    out: str | None,
    tell: Callable[[str], object],
) -> str:
    """Measure a bundle beside the machine's limits and the named peers; return the tables.

    Raises:
        UsageError: a word of the command is wrong.
        AotlmError: a peer cannot run, or runs another model.
        AotlmRuntimeError: the bundle cannot be loaded.
    """
    names = read_names(peers)
    n_pairs = counts.read("repeat") or DEFAULT_PAIRS
    plotting = peers_python() if out else None
    n_threads, context = counts.read("threads"), counts.read("context")
    with open_bundle(bundle) as opened, ExitStack() as stack:
        loaded = load_opened(opened, threads=n_threads, context=context)
        session, facts = loaded.session, opened.manifest.model
        started: list[Peer] = []
        if names:
            source, revision = _source(facts, model)
            wanted = Wanted(source, revision, facts.dtype, session.threads, session.context)
        for name in names:
            tell(f"loading {name}")
            started.append(PEERS[name](wanted, stack))
            check_same_model(started[-1], session, facts.dtype)
        comparison = Comparison(started)
        report = measure(opened, loaded, n_pairs, tell, comparison.after_pair)
    results = Results(this_computer(), report, comparison.reports())
    if json_file:
        with new_file(Path(json_file)) as made:
            made.write_text(json.dumps(to_data(results), indent=2) + "\n", encoding="utf-8")
    if out and plotting:
        write_page(results, Path(out), plotting)
    return to_page(results)


def _source(facts: Facts, model: str | None) -> tuple[str, str | None]:
    """The model that the bundle was made from, as open_model takes it."""
    if model:
        return model, None
    if facts.source == "local":
        raise UsageError(
            "the bundle was made from a local model; name it with --model, so that the peers run "
            "the same weights"
        )
    return facts.source, facts.revision
