fn masked(score: f32, at: u32) -> f32 {
    return select(score, least(), bits_mask(at).x == 0u);
}
