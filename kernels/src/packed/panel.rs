//! The geometry of panels: how many there are, and which outputs each holds.

use std::ops::Range;

use crate::simd::LANES;

/// Outputs of a panel: one step of their sums is two vector loads.
pub const PANEL: usize = 2 * LANES;

/// The outputs that panels share out: 32 in order to each; or, where the first half gates the second, 16 gates and the
/// 16 ups that belong to them.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Outputs {
    /// All outputs, gates and ups together.
    pub n: usize,
    /// Whether gates and ups are interleaved.
    pub gated: bool,
}

impl Outputs {
    /// Columns of a product with them.
    #[inline(always)]
    pub fn columns(self) -> usize {
        if self.gated { self.n / 2 } else { self.n }
    }

    /// Columns that a full panel gives.
    #[inline(always)]
    pub fn columns_per_panel(self) -> usize {
        if self.gated { LANES } else { PANEL }
    }

    /// Panels.
    pub fn panels(self) -> usize {
        self.columns().div_ceil(self.columns_per_panel())
    }

    /// The outputs in lanes `16·half..` of a panel, from the first of these lanes on; others are empty.
    #[inline(always)]
    pub fn half_panel(self, panel: usize, half: usize) -> Range<usize> {
        let columns = self.columns();
        let (start, offset) =
            if self.gated { (panel * LANES, half * columns) } else { (panel * PANEL + half * LANES, 0) };
        offset + start.min(columns)..offset + (start + LANES).min(columns)
    }

    /// The panel that holds an output, and its lane there.
    pub fn place(self, output: usize) -> (usize, usize) {
        let columns = self.columns();
        match self.gated {
            false => (output / PANEL, output % PANEL),
            true if output < columns => (output / LANES, output % LANES),
            true => ((output - columns) / LANES, (output - columns) % LANES + LANES),
        }
    }

    /// Where an output lies among rows that are stored one after another.
    #[inline(always)]
    pub fn row_major(self, output: usize) -> usize {
        let columns = self.columns();
        match self.gated {
            false => output,
            true if output < columns => 2 * output,
            true => 2 * (output - columns) + 1,
        }
    }

    /// The columns of a product that a run of panels gives.
    pub fn panel_columns(self, panels: Range<usize>) -> Range<usize> {
        let at = |panel: usize| panel.saturating_mul(self.columns_per_panel()).min(self.columns());
        at(panels.start)..at(panels.end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_output_has_the_one_place_where_its_panel_holds_it() {
        for gated in [false, true] {
            for n in [0, 1, 2, 15, 16, 17, 30, 31, 32, 33, 34, 62, 64, 66, 70, 97, 130] {
                if gated && n % 2 == 1 {
                    continue;
                }
                let outputs = Outputs { n, gated };
                let mut held = Vec::new();
                for panel in 0..outputs.panels() {
                    for half in 0..2 {
                        for (lane, output) in outputs.half_panel(panel, half).enumerate() {
                            assert_eq!(outputs.place(output), (panel, half * LANES + lane), "{output} of {outputs:?}");
                            held.push(output);
                        }
                    }
                }
                held.sort_unstable();
                assert!(held.into_iter().eq(0..n), "{outputs:?}");
            }
        }
    }

    #[test]
    fn runs_of_panels_give_columns_in_order() {
        let columns = |gated, panels| Outputs { n: 70, gated }.panel_columns(panels);
        assert_eq!([columns(false, 0..2), columns(false, 2..3)], [0..64, 64..70]);
        assert_eq!([columns(true, 0..2), columns(true, 2..3)], [0..32, 32..35]);
    }
}
