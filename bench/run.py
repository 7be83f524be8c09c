"""What `inv bench` does: it loads each bundle and its peers, measures them in turn, and tells."""

import json
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from aotlm.errors import UsageError
from aotlm.support.atomic import new_file
from aotlm_runtime.bench.report import measure
from aotlm_runtime.bundle.manifest import Model as Facts
from aotlm_runtime.bundle.reader import open_bundle
from aotlm_runtime.model import load_opened
from bench.build import Stage, measure_build
from bench.compare import Comparison
from bench.counts import Counts
from bench.environment import peers_python
from bench.peers import Peer, Wanted, check_same_model, read_names, start
from bench.profile import profile
from bench.results import BundleResults, Results, this_computer, to_data, to_page, write_page

# A model's name and revision, as open_model takes them.
Source = tuple[str, str | None]


@dataclass(frozen=True)
class Request:
    """What to measure: bundles, the model that each was made from (or none at all), peers by
    commas, and whether a build of each is measured as well."""

    bundles: Sequence[Path]
    models: Sequence[str]
    peers: str | None
    counts: Counts
    with_build: bool = False


def bench(
    request: Request, json_file: str | None, out: str | None, on_progress: Callable[[str], object]
) -> str:
    """Measure bundles beside the machine's limits and the named peers; return the tables.

    Raises:
        UsageError: a word of the command is wrong.
        AotlmError: a peer cannot run, or runs another model.
        BundleError: a bundle cannot be loaded.
    """
    bundles, models = request.bundles, request.models
    if models and len(models) != len(bundles):
        raise UsageError(
            f"--model was given {len(models)} times for {len(bundles)} bundles; give it once for "
            "each, in their order, or not at all"
        )
    names = read_names(request.peers)
    request.counts.effort()
    plotting = peers_python() if out else None
    chosen: Sequence[str | None] = models or [None] * len(bundles)
    sources = [
        _source(bundle, model) if names or request.with_build else None
        for bundle, model in zip(bundles, chosen, strict=True)
    ]
    found = [
        _bench(bundle, source, names, request, on_progress)
        for bundle, source in zip(bundles, sources, strict=True)
    ]
    results = Results(this_computer(), found)
    if json_file:
        with new_file(Path(json_file)) as made:
            made.write_text(json.dumps(to_data(results), indent=2) + "\n", encoding="utf-8")
    if out and plotting:
        write_page(results, Path(out), plotting)
    return to_page(results)


def _bench(
    bundle: Path,
    source: Source | None,
    names: Sequence[str],
    request: Request,
    on_progress: Callable[[str], object],
) -> BundleResults:
    effort = request.counts.effort()
    n_threads, context = request.counts.read("threads"), request.counts.read("context")
    with open_bundle(bundle) as opened, ExitStack() as stack:
        loaded = load_opened(opened, threads=n_threads, context=context)
        session, facts = loaded.session, opened.manifest.model
        started: list[Peer] = []
        if source:
            wanted = Wanted(*source, facts.dtype, session.threads, session.context_length)
            for peer in start(names, wanted, stack, on_progress):
                check_same_model(peer, session, facts.dtype)
                started.append(peer)
        comparison = Comparison(started, effort.seconds)
        report = measure(opened, loaded, effort, on_progress, comparison.after_pair)
    stages: list[Stage] = []
    if request.with_build and source:
        stages = measure_build(*source, facts.dtype, report.target, on_progress)
    on_progress("profile")
    tables = profile(bundle, n_threads)
    return BundleResults(_name(facts), report, comparison.reports(), stages, tables)


def _name(facts: Facts) -> str:
    size = f"{facts.architecture}, {facts.n_parameters / 1e6:.0f} million parameters"
    return size if facts.source == "local" else f"{facts.source}, {size}"


def _source(bundle: Path, model: str | None) -> Source:
    """The model that the bundle was made from."""
    if model:
        return model, None
    with open_bundle(bundle) as opened:
        facts = opened.manifest.model
    if facts.source == "local":
        raise UsageError(
            f"the bundle {bundle} was made from a local model; name it with --model, so that the "
            "peers run the same weights"
        )
    return facts.source, facts.revision
