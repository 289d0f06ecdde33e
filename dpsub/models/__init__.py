"""Banks: R models of one architecture that train side by side on the same records."""

from dpsub.models.heads import Linear, linear
from dpsub.models.interface import Model, Span, Stochastic, check_fits, losses_of, outputs_of
from dpsub.models.modules import ModuleBank
from dpsub.models.networks import CONVNETS, Network, convnet, mlp
from dpsub.models.wrapping import from_module

__all__ = [
    "CONVNETS", "Linear", "Model", "ModuleBank", "Network", "Span", "Stochastic", "check_fits", "convnet",
    "from_module", "linear", "losses_of", "mlp", "outputs_of",
]  # fmt: skip
