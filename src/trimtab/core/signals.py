"""The canonical names of signals, and how far each recorded value can be trusted."""

from enum import IntEnum
from typing import Final

LOSS: Final = "loss"
"""Training loss: token-weighted mean over micro-batches and ranks."""

GRAD_NORM: Final = "grad_norm"
"""Global L2 norm of the gradient, always before clipping."""

PARAM_NORM: Final = "param_norm"
"""Global L2 norm of the parameters; `param_norm/<group>` for one group."""

UPDATE_NORM: Final = "update_norm"
"""L2 norm of what the optimizer added to the parameters."""

ADAM_V_NORM: Final = "adam_v_norm"
"""L2 norm of Adam's second moment."""

LR: Final = "lr"
"""Learning rate of the step."""

PLANNED_LR: Final = "planned_lr"
"""Learning rate of the schedule, in steps that are made with a different one."""

LOSS_SCALE: Final = "loss_scale"
"""Scale of a dynamic loss scaler (fp16)."""

EVAL_LOSS: Final = "eval_loss"
"""Loss on held-out data."""

TOKENS_PER_SECOND: Final = "tokens_per_second"
"""Throughput over all ranks."""

STEP_SECONDS: Final = "step_seconds"
"""Wall time of the step."""

DATA_SECONDS: Final = "data_seconds"
"""Wall time spent waiting for data."""

FINGERPRINT: Final = "fingerprint"
"""crc32 of the batch, taken on the host; equal values mean the same batch."""

CLOCK: Final = "clock"
"""Unix time of the record, in seconds."""

TOKENS: Final = "tokens"
"""Tokens that the loss of the step averages over, on all ranks."""

CLIPPED_GRAD_NORM: Final = "clipped_grad_norm"
"""A gradient norm measured after clipping; never used as `grad_norm`."""

GRAD_NORM_OF: Final = "grad_norm/"
"""Gradient norm of one parameter group or layer, as the optimizer saw it."""

ADAM_M_NORM: Final = "adam_m_norm"
"""L2 norm of Adam's first moment."""

ADAM_STEP: Final = "adam_step"
"""How many updates the optimizer has counted."""

UPDATE_PER_LR: Final = "update_per_lr"
"""`update_norm` divided by the learning rate: the part that the optimizer's state determines."""

GRAD_MOMENTUM_COSINE: Final = "grad_momentum_cosine"
"""Cosine between the gradient and Adam's first moment."""

GRAD_TO_V_RMS: Final = "grad_to_v_rms"
"""Root mean square of g^2/v: over 1 where the second moment lags the gradient."""

ZERO_GRAD_SHARE: Final = "zero_grad_share"
"""Share of gradient elements that are exactly zero."""

ACTIVATION_RMS: Final = "activation_rms/"
"""Root mean square of the output of one block."""

OUTPUT_RMS: Final = "output_rms/"
"""Root mean square of what one module puts out: embedding, attention, MLP, final norm."""

LAYER_PARAM_NORM: Final = "layer_param_norm/"
"""L2 norm of the weights of one layer."""

LAYER_UPDATE_RATIO: Final = "layer_update_ratio/"
"""L2 norm of what the optimizer added to the weights of one layer, divided by theirs."""

TOKEN_LOSS_SHARE: Final = "token_loss_share/"
"""Share of the step's tokens whose loss is in one of 32 bins, named by its lower edge in nats."""

EXPERT_MAX_SHARE: Final = "expert_max_share/"
"""Share of the tokens that the busiest expert of one router gets, averaged over records."""

DEAD_EXPERTS: Final = "dead_experts/"
"""Share of the experts of one router that get next to no tokens, by the same average."""

ROUTER_ENTROPY: Final = "router_entropy/"
"""Mean entropy of a router's choice, divided by that of an even one: 1 is even."""

ROUTER_Z: Final = "router_z/"
"""Mean square of log Z of a router's logits."""

BALANCING_LOSS: Final = "balancing_loss"
"""What a trainer adds to the loss where routers use experts unevenly; in logs, also by layer."""

