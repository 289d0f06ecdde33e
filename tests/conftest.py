import os

import matplotlib as mpl
import torch

mpl.use("agg")
torch.set_num_threads(1)  # pytest-xdist runs one process a core already
os.environ["HF_HUB_OFFLINE"] = "1"  # read when that library is first imported
