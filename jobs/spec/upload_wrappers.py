"""Build what happens to uploads: weights, robust aggregation, attacks, privacy and compression."""

from __future__ import annotations

from fedsim.core import Algorithm
from fedsim.uploads import (
    AGGREGATORS,
    ATTACKS,
    COMPRESSORS,
    AdaptiveClip,
    Attack,
    AttackedClients,
    CompressedUpdates,
    PrivateExamples,
    PrivateUpdates,
    RobustAggregation,
    SecureAggregation,
    TiltedWeights,
)
from fedsim.uploads.aggregators import Mean
from jobs.spec.checks.privacy_checks import find_spec_noise
from jobs.spec.job_spec import JobSpec
from jobs.spec.sections.privacy_fields import PrivacySection


def wrap_uploads(spec: JobSpec, algorithm: Algorithm) -> Algorithm:
    """Wrap the algorithm of a spec with all that happens to its uploads, the weights of clients innermost.

    Args:
        spec: checked by `find_upload_faults` and `find_privacy_faults`.
        algorithm: the spec's algorithm, with its data curriculum and layer curriculum.
    """
    attack, rule, privacy = make_attack(spec), spec.aggregation, spec.privacy
    if privacy is not None and privacy.kind == "examples":
        others = {"kind", "adaptive_clip", "tree_rounds", "shuffled"}
        algorithm = PrivateExamples(base=algorithm, **privacy.model_dump(exclude=others))
    if spec.fairness is not None:
        algorithm = TiltedWeights(base=algorithm, tilt=spec.fairness.tilt)
    if rule is not None:
        algorithm = RobustAggregation(base=algorithm, aggregator=AGGREGATORS[rule.name](**rule.params))
    elif attack is not None and attack.colludes:
        algorithm = RobustAggregation(base=algorithm, aggregator=Mean())
    if attack is not None:
        algorithm = AttackedClients(base=algorithm, attack=attack)
    if privacy is not None and privacy.kind != "examples":
        algorithm = _make_private(spec, privacy, algorithm)
    if spec.secure_aggregation is not None:
        algorithm = SecureAggregation(base=algorithm, **spec.secure_aggregation.model_dump())
    if (chosen := spec.compression) is None:
        return algorithm
    return CompressedUpdates(base=algorithm, compressor=COMPRESSORS[chosen.name](**chosen.params))


def _make_private(spec: JobSpec, privacy: PrivacySection, algorithm: Algorithm) -> PrivateUpdates:
    adaptive = privacy.adaptive_clip
    assert privacy.kind != "examples"
    return PrivateUpdates(
        base=algorithm,
        kind=privacy.kind,
        clip=privacy.clip,
        noise_multiplier=find_spec_noise(spec),
        delta=privacy.delta,
        accountant=privacy.accountant,
        adaptive=None if adaptive is None else AdaptiveClip(**adaptive.model_dump()),
        tree_rounds=privacy.tree_rounds,
        shuffled=privacy.shuffled,
    )


def make_attack(spec: JobSpec) -> Attack | None:
    """Make the attack of a spec; None for none."""
    return None if spec.attack is None else ATTACKS[spec.attack.name](**spec.attack.params)
