"""Rules on number formats: where range or precision is too small for what is done in it."""

from trimtab.checks.plan import LossScaling, Precision
from trimtab.checks.rule import ADAM, Fault, Level, Shown, advice, brief, error, warning

STUCK_BETA2 = 0.997
"""From here on a bf16 second moment does not decay any more: v times beta2 rounds back to v
(measured: after three memories 86 % of it is left at 0.997 and all of it at 0.999)."""

SMALLEST_FP16 = 6e-8
"""The smallest number above zero in fp16; half of it rounds to zero."""

SHORTEST_HISTORY = 16
"""Steps. Transformer Engine's default is 1,024; Megatron-LM's is 1."""

LOW = frozenset({Precision.BF16, Precision.FP16, Precision.FP8})


@error(
    "TT040",
    "fp16 without loss scaling",
    source="Micikevicius et al. 2018; F11 of the catalogue",
    only={"compute": Precision.FP16},
)
def unscaled_fp16(loss_scaling: LossScaling) -> Fault | None:
    """Gradients below 6e-8 become zero in fp16 and those above 65,504 infinite; without a scale
    most of a transformer's gradients are on the wrong side of the lower end."""
    if loss_scaling is not LossScaling.NONE:
        return None
    return Fault(
        "matrices are multiplied in fp16 and the loss is not scaled", {"compute": Precision.BF16}
    )


@warning(
    "TT041",
    "The loss scale is fixed",
    source="stability guides: a constant scale means dynamic scaling is not engaged",
    only={"compute": Precision.FP16},
)
def fixed_scale(loss_scaling: LossScaling) -> Fault | None:
    """Gradients shrink as a model learns; a scale that does not follow underflows later or
    overflows earlier, and each overflow loses a step."""
    if loss_scaling is not LossScaling.STATIC:
        return None
    return Fault("the loss scale is a constant", {"loss_scaling": LossScaling.DYNAMIC})


@advice(
    "TT042",
    "fp16 where bf16 would do",
    source="BLOOM: 104B failed in fp16, 176B trained in bf16; seven nanoGPT issues on NaN in fp16",
    only={"compute": Precision.FP16},
)
def fp16_at_all(compute: Precision, loss_scaling: LossScaling | None = None) -> Fault | None:
    """bf16 has the range of fp32, so activations cannot overflow at 65,504 and no scale can
    collapse."""
    if loss_scaling not in (None, LossScaling.DYNAMIC):
        return None
    unstated = "" if loss_scaling else ", and how the loss is scaled is not stated"
    return Fault(f"matrices are multiplied in {compute}{unstated}", {"compute": Precision.BF16})


@warning(
    "TT043",
    "The loss scale may fall below 1",
    source="DeepLearningExamples issue 543 (scale 1e-44, run went on); stability guides: under 1 "
    "is collapse",
    only={"compute": Precision.FP16},
)
def bottomless_scale(min_loss_scale: float) -> Fault | None:
    """A scale under 1 means that every step overflows; without a floor it goes on falling and
    skipping steps in silence."""
    if min_loss_scale >= 1:
        return None
    return Fault(f"the scale may fall to {brief(min_loss_scale)}", {"min_loss_scale": 1.0})


@warning(
    "TT044",
    "No fp32 master weights",
    source="mixed-precision practice since Micikevicius et al. 2018; half a step of the mantissa",
    shown=Shown.LAB,
)
def low_precision_weights(
    weights: Precision,
    lr: float | None = None,
    init_std: float | None = None,
    epsilon: float | None = None,
) -> Fault | None:
    """An update smaller than 1/512 of a bf16 weight (1/4096 in fp16) rounds away, so most weights
    stop moving as the rate comes down."""
    if weights not in LOW:
        return None
    what = f"the optimizer updates weights in {weights.value}"
    if lr is not None:
        size = 0.02 if init_std is None else init_std
        half = 2.0**-9 if weights is Precision.BF16 else 2.0**-12
        verb = "rounds away" if lr / size < half else "is rounded coarsely"
        what += f": a step of {brief(lr)} on a weight of {brief(size)} {verb}"
    if weights is Precision.FP16 and epsilon is not None and epsilon < SMALLEST_FP16 / 2:
        what += f"; epsilon {brief(epsilon)} is 0 in fp16, so the first steps are NaN"
        return Fault(what, {"weights": Precision.FP32}, level=Level.ERROR)
    return Fault(what, {"weights": Precision.FP32})


