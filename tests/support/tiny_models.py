"""Tiny networks with random weights in local folders, one of each architecture that experts read."""

from pathlib import Path
from typing import Any

import pytest
import torch


def tiny_models(folder: Path) -> dict[str, str]:
    """Write the networks below ``folder``; gives their folders by architecture."""
    transformers = pytest.importorskip("transformers", reason="needs crossclr[experts]")
    torch.manual_seed(0)
    small = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
    normal = {"image_mean": [0.5, 0.5, 0.5], "image_std": [0.25, 0.25, 0.25]}

    vit = transformers.ViTModel(transformers.ViTConfig(**small, image_size=32, patch_size=8))
    _save(vit, folder / "vit", transformers.ViTImageProcessorPil(size={"height": 32, "width": 32}, **normal))

    resnet = transformers.ResNetModel(
        transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic")
    )
    _save(resnet, folder / "resnet", transformers.ConvNextImageProcessorPil(size={"shortest_edge": 32}))

    video = transformers.VideoMAEConfig(**small, image_size=16, patch_size=8, num_frames=4, tubelet_size=2)
    processor = transformers.VideoMAEImageProcessorPil(
        size={"shortest_edge": 16}, crop_size={"height": 16, "width": 16}
    )
    _save(transformers.VideoMAEModel(video), folder / "videomae", processor)

    backbone = transformers.ResNetConfig(
        embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], layer_type="basic", out_features=["stage2"]
    )
    detr = transformers.DetrConfig(
        backbone_config=backbone, use_timm_backbone=False, d_model=16, encoder_layers=1, decoder_layers=1,
        encoder_attention_heads=2, decoder_attention_heads=2, encoder_ffn_dim=16, decoder_ffn_dim=16, num_queries=5,
        num_labels=4, use_pretrained_backbone=False,
    )  # fmt: skip
    processor = transformers.DetrImageProcessorPil(size={"shortest_edge": 32, "longest_edge": 64})
    _save(transformers.DetrForObjectDetection(detr), folder / "detr", processor)

    speech = transformers.Wav2Vec2Config(
        **small, conv_dim=[8, 8], conv_kernel=[10, 3], conv_stride=[5, 2], num_feat_extract_layers=2,
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
    )  # fmt: skip
    _save(transformers.Wav2Vec2Model(speech), folder / "wav2vec2", transformers.Wav2Vec2FeatureExtractor())

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", ".", "cut", "the", "onion", "peel", "it", "wait", "stir"]
    words += ["add", "salt", "pan", "a", "and", "##s", ","]
    bert = transformers.BertModel(transformers.BertConfig(**small, vocab_size=len(words)))  # 512 positions
    (folder / "bert").mkdir()
    (folder / "bert" / "vocab.txt").write_text("\n".join(words))
    tokenizer = transformers.BertTokenizer(str(folder / "bert" / "vocab.txt"))
    _save(bert, folder / "bert", tokenizer)
    return {path.name: str(path) for path in folder.iterdir()}


def _save(model: Any, folder: Path, processor: Any) -> None:
    model.eval().save_pretrained(folder)
    processor.save_pretrained(folder)
