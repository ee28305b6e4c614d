// Scores, and how groups of keys are merged. Minus infinity is what a key that is not seen scores; it is told by its
// bits, since compilers may take it that there are no infinities.

fn least() -> f32 {
    return bitcast<f32>(p.least);
}

fn is_least(x: f32) -> bool {
    return bitcast<u32>(x) == 0xff800000u;
}

// The larger, or NaN where either is.
fn larger(a: f32, b: f32) -> f32 {
    if (is_nan(a)) {
        return a;
    }
    return select(max(a, b), b, is_nan(b));
}

struct Merged {
    largest: f32,
    // Factors of what was there and of what comes in.
    kept: f32,
    added: f32,
}

fn merged(largest: f32, incoming: f32) -> Merged {
    if (is_least(incoming)) {
        return Merged(largest, 1.0, 0.0);
    }
    let both = larger(largest, incoming);
    return Merged(both, exponential(largest - both), exponential(incoming - both));
}

// The sum of a row that ends, with what its head's sink adds to it.
fn with_sink(sum: f32, largest: f32, head: u32) -> f32 {
    if (HAS_SINKS) {
        return sum + exponential(load_sinks(head * p.sinks_step) - largest);
    }
    return sum;
}

fn ratio(acc: f32, sum: f32, largest: f32) -> f32 {
    // A query that sees no key gets zeros.
    if (is_least(largest)) {
        return 0.0;
    }
    return acc / sum;
}