@error(
    "TT045",
    "The second moment cannot decay in bf16",
    source="measured: at 0.998 and above nothing of v is forgotten",
    only={**ADAM, "optimizer_state": Precision.BF16},
)
def stuck_second_moment(beta2: float) -> Fault | None:
    """v times beta2 rounds back to v, so a large gradient stays in the second moment for ever and
    its weight stops moving."""
    if beta2 < STUCK_BETA2:
        return None
    return Fault(
        f"beta2 {brief(beta2)} takes {brief(1 - beta2)} off a bf16 number, which rounds it back",
        {"optimizer_state": Precision.FP32},
    )


@warning(
    "TT046",
    "Gradients are summed in low precision",
    source="stability guides: a sum of 128 bf16 values has a significant error; Megatron-LM and "
    "torchtitan default to fp32",
)
def low_precision_sum(gradient_sum: Precision) -> Fault | None:
    """Each addition rounds to 8 bits, so what small micro-batches and far ranks add to a large sum
    is lost."""
    if gradient_sum not in LOW:
        return None
    return Fault(
        f"gradients of micro-batches and ranks are summed in {gradient_sum.value}",
        {"gradient_sum": Precision.FP32},
    )


@warning(
    "TT047",
    "Attention takes its softmax in low precision",
    source="stability guides: softmax in fp32 beside bf16 matrices",
)
def low_precision_softmax(softmax_fp32: bool) -> Fault | None:
    """Attention logits differ by less than bf16 can tell apart once they are large, and the
    exponential multiplies the error."""
    if softmax_fp32:
        return None
    return Fault("the softmax of attention is not in fp32", {"softmax_fp32": True})


@warning(
    "TT048",
    "fp8 gradients in e4m3 with one scale per tensor",
    source="Transformer Engine: hybrid (e5m2 backward) for training; e4m3 only with block scales",
    only={"compute": Precision.FP8},
)
def e4m3_gradients(fp8_format: str, fp8_scaling: str) -> Fault | None:
    """e4m3 ends at 448, and the gradients of one tensor spread further than that, so the small ones
    become zero under a scale that fits the large ones."""
    if fp8_format.lower() != "e4m3":
        return None
    if fp8_scaling.lower() not in ("delayed", "tensorwise"):
        return None
    return Fault(f"gradients are in e4m3 with {fp8_scaling} scaling", {"fp8_format": "hybrid"})


@warning(
    "TT049",
    "The output layer is computed in fp8",
    source="torchtitan's recipes leave the output layer out; Megatron-LM keeps the last layers in "
    "bf16",
    only={"compute": Precision.FP8},
)
def fp8_head(fp8_output_layer: bool) -> Fault | None:
    """Its rounding goes straight into the logits and the loss, and its gradient spans the whole
    vocabulary."""
    if not fp8_output_layer:
        return None
    return Fault("fp8 includes the output layer", {"fp8_output_layer": False})


@advice(
    "TT050",
    "Delayed fp8 scaling looks back too few steps",
    source="Transformer Engine's default is 1,024 steps and their maximum; Megatron-LM's is 1",
    only={"compute": Precision.FP8},
)
def short_history(fp8_scaling: str, fp8_history: int) -> Fault | None:
    """The scale is taken from the last steps only, so a step with larger values than those
    saturates."""
    if fp8_scaling.lower() != "delayed":
        return None
    if fp8_history >= SHORTEST_HISTORY:
        return None
    return Fault(
        f"the scale is that of the last {fp8_history} step{'s' if fp8_history != 1 else ''}",
        {"fp8_history": 1024},
    )


@error(
    "TT051",
    "Epsilon is zero in fp16",
    source="smallest fp16 number 6e-8; F12 of the catalogue",
    only={**ADAM, "optimizer_state": Precision.FP16},
)
def vanishing_epsilon(epsilon: float) -> Fault | None:
    """A number below 3e-8 rounds to zero in fp16, and Adam then divides by zero wherever the second
    moment has underflowed too."""
    if epsilon >= SMALLEST_FP16 / 2:
        return None
    return Fault(
        f"epsilon {brief(epsilon)} is 0 in an fp16 optimizer state",
        {"optimizer_state": Precision.FP32},
    )


@warning(
    "TT052",
    "The loss is computed from low-precision logits",
    source="practice of published runs: logits to fp32 before the cross-entropy",
)
def low_precision_loss(cross_entropy_fp32: bool) -> Fault | None:
    """A softmax over tens of thousands of tokens in half precision loses the small ones, which
    together carry much of the probability."""
    if cross_entropy_fp32:
        return None
    return Fault("the cross-entropy is not computed in fp32", {"cross_entropy_fp32": True})
