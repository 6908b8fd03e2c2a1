"""The one room where the graph changes: replacing, removing and naming, counted and logged.

Every change passes `accept`, which numbers it. A run is therefore a sequence of numbered changes that can be cut short
(`stop_after`) or lack single members (`blocked`), and repeats exactly for the same input: that is what bisection needs.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence

import onnx_ir as ir

from graphopt.model import constants, nodes
from graphopt.model.dims import is_static, to_ir
from graphopt.model.facts import Facts
from graphopt.model.save import weight_bytes
from graphopt.rewrite import provenance
from graphopt.rewrite.journal import Journal
from graphopt.rewrite.rule import Match, Refused

# How much all constants together may add to the file: what folding writes out is bought from this.
GROWTH_BYTES = 6144
GROWTH_SHARE = 66  # one and a half hundredths of the weights
INITIALIZERS_SINCE = 4  # IR version from which an initializer need not be an input
FUNCTIONS_SINCE = 8  # IR version
FAN_OUT = 16  # readers that are followed further; keeps a run linear where a value is read everywhere


def usual_budget(model: ir.Model) -> int:
    """The bytes that all constants together may add where nobody says how many."""
    return GROWTH_BYTES + weight_bytes(model) // GROWTH_SHARE


class Editor:
    """Changes one model in place and keeps its facts, names and log right."""

    def __init__(
        self,
        model: ir.Model,
        *,
        stop_after: int | None = None,
        blocked: frozenset[tuple[str, str]] = frozenset(),
        sketches: bool = False,
        budget: int | None = None,
    ) -> None:
        self.model = model
        self.journal = Journal(sketches=sketches)
        self.log = self.journal.log
        self.touched: list[ir.Node] = []
        self.stop_after = stop_after
        self.blocked = blocked
        self.pass_name = ""
        # What is needed of a tensor to see that two are different; the tensor is held, so that its id stays its own.
        self.samples: dict[int, tuple[ir.TensorProtocol, Hashable]] = {}
        self.budget = usual_budget(model) if budget is None else budget
        self.refused_growth: int | None = None  # the least number of bytes that the budget was too small for
        self._loaded_ir_version = model.ir_version
        self.read_again()

    def read_again(self) -> None:
        """Take note of what is in the model: at the beginning, and when other hands than these have changed it."""
        model = self.model
        self.facts = Facts(model)
        self._names: set[str] = set()
        self._function_graphs: set[int] = set()
        self._describes_values = False
        self._graphs: list[ir.Graph] | None = None
        for graph in nodes.graphs_of(model):
            self._names.update(value.name for value in graph.inputs if value.name)
            self._names.update(graph.initializers)
            for node in graph:
                if node.name:
                    self._names.add(node.name)
                for output in node.outputs:
                    if output.name:
                        self._names.add(output.name)
                    if output.shape is not None and not output.is_graph_output():
                        self._describes_values = True
        for function in model.functions.values():
            self._mark_function(function.graph)

    def _mark_function(self, graph: ir.Graph) -> None:
        self._function_graphs.add(id(graph))
        for node in graph:
            for inner in nodes.subgraphs(node):
                self._mark_function(inner)

    # -- the gate -------------------------------------------------------------------------------------------------

    def accept(
        self,
        rule: str,
        site: ir.Value | str,
        before: Sequence[ir.Node | str] = (),
        after: Sequence[ir.Node | str] = (),
        *,
        reason: str | None = None,
    ) -> bool:
        """Whether the change may happen; a change that may is numbered and logged.

        Nodes are described by the editor: those before at once, those after when they have their names.
        """
        name = site if isinstance(site, str) else (site.name or "")
        if self.finished or self.is_blocked(rule, name):
            return False
        self.journal.write(self.pass_name, rule, site, before, after, reason)
        return True

    def is_blocked(self, rule: str, site: str) -> bool:
        """Whether this rewrite, or its whole rule, has been taken back before."""
        return (rule, site) in self.blocked or (rule, "*") in self.blocked

    @property
    def finished(self) -> bool:
        """Whether the run has reached `stop_after`."""
        return self.stop_after is not None and len(self.log) >= self.stop_after

    def graphs(self) -> list[ir.Graph]:
        """Every graph of the model; remembered, because looking for subgraphs means looking at every attribute."""
        if self._graphs is None:
            self._graphs = list(nodes.graphs_of(self.model))
        return self._graphs

    def forget_graphs(self) -> None:
        """To be called when a graph has appeared or disappeared."""
        self._graphs = None

    def count_nodes(self) -> int:
        """How many nodes the model has, subgraphs and functions included."""
        return sum(len(graph) for graph in self.graphs())

    def refuse_growth(self, growth: int) -> None:
        """Take note that constants were not written out, since the budget did not suffice."""
        self.refused_growth = growth if self.refused_growth is None else min(growth, self.refused_growth)

    # -- names ----------------------------------------------------------------------------------------------------

    def unique(self, base: str) -> str:
        """A name that nothing in the model has, made from `base`."""
        name, number = base, 0
        while name in self._names or not name:
            number += 1
            name = f"{base}_{number}"
        self._names.add(name)
        return name

    # -- changes --------------------------------------------------------------------------------------------------

    def apply(self, rule: str, match: Match, replacement: ir.Value | Sequence[ir.Value | None]) -> bool:
        """Put a match's new nodes in place of the root's outputs; False when the gate says no.

        Raises Refused when an output of the graph would have to be renamed, which must not happen.
        """
        root = match.root
        values = [replacement] if isinstance(replacement, ir.Value) else list(replacement)
        values += [None] * (len(root.outputs) - len(values))
        made = set(match.new_nodes)
        for index, (old, new) in enumerate(zip(root.outputs, values, strict=True)):
            if new is None:
                if nodes.is_used(old):
                    raise Refused(f"output '{old.name}' is read and has no replacement")
            elif old.is_graph_output() and not self._can_take_over(old, new, made):
                if len(match.binding.inner) < 2:
                    raise Refused(f"'{new.name}' would have to be renamed to the graph output '{old.name}'")
                values[index] = match.op("Identity", new)  # still fewer nodes than were matched
        if not self.accept(rule, root.outputs[0], match.binding.inner, match.new_nodes, reason=match.reason):
            self.discard(match)
            return False
        graph = root.graph
        assert graph is not None, "a match lies in a graph"
        for constant in match.new_constants:
            if constant.uses() or constant in values:
                added = self.add_constant(graph, constant, root)
                values = [added if value is constant else value for value in values]
        provenance.inherit(rule, match, values)
        for node in match.new_nodes:
            self._insert(node, root)
        for old, new in zip(root.outputs, values, strict=True):
            if new is not None:
                self.replace_value(old, new)
        neighbours = [v.producer() for node in match.binding.inner for v in node.inputs if v is not None]
        self.sweep([root])
        self.touched.extend(match.new_nodes)
        self.touched.extend(n for n in neighbours if n is not None and n.graph is not None)
        return True

    def insert(self, match: Match, rule: str | None = None, sources: Sequence[ir.Node] = ()) -> None:
        """Put a match's new nodes and constants in front of its root, for a pass that then replaces values itself.

        With `rule`, the last new node says that it stands for `sources`.
        """
        graph = match.root.graph
        assert graph is not None, "a match lies in a graph"
        if rule is not None and match.new_nodes:
            provenance.trace(rule, match.new_nodes[-1], sources)
        for constant in match.new_constants:
            if constant.uses():
                self.add_constant(graph, constant, match.root)
        for node in match.new_nodes:
            self._insert(node, match.root)

    def discard(self, match: Match) -> None:
        """Take apart what was built and not wanted: it must not count as a reader, and its weights need not be kept."""
        for node in match.new_nodes:
            for index in range(len(node.inputs)):
                node.replace_input_with(index, None)
            self.facts.drop(node)
        for constant in match.new_constants:
            self.facts.forget(constant)

    def _insert(self, node: ir.Node, before: ir.Node) -> None:
        assert before.graph is not None, "new nodes are put before a node that is in a graph"
        self.facts.import_domain(before.graph, node.domain)
        if not node.name:
            node.name = self.unique(f"{before.outputs[0].name}/{node.op_type}")
        for output in node.outputs:
            if not output.name:
                output.name = self.unique(f"{node.name}_output")
        before.graph.insert_before(before, node)
        self.journal.inserted(node)
        for output in node.outputs:
            self._describe_value(output)

    def _describe_value(self, value: ir.Value) -> None:
        """Write type and dims of a new value into the file when the file had such descriptions."""
        if not self._describes_values:
            return
        known = self.facts.known(value)
        if known.type is not None and known.shape is not None and is_static(known.shape):
            value.type = known.type
            value.shape = ir.Shape([to_ir(dim) for dim in known.shape])

    def add_constant(self, graph: ir.Graph, value: ir.Value, before: ir.Node) -> ir.Value:
        """Add a new constant: an initializer, or a Constant node inside a function, which cannot have initializers.

        Returns the value to use: `value` itself, or the Constant's output, which has taken its readers over.
        """
        constants.rename(value, self.unique(value.name or f"{before.outputs[0].name}/constant"))
        tensor = value.const_value
        assert tensor is not None, "a new constant has data"
        if not isinstance(tensor, ir.ExternalTensor):  # which may have moved here from a branch
            self.facts.memory_left -= tensor.nbytes
        if id(graph) in self._function_graphs:
            node = ir.Node("", "Constant", [], [ir.AttrTensor("value", tensor)], num_outputs=1)
            node.outputs[0].name = self.unique(f"{value.name}_value")
            self._insert(node, before)
            for user, index in value.uses():
                user.replace_input_with(index, node.outputs[0])
            return node.outputs[0]
        graph.register_initializer(value)
        self.raise_ir_version()
        return value

    def raise_ir_version(self, least: int = INITIALIZERS_SINCE) -> None:
        """Before IR version 4 an initializer had to be an input; the signature must not grow for a new one."""
        if self.model.ir_version is not None and self.model.ir_version < least:
            self.model.ir_version = least

    def lower_ir_version(self) -> None:
        """Back to the version at load, where no initializer has been added that is not an input."""
        loaded = self._loaded_ir_version
        if loaded is None or loaded >= 4 or self.model.functions:  # which no file of that version can hold
            return
        if self.model.ir_version != INITIALIZERS_SINCE:  # raised for more than an initializer
            return
        if all(value.is_graph_input() for value in self.model.graph.initializers.values()):
            self.model.ir_version = loaded

    def add_function(self, function: ir.Function) -> None:
        """Let the model define a function, which imports what the main graph imports."""
        self.model.functions[function.identifier()] = function
        self._mark_function(function.graph)
        self.forget_graphs()
        if self.model.ir_version is None or self.model.ir_version < FUNCTIONS_SINCE:
            self.model.ir_version = FUNCTIONS_SINCE

    def is_in_function(self, graph: ir.Graph) -> bool:
        """Whether the graph is a function's body or lies inside one."""
        return id(graph) in self._function_graphs

    def rescope(self, moved: Iterable[ir.Node], graph: ir.Graph) -> None:
        """Tell the facts about subgraphs of nodes that were moved into `graph`."""
        for node in moved:
            for inner in nodes.subgraphs(node):
                self.facts.register(inner, graph)

    def _can_take_over(self, old: ir.Value, new: ir.Value, made: set[ir.Node]) -> bool:
        """Whether `new` can carry the name of the graph output `old`."""
        producer = new.producer()
        if producer is None:
            if new.is_graph_input() or new.is_graph_output() or not new.is_initializer():
                return new.graph is None and new.const_value is not None  # a new constant
            return False
        if producer in made:
            return True
        return producer.graph is old.graph and not new.is_graph_output()

    def replace_value(self, old: ir.Value, new: ir.Value) -> None:
        """Let every reader of `old`, and the graph's outputs, use `new`; `new` takes over the name of an output."""
        known_old, known_new = self.facts.known(old), self.facts.known(new)
        if known_new.shape is None and known_old.shape is not None:
            # The new value is equal to the old one, whether or not anybody can infer what its operator gives.
            known_new = known_old
            self.facts.set_known(new, known_old)
        readers = list(old.consumers())
        if old.is_graph_output():
            graph = old.graph
            assert graph is not None, "a graph output belongs to a graph"
            new.type, new.shape = old.type, old.shape
            new.doc_string = old.doc_string
            new.metadata_props.update(old.metadata_props)
            old.replace_all_uses_with(new, replace_graph_outputs=True)
            self._take_name(old, new)
        else:
            old.replace_all_uses_with(new)
            if new.producer() is not None and not new.is_graph_output() and old.name and self._is_made_name(new):
                self._take_name(old, new)
        self._touch_below(readers)
        # Data that appears tells more than its dims: the numbers of a Range, the scales of a Resize.
        data = self.facts.is_constant(new) and not self.facts.is_constant(old)
        learned = known_new.content is not None or data
        if (known_new.shape is not None and known_old.shape != known_new.shape) or learned:
            self._refresh(readers)

    def _touch_below(self, readers: Sequence[ir.Node]) -> None:
        """Readers may match anew, and so may what reads them: patterns are two or three operators deep."""
        self.touched.extend(readers)
        for reader in readers[:FAN_OUT]:
            for output in reader.outputs:
                self.touched.extend(output.consumers()[:FAN_OUT])

    def _is_made_name(self, value: ir.Value) -> bool:
        producer = value.producer()
        return (
            producer is not None
            and value.name is not None
            and value.name.endswith("_output")
            and (producer.name is not None and value.name.startswith(producer.name))
        )

    def _take_name(self, old: ir.Value, new: ir.Value) -> None:
        name = old.name
        old.name = None if not old.is_initializer() else self.unique(f"{name}_old")
        new.name = name

    def _refresh(self, readers: Iterable[ir.Node]) -> None:
        """Infer again what stands below a value of which more is known now, as far as it makes a difference."""
        pending = [node for node in readers if node.graph is not None]
        while pending:
            node = pending.pop()
            earlier = [self.facts.known(output) for output in node.outputs]
            for output in node.outputs:
                self.facts.forget(output)
            for output, before in zip(node.outputs, earlier, strict=True):
                after = self.facts.known(output)
                if before.agrees(after) or not after.says_more_than(before):
                    self.facts.set_known(output, before)
                else:
                    pending.extend(output.consumers())
                    self.touched.extend((node, *output.consumers()))

    def sweep(self, candidates: Iterable[ir.Node]) -> None:
        """Remove those nodes that nothing reads any more, and then those that only they had read."""
        pending = list(candidates)
        while pending:
            node = pending.pop()
            if node.graph is None or not self.is_dead(node):
                continue
            producers = [value.producer() for value in node.inputs if value is not None]
            for value in nodes.implicit_inputs(node) if nodes.has_subgraphs(node) else ():
                producers.append(value.producer())
            self.remove(node)
            alive = [producer for producer in producers if producer is not None and producer.graph is not None]
            pending.extend(alive)
            self.touched.extend(alive)

    def is_dead(self, node: ir.Node) -> bool:
        """Whether nothing reads the node's outputs and it is not an operator unknown to us, which may have effects."""
        if any(nodes.is_used(output) for output in node.outputs):
            return False
        return node.domain in ("", "ai.onnx.ml") or self.facts.is_pure(node)

    def remove(self, node: ir.Node) -> None:
        """Take a node that nothing reads out of its graph, and the nodes of its subgraphs off their inputs."""
        assert node.graph is not None, "the node is in a graph"
        for graph in nodes.subgraphs(node):
            self.forget_graphs()
            for inner in nodes.nodes_of(graph):
                for index in range(len(inner.inputs)):
                    inner.replace_input_with(index, None)
        for output in node.outputs:
            self.facts.forget(output)
        nodes.take_out(node)
