"""Write the measured tables of README and docs from ``results/``, so that no number is copied by hand.

    python benchmarks/doc_tables.py    # rewrites what lies between <!-- table: NAME --> and <!-- end -->

``tests/test_doc_tables.py`` fails where a page says something else than the results.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benchmarks" / "results"
PAGES = (
    "README.md",
    *(f"docs/{page}.md" for page in ("tree_build", "kernels", "bench", "verify_attn", "engine")),
)
MARK = re.compile(r"(<!-- table: (\w+) -->\n).*?(<!-- end -->)", re.S)
Row = dict[str, str]


def rows(file: str, **wanted: object) -> list[Row]:
    """Return the rows of a result file whose columns equal ``wanted``."""
    with (RESULTS / file).open(encoding="utf-8", newline="") as handle:
        return [row for row in csv.DictReader(handle) if all(row[k] == str(v) for k, v in wanted.items())]


def us(value: str | float) -> str:
    """Return microseconds with as many digits as mean something."""
    number = float(value)
    return f"{number:,.0f}" if number >= 99.5 else f"{number:.0f}" if number >= 20 else f"{number:.1f}"


def table(head: str, body: Iterable[Iterable[object]]) -> str:
    """Return a Markdown table."""
    lines = [head, "|" + "---|" * head.count(" | ") + "---|"]
    return "\n".join(lines + ["| " + " | ".join(map(str, row)) + " |" for row in body]) + "\n"


def tree(stage: str, batch: int, budget: int) -> str:
    """Return the time of a tree kernel, "" if it was not measured."""
    found = rows("tree_h200.csv", stage=stage, batch=batch, budget=budget, version=2)
    return us(found[0]["us_median"]) if found else ""


def attention(b: int, heads: int, nodes: int, prefix: int) -> tuple[str, str, str]:
    """Return warm time, share of the floor and torch's time of one shape of verify_attn."""
    shape = {"b": b, "H": heads, "q": nodes, "prefix": prefix, "dtype": "bfloat16", "l2": "warm"}
    ours = rows("verify_attn_h200.csv", provider="kdtree_cupy", splits="auto", variant="", **shape)[0]
    torch = rows("verify_attn_h200.csv", provider="torch sdpa", **shape)
    share = f"{float(ours['share_of_floor']):.0%}"
    return us(ours["us"]), share, us(torch[0]["us"]) if torch else ""


def stage(name: str, shape: str, dtype: str = "bfloat16") -> tuple[str, str, str, str, str]:
    """Return warm and cold time, floor, target and torch's time of a stage around the model."""
    found = rows("stages_h200.csv", stage=name, shape=shape)
    mine = {row["l2"]: row for row in found if row["provider"] == "kdtree_cupy" and row["dtype"] == dtype}
    torch = [row for row in found if "torch" in row["provider"]]
    warm, cold = (us(mine[l2]["us"]) if l2 in mine else "" for l2 in ("warm", "cold"))
    any_row = next(iter(mine.values()))
    target = us(any_row["target_us"]) if any_row["target_us"] else ""
    return warm, cold, us(any_row["floor_us"]), target, us(torch[0]["us"]) if torch else ""


def whole_round(batch: int, budget: int) -> tuple[str, str, str]:
    """Return cold and warm time and floor of the round without the model."""
    found = {row["cold"]: row for row in rows("bench_h200.csv", stage="round", batch=batch, budget=budget)}
    return *(us(found[key]["us_median"]) if key in found else "" for key in "10"), us(found["1"]["floor_us"])


def headline() -> str:
    """Return the table of the README."""
    first, last = attention(1, 64, 65, 8192), attention(1, 8, 65, 32768)
    logits, cold = stage("topk_logprob", "1x15x163840 k=64"), whole_round(64, 64)
    small = _grouped("qwen3-8b, llama-3-8b", 1, 65, 8192)
    body = [
        ("`tree_build`", "batch 1, D = 15, B = 64", tree("tree_build", 1, 64), ""),
        ("`tree_build`", "batch 1, D = 15, B = 1024", tree("tree_build", 1, 1024), ""),
        ("`tree_build`", "batch 64, B = 64", tree("tree_build", 64, 64), ""),
        ("`tree_accept`", "batch 64, B = 64", tree("tree_accept", 64, 64), ""),
        ("`verify_attn`", "64 heads, 65 rows, prefix 8,192", first[0], f"{first[2]} (torch SDPA)"),
        ("`verify_attn`", "8 heads, 65 rows, prefix 32,768", last[0], f"{last[2]} (same)"),
        ("`verify_attn_gqa`", "32 heads on 8, 65 rows, prefix 8,192", small[5], f"{small[8]} (same)"),
        ("`topk_logprob`", "15 rows of 163,840, K = 64", logits[0], f"{logits[4]} (torch topk, logsumexp)"),
        ("round without the model", "batch 64, B = 64, 61 layers", cold[0], f"{cold[2]} (floor)"),
    ]
    return table("| stage | shape | us | beside it |", body)


