"""Which modules the API reference shows, by topic; what is not named here is internal.

``tests/test_docs.py`` fails for a new module that is neither here nor INTERNAL.
"""

TOPICS: dict[str, tuple[str, str]] = {
    "Stages of a round": (
        "One function a stage, the whole round, and the numbers that bound them.",
        "topk_logprob tree_build verify_attn target_token tree_accept kv_commit "
        "verify_attn_gqa verify_attn_gqa_variants verify_attn_variants verify_attn_fp8 kv_fp8 "
        "round round_buffers round_graph limits errors",
    ),
    "Trees and masks": (
        "The record of a tree, its pictures, masks of every layout, certificates, trees cut by cost.",
        "tree tree_draw tree_svg masks plots_mask certificate tree_budget best_first",
    ),
    "Policies": (
        "Which candidates are verified. All take the arguments of `tree_build`.",
        "policies policies.chain policies.kary policies.ddtree policies.static policies.sequoia "
        "policies.medusa policies.accum_logp policies.fan_out policies.edge policies.depth_bonus "
        "policies.padded policies.spine policies.beam policies.opt_tree policies.calibrated "
        "policies.conditioned policies.caddtree policies.longrun policy_fit",
    ),
    "Traces and files": (
        "Recorded traces, and the KDTR container.",
        "trace trace_writer kdtr convert vocabulary golden",
    ),
    "Acceptance and studies": (
        "Replay, statistics, costs, reports, published numbers.",
        "replay acceptance rank_tables study study_costs study_report shootout shootout_report lab cost "
        "cost_model cost_build cost_study positional reproduce published importers importers.load parallel",
    ),
    "Verifiers": (
        "Lossless rules for drafts that are sampled.",
        "verifiers verifiers.sampling verifiers.node verifiers.closed_forms verifiers.transport "
        "verifiers.traversal verifiers.losslessness verifiers.on_trace verifiers.toy",
    ),
    "Kernel library": (
        "Find, compile, cache, check and launch `.cu` files.",
        "library library.kernel_library library.kernel library.report library.resolve library.sass "
        "library.host_build library.host_run library.doctor export selftest",
    ),
    "Engine and recording": (
        "Real weights, drafters, recordings.",
        "engine engine.config engine.model engine.generate engine.context engine.ngram engine.block_head "
        "engine.load engine.lossless engine.rounds engine.train_head row_product record record.engine "
        "record.hf record.rows",
    ),
    "Torch and SGLang": (
        "Operators for torch, functions with SGLang's signatures.",
        "torch_ops sglang_bridge sglang_layout",
    ),
    "Benchmarks": (
        "Timers, cases, tables, comparisons.",
        "timing bench bench_cases bench_table bench_compare bench_attention bench_round bench_data",
    ),
    "Notebooks": (
        "The IPython extension `%load_ext kdtree_cupy`, kernels tried in a cell, `kd.explore`.",
        "magics kernel_trial explorer explorer.show",
    ),
    "Figures": (
        "Functions from results to figures, and the one style.",
        "style plots plots_calibration plots_cost plots_lab plots_overlay plots_shootout bench_plots",
    ),
}

INTERNAL = (
    r"__main__|version|progress|files|checks|npy_header|npz|safetensors_file|kdtr_\w+|numpy_backend|kv_positions|stage_\w+|"
    r"\w+_(check|cut|launch|parts|text|arguments)|study_table|cli|\w+\.\w+"
)
"""Modules that may go without a page, as a regular expression: helpers, and parts of a sub-package."""


def pages() -> dict[str, str]:
    """Return file name and text of every page of the reference, and of their index."""
    made, names = {}, []
    for title, (line, modules) in TOPICS.items():
        name = "api_" + title.lower().replace(" ", "_")
        blocks = [f"# {title}\n\n{line}\n"]
        for module in modules.split():
            blocks.append(f"## `{module}`\n\n```{{eval-rst}}\n.. automodule:: kdtree_cupy.{module}\n```\n")
        made[f"{name}.md"] = "\n".join(blocks)
        names.append(name)
    listed = "\n".join(names)
    head = "# API reference\n\nFrom the docstrings.\n\n"
    made["api.md"] = f"{head}```{{toctree}}\n:maxdepth: 1\n\n{listed}\n```\n"
    return made
