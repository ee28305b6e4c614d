var<workgroup> sums: array<vec2<u32>, WORKGROUP>;

@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let row = linear(group);
    if (row >= p.rows) {
        return;
    }
    let start = at_x(row);
    var sum = vec2(0u);
    for (var i = lane.index; i < p.width; i += WORKGROUP) {
        sum = add(sum, load_x(start + at_width(i)));
    }
    sums[lane.index] = sum;
    for (var half = WORKGROUP / 2u; half > 0u; half /= 2u) {
        workgroupBarrier();
        if (lane.index < half) {
            sums[lane.index] = add(sums[lane.index], sums[lane.index + half]);
        }
    }
    if (lane.index == 0u) {
        store_y(at_y(row), sums[0]);
    }
}
