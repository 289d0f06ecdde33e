r"""Extensions of Opacus: an accountant for substitute adjacency, and a statement of what a training protects.

Importing this module registers the accountant: ``PrivacyEngine(accountant="prv_substitute")``.
"""

from dpsub.opacus.accountant import SubstitutePRVAccountant
from dpsub.opacus.statement import PrivacyStatement, privacy_statement

__all__ = ["PrivacyStatement", "SubstitutePRVAccountant", "privacy_statement"]