def trees() -> str:
    """Return the table of docs/tree_build.md."""
    sizes = [(batch, budget) for batch in (1, 64) for budget in (16, 64, 256, 1024)]
    body = [(b, n, tree("tree_build", b, n), tree("tree_accept", b, n)) for b, n in sizes]
    return table("| batch | B | tree_build us | tree_accept us |", body)


def logits() -> str:
    """Return the table of docs/kernels.md."""
    shapes = (
        ("topk_logprob", "1 x 15 rows, K = 64", "1x15x163840 k=64"),
        ("topk_logprob", "64 x 15 rows, K = 64", "64x15x163840 k=64"),
        ("topk_logprob", "1 x 15 rows, K = 1024", "1x15x163840 k=1024"),
        ("logits to tree", "top-k and `tree_build`, B = 64", "1x15x163840 B=64"),
        ("target_token", "argmax, 65 rows", "1x65x163840 t=0 p=1 std=1"),
        ("target_token", "argmax, 64 x 65 rows", "64x65x163840 t=0 p=1 std=1"),
        ("target_token", "draw, 65 rows", "1x65x163840 t=1 p=1 std=1"),
        ("target_token", "draw, 64 x 65 rows", "64x65x163840 t=1 p=1 std=1"),
        ("target_token", "top-p 0.9, 65 rows", "1x65x163840 t=1 p=0.9 std=3"),
        ("target_token", "top-p 0.9, 64 x 65 rows", "64x65x163840 t=1 p=0.9 std=3"),
        ("kv_commit", "61 layers, 8 rows of 1,152 bytes", "61 layers 1x8 rows page=64"),
        ("kv_commit", "the same, batch 64", "61 layers 64x8 rows page=64"),
        ("kv_commit", "rows of 656 bytes, batch 64", "61 layers 64x8 rows page=64"),
    )
    body = []
    for name, words, shape in shapes:
        dtype = f"{656 if '656' in words else 1152} bytes" if name == "kv_commit" else "bfloat16"
        body.append((name if " " in name else f"`{name}`", words, *stage(name, shape, dtype)))
    return table("| stage | call | warm us | cold us | floor us | target us | torch us |", body)


def rounds() -> str:
    """Return the table of docs/bench.md."""
    sizes = [(1, 16), (1, 64), (1, 256), (8, 64), (64, 64), (64, 256)]
    head = "| batch | B | cold us | warm us | floor us |"
    return table(head, [(b, n, *whole_round(b, n)) for b, n in sizes])


def attentions() -> str:
    """Return the table of docs/verify_attn.md."""
    shapes = [(1, 8, 65, 2048), (1, 8, 65, 32768), (1, 64, 65, 8192), (1, 64, 65, 32768), (64, 8, 65, 4096)]
    head = "| batch | heads | nodes | prefix | us | of the floor | torch SDPA us |"
    return table(head, [(b, h, n, f"{p:,}", *attention(b, h, n, p)) for b, h, n, p in shapes])


def fp8_rows() -> str:
    """Return the table of 8-bit KV rows in docs/bench.md."""
    few = [(1, 8, 1, 131072), (64, 16, 1, 8192), (1, 8, 4, 131072), (1, 8, 17, 131072)]
    body = []
    many = [(1, 8, 65, 2048), (1, 8, 65, 32768), (1, 64, 65, 8192), (64, 8, 65, 4096)]
    for b, heads, nodes, prefix in few + many:
        found = rows("verify_attn_fp8_h200.csv", b=b, H=heads, q=nodes, prefix=prefix, l2="warm")
        mine = {row["dtype"]: us(row["us"]) for row in found}
        body.append((b, heads, nodes, f"{prefix:,}", mine["bfloat16"], mine["fp8 scaled"], mine["fp8 plain"]))
    return table("| batch | heads | nodes | prefix | bfloat16 us | 656 bytes us | 576 bytes us |", body)


def _grouped(model: str, b: int, n: int, p: int) -> tuple[object, ...]:
    """Return a row of the table below."""
    shape = {"file": "verify_attn_gqa_h200.csv", "model": model, "b": b, "q": n, "prefix": p}
    ours, narrow = rows(provider="kdtree_cupy", variant="", splits="auto", **shape)[-2:]
    torch = rows(provider="torch sdpa", **shape)
    heads = f"{ours['H']} / {ours['Hkv']} of {ours['D']}"
    share = f"{float(ours['share_of_floor']):.0%} ({ours['floor_is']})"
    times = us(ours["us"]), share, us(narrow["us"]), us(torch[0]["us"]) if torch else ""
    return b, heads, n, f"{p:,}", ours["kernel"], *times


