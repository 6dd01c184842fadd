"""Profile: a trace -> how rows are accessed, and what caches would make of it."""

from outcrop.tools.profile.accesses import Accesses
from outcrop.tools.profile.measure import Profile, ProfileOptions, profile_store, profile_trace
from outcrop.tools.profile.pictures import pictures
from outcrop.tools.profile.policies import POLICIES, Outcome, Policy

__all__ = [
    "POLICIES",
    "Accesses",
    "Outcome",
    "Policy",
    "Profile",
    "ProfileOptions",
    "pictures",
    "profile_store",
    "profile_trace",
]
