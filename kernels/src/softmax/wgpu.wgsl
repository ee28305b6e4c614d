fn score(row: vec3<u32>, i: u32) -> f32 {
    let x = load_x(row.y + i * p.x_step) * bitcast<f32>(p.first);
    if (HAS_MASK) {
        return x + load_mask(row.z + i * p.mask_step);
    }
    return x;
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let number = linear(group);
    if (number >= p.rows) {
        return;
    }
    let row = vec3(at_y(number), at_x(number), at_mask(number));
    var key = KEY_OF_MINUS_INFINITY;
    for (var i = lane.index; i < p.width; i += WORKGROUP) {
        key = max(key, key_of(score(row, i)));
    }
    key = best_all(vec3(key, 0u, 0u), lane).x;
    // NaN and infinity become NaN in the differences. Where all is minus infinity every exponential is 0.
    var largest = 0.0;
    if (key != KEY_OF_MINUS_INFINITY) {
        largest = value_of(key);
    }
    let then = bitcast<f32>(p.then);
    var sum = 0.0;
    for (var i = lane.index; i < p.width; i += WORKGROUP) {
        sum += exponential((score(row, i) - largest) * then);
    }
    sum = sum_all(sum, lane);
    if (key == KEY_OF_MINUS_INFINITY) {
        sum = 1.0;
    }
    let log_sum = logarithm(sum);
    for (var i = lane.index; i < p.width; i += WORKGROUP) {
        let exponent = (score(row, i) - largest) * then;
        store_y(row.x + i * p.y_step, select(exponential(exponent) / sum, exponent - log_sum, LOG == 1u));
    }
}
