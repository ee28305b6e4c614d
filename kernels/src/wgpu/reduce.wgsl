// Whether a key of two words is larger, or is the same and its number is lower.
fn is_before(a: vec3<u32>, b: vec3<u32>) -> bool {
    if (a.x != b.x) {
        return a.x > b.x;
    }
    return a.y > b.y || (a.y == b.y && a.z < b.z);
}

var<workgroup> reduced: array<f32, WORKGROUP>;
var<workgroup> counted: array<u32, WORKGROUP>;
var<workgroup> best: array<vec3<u32>, WORKGROUP>;
