// Elements that a thread adds up before it adds the sum to its others.
const BLOCK: u32 = 32u;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let row = linear(group);
    if (row >= p.rows) {
        return;
    }
    let start = at_x(row);
    var sum = 0.0;
    var i = lane.index;
    while (i < p.width) {
        var block = 0.0;
        for (var n = 0u; n < BLOCK && i < p.width; n += 1u) {
            block += load_x(start + at_width(i));
            i += WORKGROUP;
        }
        sum += block;
    }
    sum = sum_all(sum, lane);
    if (MEAN == 1u) {
        sum /= f32(p.width);
    }
    if (lane.index == 0u) {
        store_y(at_y(row), sum);
    }
}
