//! The f64 reference of a rotary embedding, and the cases.

use sinew_tensor::DType;

use super::{COS, OUT, POSITIONS, Rotary, RotaryDynamic, RotaryStatic, SIN, Style, Table, X};
use crate::harness::case::{
    Case, Depth, Expected, Generator, HostOperand, HostOperands, Lay, Reference, Values, host_operand,
};
use crate::support::stored::StoredAs;
use crate::{Arithmetic, Result};

/// Units in the last place of f32 that a row may be off, at the larger magnitude of a pair: three roundings of half an
/// ulp where both products and the sum are rounded, each of at most √2 times that magnitude and so of twice its ulp.
const ULPS: f64 = 4.0;
/// Subnormals of a result: both inputs, both products, and itself.
const FLUSHED: f64 = 5.0;

/// head_dim and rotary_dim of models, and awkward ones.
const WIDTHS: [(usize, usize); 14] = [
    (64, 64),
    (128, 128),
    (80, 80),
    (80, 32),
    (20, 20),
    (20, 4),
    (128, 64),
    (96, 66),
    (67, 34),
    (5, 4),
    (2, 2),
    (3, 0),
    (1, 0),
    (256, 256),
];

/// Tokens and heads, from none to several tasks.
const CALLS: [(usize, usize); 9] = [(1, 1), (3, 5), (1, 32), (7, 1), (2, 3), (0, 4), (3, 0), (13, 11), (67, 7)];

/// The length of a case's tables: Llama 3.1's context where the tables are narrow, a prime elsewhere.
fn table_length(fixed: &RotaryStatic) -> usize {
    if (1..=4).contains(&fixed.rotary_dim) { 131_072 } else { 521 }
}

impl Reference for Rotary {
    fn stored_as(stored: StoredAs) -> Option<(RotaryStatic, RotaryDynamic)> {
        let x = stored.plain()?;
        let fixed = RotaryStatic { head_dim: 20, rotary_dim: 20, style: Style::Half, x, out: x, in_place: false };
        Some((fixed, RotaryDynamic { tokens: 3, heads: 2 }))
    }

    fn cases(depth: Depth) -> Vec<Case<Self>> {
        let rounds = if depth == Depth::Quick { 2 } else { 16 };
        let mut pick = Generator::new(0x0807_a219);
        let mut cases = Vec::new();
        // Every lay with every style, dtype and place; the rest as it falls.
        for round in 0..rounds {
            for lay in Lay::ALL {
                for style in [Style::Half, Style::Interleaved] {
                    for x in DType::COMPUTE {
                        for in_place in [false, true] {
                            let seed = pick.bits();
                            let n = cases.len();
                            let (head_dim, rotary_dim) = WIDTHS[(n + round) % WIDTHS.len()];
                            let (tokens, heads) = CALLS[pick.below(CALLS.len())];
                            let out = if in_place { x } else { DType::COMPUTE[pick.below(3)] };
                            let values =
                                [Values::Normal, Values::Integers, Values::Special, Values::Subnormal][pick.below(4)];
                            cases.push(Case {
                                fixed: RotaryStatic { head_dim, rotary_dim, style, x, out, in_place },
                                call: RotaryDynamic { tokens, heads },
                                lay,
                                values,
                                seed,
                            });
                        }
                    }
                }
            }
        }
        cases
    }

