// What the mask makes of a score; zeros are added where there is none.
fn masked(score: f32, at: u32) -> f32 {
    return select(score, score + load_mask(at), HAS_MASK);
}
