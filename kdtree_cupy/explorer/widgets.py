"""The explorer with ipywidgets: sliders above, tree on the left, mask and curves on the right."""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from . import view
from .model import Explorer, Setting

if TYPE_CHECKING:
    from ipywidgets import Widget

_WAIT = '<div style="font:12px system-ui;color:#59636e">replaying ...</div>'


def panel(explorer: Explorer, setting: Setting) -> Widget:
    """Return the widget of an explorer; ``widget.explorer_panel`` is the :class:`Panel` behind it."""
    made = Panel(explorer, setting)
    made.root.explorer_panel = made
    return made.root


class Panel:
    """Widgets and what joins them.

    Notes
    -----
    The tree of a setting is drawn at once.  A replay that is not known yet runs in a thread and is drawn when
    it is there, so that no choice waits for one.
    """

    def __init__(self, explorer: Explorer, setting: Setting) -> None:
        try:
            import ipywidgets as w
        except ModuleNotFoundError as error:
            message = "widgets need ipywidgets: pip install 'kdtree-cupy[notebook]' (a figure: widgets=False)"
            raise ModuleNotFoundError(message) from error
        self.explorer, self.setting = explorer, setting
        self._quiet = False
        self._asked = 0
        self._thread: threading.Thread | None = None
        self.controls: dict[str, Any] = self._make(w)
        self.parts = {name: w.HTML() for name in ("headline", "passage", "tree", "mask", "curves")}
        for control in self.controls.values():
            control.observe(self._changed, names="value")
        self.before, self.after = w.Button(description="previous round"), w.Button(description="next round")
        self.before.on_click(lambda _: self.step(-1))
        self.after.on_click(lambda _: self.step(1))
        for control in self.controls.values():
            control.style.description_width = "84px"
        rows = [list(self.controls.values())[i : i + 3] for i in range(0, len(self.controls), 3)]
        left = w.VBox([self.parts["tree"]], layout=w.Layout(flex="3 1 420px", min_width="0"))
        right = w.VBox([self.parts["mask"], self.parts["curves"]], layout=w.Layout(flex="1 1 390px"))
        wrap = w.Layout(flex_flow="row wrap")
        self.root = w.VBox([
            *(w.HBox(row, layout=wrap) for row in rows),
            w.HBox([self.before, self.after]), self.parts["headline"], self.parts["passage"],
            w.HBox([left, right], layout=wrap),
        ])  # fmt: skip
        self.update()
        threading.Thread(target=explorer.fit_all, daemon=True).start()

    def _make(self, w: Any) -> dict[str, Any]:
        one, e = self.setting, self.explorer
        trace = e.traces[one.trace]
        late = {"continuous_update": False}
        names = [(t.name, i) for i, t in enumerate(e.traces)]
        costs = [(c.name, i) for i, c in enumerate(e.costs)] or [("none", -1)]
        made = {
            "trace": w.Dropdown(options=names, value=one.trace, description="trace"),
            "policy": w.Dropdown(options=e.policies, value=one.policy, description="policy"),
            "budget": w.SelectionSlider(
                options=e.budgets_of(one.policy).tolist(), value=one.budget, description="budget B"
            ),
            "position": w.IntSlider(
                min=0, max=trace.tokens.size - 1, value=one.position, description="position", **late
            ),
            "max_rank": w.IntSlider(
                min=1, max=trace.width, value=one.max_rank or trace.width, description="ranks K", **late
            ),
            "max_depth": w.IntSlider(
                min=1, max=trace.depth, value=one.max_depth or trace.depth, description="depth D", **late
            ),
            "temperature": w.FloatSlider(
                min=0.5, max=2.0, step=0.1, value=one.temperature, description="temperature",
                readout_format=".1f", **late,
            ),
            "cost": w.Dropdown(options=costs, value=costs[0][1], description="cost table"),
            "context": w.Dropdown(
                options=self._contexts(0), value=self._usual_context(0), description="context"
            ),
        }  # fmt: skip
        made["temperature"].tooltip = "of the drafter's rows; the target's is the trace's"
        return made

    def _contexts(self, cost: int) -> list[tuple[str, float | None]]:
        if not 0 <= cost < len(self.explorer.costs):
            return [("-", None)]
        table = self.explorer.costs[cost]
        return (
            [(f"{c:g} tokens", float(c)) for c in table.contexts]
            if table.contexts.size > 1
            else [("-", None)]
        )

    def _usual_context(self, cost: int) -> float | None:
        """Return the context that a table was made for, if it is one to choose."""
        have = [value for _, value in self._contexts(cost)]
        table = self.explorer.costs[cost] if 0 <= cost < len(self.explorer.costs) else None
        return table.default_context if table is not None and table.default_context in have else have[0]

    def step(self, direction: int) -> None:
        """Go to the round that follows this one, or to the last round of the replay before it."""
        if direction > 0:
            found = self.explorer.following(self.setting)
        else:
            before = self.explorer.roots(self.setting)
            before = before[before < self.setting.position]
            found = int(before[-1]) if before.size else None
        if found is not None:
            self.controls["position"].value = found

    def _changed(self, change: Any) -> None:
        if self._quiet:
            return
        self._quiet = True  # what follows sets other controls
        try:
            self._read(change["owner"])
        finally:
            self._quiet = False
        self.update()

    def _read(self, owner: Any) -> None:
        """Take the controls over into the setting, and keep them within what the choice allows."""
        c = self.controls
        trace = self.explorer.traces[c["trace"].value]
        if owner is c["trace"]:
            c["position"].max = trace.tokens.size - 1
            c["max_rank"].max, c["max_depth"].max = trace.width, trace.depth
            c["position"].value = 0
        if owner is c["policy"]:
            budgets = self.explorer.budgets_of(c["policy"].value).tolist()
            kept = max((b for b in budgets if b <= c["budget"].value), default=budgets[0])
            c["budget"].options = budgets
            c["budget"].value = kept
        if owner is c["cost"]:
            c["context"].options = self._contexts(c["cost"].value)
            c["context"].value = self._usual_context(c["cost"].value)
        k, d = c["max_rank"].value, c["max_depth"].value
        self.setting = Setting(
            c["trace"].value, c["policy"].value, c["budget"].value, c["position"].value,
            None if k == trace.width else k, None if d == trace.depth else d,
            round(c["temperature"].value, 2),
        )  # fmt: skip

    def update(self) -> None:
        """Draw the setting; curves that need a replay follow."""
        for name in ("headline", "passage", "tree", "mask"):
            self.parts[name].value = getattr(view, name)(self.explorer, self.setting)
        self._asked += 1
        key = replace(self.setting, budget=0, position=0)
        if self.explorer.knows(key):
            self.parts["curves"].value = self._curves()
            return
        self.parts["curves"].value = _WAIT
        self._thread = threading.Thread(target=self._replay, args=(self._asked, key), daemon=True)
        self._thread.start()

    def _replay(self, asked: int, key: Setting) -> None:
        self.explorer.curve(key)
        if asked == self._asked:  # nobody chose anything since
            self.parts["curves"].value = self._curves()

    def wait(self) -> None:
        """Wait for the replay that runs."""
        if self._thread is not None:
            self._thread.join()

    def _curves(self) -> str:
        at = self.controls["cost"].value
        cost = self.explorer.costs[at] if at >= 0 else None
        return view.curves(self.explorer, self.setting, cost, self.controls["context"].value)
