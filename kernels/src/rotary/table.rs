//! Tables of cosines and sines.

/// cos and sin for every position and pair, row-major `[positions, inv_freq.len()]`.
#[derive(Clone, Debug, PartialEq)]
pub struct Table {
    /// Cosines.
    pub cos: Vec<f32>,
    /// Sines.
    pub sin: Vec<f32>,
}

impl Table {
    /// Tables in which pair `i` at position `m` turns by `m · inv_freq[i]` radians, cosines and sines being multiplied
    /// by `attention_scale` (1, but for context stretched as YaRN does, Peng et al. 2023).
    ///
    /// Angle, cosine, sine and product are f64, and are rounded once: f32 angles would be off by 0.004 radians at
    /// position 131,071 already.
    ///
    /// ```
    /// let table = sinew_kernels::rotary::Table::build(&[1.0, 0.01], 1.0, 3);
    /// assert_eq!(table.cos.len(), 6);
    /// assert_eq!(table.sin[2 * 2 + 1], 0.02f64.sin() as f32);
    /// ```
    pub fn build(inv_freq: &[f64], attention_scale: f64, positions: usize) -> Self {
        let mut cos = Vec::with_capacity(positions * inv_freq.len());
        let mut sin = Vec::with_capacity(positions * inv_freq.len());
        for position in 0..positions {
            for freq in inv_freq {
                let (s, c) = (position as f64 * freq).sin_cos();
                cos.push((c * attention_scale) as f32);
                sin.push((s * attention_scale) as f32);
            }
        }
        Self { cos, sin }
    }
}

#[cfg(test)]
mod tests {
    use sinew_tensor::DType;

    use super::*;

    /// As many positions as Llama 3.1 has.
    const POSITIONS: usize = 131_072;

    #[test]
    fn the_last_position_is_right_to_half_an_ulp() {
        let inv_freq: Vec<f64> = (0..64).map(|i| 500_000f64.powf(-f64::from(i) / 64.0)).collect();
        for scale in [1.0, 1.138_629_436_111_989] {
            let table = Table::build(&inv_freq, scale, POSITIONS);
            let m = (POSITIONS - 1) as f64;
            for (i, &freq) in inv_freq.iter().enumerate() {
                // The exact product is `high + low`, and sin(high + low) is sin(high) + low·cos(high) but for low².
                let high = m * freq;
                let low = m.mul_add(freq, -high);
                let (s, c) = high.sin_cos();
                let at = (POSITIONS - 1) * 64 + i;
                for (got, exact) in [(table.cos[at], c - low * s), (table.sin[at], s + low * c)] {
                    let exact = exact * scale;
                    // Half an ulp of the result, and half of one of the f64 angle and of its product with the scale.
                    let bound = 0.5 * DType::F32.ulp(exact) + 0.5 * DType::F64.ulp(high) + DType::F64.ulp(exact);
                    assert!((f64::from(got) - exact).abs() <= bound, "pair {i}: {got:e}, exact {exact:e}");
                }
            }
        }
    }

    #[test]
    fn whole_angles_match_digits_computed_elsewhere() {
        // By Taylor series with 80 decimal digits.
        let known: [(usize, f64, f64); 4] = [
            (1, 0.540_302_305_868_139_8, 0.841_470_984_807_896_5),
            (1_000, 0.562_379_076_290_702_9, 0.826_879_540_532_002_5),
            (65_535, 0.192_344_018_605_863_98, 0.981_327_559_231_140_2),
            (131_071, -0.817_983_499_387_949_1, -0.575_241_683_754_789_3),
        ];
        let table = Table::build(&[1.0], 1.0, POSITIONS);
        for (position, cos, sin) in known {
            assert_eq!((table.cos[position], table.sin[position]), (cos as f32, sin as f32), "{position}");
        }
    }
}
