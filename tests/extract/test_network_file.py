import numpy as np
import pytest
import torch

from crossclr.extract import ExpertError, load
from crossclr.extract.contract import window_spans
from crossclr.extract.network_file import IMAGENET, Preparation

FRAMES = np.random.default_rng(0).integers(0, 255, (6, 40, 56, 3), dtype=np.uint8)


class Picture(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Conv2d(3, 5, 8, 8)

    def forward(self, pixels):
        return self.layer(pixels)  # with positions, which are averaged


class Window(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(0)
        self.layer = torch.nn.Linear(3, 4)

    def forward(self, pixels):
        return self.layer(pixels.mean((2, 3, 4)))


@pytest.fixture(scope="module")
def files(tmp_path_factory):
    folder = tmp_path_factory.mktemp("files")
    picture, window = Picture().eval(), Window().eval()
    inputs = {"picture": torch.zeros(2, 3, 24, 24), "window": torch.zeros(2, 3, 8, 24, 24)}
    for name, network in (("picture", picture), ("window", window)):
        torch.jit.trace(network, inputs[name]).save(str(folder / f"{name}.pt"))
        if pytest.importorskip("onnx", reason="needs onnx to write a file"):
            dynamic = {"x": {0: "n", 2: "t"}} if name == "window" else {"x": {0: "n"}}
            torch.onnx.export(
                network, (inputs[name],), folder / f"{name}.onnx", input_names=["x"], output_names=["y"],
                dynamic_axes=dynamic, dynamo=False,
            )  # fmt: skip
    return folder


@pytest.mark.parametrize("suffix", ["pt", "onnx"])
def test_pictures_through_a_file(files, suffix):
    expert = load(f"appearance:{files / f'picture.{suffix}'}", shorter=28, crop=24, batch_size=4)
    ready = Preparation(28, 24, *IMAGENET)
    pixels = ready.normalise([ready(frame) for frame in FRAMES], torch.device("cpu"))
    with torch.inference_mode():
        expected = Picture().eval()(pixels).mean((2, 3)).numpy()
    rows = expert(FRAMES)
    assert (rows.shape, expert.dim, expert.model) == ((6, 5), 5, f"picture.{suffix}")
    np.testing.assert_allclose(rows, expected, atol=1e-5)


@pytest.mark.parametrize("suffix", ["pt", "onnx"])
def test_windows_through_a_file(files, suffix):
    options = {"window": 4, "stride": 2, "shorter": 24, "crop": 24, "rate": 5}
    expert = load(f"howto100m:{files / f'window.{suffix}'}", **options)
    assert expert.needs.rows_per_second == 2.5
    ready = torch.stack([expert.prepare(frame) for frame in FRAMES]).float() / 255  # (6, 3, 24, 24)
    windows = torch.stack([ready[first:last].transpose(0, 1) for first, last in window_spans(6, 4, 2)])
    with torch.inference_mode():
        expected = Window().eval()(windows).numpy()
    np.testing.assert_allclose(expert(FRAMES), expected, atol=1e-5)
    with torch.inference_mode():
        short = Window().eval()(ready[:2].transpose(0, 1)[None]).numpy()
    np.testing.assert_allclose(expert(FRAMES[:3]), short, atol=1e-5)  # shorter than a window: its first half
    assert expert(FRAMES[:1]).shape == (1, 4)


def test_presets_of_the_paper_ask_for_their_file(files):
    for name, words in (
        ("appearance-paper", "ResNeSt-269"),
        ("scene", "Places365"),
        ("howto100m", "S3D"),
        ("action-paper", r"R\(2\+1\)D-152"),
    ):
        with pytest.raises(ExpertError, match=f"needs a file.*{words}"):
            load(name)
    scene = load(f"scene:{files / 'picture.pt'}", crop=24, shorter=24)
    assert (scene.name, scene.dim) == ("scene", 5)


def test_faults_of_files(files, tmp_path):
    with pytest.raises(ExpertError, match="there is no file"):
        load("appearance:gone.onnx")
    (tmp_path / "noise.onnx").write_bytes(b"noise")
    with pytest.raises(ExpertError, match="cannot be read as ONNX"):
        load(f"appearance:{tmp_path / 'noise.onnx'}")
    torch.save(Picture().state_dict(), tmp_path / "weights.pt")
    with pytest.raises(ExpertError, match="is not TorchScript"):
        load(f"appearance:{tmp_path / 'weights.pt'}")
    with pytest.raises(ExpertError, match=r"has no output 'z'; it has y"):
        load(f"appearance:{files / 'picture.onnx'}", layer="z", crop=24)
    with pytest.raises(ExpertError, match="set crop"):
        load(f"appearance:{files / 'picture.onnx'}", crop=32)
    with pytest.raises(ExpertError, match="cannot use an ONNX"):
        load(f"text:{files / 'picture.onnx'}")
