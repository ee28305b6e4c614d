@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let i = linear(group) * WORKGROUP + lane.index;
    if (i >= p.count) {
        return;
    }
    var y = activation(load_x(at_x(i)));
    if (HAS_UP) {
        y *= factor(load_up(at_up(i)));
    }
    store_y(at_y(i), y);
}
