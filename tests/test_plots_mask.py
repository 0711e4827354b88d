"""The picture of mask and tiles shows what the mask says, at the sizes that were asked for."""

import numpy as np
import pytest

import kdtree_cupy as kd
from kdtree_cupy import masks
from kdtree_cupy.plots_mask import plot_mask

plt = pytest.importorskip("matplotlib.pyplot")


def test_the_picture_is_the_mask():
    logprobs = np.log(np.float32([[[0.6, 0.3], [0.5, 0.4]], [[0.9, 0.1], [0.8, 0.2]]]))
    ids = np.int32([[[7, 8], [9, 5]], [[1, 2], [3, 4]]])
    tree = kd.tree_build(ids, logprobs, [1, 1], [5, 2], num_nodes=6).tree
    for request, count in ((0, 6), (1, 3)):  # padding is not drawn
        figure = plot_mask(tree, 7, request=request, heads=4, tile=8, unit=4)
        left, right = (np.asarray(ax.images[0].get_array()) for ax in figure.axes)
        assert left.shape == (count, 7 + count) and right.shape == (4 * count, 7 + count)
        np.testing.assert_array_equal(left[:, 7:] > 0, masks.bool_mask(tree)[request, :count, :count])
        assert (left[:, :7] > 0).all()
        np.testing.assert_array_equal(right, left.repeat(4, axis=0))
        assert figure.axes[1].get_yticks().tolist() == list(range(0, 4 * count + 1, 8))
        plt.close(figure)
