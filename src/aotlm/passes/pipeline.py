"""The pipeline of Graph passes, as data."""

from __future__ import annotations

from aotlm.graph.dims import Dim, T
from aotlm.passes.base import Pass
from aotlm.passes.canonicalize import Canonicalize
from aotlm.passes.choose_codecs import ChooseCodecs
from aotlm.passes.fix_tokens import FixTokens
from aotlm.passes.fold_transposes import FoldTransposes
from aotlm.passes.fuse_epilogues import FuseEpilogues
from aotlm.passes.mark_storage import MarkStorage
from aotlm.passes.merge_linears import MergeLinears
from aotlm.passes.pack_weights import PackWeights
from aotlm.passes.recognize_activations import RecognizeActivations
from aotlm.passes.recognize_gated_mlp import RecognizeGatedMlp
from aotlm.passes.recognize_norms import RecognizeNorms
from aotlm.passes.recognize_rotary import RecognizeRotary
from aotlm.passes.specialize_attention import SpecializeAttention
from aotlm.weights.policy import NOTHING_STORED, POLICIES, StoredCodecs


def graph_pipeline(
    policy: str, n_tokens: Dim = T, stored: StoredCodecs = NOTHING_STORED
) -> tuple[Pass, ...]:
    """Return the passes from a captured Graph to one that can be partitioned.

    policy: a key of POLICIES; `stored` has the codecs of the checkpoint's tensors. n_tokens: of
    each call, T for any number. All that decides about weights comes before it is set, so entry
    points of one model agree about them.
    """
    return (
        Canonicalize(),
        FoldTransposes(),
        Canonicalize(),
        ChooseCodecs(POLICIES[policy], stored),
        RecognizeNorms(),
        RecognizeRotary(),
        RecognizeActivations(),
        RecognizeGatedMlp(),
        FuseEpilogues(),
        MergeLinears(),
        MarkStorage(POLICIES[policy]),
        PackWeights(),
        FixTokens(n_tokens),
        SpecializeAttention(),
        Canonicalize(),
    )
