"""The reference arithmetic against torch, ml_dtypes, torchao and compressed-tensors: codes, scales
and dequantised values, with the same global scale given to both sides."""

import subprocess

import ml_dtypes
import numpy as np
import pytest
import torch
from compressed_tensors.compressors.nvfp4.helpers import pack_fp4_to_uint8
from compressed_tensors.quantization import QuantizationArgs
from compressed_tensors.quantization.lifecycle.forward import dequantize, quantize
from compressed_tensors.quantization.utils import calculate_qparams
from torchao.prototype.mx_formats.nvfp4_tensor import NVFP4Tensor, nvfp4_quantize

ROWS, K = 64, 256
E4M3_MIN_NORMAL = 2.0**-6
E2M1_BOUNDARIES = np.float32([0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0])


@pytest.fixture(scope="session")
def tool(build_dir):
    path = build_dir / "tests" / "numerics" / "numerics_tool"
    if not path.exists():
        pytest.skip(f"{path} is not built (target numerics_tool)")

    def run(data: np.ndarray, *args) -> bytes:
        result = subprocess.run(
            [path, *map(str, args)], input=data.tobytes(), capture_output=True, check=False
        )
        assert result.returncode == 0, result.stderr.decode()
        return result.stdout

    return run


def quantise(tool, x: np.ndarray, g: float):
    """Our packed codes [rows, k/2], E4M3 scales [rows, k/16] as bytes, values [rows, k]."""
    rows, k = x.shape
    out = tool(x, "nvfp4", rows, k, g)
    codes = np.frombuffer(out, np.uint8, rows * k // 2)
    scales = np.frombuffer(out, np.uint8, rows * k // 16, codes.nbytes)
    values = np.frombuffer(out, np.float32, rows * k, codes.nbytes + scales.nbytes)
    return codes.reshape(rows, -1), scales.reshape(rows, -1), values.reshape(rows, k)


def activations(seed: int, dtype: torch.dtype) -> np.ndarray:
    """Gaussian values with a spread of block magnitudes whose block scales are all above the
    smallest normal one: torchao clamps smaller scales to 2^-6 where we keep E4M3's subnormals."""
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(ROWS, K, generator=generator)
    exponents = torch.randint(-6, 1, (ROWS, K // 16), generator=generator)
    x *= torch.exp2(exponents).repeat_interleave(16, 1)
    return x.to(dtype).float().numpy()


def power_of_two_scale(x: np.ndarray) -> float:
    return float(2.0 ** np.ceil(np.log2(np.abs(x).max() / 2688.0)))


def arbitrary_scale(x: np.ndarray) -> float:
    return float(np.abs(x).max() / np.float32(2688.0))


def is_near_tie(x: np.ndarray, scales: np.ndarray, g: float) -> np.ndarray:
    """Where |x| is within 4 units in the last place of a boundary between two codes."""
    block_scales = scales.view(ml_dtypes.float8_e4m3fn).astype(np.float64) * g
    ratio = np.abs(x.astype(np.float64)) / block_scales.repeat(16, axis=1)
    distance = np.abs(ratio[..., None] / E2M1_BOUNDARIES - 1.0).min(axis=-1)
    return distance < 4 * 2.0**-24


def nibbles(packed: np.ndarray) -> np.ndarray:
    return np.stack([packed & 15, packed >> 4], axis=-1).reshape(packed.shape[0], -1)


def test_e4m3_decodes_all_codes_as_torch_and_ml_dtypes(tool):
    codes = np.arange(256, dtype=np.uint8)
    ours = np.frombuffer(tool(codes, "e4m3-decode"), np.float32)
    np.testing.assert_array_equal(ours, codes.view(ml_dtypes.float8_e4m3fn).astype(np.float32))
    theirs = torch.from_numpy(codes).view(torch.float8_e4m3fn).float().numpy()
    np.testing.assert_array_equal(ours, theirs)
    np.testing.assert_array_equal(np.signbit(ours[:127]), np.signbit(theirs[:127]))


def test_e4m3_encodes_every_bf16_value_as_torch_and_ml_dtypes(tool):
    """Both make NaN of what exceeds 448 by half a step, so they are given the clamped value."""
    x = np.arange(65536, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
    x = x[~np.isnan(x)]
    ours = np.frombuffer(tool(x, "e4m3"), np.uint8)
    clamped = np.clip(x, -448, 448)
    np.testing.assert_array_equal(ours, clamped.astype(ml_dtypes.float8_e4m3fn).view(np.uint8))
    theirs = torch.from_numpy(clamped).to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    np.testing.assert_array_equal(ours, theirs)


def test_e4m3_encodes_neighbours_of_all_ties_as_ml_dtypes(tool):
    values = np.arange(127, dtype=np.uint8).view(ml_dtypes.float8_e4m3fn).astype(np.float32)
    ties = (values[1:] + values[:-1]) / 2
    below, above = np.nextafter(ties, np.float32(0)), np.nextafter(ties, np.float32(1e9))
    x = np.concatenate([ties, below, above])
    ours = np.frombuffer(tool(x, "e4m3"), np.uint8)
    np.testing.assert_array_equal(ours, x.astype(ml_dtypes.float8_e4m3fn).view(np.uint8))


def test_e2m1_encodes_every_bf16_value_as_ml_dtypes(tool):
    x = np.arange(65536, dtype=np.uint16).view(ml_dtypes.bfloat16).astype(np.float32)
    x = x[~np.isnan(x)]
    ours = np.frombuffer(tool(x, "e2m1"), np.uint8)
    theirs = x.astype(ml_dtypes.float4_e2m1fn).view(np.uint8) & 15
    np.testing.assert_array_equal(ours, theirs)


def test_bf16_rounds_as_torch_and_ml_dtypes(tool):
    """Every upper half of an FP32 with a lower half below, at and above the tie."""
    lower = np.uint32([0x0000, 0x0001, 0x7FFF, 0x8000, 0x8001, 0xFFFF])
    bits = (np.arange(65536, dtype=np.uint32)[:, None] << 16 | lower).reshape(-1)
    x = bits.view(np.float32)
    x = x[~np.isnan(x)]
    ours = np.frombuffer(tool(x, "bf16"), np.uint16)
    with np.errstate(over="ignore"):
        np.testing.assert_array_equal(ours, x.astype(ml_dtypes.bfloat16).view(np.uint16))
    theirs = torch.from_numpy(x).bfloat16().view(torch.int16).numpy().view(np.uint16)
    np.testing.assert_array_equal(ours, theirs)


@pytest.mark.parametrize("scale_of", [power_of_two_scale, arbitrary_scale])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", [1, 2])
def test_nvfp4_equals_torchao(tool, seed, dtype, scale_of):
    """torchao multiplies by an approximate reciprocal and divides by 6 before g, so a code may
    differ where the exact value is a tie, and nowhere else."""
    x = activations(seed, dtype)
    g = scale_of(x)
    codes, scales, values = quantise(tool, x, g)
    their_scales, their_codes = nvfp4_quantize(torch.from_numpy(x), 16, torch.tensor(g))
    their_scales = their_scales.view(torch.uint8).numpy().reshape(ROWS, -1)
    assert (scales.view(ml_dtypes.float8_e4m3fn).astype(np.float32) > E4M3_MIN_NORMAL).all()
    np.testing.assert_array_equal(scales, their_scales)
    differs = nibbles(codes) != nibbles(their_codes.view(torch.uint8).numpy())
    assert not (differs & ~is_near_tie(x, scales, g)).any()
    assert differs.mean() < 0.01

    theirs = NVFP4Tensor.to_nvfp4(torch.from_numpy(x), 16, per_tensor_scale=torch.tensor(g))
    their_values = theirs.dequantize(torch.float32).numpy()
    np.testing.assert_array_equal(values[~differs], their_values[~differs])


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("seed", [3, 4])
def test_nvfp4_equals_compressed_tensors(tool, seed, dtype):
    """It divides as we do: with a power-of-two global scale (a divisor there) nothing differs."""
    x = activations(seed, dtype)
    g = power_of_two_scale(x)
    codes, scales, values = quantise(tool, x, g)
    args = QuantizationArgs(
        num_bits=4, type="float", strategy="tensor_group", group_size=16, symmetric=True,
        scale_dtype=torch.float8_e4m3fn, zp_dtype=torch.float8_e4m3fn,
    )
    divisor = torch.tensor([1.0 / g])
    tensor = torch.from_numpy(x)
    blocks = tensor.reshape(ROWS, -1, 16)
    their_scales, zero_point = calculate_qparams(blocks.amin(-1), blocks.amax(-1), args, divisor)
    np.testing.assert_array_equal(
        scales, their_scales.to(torch.float8_e4m3fn).view(torch.uint8).numpy()
    )
    quantised = quantize(tensor, their_scales, None, args, global_scale=divisor)
    np.testing.assert_array_equal(codes, pack_fp4_to_uint8(quantised.bfloat16()).numpy())
    their_values = dequantize(quantised, their_scales, None, args, global_scale=divisor)
    np.testing.assert_array_equal(values, their_values.float().numpy())


@pytest.mark.parametrize("block_rows", [1, 128])
def test_fp8_blocks_equal_a_cast_by_torch(tool, block_rows):
    rows, k = 130, 300
    x = torch.randn(rows, k, generator=torch.Generator().manual_seed(5)).bfloat16().float().numpy()
    out = tool(x, "fp8", rows, k, block_rows)
    shape = (-(-rows // block_rows), -(-k // 128))
    codes = np.frombuffer(out, np.uint8, rows * k).reshape(rows, k)
    scales = np.frombuffer(out, np.float32, shape[0] * shape[1], rows * k).reshape(shape)
    values = np.frombuffer(out, np.float32, rows * k, rows * k + scales.nbytes).reshape(rows, k)
    for i in range(shape[0]):
        for j in range(shape[1]):
            block = np.s_[i * block_rows : (i + 1) * block_rows, j * 128 : (j + 1) * 128]
            scale = np.float32(2.0 ** np.ceil(np.log2(np.abs(x[block]).max() / 448.0)))
            assert scales[i, j] == scale
            cast = torch.from_numpy(x[block] / scale).to(torch.float8_e4m3fn)
            np.testing.assert_array_equal(codes[block], cast.view(torch.uint8).numpy())
            np.testing.assert_array_equal(values[block], cast.float().numpy() * scale)


def test_a_non_finite_value_is_an_error_that_names_it(build_dir, tool):
    x = np.ones((2, 16), np.float32)
    x[1, 3] = np.inf
    path = build_dir / "tests" / "numerics" / "numerics_tool"
    result = subprocess.run([path, "nvfp4", "2", "16", "1"], input=x.tobytes(), capture_output=True)
    assert result.returncode == 1
    assert b"row 1, column 3 is inf" in result.stderr
    assert result.stdout == b""
