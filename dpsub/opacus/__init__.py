r"""Extensions of Opacus: an accountant for substitute adjacency, a statement of what a training protects, and an audit.

Importing this module registers the accountant: ``PrivacyEngine(accountant="prv_substitute")``.
"""

from dpsub.opacus.accountant import SubstitutePRVAccountant
from dpsub.opacus.auditors import audit_optimizer
from dpsub.opacus.statement import privacy_statement

__all__ = [
    "SubstitutePRVAccountant",
    "audit_optimizer",
    "privacy_statement",
]
