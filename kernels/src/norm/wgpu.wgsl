// A workgroup for each row. The elements of a row are read in each pass anew: caches hold them, and registers may not.

fn value(row: vec3<u32>, i: u32) -> f32 {
    if (HAS_RESIDUAL) {
        return load_residual(row.z + i * p.residual_step);
    }
    if (HAS_X) {
        return load_x(row.y + i * p.x_step);
    }
    return load_y(row.x + i * p.y_step);
}

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let number = linear(group);
    if (number >= p.rows) {
        return;
    }
    let row = vec3(at_y(number), at_x(number), at_residual(number));
    // The sum is stored, and what is normed is what was stored.
    if (HAS_RESIDUAL) {
        for (var i = lane.index; i < p.width; i += WORKGROUP) {
            let at = row.z + i * p.residual_step;
            store_residual(at, load_x(row.y + i * p.x_step) + load_residual(at));
        }
    }
    let share = bitcast<f32>(p.share);
    // The mean is in two parts, so that a row far from 0 loses nothing when it is subtracted.
    var mean = 0.0;
    var rest = 0.0;
    if (LAYER == 1u) {
        var sum = 0.0;
        for (var i = lane.index; i < p.width; i += WORKGROUP) {
            sum += value(row, i);
        }
        mean = sum_all(sum, lane) * share;
        sum = 0.0;
        for (var i = lane.index; i < p.width; i += WORKGROUP) {
            sum += value(row, i) - mean;
        }
        rest = sum_all(sum, lane) * share;
    }
    var squares = 0.0;
    for (var i = lane.index; i < p.width; i += WORKGROUP) {
        let v = value(row, i) - mean - rest;
        squares += v * v;
    }
    let variance = sum_all(squares, lane) * share + bitcast<f32>(p.eps);
    var inverse = inverseSqrt(variance);
    // A step of Newton's: drivers give two units in the last place, and what is left of it must serve the sums.
    let step = inverse * (0.5 - 0.5 * variance * inverse * inverse);
    if (variance > 0.0 && (bitcast<u32>(step) & 0x7f800000u) != 0x7f800000u) {
        inverse += step;
    }
    for (var i = lane.index; i < p.width; i += WORKGROUP) {
        var weight = 1.0;
        if (HAS_WEIGHT) {
            weight = load_weight(i * p.weight_step);
        }
        let v = (value(row, i) - mean - rest) * inverse * (weight + bitcast<f32>(p.offset));
        store_y(row.x + i * p.y_step, v + load_bias(i * p.bias_step));
    }
}
