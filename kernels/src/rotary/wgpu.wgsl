@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, lane: Lane) {
    let i = linear(group) * WORKGROUP + lane.index;
    let unit = i % p.units;
    let row = i / p.units;
    let token = row / p.heads;
    let head = row % p.heads;
    if (token >= p.tokens) {
        return;
    }
    let out = token * p.out_token + head * p.out_head;
    let x = token * p.x_token + head * p.x_head;
    if (unit >= p.pairs) {
        let value = p.pairs + unit;
        store_out(out + value * p.out_value, load_x(x + value * p.x_value));
        return;
    }
    // Another dispatch has the positions that are not in this part of the table.
    let position = index_positions(token * p.position_stride, p.length) - p.first;
    if (position >= p.there) {
        return;
    }
    let first = unit * p.step;
    let second = first + p.partner;
    let a = load_x(x + first * p.x_value);
    let b = load_x(x + second * p.x_value);
    let cos = load_cos(position * p.cos_position + unit * p.cos_pair);
    let sin = load_sin(position * p.sin_position + unit * p.sin_pair);
    store_out(out + first * p.out_value, a * cos - b * sin);
    store_out(out + second * p.out_value, b * cos + a * sin);
}
