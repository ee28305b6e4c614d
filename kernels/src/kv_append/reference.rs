//! What each place of the caches should hold, and problems to try.

use sinew_tensor::{DType, PagedLayout};

use super::scaled::{self, Head, largest_code};
use super::{COS, K_CACHE, K_NEW, KeyRotary, KvAppend, KvAppendDynamic, KvAppendStatic, POSITIONS, SIN, SLOTS};
use crate::harness::case::{
    Case, Depth, Expected, Generator, HostOperands, Lay, Reference, Values, elements, host_operand,
};
use crate::rotary::reference::turned;
use crate::rotary::{self, Rotary, RotaryDynamic, Style};
use crate::support::stored::StoredAs;
use crate::{Arithmetic, Result};

const TOKENS: [usize; 7] = [1, 7, 0, 33, 2, 150, 16];
const HEADS: [usize; 5] = [2, 1, 3, 8, 7];
const HEAD_DIMS: [usize; 8] = [64, 80, 1, 20, 128, 13, 16, 33];
const BLOCK_SIZES: [usize; 5] = [16, 8, 5, 1, 64];
/// Caches with scales.
const SCALED: [DType; 2] = [DType::I8, DType::F8E4M3];

impl Reference for KvAppend {
    fn stored_as(stored: StoredAs) -> Option<(KvAppendStatic, KvAppendDynamic)> {
        let (kv, source, rotary) = (stored.plain()?, DType::F32, None);
        let fixed = KvAppendStatic { num_kv_heads: 2, head_dim: 20, source, kv, block_size: 16, rotary };
        Some((fixed, KvAppendDynamic { tokens: 3 }))
    }

    fn cases(depth: Depth) -> Vec<Case<Self>> {
        let mut pick = Generator::new(0xca4e);
        let count = match depth {
            Depth::Quick => 70,
            Depth::Full => 500,
        };
        let one = |i: usize| Case {
            fixed: KvAppendStatic {
                num_kv_heads: HEADS[pick.below(HEADS.len())],
                head_dim: HEAD_DIMS[pick.below(HEAD_DIMS.len())],
                source: DType::COMPUTE[i % 3],
                kv: DType::COMPUTE[i / 3 % 3],
                block_size: BLOCK_SIZES[pick.below(BLOCK_SIZES.len())],
                rotary: None,
            },
            call: KvAppendDynamic { tokens: TOKENS[i % TOKENS.len()] },
            lay: Lay::ALL[pick.below(5)],
            values: [Values::Normal, Values::Special, Values::Subnormal, Values::Integers][pick.below(4)],
            seed: pick.bits() >> 40,
        };
        let mut cases: Vec<Case<Self>> = (0..count).map(one).collect();
        // The same with keys that are turned: all of a head's values, or three quarters.
        for i in 0..count {
            let case = cases[i].clone();
            let (head_dim, style) = (case.fixed.head_dim, [Style::Half, Style::Interleaved][i / 2 % 2]);
            let rotary_dim = if i % 2 == 0 { head_dim } else { head_dim * 3 / 4 } / 2 * 2;
            let fixed = KvAppendStatic { rotary: Some(KeyRotary { rotary_dim, style }), ..case.fixed };
            cases.push(Case { fixed, ..case });
        }
        // The same again in caches with scales, keys as they are and turned.
        for i in 0..cases.len() {
            let case = cases[i].clone();
            let fixed = KvAppendStatic { kv: SCALED[i / 3 % 2], ..case.fixed };
            cases.push(Case { fixed, ..case });
        }
        cases
    }

    /// Caches that are partly full already; slots in no order, and a few given twice.
    fn operands(case: &Case<Self>) -> Result<HostOperands> {
        let (fixed, tokens) = (&case.fixed, case.call.tokens);
        let mut pick = Generator::new(case.seed);
        let rows = [tokens, fixed.num_kv_heads, fixed.head_dim];
        let k = pick.operand(fixed.source, &rows, case.lay, case.values)?;
        let v = pick.operand(fixed.source, &rows, case.lay, case.values)?;
        let blocks = tokens.div_ceil(fixed.block_size) + 2;
        let slots = (0..tokens).map(|_| pick.below(blocks * fixed.block_size) as f64).collect();
        let dtype = if pick.below(2) == 0 { DType::I64 } else { DType::U32 };
        let slots = host_operand(dtype, &[tokens], case.lay, slots, false)?;
        let shape = [blocks, fixed.num_kv_heads, fixed.block_size, fixed.head_dim];
        let count = elements(&shape)?;
        let mut filled = || {
            if PagedLayout::has_scales(fixed.kv) {
                let mut head = || Head::random(fixed.kv, fixed.head_dim, Values::Special, &mut pick);
                let heads: Vec<Head> = (0..shape[..3].iter().product()).map(|_| head()).collect();
                return scaled::operand(cache(case, blocks)?, &heads, case.lay, true);
            }
            let values = (0..count).map(|_| pick.value(Values::Special, fixed.kv)).collect();
            host_operand(fixed.kv, &shape, case.lay, values, true)
        };
        let outputs = vec![filled()?, filled()?];
        let mut inputs = vec![Some(k), Some(v), Some(slots)];
        if let Some(fixed) = fixed.rotary_alone() {
            // Positions and tables of as many tokens.
            let &Case { lay, values, seed, .. } = case;
            let call = RotaryDynamic { tokens, heads: 1 };
            let mut turn = Rotary::operands(&Case { fixed, call, lay, values, seed })?.inputs;
            inputs.extend([rotary::POSITIONS, rotary::COS, rotary::SIN].map(|input| turn[input].take()));
        }
        Ok(HostOperands { inputs, outputs })
    }

