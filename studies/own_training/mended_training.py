"""The optimizer of faulty_training.py, with all of its noise."""

from studies.own_training.faulty_training import MicrobatchOptimizer


class MendedOptimizer(MicrobatchOptimizer):
    def std_of_each(self):
        std = self.noise_multiplier * self.max_grad_norm
        return std / self.parts**0.5
