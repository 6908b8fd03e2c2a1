"""Training graphs as problems: what is saved, what is summed, and Chen's network of a thousand layers."""

from __future__ import annotations

import pytest

from memplan.graph import Graph, Operator
from memplan.verify.sequence import verify_sequence
from models.training import Network, Speed, resnet


def _by_name(graph: Graph) -> dict[str, Operator]:
    return {operator.name: operator for operator in graph.operators}


def _small(batch: int = 2) -> Network:
    net = Network(batch)
    x = net.relu(net.batch_norm(net.conv(net.input(3, 8, 8), 4)))
    y = net.add(net.conv(x, 4), x)
    net.linear(net.global_pool(net.concat([net.pool(y), net.pool(x, kind="average")])), 10)
    return net


def test_shapes_follow_from_kernel_stride_and_padding() -> None:
    net = Network(2)
    x = net.input(3, 224, 224)
    assert net.conv(x, 64, 7, 2).shape == (2, 64, 112, 112)
    assert net.pool(x, 3, 2, padding=0).shape == (2, 3, 111, 111)
    assert net.conv(x, 8, (1, 7)).shape == (2, 8, 224, 224)
    assert net.concat([x, net.upsample(net.pool(x, 2, 2, padding=0))]).shape == (2, 6, 224, 224)
    with pytest.raises(ValueError, match="cannot be added"):
        net.add(x, net.conv(x, 4))


def test_a_backward_operator_reads_what_its_gradient_needs() -> None:
    operators = _by_name(_small().training())
    assert operators["conv2.backward"].inputs[1:] == ("relu1", "conv2.weight")
    assert operators["relu1.backward"].inputs[1:] == ("relu1",)
    assert operators["norm1.backward"].inputs[1:] == ("conv1", "norm1.weight")
    assert operators["pool1.backward"].inputs[1:] == ("add1", "pool1")
    assert operators["pool2.backward"].inputs == ("pool2.grad",)
    assert "add1.backward" not in operators, "its gradient is that of both operands"


def test_gradients_of_a_value_with_several_readers_are_summed() -> None:
    graph = _small().training()
    sums = [operator for operator in graph.operators if operator.name.startswith("relu1.grad.sum")]
    assert len(sums) == 2, "relu1 is read by a convolution, an addition and a pooling"
    assert sums[1].outputs[0] in _by_name(graph)["relu1.backward"].inputs


def test_gradients_of_weights_are_left_out_or_outputs() -> None:
    net = _small()
    assert [value.name for value in net.training().values if value.kind == "output"] == ["loss"]
    with_weights = net.training(weight_gradients=True)
    outputs = {value.name for value in with_weights.values if value.kind == "output"}
    assert outputs == {"loss", *(f"{name}.weight.grad" for name in ("conv1", "conv2", "norm1", "linear1"))}
    assert len(with_weights.operators) == len(net.training().operators)


def test_an_image_alone_is_put_together_in_place() -> None:
    of = {(share.value, share.of): share.at for share in _small(1).inference().shares if not share.overwrites}
    assert of == {("pool1", "concat1"): 0, ("pool2", "concat1"): 4 * 4 * 4 * 4}
    assert all(share.overwrites for share in _small(2).inference().shares)


def test_time_is_that_of_operations_and_of_bytes() -> None:
    def convolution(speed: Speed) -> float:
        net = Network(1, speed)
        net.conv(net.input(8, 4, 4), 8, 1)
        return net.inference().operators[0].time

    flops, moved = 2 * 8 * 8 * 16, 4 * (8 * 16 + 8 * 16 + 64)
    assert convolution(Speed(flops=1e9, bandwidth=None)) == pytest.approx(flops)
    assert convolution(Speed(flops=1e9, bandwidth=1e9)) == pytest.approx(flops + moved)


def test_chens_network_keeps_45_gib_of_feature_maps() -> None:
    net = resnet([83] * 4, 32)
    graph = net.training()
    layers = [operator.name for operator in net.inference().operators if operator.name.startswith(("conv", "linear"))]
    assert len(layers) == 332 * 3 + 6
    assert 45 * 2**30 < verify_sequence(graph, [operator.name for operator in graph.operators]) < 48 * 2**30
