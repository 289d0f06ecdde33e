r"""The adversaries' canaries.

A crafter is a function of a task, a model, a spec, a seed and its own options. It returns a `CanaryPair`; `Pairs`, if
its name ends in `_pairs`; or a `StepCanary`, if its name ends in `_each_step`. `slots` says which private records these
replace, `reference_model` compares gradients, and `descent` changes a record step by step.

An adversary that may choose a gradient puts it where it is easiest to detect (S2). One that may only choose records
starts from a target z: the private record of which a model trained without privacy is least sure. It then looks for a
z′ whose gradient points the opposite way, by changing features (S3) or the label (S4), or among other records (S5).
One that asks for an attribute changes it alone (S6). `BY_SCENARIO` holds S2 to S5, which need no attribute to be named.
`reference` trains the model without privacy that they look at.

Audits by membership often take a `blank` record, an ordinary one (`in_distribution`) or `clipbkd`; `against_nothing`
empties the other world. A `pretrained_start` shrinks the gradients of ordinary records.

An `adversarial_sample` is no canary. It is crafted on trained models, and its loss scores other ones.

Audits of single steps take canaries that are drawn or crafted anew at each step (`gradient_each_step`,
`record_each_step`), and all canaries above. `fixed_gradient` is a gradient that nothing is trained for.

Audits of one training take many pairs, each with a slot of its own: gradients on the parameters that travel least
(`gradient_pairs`), and records of the data (`mislabeled_pairs`, `attribute_pairs`).
"""

from dpsub.crafters.adversarial_samples import AdversarialSample, adversarial_sample
from dpsub.crafters.attribute_canaries import attribute, attribute_pairs
from dpsub.crafters.gradient_canaries import fixed_gradient, gradient, gradient_each_step, gradient_pairs
from dpsub.crafters.plain_records import blank, clipbkd, in_distribution
from dpsub.crafters.record_canaries import crafted_input, mislabeled, mislabeled_pairs, natural
from dpsub.crafters.reference_model import pretrained_start, reference
from dpsub.crafters.robust_inputs import robust_input
from dpsub.crafters.scenarios import BY_SCENARIO
from dpsub.crafters.step_records import record_each_step

__all__ = [
    "BY_SCENARIO",
    "AdversarialSample",
    "adversarial_sample",
    "attribute",
    "attribute_pairs",
    "blank",
    "clipbkd",
    "crafted_input",
    "fixed_gradient",
    "gradient",
    "gradient_each_step",
    "gradient_pairs",
    "in_distribution",
    "mislabeled",
    "mislabeled_pairs",
    "natural",
    "pretrained_start",
    "record_each_step",
    "reference",
    "robust_input",
]
