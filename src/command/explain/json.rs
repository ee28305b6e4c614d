//! Explanations as JSON.

use serde_json::{Value, json};
use sinew::ops::{Candidate, Explanation, Limits, Part, Profile};

/// An explanation as one object.
pub(super) fn explanation(of: &Explanation) -> Value {
    let seconds = of.choice().and_then(Candidate::seconds);
    json!({
        "operator": of.operator,
        "problem": of.problem,
        "hardware": of.hardware,
        "flops": of.work.flops,
        "bytes": of.work.bytes,
        "limits": limits(&of.limits),
        "least_s": of.least_s,
        "bound": of.bound.name(),
        "share_of_limit": seconds.map(|seconds| of.least_s / seconds),
        "candidates": candidates(of),
    })
}

fn candidates(of: &Explanation) -> Vec<Value> {
    let candidate = |c: &Candidate| {
        json!({
            "kernel": c.row,
            "arithmetic": c.arithmetic,
            "predicted_s": c.predicted_s,
            "measured_s": c.measured_s,
            "workspace_bytes": c.workspace,
            "chosen": c.chosen,
            "why": c.verdict,
        })
    };
    of.candidates.iter().map(candidate).collect()
}

/// A profile as one object.
pub(super) fn profile(of: &Profile) -> Value {
    let part = |part: &Part| {
        json!({
            "operator": part.operator,
            "problem": part.problem,
            "kernel": part.row,
            "arithmetic": part.arithmetic,
            "launches": part.launches,
            "predicted_s": part.predicted_s,
            "measured_s": part.seconds,
            "share_of_step": part.seconds / of.record.seconds,
            "flops": part.work.flops,
            "bytes": part.work.bytes,
            "least_s": part.least_s,
            "share_of_limit": part.roofline_share(),
            "bound": part.bound.name(),
            "candidates": part.explanation.as_deref().map(candidates),
        })
    };
    json!({
        "hardware": of.hardware,
        "limits": limits(&of.limits),
        "kernels": of.parts().iter().map(part).collect::<Vec<_>>(),
        "kernels_s": of.launched_s(),
        "between_kernels_s": of.between_s(),
        "recorded_step_s": of.record.seconds,
        "step_s": of.step_s,
        "kernels_share_of_step": of.accounted(),
    })
}

fn limits(of: &Limits) -> Value {
    json!({
        "memory_bytes_per_s": of.memory_bytes_per_s,
        "f32_flops_per_s": of.arithmetic.f32_flops_per_s,
        "bf16_flops_per_s": of.arithmetic.bf16_flops_per_s,
        "int8_ops_per_s": of.arithmetic.int8_ops_per_s,
        "memory_measured": of.memory_measured,
        "arithmetic_measured": of.arithmetic_measured,
    })
}
