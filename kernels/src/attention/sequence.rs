//! One sequence of a call, and which of its keys its queries see.

use super::AttentionStatic;

/// One sequence of a call.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(super) struct Sequence {
    /// The number of its first unit of work; of the one behind the last sequence, all units.
    pub first_unit: usize,
    /// Its first query among the tokens.
    pub query_start: usize,
    /// Its queries.
    pub query_len: usize,
    /// Its first key, where keys are dense.
    pub kv_start: usize,
    /// Its keys.
    pub kv_len: usize,
}

impl Sequence {
    /// The keys that query `token` of this sequence sees, if no mask forbids them. Neither end falls as `token` rises.
    pub fn visible(&self, fixed: &AttentionStatic, token: usize) -> (usize, usize) {
        let (len, far) = (self.kv_len as i64, i64::from(i32::MAX));
        let position = len - self.query_len as i64 + token as i64;
        let window = fixed.window.map(|w| i64::try_from(w).unwrap_or(far).min(far));
        let end = match window {
            _ if fixed.causal => position + 1,
            Some(window) => position + window,
            None => len,
        };
        let end = end.clamp(0, len);
        let start = window.map_or(0, |window| position + 1 - window).clamp(0, end);
        (start as usize, end as usize)
    }

    /// The keys that any of its queries sees.
    pub fn reach(&self, fixed: &AttentionStatic) -> (usize, usize) {
        match self.query_len {
            0 => (0, 0),
            n => (self.visible(fixed, 0).0, self.visible(fixed, n - 1).1),
        }
    }
}