    fn operands(case: &Case<Self>) -> Result<HostOperands> {
        let mut generator = Generator::new(case.seed);
        let RotaryStatic { head_dim, rotary_dim, x, out, in_place, .. } = case.fixed;
        let RotaryDynamic { tokens, heads } = case.call;
        let shape = [tokens, heads, head_dim];
        // Operands that lie differently must not share a fast path: half of the cases mix.
        let mixed = if case.seed & 1 == 0 { case.lay } else { Lay::Contiguous };
        let out_lay = if case.seed & 2 == 0 { case.lay } else { Lay::Contiguous };

        let length = table_length(&case.fixed);
        let pairs = rotary_dim / 2;
        let inv_freq: Vec<f64> = (0..pairs).map(|i| 10_000f64.powf(-(i as f64) / pairs as f64)).collect();
        let scale = if case.seed & 4 == 0 { 1.0 } else { 1.1875 };
        let table = Table::build(&inv_freq, scale, length);
        // The last position is always met, and the first where there is another token.
        let positions = (0..tokens)
            .map(|token| if token + 1 == tokens { length - 1 } else { token.min(1) * generator.below(length) } as f64)
            .collect();
        let widen = |values: Vec<f32>| values.into_iter().map(f64::from).collect();
        let mut inputs = vec![None; 4];
        inputs[POSITIONS] = Some(host_operand(DType::I32, &[tokens], case.lay, positions, false)?);
        inputs[COS] = Some(host_operand(DType::F32, &[length, pairs], mixed, widen(table.cos), false)?);
        inputs[SIN] = Some(host_operand(DType::F32, &[length, pairs], mixed, widen(table.sin), false)?);
        let output = if in_place {
            let values = (0..shape.iter().product()).map(|_| generator.value(case.values, x)).collect();
            host_operand(out, &shape, case.lay, values, true)?
        } else {
            inputs[X] = Some(generator.operand(x, &shape, case.lay, case.values)?);
            generator.output(out, &shape, out_lay)?
        };
        Ok(HostOperands { inputs, outputs: vec![output] })
    }

    fn expect(case: &Case<Self>, host: &HostOperands, arithmetic: Arithmetic, _: usize, index: &[usize]) -> Expected {
        let &[token, head, at] = index else { return Expected::exact(f64::NAN) };
        let x = if case.fixed.in_place { &host.outputs[OUT] } else { host.input(X) };
        let tables = [POSITIONS, COS, SIN].map(|input| host.input(input));
        turned(&case.fixed, x, tables, arithmetic, [token, head, at])
    }
}

/// An element of `x`, turned by positions, cosines and sines.
pub(crate) fn turned(
    fixed: &RotaryStatic,
    x: &HostOperand,
    [positions, cos, sin]: [&HostOperand; 3],
    arithmetic: Arithmetic,
    [token, head, at]: [usize; 3],
) -> Expected {
    let RotaryStatic { rotary_dim, style, out, .. } = *fixed;
    let own = x.at(&[token, head, at]);
    if at >= rotary_dim {
        return Expected::exact(out.round(own));
    }
    let half = rotary_dim / 2;
    let (pair, first, other) = match style {
        Style::Half => (at % half, at < half, (at + half) % rotary_dim),
        Style::Interleaved => (at / 2, at.is_multiple_of(2), at ^ 1),
    };
    let other = x.at(&[token, head, other]);
    let position = positions.at(&[token]) as usize;
    let (cos, sin) = (cos.at(&[position, pair]), sin.at(&[position, pair]));
    let value = if first { own * cos - other * sin } else { own * cos + other * sin };
    let larger = own.abs().max(other.abs()) * cos.hypot(sin).max(1.0);
    if cos == 1.0 && sin == 0.0 {
        return Expected::exact(out.round(value)).flushing(arithmetic, FLUSHED, larger);
    }
    let error = ULPS * DType::F32.ulp(larger);
    let rounding = if out == DType::F32 { 0.0 } else { 0.5 * out.ulp(value.abs() + error) };
    Expected::within(value, error + rounding).flushing(arithmetic, FLUSHED, larger)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cases_meet_every_value_width_and_call() {
        let cases = Rotary::cases(Depth::Quick);
        assert!(cases.iter().any(|c| table_length(&c.fixed) == 131_072 && c.call.tokens * c.call.heads > 0));
        for values in [Values::Normal, Values::Integers, Values::Special, Values::Subnormal] {
            assert!(cases.iter().filter(|c| c.values == values).count() > 10);
        }
        for (tokens, heads) in CALLS {
            assert!(cases.iter().any(|c| c.call == RotaryDynamic { tokens, heads }));
        }
        for style in [Style::Half, Style::Interleaved] {
            for (head_dim, _) in WIDTHS {
                assert!(cases.iter().any(|c| c.fixed.style == style && c.fixed.head_dim == head_dim));
            }
            for x in DType::COMPUTE {
                for out in DType::COMPUTE {
                    let found = cases.iter().any(|c| (c.fixed.style, c.fixed.x, c.fixed.out) == (style, x, out));
                    assert!(found, "{style:?} {x} {out}");
                }
            }
        }
    }
}
