"""Tiny networks with random weights in local folders, one of each architecture that experts read."""

import json
import shutil
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
    _joint_models(transformers, folder, small)

    t5 = transformers.T5Config(vocab_size=len(WORDS), d_model=16, d_kv=8, d_ff=32, num_layers=2, num_heads=2)
    _save(transformers.T5Model(t5), folder / "t5", _tokenizer(transformers, "$A </s>", 512))

    shutil.copytree(folder / "bert", folder / "sentence-bert" / "0_Transformer")  # as sentence-transformers keeps CLIP
    modules = [{"idx": 0, "name": "0", "path": "0_Transformer", "type": "sentence_transformers.models.Transformer"}]
    (folder / "sentence-bert" / "modules.json").write_text(json.dumps(modules))
    return {path.name: str(path) for path in folder.iterdir()}


WORDS = ["<pad>", "<unk>", "<s>", "</s>", "cut", "the", "onion", "peel", "it", "wait", "stir", "add", "salt", "pan"]


def _joint_models(transformers: Any, folder: Path, small: dict[str, int]) -> None:
    """CLIP, SigLIP, CLAP and X-CLIP, which embed texts and images, sounds or videos."""
    text = {**small, "vocab_size": len(WORDS), "bos_token_id": 2, "eos_token_id": 3, "pad_token_id": 0}
    vision = {**small, "image_size": 32, "patch_size": 8}
    clip = transformers.CLIPConfig(
        text_config={**text, "max_position_embeddings": 12}, vision_config=vision, projection_dim=8
    )
    processor = transformers.CLIPImageProcessorPil(size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32})
    _save(transformers.CLIPModel(clip), folder / "clip", processor)
    _tokenizer(transformers, "<s> $A </s>", 12).save_pretrained(folder / "clip")

    siglip = transformers.SiglipConfig(
        text_config={**text, "max_position_embeddings": 10, "projection_size": 16}, vision_config=vision
    )
    processor = transformers.SiglipImageProcessorPil(size={"height": 32, "width": 32})
    _save(transformers.SiglipModel(siglip), folder / "siglip", processor)
    _tokenizer(transformers, "$A </s>", 10).save_pretrained(folder / "siglip")

    hearing: dict[str, Any] = {
        "spec_size": 64,
        "window_size": 4,
        "num_mel_bins": 16,
        "patch_embeds_hidden_size": 8,
        "hidden_size": 16,
    }
    hearing |= {"depths": [1, 1], "num_attention_heads": [2, 2], "projection_dim": 8, "patch_stride": [4, 4]}
    clap = transformers.ClapConfig(
        text_config={**text, "max_position_embeddings": 20, "projection_dim": 8}, audio_config=hearing, projection_dim=8
    )
    extractor = transformers.ClapFeatureExtractor(
        feature_size=16, sampling_rate=8000, hop_length=160, max_length_s=1, fft_window_size=256, frequency_max=4000,
        truncation="rand_trunc", padding="repeatpad",
    )  # fmt: skip
    torch.manual_seed(0)
    _save(transformers.ClapModel(clap), folder / "clap", extractor)
    _tokenizer(transformers, "<s> $A </s>", 12).save_pretrained(folder / "clap")

    seeing = {**vision, "num_frames": 4, "mit_hidden_size": 8, "mit_intermediate_size": 16, "mit_num_hidden_layers": 1}
    xclip = transformers.XCLIPConfig(
        text_config={**text, "max_position_embeddings": 12}, vision_config={**seeing, "mit_num_attention_heads": 2},
        projection_dim=8, prompt_layers=1, prompt_num_attention_heads=2,
    )  # fmt: skip
    processor = transformers.VideoMAEImageProcessorPil(
        size={"shortest_edge": 32}, crop_size={"height": 32, "width": 32}
    )
    _save(transformers.XCLIPModel(xclip), folder / "xclip", processor)
    _tokenizer(transformers, "<s> $A </s>", 12).save_pretrained(folder / "xclip")


def _tokenizer(transformers: Any, template: str, limit: int) -> Any:
    """One token for each word of WORDS."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = Tokenizer(models.WordLevel({word: number for number, word in enumerate(WORDS)}, unk_token="<unk>"))
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    words.post_processor = processors.TemplateProcessing(single=template, special_tokens=[("<s>", 2), ("</s>", 3)])
    special = {"unk_token": "<unk>", "pad_token": "<pad>", "bos_token": "<s>", "eos_token": "</s>"}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=words, model_max_length=limit, **special)


def _save(model: Any, folder: Path, processor: Any) -> None:
    model.eval().save_pretrained(folder)
    processor.save_pretrained(folder)