    /// Caches with scales: see `scaled::operand`.
    fn logical(case: &Case<Self>, _: usize, elements: &[f64]) -> Option<Vec<f64>> {
        let bytes: Vec<u8> = elements.iter().map(|&x| x as u8).collect();
        let of_block = case.fixed.num_kv_heads
            * case.fixed.block_size
            * PagedLayout::head_bytes(case.fixed.kv, case.fixed.head_dim);
        let scaled = PagedLayout::has_scales(case.fixed.kv);
        scaled.then(|| scaled::values(cache(case, bytes.len() / of_block).expect("it was made before"), &bytes))
    }

    /// The last token that was written to a place, turned where it is a key, rounded; else what was there.
    fn expect(
        case: &Case<Self>,
        host: &HostOperands,
        arithmetic: Arithmetic,
        output: usize,
        index: &[usize],
    ) -> Expected {
        let slot = index[0] * case.fixed.block_size + index[2];
        match host.input(SLOTS).values.iter().rposition(|&s| s as usize == slot) {
            Some(token) if PagedLayout::has_scales(case.fixed.kv) => {
                expect_scaled(case, host, arithmetic, output, [token, index[1], index[3]])
            }
            Some(token) => {
                if let (K_CACHE, Some(fixed)) = (output, case.fixed.rotary_alone()) {
                    let tables = [POSITIONS, COS, SIN].map(|input| host.input(input));
                    return turned(&fixed, host.input(K_NEW), tables, arithmetic, [token, index[1], index[3]]);
                }
                let new = host.input(K_NEW + output).at(&[token, index[1], index[3]]);
                Expected::exact(case.fixed.kv.round(new))
            }
            None => Expected::exact(host.outputs[output].at(index)),
        }
    }
}

/// The cache of a case with scales.
fn cache(case: &Case<KvAppend>, blocks: usize) -> Result<PagedLayout> {
    let KvAppendStatic { num_kv_heads, head_dim, kv, block_size, .. } = case.fixed;
    Ok(PagedLayout::new(blocks, num_kv_heads, block_size, head_dim, kv)?)
}

/// An element of a token's head, or its scale behind them. Of what is copied both are exact. What is turned may be a
/// little off before it is rounded: then the scale is as far off, and an element is within half a step of its codes.
fn expect_scaled(
    case: &Case<KvAppend>,
    host: &HostOperands,
    arithmetic: Arithmetic,
    output: usize,
    [token, head, d]: [usize; 3],
) -> Expected {
    let KvAppendStatic { head_dim, kv, .. } = case.fixed;
    let (Some(fixed), K_CACHE) = (case.fixed.rotary_alone(), output) else {
        let x: Vec<f64> = (0..head_dim).map(|d| host.input(K_NEW + output).at(&[token, head, d])).collect();
        return Head::of(kv, &x).values().nth(d).map_or(Expected::exact(f64::NAN), Expected::exact);
    };
    let tables = [POSITIONS, COS, SIN].map(|input| host.input(input));
    let turned = |d| turned(&fixed, host.input(K_NEW), tables, arithmetic, [token, head, d]);
    let x: Vec<Expected> = (0..head_dim).map(turned).collect();
    if x.iter().any(|x| !x.value.is_finite()) {
        return Expected::exact(f64::NAN);
    }
    let largest = x.iter().fold(0.0f64, |most, x| most.max(x.value.abs()));
    let error = x.iter().fold(0.0f64, |most, x| most.max(x.bound));
    let scale = (largest / largest_code(kv)).max(f64::from(f32::MIN_POSITIVE));
    let scale_error = error / largest_code(kv) + DType::F32.ulp(scale);
    let Some(x) = x.get(d) else { return Expected::within(scale, scale_error) };
    // Codes are next to quotients, which are f32 by themselves.
    let quotient = (x.value.abs() + error) / (scale - scale_error);
    let step = if kv == DType::I8 { 1.0 } else { kv.ulp(quotient) };
    let off = quotient * (scale_error + scale * 2f64.powi(-22));
    Expected::within(x.value, 0.5 * step * (scale + scale_error) + error + off)
}
