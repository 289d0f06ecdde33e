"""Banks: R models of one architecture that train side by side on the same records."""

from dpsub.models.heads import Linear, linear
from dpsub.models.interface import Model, Span, check_fits
from dpsub.models.mlp_convnet import CONVNETS, convnet, mlp
from dpsub.models.networks import Network

__all__ = ["CONVNETS", "Linear", "Model", "Network", "Span", "check_fits", "convnet", "linear", "mlp"]
