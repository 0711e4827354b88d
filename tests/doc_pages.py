"""Pages of the documentation, cut into the blocks that tests look at."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted(
    path.relative_to(ROOT).as_posix()
    for path in [*ROOT.glob("*.md"), *ROOT.glob("docs/*.md"), ROOT / "data" / "README.md"]
)
FENCE = re.compile(
    r"(?:^<!-- not run: (?P<why>[^\n]*) -->\n[^`]*?)?^```(?P<tag>\S*)\n(?P<code>.*?)^```$", re.M | re.S
)


@dataclass(frozen=True)
class Block:
    """One fenced block: ``why`` it is not run ("" if it is), the visible text before it, its first line."""

    page: str
    line: int
    tag: str
    code: str
    why: str
    before: str

    @property
    def commands(self) -> list[str]:
        """Lines of a shell block, comments taken off."""
        lines = [re.sub(r"(^|\s)#.*", "", line).strip() for line in self.code.splitlines()]
        return [one.strip() for line in lines if line for one in line.split("&&")]


def text_of(page: str) -> str:
    """Return what a page says."""
    return (ROOT / page).read_text(encoding="utf-8")


def blocks(page: str) -> list[Block]:
    """Return the fenced blocks of a page, in order."""
    text, found = text_of(page), []
    for match in FENCE.finditer(text):
        line = text.count("\n", 0, match.start("code")) + 1
        before = re.sub(r"<!--.*?-->", "", text[: match.start("tag")], flags=re.S)[-600:]
        found.append(Block(page, line, match["tag"], match["code"], match["why"] or "", before))
    return found


def anchors(page: str) -> set[str]:
    """Return the anchors of a page's headings, as GitHub and the site make them."""
    text = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.M | re.S)
    heads = re.findall(r"^#+ (.+)$", text, re.M)
    return {re.sub(r"[^\w\- ]", "", head.lower()).strip().replace(" ", "-") for head in heads}
