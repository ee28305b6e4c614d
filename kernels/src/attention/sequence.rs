//! One sequence of a call, and which of its keys its queries see.

use super::{AttentionStatic, OldKv, TILE};

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

/// Query rows of one head of keys: rows count tokens and, within each, the heads that share the keys.
#[derive(Clone, Copy)]
pub(super) struct Unit {
    /// The sequence's number.
    pub index: usize,
    pub sequence: Sequence,
    pub head: usize,
    pub first_row: usize,
    pub rows: usize,
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

    /// The first key that query `token` sees in the full dtype; 0 where there is no other. It does not fall as `token`
    /// rises.
    #[inline(always)]
    pub fn old_before(&self, fixed: &AttentionStatic, token: usize) -> usize {
        let position = (self.kv_len + token).checked_sub(self.query_len);
        fixed.old.zip(position).map_or(0, |(old, position)| old.before(position))
    }

    /// The first query that sees a tile as codes, where there are any; the number of queries if none does.
    #[inline(always)]
    pub fn first_query_of_old(&self, old: OldKv, tile: usize) -> usize {
        // Where its position + 1 - recent is the tile's end.
        let behind = (tile + TILE - 1 + self.query_len).saturating_add(old.recent);
        behind.saturating_sub(self.kv_len).min(self.query_len)
    }

    /// The keys that any of its queries sees in the full dtype, and those that any sees as codes.
    pub fn reach(&self, fixed: &AttentionStatic) -> [(usize, usize); 2] {
        let Some(last) = self.query_len.checked_sub(1) else { return [(0, 0); 2] };
        let (from, to) = (self.visible(fixed, 0).0, self.visible(fixed, last).1);
        [(from.max(self.old_before(fixed, 0)), to), (from, to.min(self.old_before(fixed, last)))]
    }
}
