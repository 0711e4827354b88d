"""Products of few rows with weights in float32: row_product against cuBLAS, in the sizes of SmolLM2.

python benchmarks/bench_row_product.py --out benchmarks/results/row_product_h200.csv

A product is checked, then timed inside a replayed graph; each launch takes other weights, as layers do.
"""

from __future__ import annotations

import argparse
from pathlib import Path

import numpy as np
from lossless_matrix import write

from kdtree_cupy.engine import products
from kdtree_cupy.row_product import row_product
from kdtree_cupy.timing import graph_times, machine, summary

SIZES = ((576, 1536), (1536, 576), (576, 576), (576, 192), (576, 49_152))
ROWS = (1, 2, 4, 8, 16, 17, 32, 48, 64, 128)
COPIES = 24
"""Different weights of one graph; a head of 49,152 columns is one alone."""


def main():
    """Check, time, print and write."""
    parser = argparse.ArgumentParser(description=__doc__.split("\n", 1)[0])
    parser.add_argument("--commit", help="where git cannot say")
    parser.add_argument("--out", type=Path)
    options = parser.parse_args()
    import cupy

    stamp = machine("cuda")
    if options.commit:
        stamp |= {"commit": options.commit, "dirty": "0"}
    for size, columns in SIZES:
        count = COPIES if columns < 10_000 else 1
        weights = [cupy.random.standard_normal((columns, size), dtype=np.float32) for _ in range(count)]
        for rows in ROWS:
            x = cupy.random.standard_normal((rows, size), dtype=np.float32)
            out = [cupy.zeros((rows, columns), np.float32) for _ in range(2)]

            def cublas(w, x=x, out=out):
                products.product(x[None], w[None], cupy, transposed=True, out=out[0][None])

            def own(w, x=x, out=out):
                row_product(x, w, out=out[1])

            ways = {"cuBLAS": cublas, "row_product": own}
            for call in ways.values():
                call(weights[0])
            wanted = x.get().astype(np.float64) @ weights[0].get().astype(np.float64).T
            errors = [float(np.abs(one.get() - wanted).max()) for one in out]
            for (name, call), error in zip(ways.items(), errors, strict=True):
                found = summary(graph_times([lambda w=w, call=call: call(w) for w in weights], replays=7))
                row = {"provider": name, "size": size, "columns": columns, "rows": rows}
                row |= {"us_median": round(found.median, 2), "us_p20": round(found.p20, 2)}
                row |= {"us_p80": round(found.p80, 2), "largest_error": f"{error:.2e}"}
                print(*row.values(), flush=True)
                if options.out:
                    write(options.out, row | stamp)


if __name__ == "__main__":
    main()
