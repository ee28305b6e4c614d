//! Which tokens a draw is from: `top_k`, `top_p` and `min_p`.

use super::Candidate;

/// The `k` first candidates in order, or all of them by id where `k` is 0 or no less than there are.
///
/// One pass: what cannot be among the first is passed over with one comparison, and the rest is cut back to `k`
/// whenever twice as many have come together.
pub(super) fn collect_top_k(logits: &[f32], k: usize, candidates: &mut Vec<Candidate>) {
    let all = logits.iter().enumerate().map(|(id, &logit)| Candidate { id: id as u32, logit, probability: 0.0 });
    let possible = all.filter(|c| c.logit > f32::NEG_INFINITY);
    if k == 0 || k >= logits.len() {
        candidates.extend(possible);
        return;
    }
    let full = k.saturating_mul(2);
    let mut threshold = f32::NEG_INFINITY;
    for candidate in possible {
        // Ids ascend, so that a later token which ties with the last of k is behind it.
        if candidate.logit <= threshold {
            continue;
        }
        candidates.push(candidate);
        if candidates.len() == full {
            let (_, last, _) = candidates.select_nth_unstable_by(k - 1, Candidate::order);
            threshold = last.logit;
            candidates.truncate(k);
        }
    }
    candidates.sort_unstable_by(Candidate::order);
    candidates.truncate(k);
}

/// `exp((logit - max) / temperature)`, without the division by the sum.
pub(super) fn softmax(candidates: &mut [Candidate], max: f32, temperature: f32) {
    for candidate in candidates {
        // In f64, where neither the difference nor the quotient can overflow.
        let scaled = (f64::from(candidate.logit) - f64::from(max)) / f64::from(temperature);
        candidate.probability = (scaled as f32).exp();
    }
}

/// Keeps, in order, each candidate before which less than `top_p` of the total has been kept.
pub(super) fn keep_top_p(candidates: &mut Vec<Candidate>, top_p: f32) {
    let total: f64 = candidates.iter().map(|c| f64::from(c.probability)).sum();
    // All candidates below this together weigh less than what `top_p` leaves out, so that the first of them comes
    // after the cut. Of a vocabulary this leaves a few hundred to sort. Halved, for the roundings of the sums.
    let negligible = (1.0 - f64::from(top_p)) * total / candidates.len() as f64 * 0.5;
    candidates.retain(|c| f64::from(c.probability) >= negligible);
    candidates.sort_unstable_by(Candidate::order);
    let limit = f64::from(top_p) * total;
    let mut sum = 0.0;
    let kept = candidates
        .iter()
        .take_while(|c| {
            let keep = sum < limit;
            sum += f64::from(c.probability);
            keep
        })
        .count();
    candidates.truncate(kept);
}

/// Keeps the candidates whose probability is at least `min_p` times that of the most probable.
pub(super) fn keep_min_p(candidates: &mut Vec<Candidate>, min_p: f32, max: f32, temperature: f32) {
    // exp((logit - max) / temperature) >= min_p, compared as logits: exact where the probabilities underflow.
    let lowest = f64::from(min_p).ln() * f64::from(temperature);
    candidates.retain(|c| f64::from(c.logit) - f64::from(max) >= lowest);
}
