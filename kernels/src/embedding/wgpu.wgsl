// A thread for each pair of columns of a token.

@compute @workgroup_size(64)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let i = linear(group) * 64u + lane;
    // Never 0: without columns there is no thread.
    let pairs = (p.width + 1u) / 2u;
    if (i >= p.tokens * pairs) {
        return;
    }
    let token = i / pairs;
    let column = (i % pairs) * 2u;
    let id = index_ids(token * p.ids_step, p.vocab);
    // Another dispatch has the rows of the table that are not in this part of it.
    if (id < p.first || id - p.first >= p.rows) {
        return;
    }
    let row = (id - p.first) * p.table_row;
    let at = token * p.out_row + column * p.out_step;
    let v = load_table(row + column * p.table_step);
    if (column + 1u == p.width) {
        store_out(at, v);
        return;
    }
    let w = load_table(row + (column + 1u) * p.table_step);
    if (p.out_step == 1u) {
        store2_out(at, vec2(v, w));
    } else {
        store_out(at, v);
        store_out(at + p.out_step, w);
    }
}
