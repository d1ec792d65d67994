"""The operators of Quads for PyTorch: `import quads`, then `torch.ops.quads.linear_nvfp4(...)` etc.

The build puts this package and its library together into <build>/python.
"""

import pathlib

import torch

torch.ops.load_library(pathlib.Path(__file__).with_name("libquads_ops.so"))
