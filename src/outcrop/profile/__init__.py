"""Profile: a trace -> how rows are accessed, and what caches would make of it."""

from outcrop.profile.accesses import Accesses
from outcrop.profile.measure import Profile, ProfileOptions, profile_store, profile_trace
from outcrop.profile.pictures import pictures
from outcrop.profile.policies import POLICIES, Outcome, Policy

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
