"""Banks: R models of one architecture that train side by side on the same records."""

from dpsub.models.heads import Linear, linear
from dpsub.models.interface import Model
from dpsub.models.networks import convnet, mlp
from dpsub.models.wrapping import from_module

__all__ = ["Linear", "Model", "convnet", "from_module", "linear", "mlp"]
