"""The flags of the compiler's commands, in groups that commands share."""

from typing import Final

from aotlm.driver.folders import DEFAULT_MODEL
from aotlm.weights.policy import POLICIES
from aotlm_runtime.bundle.symbols import DEFAULT_PREFIX
from aotlm_runtime.cli.flags import Flag

_ISSUER: Final = "https://token.actions.githubusercontent.com"

DTYPE: Final = Flag(
    "dtype",
    "text",
    f"storage of the weights: {', '.join(POLICIES)}; default: stored for GGUF, else f16",
    "DTYPE",
)
OUT: Final = Flag("out", "text", "where to write to", "PATH")
BUNDLE: Final = Flag("bundle", "text", "a bundle's folder or archive", "PATH")
REVISION: Final = Flag("revision", "text", "the commit or branch of a Hugging Face id", "REVISION")
TARGET: Final = Flag(
    "target",
    "text",
    "native, x86-64-v3, x86-64-v4, x86-64-v4+vnni, x86-64-v4+bf16 or the name of a CPU",
    "CPU",
    default="native",
)
KEY: Final = Flag("key", "text", "a key in PEM form: private to sign, public to verify", "FILE")
BASE_IMAGE: Final = Flag(
    "base-image", "text", "what the images are built on instead of the pinned image", "NAME"
)
ENGINE: Final = Flag(
    "engine",
    "text",
    "auto, docker or local: where the stage runs; default: AOTLM_ENGINE, else auto",
    "ENGINE",
)


def model_flag(default: str | None = None) -> Flag:
    """Return the flag that names a model."""
    words = "Hugging Face id, local folder, GGUF folder or file, or 'demo'"
    return Flag("model", "text", words, "MODEL", default=default)


# Which folder a stage works in, by the rule of `aotlm.driver.folders.model_folder`.
FOLDER: Final = (
    Flag("dir", "text", "the folder of the model; default: artifacts/<model>-<dtype>", "DIR"),
    model_flag(),
    DTYPE,
)
PASSES: Final = (
    Flag(
        "dump-after",
        "text",
        "write the IR after this pass, or after 'all'; import then stops there",
        "PASS",
    ),
    Flag("list-passes", "off", "print the passes in order and stop"),
    Flag("time-passes", "off", "print what each step took: seconds and peak memory"),
)
IMPORT: Final = (
    model_flag(DEFAULT_MODEL),
    REVISION,
    DTYPE,
    OUT,
    Flag("force", "off", "replace an existing import"),
    Flag("template", "text", "the chat template, of a model that has several", "NAME"),
    Flag(
        "accept-unused",
        "off",
        "import a model without what its checkpoint holds and nothing uses",
    ),
    *PASSES,
    Flag("list-ops", "off", "print the ops of the Graph with what they mean and stop"),
    ENGINE,
)
COMPILE: Final = (
    *FOLDER,
    TARGET,
    Flag(
        "prefix",
        "text",
        "what the names of the library's functions and of its C header begin with",
        "NAME",
        default=DEFAULT_PREFIX,
    ),
    *PASSES,
    Flag(
        "list-kernels",
        "off",
        "print the kernels, of DIR where given, with each target's tiles and stop",
    ),
    ENGINE,
)
PACKAGE: Final = (*FOLDER, OUT, Flag("compress", "off", "pack the archive with zstd"), ENGINE)
REPRO: Final = (
    model_flag("demo"),
    REVISION,
    DTYPE,
    Flag("target", "text", TARGET.help, TARGET.metavar, default="x86-64-v3"),
    OUT,
)
COMPARE: Final = (
    Flag("first", "text", BUNDLE.help, "PATH"),
    Flag("second", "text", "the other one, in the same form", "PATH"),
)
REBUILD: Final = (
    Flag("provenance", "text", "the provenance.json of a bundle", "FILE"),
    model_flag(),
    OUT,
)
SIGN: Final = (
    BUNDLE,
    KEY,
    Flag("sigstore", "off", "sign with the identity of the workflow that this runs in"),
)
VERIFY: Final = (
    BUNDLE,
    KEY,
    Flag("identity", "text", "who signed with sigstore: a workflow's or a mail address", "WHO"),
    Flag(
        "identity-provider",
        "text",
        "who vouches for the identity",
        "URL",
        default=_ISSUER,
    ),
)
TOOLCHAIN: Final = (
    ENGINE,
    BASE_IMAGE,
    Flag(
        "cache",
        "text",
        "a folder that keeps the image of the wheels, for another engine to load",
        "FOLDER",
    ),
)
IMAGE: Final = (
    BUNDLE,
    Flag("tag", "text", "the name of the image; default: aotlm-<model>-<dtype>", "NAME"),
    BASE_IMAGE,
)
