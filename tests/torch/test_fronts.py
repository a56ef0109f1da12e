"""Both ways into Broach, the native capture and Dynamo, lead to one graph for the models of the demo."""

from __future__ import annotations

import re

import broach
import models
import pytest
import torch
from test_models import SMALL

LINE = re.compile(r"(?P<result>%\d+) = (?P<call>.*?) : (?P<types>[^#]*?)\s*(#.*)?$")
VALUE = re.compile(r"(?P<node>%\d+)(?P<part>\.\d+)?")


class Graph:
    """A graph's text without what its order and its numbers say: nodes by what they compute from, and inputs by what reads them."""

    def __init__(self, text: str):
        self.nodes: list[tuple[str, str, list[re.Match[str]]]] = []  # result, call without operands, operands
        self.outputs: list[re.Match[str]] = []
        for line in text.splitlines():
            if line.startswith("return"):
                self.outputs = list(VALUE.finditer(line))
            elif m := LINE.match(line):
                call = "input" if m["call"].startswith("input(") else VALUE.sub("%", m["call"])
                self.nodes.append((m["result"], f"{call} : {m['types']}", list(VALUE.finditer(m["call"]))))
            else:
                assert not line, line

    def names(self) -> list[str]:
        """Names that equal graphs have in common, in an order that they share."""
        name = {result: call for result, call, _ in self.nodes}
        for _ in range(3):
            readers: dict[str, list[str]] = {}
            for result, call, operands in self.nodes:
                if operands:
                    name[result] = str(hash((call, *(name[o["node"]] + (o["part"] or "") for o in operands))))
                for i, o in enumerate(operands):
                    readers.setdefault(o["node"], []).append(f"{i} {name[result]}")
            for result, _, operands in self.nodes:
                if not operands:
                    name[result] = str(hash((name[result], *sorted(readers.get(result, [])))))
        return sorted(name.values()) + [name[o["node"]] + (o["part"] or "") for o in self.outputs]


def _graphs(explanation) -> list[list[str]]:
    """Of each graph: what depends on weights alone, and the rest."""
    return [Graph(text).names() for p in explanation.programs for text in re.split(r"(?<=\n)(?=%0 )", p["graph"])]


@pytest.mark.skipif(torch.__version__ < "2.13", reason="Dynamo before 2.13 hands over other programs: masks that are skipped otherwise, integers as symbols")
@pytest.mark.parametrize("name", [n for n in SMALL if n != "llama-step"])
@torch.no_grad()
def test_both_fronts_give_one_graph(name):
    program = models.build(name, **SMALL[name])
    explained = [broach.explain(broach.compile(program.call, options={"capture": front}), *program.args, **program.kwargs) for front in ("native", "dynamo")]
    assert [e.front for e in explained] == ["native", "dynamo"]
    native, dynamo = map(_graphs, explained)
    assert len(explained[0].programs) == 1 and native == dynamo
