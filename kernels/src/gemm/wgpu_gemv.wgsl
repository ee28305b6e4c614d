// A workgroup for up to ROWS rows and 8 outputs. Each thread takes the chains of one output at one place of K, for all
// rows; chains are added up in order.

const OUTPUTS = 8u;
const THREADS = OUTPUTS * CHAINS;
const QUADS = CHAIN / 4u;
// Pitches that keep what threads read at once in different banks.
const PITCH = QUADS + 1u;
const SUMS = CHAINS + 1u;

var<workgroup> staged: array<vec4<f32>, ROWS * CHAINS * PITCH>;
var<workgroup> sums: array<f32, ROWS * OUTPUTS * SUMS>;

@compute @workgroup_size(THREADS)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(local_invocation_index) lane: u32) {
    let outputs = p.count << GATED;
    let place = place_of(linear(group), ROWS, OUTPUTS, lane == 0u);
    let batch = place.x;
    if (batch >= p.batch) {
        return;
    }
    let first_row = place.y;
    let first_output = place.z;
    let rows = place.w;
    let chain = lane % CHAINS;
    let output = lane / CHAINS;
    let b = b_at(batch, first_output + output);
    var total = 0.0;
    for (var start = 0u; start < p.k; start += CHAIN * CHAINS) {
        for (var i = lane; i < ROWS * CHAINS * QUADS; i += THREADS) {
            let row = first_row + i / (CHAINS * QUADS);
            let quad = i % (CHAINS * QUADS);
            let k = start + quad * 4u;
            let count = select(0u, left_of(k, p.k), row < rows);
            staged[i / QUADS * PITCH + i % QUADS] =
                four_a(batch * p.a_batch + row * p.a_row + k * p.a_step, p.a_step, count);
        }
        workgroupBarrier();
        var sum = array<f32, ROWS>();
        if (first_output + output < outputs) {
            for (var i = 0u; i < QUADS; i += 1u) {
                let k = start + chain * CHAIN + i * 4u;
                let w = four_b(b + k * p.b_step, p.b_step, left_of(k, p.k));
                for (var row = 0u; row < ROWS; row += 1u) {
                    let a = staged[(row * CHAINS + chain) * PITCH + i];
                    sum[row] = fma(a.w, w.w, fma(a.z, w.z, fma(a.y, w.y, fma(a.x, w.x, sum[row]))));
                }
            }
        }
        for (var row = 0u; row < ROWS; row += 1u) {
            sums[(output * ROWS + row) * SUMS + chain] = sum[row];
        }
        workgroupBarrier();
        // The next chains are stored behind another barrier.
        if (lane < OUTPUTS * ROWS) {
            for (var i = 0u; i < CHAINS; i += 1u) {
                total += sums[lane * SUMS + i];
            }
        }
    }
    workgroupBarrier();
    if (lane < OUTPUTS * ROWS) {
        sums[lane] = total;
    }
    workgroupBarrier();
    let row = first_row + lane % ROWS;
    let mine = first_output + lane / ROWS;
    let column = mine >> GATED;
    if (lane < OUTPUTS * ROWS && row < rows && column < p.count && (mine & GATED) == 0u) {
        store_d(d_at(batch, row, column), finished(batch, row, column, total, sums[lane + ROWS * GATED]));
    }
}