MAX_ATTENTION_LOGIT: Final = "max_attention_logit"
"""Largest attention logit; `max_attention_logit/<module>` for one layer, over its heads."""

MAX_LOGIT: Final = "max_logit"
"""Largest absolute value of the output logits."""

MAX_LOG_Z: Final = "max_log_z"
"""Largest |log Z| over positions; Z is the sum of the exponentials of a position's logits."""

LOGIT_ENTROPY: Final = "logit_entropy"
"""Mean entropy of the output distribution, in nats."""

UNIQUE_TOKEN_SHARE: Final = "unique_token_share"
"""Distinct tokens in the batch, divided by its number of tokens."""

TOKEN_RARITY: Final = "token_rarity"
"""Mean of -log p over the batch's tokens, p from the tokens seen so far in this run."""

DISCARDED: Final = "discarded"
"""1 where the update of the step was withheld, 0 where it was applied; protected runs only."""

MAX_RANK_LOSS: Final = "max_rank_loss"
"""The largest loss of a single rank."""

MAX_LOSS_RANK: Final = "max_loss_rank"
"""The rank that has the largest loss."""

MAX_RANK_GRAD: Final = "max_rank_grad"
"""The largest gradient of a single rank, before ranks average them, as a sum of squares; recorded
only while a rank is suspected."""

MAX_GRAD_RANK: Final = "max_grad_rank"
"""The rank that has the largest gradient."""

REFERENCE_LOSS: Final = "reference_loss"
"""The loss of the same batch in another run, as the user gives it."""

# Reinforcement learning: what a policy gets, how far it moves, what it writes.

REWARD: Final = "reward"
"""Mean reward of the rollouts of a step; `reward/<name>` for one of several reward functions."""

REWARD_STD: Final = "reward_std"
"""Standard deviation of the rewards, over a group or over the batch, as the trainer defines it."""

EVAL_REWARD: Final = "eval_reward"
"""Reward or accuracy on held-out prompts."""

NO_SIGNAL_SHARE: Final = "no_signal_share"
"""Share of groups whose rewards are all equal: they have no advantage and teach nothing."""

KL: Final = "kl"
"""Divergence of the policy from its reference, or from the policy before the update."""

ENTROPY: Final = "entropy"
"""Mean entropy of the policy, in nats per token or action."""

CLIP_FRACTION: Final = "clip_fraction"
"""Share of tokens or actions whose ratio is clipped."""

RATIO: Final = "ratio"
"""Mean probability ratio of the policy to the one that made the rollouts; 1 on policy."""

ADVANTAGE_STD: Final = "advantage_std"
"""Standard deviation of the advantages, before any normalisation."""

VALUE_LOSS: Final = "value_loss"
"""Loss of the value function."""

EXPLAINED_VARIANCE: Final = "explained_variance"
"""Share of the variance of the returns that the value function explains; 1 at best."""

RESPONSE_LENGTH: Final = "response_length"
"""Mean length of the responses, in tokens, or of the episodes, in steps."""

TRUNCATED_SHARE: Final = "truncated_share"
"""Share of responses that reach the length limit."""

LOGPROB_GAP: Final = "logprob_gap"
"""Mean absolute difference between the log-probabilities of the same tokens in the engine that made
the rollouts and in the model that is trained."""

OF_REINFORCEMENT: Final = frozenset(
    {
        *(REWARD, REWARD_STD, EVAL_REWARD, NO_SIGNAL_SHARE, KL, ENTROPY, CLIP_FRACTION, RATIO),
        *(ADVANTAGE_STD, VALUE_LOSS, EXPLAINED_VARIANCE, RESPONSE_LENGTH, TRUNCATED_SHARE),
        LOGPROB_GAP,
    }
)
"""All of these; `reward/<name>` belongs to them."""

POLICY_SIGNALS: Final = frozenset(
    {REWARD, CLIP_FRACTION, ADVANTAGE_STD, NO_SIGNAL_SHARE, LOGPROB_GAP, VALUE_LOSS}
)
"""Where one of these is recorded a policy is trained, and its loss has no direction."""

