// What is kept at each step is a prefix of the tokens, the largest logit first and of equal ones the lowest id: all whose
// key is above that of a cut, and of those that have it the ids up to the cut's. Cuts are found by bisection on the bits
// of the key. Where ids decide, each thread has a run of `share` ids; the same in all sums, so that these agree.

struct Cut {
    key: u32,
    id: u32,
}

struct Row {
    // Where its logits begin.
    at: u32,
    largest: f32,
    temperature: f32,
}

var<workgroup> counts: array<u32, WORKGROUP>;
var<workgroup> sums: array<f32, WORKGROUP>;

fn logit(row: Row, id: u32) -> f32 {
    return load_logits(row.at + id * p.logits_step);
}

fn weight(row: Row, logit: f32) -> f32 {
    return exponential((logit - row.largest) / row.temperature);
}

fn is_kept(key: u32, id: u32, cut: Cut) -> bool {
    return key > cut.key || (key == cut.key && id <= cut.id);
}

// Tokens of at least a key.
fn count_from(row: Row, key: u32, lane: Lane) -> u32 {
    var count = 0u;
    for (var id = lane.index; id < p.vocab; id += WORKGROUP) {
        count += select(0u, 1u, key_of(logit(row, id)) >= key);
    }
    return count_all(count, lane);
}

// The weight of those tokens within a cut that are above a key. It does not grow with the key: neither do its parts,
// and they are summed in one order.
fn weight_above(row: Row, key: u32, cut: Cut, lane: Lane) -> f32 {
    var sum = 0.0;
    for (var id = lane.index; id < p.vocab; id += WORKGROUP) {
        let l = logit(row, id);
        let k = key_of(l);
        if (k > key && is_kept(k, id, cut)) {
            sum += weight(row, l);
        }
    }
    return sum_all(sum, lane);
}

// The id of the n-th token of a key, counted from 1; the largest id where there are fewer.
fn id_of_nth(row: Row, key: u32, n: u32, lane: Lane) -> u32 {
    let start = min(lane.index * p.share, p.vocab);
    let end = min(start + p.share, p.vocab);
    var count = 0u;
    for (var id = start; id < end; id += 1u) {
        count += select(0u, 1u, key_of(logit(row, id)) == key);
    }
    workgroupBarrier();
    counts[lane.index] = count;
    workgroupBarrier();
    var before = 0u;
    for (var other = 0u; other < lane.index; other += 1u) {
        before += counts[other];
    }
    var found = 0xffffffffu;
    for (var id = start; id < end; id += 1u) {
        if (key_of(logit(row, id)) == key) {
            before += 1u;
            if (before == n) {
                found = id;
            }
        }
    }
    return best_all(vec3(0u, 0u, found), lane).z;
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let number = linear(group);
    if (number >= p.rows) {
        return;
    }
    let params = number * p.params_row;
    let top_p = load_params(params + p.params_step);
    let min_p = load_params(params + 2u * p.params_step);
    let draw = load_params(params + 3u * p.params_step);
    let top_k = load_top_k(number * p.top_k_row).x;
    var row = Row(number * p.logits_row, 0.0, load_params(params));

    var first = vec3(0u, 0u, 0xffffffffu);
    for (var id = lane.index; id < p.vocab; id += WORKGROUP) {
        let mine = vec3(key_of(logit(row, id)), 0u, id);
        if (is_before(mine, first)) {
            first = mine;
        }
    }
    first = best_all(first, lane);
    if (first.x >= KEY_OF_INFINITY || first.x <= KEY_OF_MINUS_INFINITY) {
        if (lane.index == 0u) {
            report(p.first + number);
        }
        return;
    }
    if (row.temperature == 0.0) {
        if (lane.index == 0u) {
            store_tokens(number * p.tokens_row, vec2(first.z, 0u));
        }
        return;
    }
    row.largest = value_of(first.x);

    var cut = Cut(KEY_OF_MINUS_INFINITY + 1u, 0xffffffffu);
    let finite = count_from(row, cut.key, lane);
    if (top_k > 0u && top_k < finite) {
        // The largest key from which on there are as many tokens.
        var key = 0u;
        for (var bit = 0x80000000u; bit > 0u; bit >>= 1u) {
            if (count_from(row, key | bit, lane) >= top_k) {
                key |= bit;
            }
        }
        let above = count_from(row, key + 1u, lane);
        cut = Cut(key, id_of_nth(row, key, top_k - above, lane));
    }
    if (top_p < 1.0) {
        // Above 0, that the most likely token stays.
        let limit = max(top_p * weight_above(row, 0u, cut, lane), 1e-30);
        // The largest key above which there is as much weight; the next one is the last of which a token is kept.
        var key = 0u;
        for (var bit = 0x80000000u; bit > 0u; bit >>= 1u) {
            if (weight_above(row, key | bit, cut, lane) >= limit) {
                key |= bit;
            }
        }
        key += 1u;
        let rest = limit - weight_above(row, key, cut, lane);
        let n = u32(clamp(ceil(rest / weight(row, value_of(key))), 1.0, 4e9));
        let id = id_of_nth(row, key, n, lane);
        cut = Cut(key, select(id, min(id, cut.id), key == cut.key));
    }
    var lowest = 0.0;
    if (min_p > 0.0) {
        lowest = logarithm(min_p) * row.temperature;
    }

    let start = min(lane.index * p.share, p.vocab);
    let end = min(start + p.share, p.vocab);
    var mine = 0.0;
    for (var id = start; id < end; id += 1u) {
        let l = logit(row, id);
        if (is_kept(key_of(l), id, cut) && (min_p <= 0.0 || l - row.largest >= lowest)) {
            mine += weight(row, l);
        }
    }
    workgroupBarrier();
    sums[lane.index] = mine;
    workgroupBarrier();
    var before = 0.0;
    var total = 0.0;
    // The thread whose run the draw falls into, or the last that has any weight where rounding lets it fall behind all.
    for (var other = 0u; other < WORKGROUP; other += 1u) {
        if (other == lane.index) {
            before = total;
        }
        total += sums[other];
    }
    let target_sum = draw * total;
    var owner = 0u;
    var sum = 0.0;
    for (var other = 0u; other < WORKGROUP && sum <= target_sum; other += 1u) {
        if (sums[other] > 0.0) {
            owner = other;
        }
        sum += sums[other];
    }
    if (lane.index != owner) {
        return;
    }
    var token = first.z;
    sum = 0.0;
    for (var id = start; id < end && before + sum <= target_sum; id += 1u) {
        let l = logit(row, id);
        if (is_kept(key_of(l), id, cut) && (min_p <= 0.0 || l - row.largest >= lowest)) {
            let w = weight(row, l);
            sum += w;
            if (w > 0.0) {
                token = id;
            }
        }
    }
    store_tokens(number * p.tokens_row, vec2(token, 0u));
}
