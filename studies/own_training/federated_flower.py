"""The training of `federated`, run by Flower's server."""

import logging

import numpy as np
from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
from flwr.serverapp import Grid, strategy
from flwr.supercore.task_identity import TaskIdentity

from studies.own_training import federated

logging.getLogger("flwr").setLevel(logging.ERROR)
TaskIdentity.run_id = TaskIdentity.task_id = TaskIdentity.node_id = 1


class Hospitals(Grid):
    """Hospitals that train in this process when the server asks them.

    `examples` are the numbers of patients that they report.
    """

    set_run = run = create_message = push_messages = pull_messages = None

    def __init__(self, x, y, examples):
        self.x, self.y, self.examples = x, y, examples

    def get_node_ids(self):
        return range(len(self.x))

    def send_and_receive(self, messages, *, timeout=None):
        return [self.reply(message) for message in messages]

    def reply(self, message):
        at = message.metadata.dst_node_id
        one = slice(at, at + 1)
        [model] = message.content["arrays"].to_numpy_ndarrays()
        [update] = federated.updates(model, self.x[one], self.y[one])
        content = {
            "arrays": ArrayRecord([model + update]),
            "metrics": MetricRecord({"num-examples": self.examples[at]}),
        }
        return Message(RecordDict(content), reply_to=message)


def flower(
    x,
    y,
    seed,
    *,
    max_grad_norm,
    noise_multiplier,
    examples=None,
    accountant=None,
):
    """The models after 0, 1, 2 … rounds, as `federated` returns them."""
    # Flower draws its noise from this generator
    np.random.seed(seed)  # noqa: NPY002
    private = strategy.DifferentialPrivacyServerSideFixedClipping(
        strategy.FedAvg(fraction_evaluate=0, min_train_nodes=len(x)),
        noise_multiplier,
        max_grad_norm,
        num_sampled_clients=len(x),
        accountant=accountant,
    )
    models = []
    private.start(
        Hospitals(x, y, examples or [1] * len(x)),
        ArrayRecord([np.zeros(x.shape[-1])]),
        num_rounds=federated.ROUNDS,
        # called with each model, the first included
        evaluate_fn=lambda _, now: models.extend(now.to_numpy_ndarrays()),
    )
    return models
