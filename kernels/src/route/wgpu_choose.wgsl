// The experts of a token, by a workgroup: each time the first that comes after the last.

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let token = linear(group);
    if (token >= p.tokens) {
        return;
    }
    let logits = token * p.logits_row;
    var most = 0u;
    for (var i = lane.index; i < p.num_experts; i += WORKGROUP) {
        most = max(most, key_of(load_logits(logits + i * p.logits_step)));
    }
    most = best_all(vec3(most, 0u, 0u), lane).x;
    // Differences from what is not finite are NaN.
    let finite = most > KEY_OF_MINUS_INFINITY && most < KEY_OF_INFINITY;
    var largest = 0.0;
    if (finite) {
        largest = value_of(most);
    }
    var sum = 0.0;
    for (var i = lane.index; i < p.num_experts; i += WORKGROUP) {
        sum += exponential(load_logits(logits + i * p.logits_step) - largest);
    }
    sum = sum_all(sum, lane);
    var chosen = 0.0;
    // The key that the last one had, and the expert from which on that counts again.
    var key = KEY_OF_NAN;
    var next = 0u;
    for (var rank = 0u; rank < p.top_k; rank += 1u) {
        var first = vec3(0u, 0u, 0xffffffffu);
        for (var i = lane.index; i < p.num_experts; i += WORKGROUP) {
            let mine = vec3(key_of(load_logits(logits + i * p.logits_step)), 0u, i);
            if ((mine.x < key || (mine.x == key && i >= next)) && is_before(mine, first)) {
                first = mine;
            }
        }
        first = best_all(first, lane);
        key = first.x;
        next = first.z + 1u;
        let weight = exponential(load_logits(logits + first.z * p.logits_step) - largest);
        chosen += weight;
        if (lane.index == 0u) {
            store_experts(token * p.experts_row + rank * p.experts_step, vec2(first.z, 0u));
            store_weights(token * p.weights_row + rank * p.weights_step, weight);
        }
    }
    if (lane.index == 0u) {
        for (var rank = 0u; rank < p.top_k; rank += 1u) {
            let at = token * p.weights_row + rank * p.weights_step;
            if (finite) {
                store_weights(at, load_weights(at) / select(sum, chosen, RENORMALIZE == 1u));
            } else {
                put_weights(at, vec2(0x7fc00000u, 0u));
            }
        }
    }
}