OF_RESPONSES: Final = frozenset(
    {NO_SIGNAL_SHARE, REWARD_STD, RESPONSE_LENGTH, TRUNCATED_SHARE, LOGPROB_GAP, TOKENS}
)
"""Where one of these is recorded the policy may be a language model: prompts, groups, responses."""

ADVERSARY_LOSS: Final = "adversary_loss"
"""Loss of a discriminator, beside that of the generator it is trained against."""

WITHOUT_DIRECTION: Final = POLICY_SIGNALS | {ADVERSARY_LOSS}
"""Where one of these is recorded the loss has no direction."""

RESUME_AUDIT: Final = "resume_audit"
"""What a resume has not restored, as bits; only in records of the first steps after it."""

ROLES: Final = ("norm", "head", "embedding", "attention", "mlp", "other")
"""The groups of parameters by what they do in a model; journals depend on the order."""

WEIGHT_HASH: Final = "weight_hash/"
"""Checksum of the weights of one role, after the update: equal values mean equal bits."""

MOMENT_HASH: Final = "moment_hash/"
"""Checksum of the optimizer's state of one role."""

HASHES: Final = tuple(f"{prefix}{role}" for prefix in (WEIGHT_HASH, MOMENT_HASH) for role in ROLES)

REPLICAS_DIFFER: Final = "replicas_differ"
"""The roles whose replicas do not have the same bits on all ranks, as bits by `ROLES`; 0 if all
have, missing if nothing is replicated."""

NO_CURVES: Final = frozenset({FINGERPRINT, RESUME_AUDIT, REPLICAS_DIFFER, *HASHES})
"""Signals that are no quantity: checksums and bits."""

CLOCKS: Final = frozenset({CLOCK, STEP_SECONDS, DATA_SECONDS, TOKENS_PER_SECOND})
"""Signals that measure time: never the same twice."""

MEASURED: Final = CLOCKS | {
    *(LOSS, GRAD_NORM, TOKENS, CLIPPED_GRAD_NORM, LR, PLANNED_LR, LOSS_SCALE, DISCARDED),
    *(MAX_RANK_LOSS, MAX_LOSS_RANK, PARAM_NORM, UPDATE_NORM, UPDATE_PER_LR, ADAM_STEP),
    *(ADAM_M_NORM, ADAM_V_NORM, GRAD_MOMENTUM_COSINE, GRAD_TO_V_RMS, ZERO_GRAD_SHARE),
    *(UNIQUE_TOKEN_SHARE, TOKEN_RARITY, *NO_CURVES),
}
"""What a guard measures itself; a metric of the user's may not take these names."""


def is_measured(name: str) -> bool:
    """Return whether a signal is one that a guard measures itself, whole or of one layer."""
    return name in MEASURED or name.startswith(
        (GRAD_NORM_OF, ACTIVATION_RMS, OUTPUT_RMS, LAYER_PARAM_NORM, LAYER_UPDATE_RATIO)
    )


class Quality(IntEnum):
    """How a recorded value relates to what happened at its step; lower is worse."""

    INFERRED = 0
    """Not written by the logger; inferred because this logger drops or rewrites such values."""
    POST_CLIP = 1
    """A gradient norm measured after clipping: it cannot show how large the gradient was."""
    SMOOTHED = 2
    """An exponential average: peaks are lower and later than they were."""
    WINDOW_MEAN = 3
    """The mean of the steps since the last record."""
    RAW = 4
    """The value of that one step."""

    @property
    def label(self) -> str:
        """The quality as it is written in journals and reports."""
        return self.name.lower().replace("_", "-")

    @classmethod
    def parse(cls, label: str) -> "Quality":
        """Return the quality with a label; raises ValueError if there is none."""
        try:  # labels have hyphens, names of members have underscores
            return cls[label.upper().replace("-", "_")]
        except KeyError:
            known = ", ".join(quality.label for quality in cls)
            raise ValueError(f"{label!r} is not a quality (known: {known})") from None
