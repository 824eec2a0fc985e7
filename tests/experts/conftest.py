"""Videos made on the spot, and tiny networks with random weights in local folders."""

from fractions import Fraction

import numpy as np
import pytest
import torch

RATE = 16000


def write_video(
    path, colours, rate=10, size=(64, 48), sound=None, rotation=0, times=None, codec="mpeg4", picture=None, start=0.0
):
    """A video whose frame i has colour i; with ``times`` frame i is shown from that second on."""
    av = pytest.importorskip("av", reason="needs crossclr[experts]")
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=rate)
        stream.width, stream.height, stream.pix_fmt = *size, "yuv420p"
        stream.time_base = stream.codec_context.time_base = Fraction(1, 1000)
        stream.codec_context.bit_rate = 4_000_000
        if rotation:
            stream.set_display_rotation(rotation)
        track = None
        if sound is not None:
            track = container.add_stream("aac", rate=RATE)
            track.layout = "mono"
        for number, colour in enumerate(colours):
            pixels = np.empty((size[1], size[0], 3), np.uint8)
            pixels[:] = colour
            if picture is not None:
                pixels = picture(number, pixels)
            frame = av.VideoFrame.from_ndarray(pixels, format="rgb24")
            seconds = number / rate if times is None else times[number]
            frame.pts, frame.time_base = round((seconds + start) * 1000), Fraction(1, 1000)
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
        if track is not None:
            for start_sample in range(0, len(sound), 1024):
                part = np.asarray(sound[start_sample : start_sample + 1024], np.float32)
                block = av.AudioFrame.from_ndarray(part[None], format="fltp", layout="mono")
                block.sample_rate, block.pts, block.time_base = RATE, start_sample, Fraction(1, RATE)
                container.mux(track.encode(block))
            container.mux(track.encode(None))
    return path


def write_wav(path, samples, rate=RATE):
    import wave

    with wave.open(str(path), "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(rate)
        file.writeframes((np.clip(samples, -1, 1) * 32767).astype("<i2").tobytes())
    return path


def tone(seconds, hertz=440.0, rate=RATE):
    return (0.3 * np.sin(2 * np.pi * hertz * np.arange(int(seconds * rate)) / rate)).astype(np.float32)


RED, GREEN, BLUE, WHITE = (220, 30, 30), (30, 200, 30), (30, 30, 220), (240, 240, 240)


def dominant(picture):
    return int(np.asarray(picture).reshape(-1, 3).mean(0).argmax())


@pytest.fixture(scope="session")
def models(tmp_path_factory):
    """Folders that ``save_pretrained`` wrote, by kind."""
    return tiny_models(tmp_path_factory.mktemp("models"))


def tiny_models(folder):
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


def _save(model, folder, processor):
    model.eval().save_pretrained(folder)
    processor.save_pretrained(folder)
