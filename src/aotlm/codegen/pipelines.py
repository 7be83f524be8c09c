"""The lowering pipelines, as data.

Each entry is what `--pass-pipeline` takes; its name, without options and anchor, is what
`--dump-after` takes.
"""

# Kernels are defined before this. The order matters in three places: canonicalize must follow
# convert-scf-to-openmp at once (parallel bodies with branches fail later otherwise), bf16
# truncations are expanded before vectors become LLVM's (they become library calls otherwise), and
# math that LLVM has no intrinsic for (tanh, erf) goes to libm after the rest went to LLVM.
MLIR_TO_LLVM_DIALECT: tuple[str, ...] = (
    "convert-linalg-to-loops",
    "canonicalize",
    "cse",
    "convert-scf-to-openmp",
    "canonicalize",
    "func.func(loop-invariant-code-motion)",
    "expand-strided-metadata",
    "lower-affine",
    "arith-expand{include-bf16=true}",
    "convert-vector-to-scf",
    "convert-scf-to-cf",
    "convert-vector-to-llvm{enable-x86vector=true}",
    "convert-math-to-llvm",
    "convert-math-to-libm",
    "finalize-memref-to-llvm",
    "convert-arith-to-llvm",
    "convert-index-to-llvm",
    "convert-func-to-llvm",
    "convert-openmp-to-llvm",
    "convert-cf-to-llvm",
    "convert-ub-to-llvm",
    "canonicalize",
    "cse",
    "reconcile-unrealized-casts",
)

# opt without a triple does not vectorise, and says nothing about it.
TRIPLE = "x86_64-unknown-linux-gnu"
OPT: tuple[str, ...] = ("-O3", f"-mtriple={TRIPLE}")
LLC: tuple[str, ...] = (
    "-O3",
    f"-mtriple={TRIPLE}",
    "--relocation-model=pic",
    "-function-sections",
    "-filetype=obj",
)
