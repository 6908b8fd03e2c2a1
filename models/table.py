"""The table of the zoo in README.md, printed from the light files themselves: `python -m models.table`."""

from __future__ import annotations

from collections.abc import Iterator

import onnx
from onnx import TensorProto

import models

# What cannot be read from a file: the architecture and where its definition comes from.
ORIGINS = {
    "bert_base": "BERT base, transformers",
    "bert_base_dyn_legacy": "BERT base, transformers, dynamic batch and length",
    "bert_small_dynquant": "BERT small, transformers, dynamically quantized",
    "bert_small_rawdynamo": "BERT small, transformers, exporter's own optimization off",
    "clip_text": "CLIP text encoder, transformers",
    "convnext_tiny": "ConvNeXt tiny, transformers",
    "densenet121": "DenseNet-121",
    "dscnn_kws": "DS-CNN, keyword spotting",
    "gpt2_dyn": "GPT-2, transformers, dynamic length",
    "gpt2_kv_dyn": "GPT-2, transformers, one step with a key-value cache",
    "gru_op": "GRU classifier, the GRU operator",
    "gru_unrolled": "GRU classifier, unrolled cells",
    "inception_v3": "Inception v3",
    "llama_small_kv_dyn": "Llama, small, transformers, one step with a key-value cache",
    "llama_small_prefill": "Llama, small, transformers, prefill",
    "loop_if_script": "scripted Loop and If",
    "lstm_bi_op": "bidirectional LSTM tagger, the LSTM operator",
    "mlp_tiny": "MLP",
    "mobilenet_v2": "MobileNet v2",
    "mobilenet_v2_legacy": "MobileNet v2",
    "nasnet_a_mobile": "NASNet-A mobile",
    "resnet18": "ResNet-18",
    "resnet18_fp16": "ResNet-18, fp16",
    "resnet18_legacy": "ResNet-18",
    "resnet18_qdq": "ResNet-18, statically quantized (QDQ)",
    "resnet50": "ResNet-50",
    "resnet50_dynbatch": "ResNet-50, dynamic batch",
    "resnet50_legacy_keepbn": "ResNet-50, batch normalisation kept",
    "resnext29_8x64d": "ResNeXt-29 8x64d",
    "squeezenet1_1": "SqueezeNet 1.1",
    "swin_tiny": "Swin tiny, transformers",
    "t5_small_encoder": "T5 small encoder, transformers",
    "unet_own": "U-Net",
    "vit_s16_legacy": "ViT-S/16, transformers",
}
COLUMNS = ("name", "architecture", "exporter", "opset", "IR", "inputs", "dynamic dims", "nodes")
MOST_INPUTS = 3  # inputs shown in full; a row stays readable


def lines() -> Iterator[str]:
    """The table as Markdown, line by line."""
    yield "| " + " | ".join(COLUMNS) + " |"
    yield "|" + "---|" * len(COLUMNS)
    for name in models.names():
        yield "| " + " | ".join(_cells(name, onnx.load(models.path(name)))) + " |"


def _cells(name: str, model: onnx.ModelProto) -> tuple[str, ...]:
    opset = next(entry.version for entry in model.opset_import if entry.domain == "")
    inputs = list(model.graph.input)
    shown = [f"{value.name} {_type(value)}" for value in inputs[:MOST_INPUTS]]
    if len(inputs) > MOST_INPUTS:
        shown.append(f"and {len(inputs) - MOST_INPUTS} more")
    symbols = dict.fromkeys(dim.dim_param for value in inputs for dim in _dims(value) if dim.dim_param)
    dynamic = f"{len(symbols)}: {', '.join(list(symbols)[:4])}{', …' if len(symbols) > 4 else ''}" if symbols else "-"
    exporter = f"{_exporter(model)} {model.producer_version}"
    nodes = sum(_nodes(node) for node in model.graph.node)
    return (name, ORIGINS[name], exporter, str(opset), str(model.ir_version), "; ".join(shown), dynamic, str(nodes))


def _exporter(model: onnx.ModelProto) -> str:
    if model.producer_name != "pytorch":
        return model.producer_name
    # torch.export's exporter signs with the build ("+cpu"), the TorchScript one with the bare version.
    return "torch dynamo" if "+" in model.producer_version else "torch legacy"


def _nodes(node: onnx.NodeProto) -> int:
    graphs = [graph for attribute in node.attribute for graph in (attribute.g, *attribute.graphs)]
    return 1 + sum(_nodes(inner) for graph in graphs for inner in graph.node)


def _dims(value: onnx.ValueInfoProto) -> list[onnx.TensorShapeProto.Dimension]:
    return list(value.type.tensor_type.shape.dim)


def _type(value: onnx.ValueInfoProto) -> str:
    kind = TensorProto.DataType.Name(value.type.tensor_type.elem_type).lower()
    return f"{kind}[{','.join(dim.dim_param or str(dim.dim_value) for dim in _dims(value))}]"


if __name__ == "__main__":
    print("\n".join(lines()))
