// A workgroup for 64 rows and 64 outputs, a thread for 4 of each. Sums are chains over CHAIN steps, added up in order.

const TILE = 64u;
const STEP = 16u;
// Vectors of a step of a tile, and one that keeps steps in different banks.
const PITCH = 17u;

var<workgroup> tile_a: array<vec4<f32>, STEP * PITCH>;
var<workgroup> tile_b: array<vec4<f32>, STEP * PITCH>;

fn put_columns(batch: u32, row: u32, column: u32, x: f32, y: f32) {
    let at = d_at(batch, row, column);
    if (p.d_step == 1u && column + 1u < p.count) {
        store2_d(at, vec2(x, y));
        return;
    }
    if (column < p.count) {
        store_d(at, x);
    }
    if (column + 1u < p.count) {
        store_d(at + p.d_step, y);
    }
}

fn put_row(batch: u32, row: u32, rows: u32, output: u32, sums: vec4<f32>) {
    let column = output >> GATED;
    if (row >= rows || column >= p.count) {
        return;
    }
    let last = p.count - 1u;
    let x = finished(batch, row, column, sums.x, sums.y);
    if (GATED == 1u) {
        put_columns(batch, row, column, x, finished(batch, row, min(column + 1u, last), sums.z, sums.w));
        return;
    }
    put_columns(batch, row, column, x, finished(batch, row, min(column + 1u, last), sums.y, 0.0));
    if (column + 2u < p.count) {
        let z = finished(batch, row, column + 2u, sums.z, 0.0);
        put_columns(batch, row, column + 2u, z, finished(batch, row, min(column + 3u, last), sums.w, 0.0));
    }
}

@compute @workgroup_size(256)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let outputs = p.count << GATED;
    let place = place_of(linear(group), TILE, TILE, lane == 0u);
    let batch = place.x;
    if (batch >= p.batch) {
        return;
    }
    let first_row = place.y;
    let first_output = place.z;
    let rows = place.w;
    let quad = lane % 16u;
    let line = lane / 16u;
    var chain = array<vec4<f32>, 4>();
    var total = array<vec4<f32>, 4>();
    for (var start = 0u; start < p.k; start += STEP) {
        // Four values along K of a row, or of four rows at one step, whichever lie side by side.
        if (A_BY_ROWS == 1u) {
            let row = first_row + quad * 4u;
            let k = start + line;
            let count = select(0u, left_of(row, rows), k < p.k);
            tile_a[line * PITCH + quad] = four_a(batch * p.a_batch + row * p.a_row + k * p.a_step, p.a_row, count);
        } else {
            let row = lane / 4u;
            let step = lane % 4u * 4u;
            let count = select(0u, left_of(start + step, p.k), first_row + row < rows);
            let at = batch * p.a_batch + (first_row + row) * p.a_row + (start + step) * p.a_step;
            let v = four_a(at, p.a_step, count);
            for (var i = 0u; i < 4u; i += 1u) {
                tile_a[(step + i) * PITCH + row / 4u][row % 4u] = v[i];
            }
        }
        if (B_BY_OUTPUTS == 1u) {
            let output = first_output + quad * 4u;
            let k = start + line;
            let count = select(0u, left_of(output, outputs), k < p.k);
            tile_b[line * PITCH + quad] = four_b(b_at(batch, output) + k * p.b_step, p.b_column, count);
        } else {
            let output = lane / 4u;
            let step = lane % 4u * 4u;
            let count = select(0u, left_of(start + step, p.k), first_output + output < outputs);
            let v = four_b(b_at(batch, first_output + output) + (start + step) * p.b_step, p.b_step, count);
            for (var i = 0u; i < 4u; i += 1u) {
                tile_b[(step + i) * PITCH + output / 4u][output % 4u] = v[i];
            }
        }
        workgroupBarrier();
        for (var k = 0u; k < STEP; k += 1u) {
            let a = tile_a[k * PITCH + line];
            let b = tile_b[k * PITCH + quad];
            chain[0] = fma(vec4(a.x), b, chain[0]);
            chain[1] = fma(vec4(a.y), b, chain[1]);
            chain[2] = fma(vec4(a.z), b, chain[2]);
            chain[3] = fma(vec4(a.w), b, chain[3]);
        }
        if ((start + STEP) % CHAIN == 0u || start + STEP >= p.k) {
            for (var i = 0u; i < 4u; i += 1u) {
                total[i] += chain[i];
                chain[i] = vec4<f32>();
            }
        }
        workgroupBarrier();
    }
    for (var i = 0u; i < 4u; i += 1u) {
        put_row(batch, first_row + line * 4u + i, rows, first_output + quad * 4u, total[i]);
    }
}
