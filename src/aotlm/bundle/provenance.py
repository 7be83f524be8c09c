"""`provenance.json`: an in-toto statement with a SLSA predicate, and nothing that varies.

It says what a bundle was made from and how, so that anybody can make the same bytes again. Engine,
paths, shards, users, hosts and times are absent: two builds of one commit from the same tensors
have the same provenance. Its subjects are all files of the bundle but the manifest, which lists
the provenance in its turn, and but itself.

https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md, https://slsa.dev/provenance/v1
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from aotlm.errors import AotlmError
from aotlm.support.build_record import PIN_FILES, UNKNOWN, BuildRecord, Origin
from aotlm_runtime.bundle.manifest import File, Library, Model, ModelFile, Record, SourceTensor
from aotlm_runtime.bundle.symbols import DEFAULT_PREFIX

NAME = "provenance.json"
STATEMENT_TYPE = "https://in-toto.io/Statement/v1"
PREDICATE_TYPE = "https://slsa.dev/provenance/v1"
BUILD_TYPE = "urn:aotlm:bundle:1"
BUILDER = "urn:aotlm:compiler"
SOURCE, PINS, TENSOR, FILE = "source", "pins", "tensor", "file"

Annotation = str | bool | Sequence[int | str] | None


class Artifact(Record, frozen=True, kw_only=True):
    """in-toto's ResourceDescriptor; `annotations` tell its kind and what the digest omits."""

    name: str
    digest: dict[str, str]
    annotations: Mapping[str, Annotation] = msgspec.field(default_factory=dict)


class Stage(Record, frozen=True, kw_only=True):
    """A stage of the build: the exact steps and the versions of what ran them."""

    stage: str
    steps: list[str]
    tools: dict[str, str]


class Parameters(Record, frozen=True, kw_only=True, omit_defaults=True):
    """What the user of the build chose; `model` is a Hugging Face id, "demo" or "local".

    `prefixes` are those of targets whose library has another than the default one.
    """

    model: str
    revision: str | None
    dtype: str
    targets: list[str]
    prefixes: Mapping[str, str] = msgspec.field(default_factory=dict)


class Facts(Record, frozen=True, kw_only=True):
    """What followed from the parameters and the inputs."""

    model: Model
    stages: list[Stage]


class BuildDefinition(Record, frozen=True, kw_only=True, rename="camel"):
    """SLSA's description of the build's inputs."""

    build_type: str = BUILD_TYPE
    external_parameters: Parameters
    internal_parameters: Facts
    resolved_dependencies: list[Artifact]


class Builder(Record, frozen=True, kw_only=True):
    """SLSA's builder: the compiler itself, wherever it ran."""

    id: str = BUILDER


class RunDetails(Record, frozen=True, kw_only=True):
    """SLSA's description of the run, of which nothing may be said here but the builder."""

    builder: Builder = Builder()


class Predicate(Record, frozen=True, kw_only=True, rename="camel"):
    """SLSA's provenance."""

    build_definition: BuildDefinition
    run_details: RunDetails = RunDetails()


class Statement(Record, frozen=True, kw_only=True, rename="camel"):
    """in-toto's statement about the files of a bundle."""

    type: str = msgspec.field(default=STATEMENT_TYPE, name="_type")
    subject: list[Artifact]
    predicate_type: str = PREDICATE_TYPE
    predicate: Predicate

    def inputs(self, kind: str) -> dict[str, Artifact]:
        """Return the inputs of one kind (SOURCE, PINS, TENSOR, FILE) by name."""
        found = self.predicate.build_definition.resolved_dependencies
        return {item.name: item for item in found if item.annotations["kind"] == kind}


def describe_build(
    model: ModelFile,
    records: Sequence[BuildRecord],
    libraries: Sequence[Library],
    files: Sequence[File],
) -> Statement:
    """Return the statement about `files`; the first of `records` is the import's."""
    facts = model.model
    return Statement(
        subject=[Artifact(name=file.path, digest={"sha256": file.sha256}) for file in files],
        predicate=Predicate(
            build_definition=BuildDefinition(
                external_parameters=Parameters(
                    model=facts.source,
                    revision=facts.revision,
                    dtype=facts.dtype,
                    targets=[library.target for library in libraries],
                    prefixes={
                        library.target: library.prefix
                        for library in libraries
                        if library.prefix != DEFAULT_PREFIX
                    },
                ),
                internal_parameters=Facts(
                    model=facts,
                    stages=[
                        Stage(stage=record.stage, steps=record.steps, tools=record.tools)
                        for record in records
                    ],
                ),
                resolved_dependencies=[
                    *_sources(records),
                    *(_file(file.name, file.sha256) for file in records[0].inputs),
                    *map(_tensor, sorted(model.source_tensors, key=lambda tensor: tensor.name)),
                ],
            )
        ),
    )


def read_provenance(path: Path) -> Statement:
    """Read a provenance.json.

    Raises:
        AotlmError: it cannot be read, or is not what `inv package` writes.
    """
    try:
        return msgspec.json.decode(path.read_bytes(), type=Statement)
    except OSError as error:
        raise AotlmError(
            f"cannot read {path}: {error.strerror}; give the provenance.json of a bundle"
        ) from None
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise AotlmError(
            f"{path} is no provenance of a bundle ({error}); give the provenance.json of a bundle"
        ) from None


def _sources(records: Sequence[BuildRecord]) -> list[Artifact]:
    """A source and a pins entry for all stages, or for each group of stages that share them."""
    groups: dict[tuple[str, Origin], list[str]] = {}
    for record in records:
        groups.setdefault((record.sources_sha256, record.origin), []).append(record.stage)
    found = []
    for (digest, origin), stages in groups.items():
        suffix = f" of {' and '.join(stages)}" if len(groups) > 1 else ""
        found.append(_source(SOURCE + suffix, digest, origin))
        pins = {} if origin.pins_sha256 == UNKNOWN else {"sha256": origin.pins_sha256}
        notes: dict[str, Annotation] = {"kind": PINS, "files": PIN_FILES}
        found.append(Artifact(name=PINS + suffix, digest=pins, annotations=notes))
    return found


def _source(name: str, digest: str, origin: Origin) -> Artifact:
    """The commit is known only in a git checkout; the digest of the code itself always is."""
    commit = {} if origin.commit == UNKNOWN else {"gitCommit": origin.commit}
    return Artifact(
        name=name,
        digest={**commit, "sha256": digest},
        annotations={"kind": SOURCE, "commit": origin.commit, "dirty": origin.dirty},
    )


def _file(name: str, digest: str) -> Artifact:
    return Artifact(name=name, digest={"sha256": digest}, annotations={"kind": FILE})


def _tensor(tensor: SourceTensor) -> Artifact:
    return Artifact(
        name=tensor.name,
        digest={"sha256": tensor.sha256},
        annotations={"kind": TENSOR, "dtype": tensor.dtype, "shape": tensor.shape},
    )
