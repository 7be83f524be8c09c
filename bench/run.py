"""What `inv bench` does: it loads each bundle and its peers, measures them in turn, and tells."""

import json
from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from aotlm.errors import AotlmError, UsageError
from aotlm.support.atomic import new_file
from aotlm_runtime.bench.report import measure
from aotlm_runtime.bundle.manifest import Model as Facts
from aotlm_runtime.bundle.reader import open_bundle
from aotlm_runtime.compiled.session import Session
from aotlm_runtime.model import load_opened
from bench.build import Stage, measure_build
from bench.compare import Comparison, PeerReport
from bench.counts import Counts
from bench.environment import peers_python
from bench.page import to_section, write_page
from bench.peers import Peer, Refusal, Wanted, check_same_model, read_names, start
from bench.profile import profile
from bench.results import BundleResults, Results, this_computer, to_data

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
        AotlmError: the peers' environment is missing.
        BundleError: a bundle cannot be loaded.
    """
    bundles, models = request.bundles, request.models
    if models and len(models) != len(bundles):
        raise UsageError(
            f"--model was given {len(models)} times for {len(bundles)} bundles; give it once for "
            "each, in their order, or not at all"
        )
    names = read_names(request.peers)
    request.counts.options()
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
    return to_section(results)


def _bench(
    bundle: Path,
    source: Source | None,
    names: Sequence[str],
    request: Request,
    on_progress: Callable[[str], object],
) -> BundleResults:
    options = request.counts.options()
    n_threads, context = request.counts.read("threads"), request.counts.read("context")
    with open_bundle(bundle) as opened, ExitStack() as stack:
        loaded = load_opened(opened, threads=n_threads, context=context)
        session, facts = loaded.session, opened.manifest.model
        peers: list[Peer] = []
        refusals: list[Refusal] = []
        if source:
            wanted = Wanted(*source, facts.dtype, session.threads, session.context_length)
            peers, refusals = _sort(start(names, wanted, stack, on_progress), session, facts.dtype)
        for refusal in refusals:
            on_progress(f"{refusal.name} takes no part: {refusal.reason}")
        comparison = Comparison(peers, options.seconds)
        report = measure(opened, loaded, options, on_progress, comparison.after_pair)
    stages: list[Stage] = []
    if request.with_build and source:
        stages = measure_build(*source, facts.dtype, report.target, on_progress)
    on_progress("profile")
    tables = profile(bundle, n_threads)
    absent = [PeerReport(refusal.name, "", [], refusal.reason) for refusal in refusals]
    return BundleResults(_name(facts), report, [*comparison.reports(), *absent], stages, tables)


def _sort(
    found: Iterable[Peer | Refusal], session: Session, dtype: str
) -> tuple[list[Peer], list[Refusal]]:
    """Return the peers that run our model, each checked as soon as it is there, and the refusals.

    The rows of the others are right without a peer that runs another model.
    """
    peers: list[Peer] = []
    refusals: list[Refusal] = []
    for each in found:
        if isinstance(each, Refusal):
            refusals.append(each)
            continue
        try:
            check_same_model(each, session, dtype)
            peers.append(each)
        except AotlmError as error:
            each.leave()
            refusals.append(Refusal(each.name, str(error)))
    return peers, refusals


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