def grouped() -> str:
    """Return the second table of docs/verify_attn.md."""
    small, large, wide, single, tiny = (
        "qwen3-8b, llama-3-8b", "llama-70b", "qwen3-235b", "llama-2-7b", "smollm2-135m",
    )  # fmt: skip
    shapes = (
        (small, 1, 1, 512), (small, 1, 1, 32768), (small, 64, 1, 4096), (small, 1, 17, 512),
        (small, 1, 17, 8192), (small, 1, 65, 8192), (small, 1, 65, 32768), (small, 1, 129, 8192),
        (small, 8, 65, 8192), (large, 8, 65, 8192), (wide, 1, 65, 8192), (single, 8, 65, 4096),
        (tiny, 1, 65, 8192),
    )  # fmt: skip
    head = "| batch | heads / KV | nodes | prefix | kernel | us | of the floor | 8-bit us | torch SDPA us |"
    return table(head, (_grouped(*shape) for shape in shapes))


def _each(rows_of_cells: Iterable[Row], column: str) -> str:
    """Return the different numbers of a column."""
    return ", ".join(map(str, sorted({int(row[column]) for row in rows_of_cells})))


def lossless() -> str:
    """Return the table of what was compared with plain decoding, docs/engine.md."""
    names = {"mla": "MLA + MoE, random", "gqa": "GQA, random", "smollm2": "SmolLM2-135M"}
    groups: dict[tuple[str, ...], list[Row]] = {}
    for file, place in (("lossless_h200.csv", "H200"), ("lossless_cpu.csv", "CPU, numpy")):
        for row in rows(file):
            groups.setdefault((row["model"], row["dtype"], place, row["sequences"]), []).append(row)
    body = []
    for (model, dtype, place, prompts), found in groups.items():
        by_mode = {mode: [row for row in found if row["mode"] == mode] for mode in ("chain", "ddtree")}
        ways = "; ".join(f"{mode} {_each(some, 'budget')}" for mode, some in by_mode.items() if some)
        length = max(int(row["tokens"]) // int(row["sequences"]) for row in found)
        flips, bad = [int(row["flips"]) for row in found], sum(int(row["unexplained"]) for row in found)
        said = f"{min(flips)} to {max(flips)} ({bad})" if any(flips) else 0
        gap = f"{max(float(row['difference']) for row in found):.1e}".replace("e-0", "e-").replace("e+00", "")
        layouts = (_each(found, "batch"), _each(found, "page_size"), len(found))
        body.append((names[model], dtype, place, f"{prompts} x {length}", ways, *layouts, said, gap))
    head = "| model | type | where | prompts x tokens | B | batch | pages | cells | flips | difference |"
    return table(head, body)


def _engine(model: str, dtype: str) -> str:
    """Return times of rounds with the engine, docs/engine.md."""
    parts = ("round", "draft", "build", "layers", "head", "accept_commit", "host")
    body = []
    for row in rows("engine_h200.csv", model=model, dtype=dtype):
        way = row["mode"] if row["mode"] == "ar" else f"{row['mode']}, {row['budget']}"
        times = (f"{float(row[f'{part}_ms']):.2f}" for part in parts)
        speed = f"{float(row['tokens_per_second']):,.0f}"
        body.append((row["batch"], way, speed, f"{float(row['tau']):.2f}", *times))
    columns = ("batch", "mode, B", "tokens/s", "tau", *parts[:-2], "accept, commit", "host")
    return table(f"| {' | '.join(columns)} |", body)


def wide() -> str:
    """Return tokens per round and certified shares of narrow and wide recordings, docs/engine.md."""
    budgets, body = (64, 128, 256, 512, 1024), []
    for task, name in (("mt_bench", "MT-Bench"), ("gsm8k", "GSM8K"), ("humaneval", "HumanEval")):
        for trace, width in ((f"smollm2_{task}_t0", 32), (f"smollm2_{task}_t0_k256", 256)):
            cells = (rows("wide_traces_h200.csv", trace=trace, budget=budget)[0] for budget in budgets)
            shares = (f"{float(c['tau_pooled']):.2f} ({float(c['certified_share']):.0%})" for c in cells)
            body.append((name if width == 32 else "", width, *shares))
    return table("| prompts | K | B = 64 | 128 | 256 | 512 | 1024 |", body)


TABLES = {
    "lossless": lossless,
    "engine_small": lambda: _engine("smollm2", "float32"),
    "engine_kimi": lambda: _engine("kimi", "float16"),
    "wide": wide,
    "headline": headline,
    "trees": trees,
    "logits": logits,
    "rounds": rounds,
    "attentions": attentions,
    "fp8_rows": fp8_rows,
    "grouped": grouped,
}


def renewed(text: str) -> str:
    """Return a page with its tables as the results are now."""
    return MARK.sub(lambda found: found[1] + TABLES[found[2]]() + found[3], text)


if __name__ == "__main__":
    for page in PAGES:
        path = ROOT / page
        path.write_text(renewed(path.read_text(encoding="utf-8")), encoding="utf-8")
