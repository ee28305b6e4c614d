//! Weights that are packed a strip of columns at a time.

use std::ops::Range;

use sinew_kernels::harness::case::{Generator, encode};
use sinew_kernels::packed::{BF16, Codes, Encoding, Format, RowCodes, WeightRows, Weights, formats};
use sinew_memory::{SimdLevel, Team};
use sinew_tensor::{DType, DType::F32};

/// `[k, n]`, as some checkpoints have weights.
fn by_columns(n: usize, k: usize) -> Vec<u8> {
    let mut generator = Generator::new(3);
    encode(F32, &(0..n * k).map(|_| generator.normal()).collect::<Vec<_>>())
}

/// Strips of one granule, two, one and the rest.
fn strips(granule: usize, k: usize) -> Vec<Range<usize>> {
    let mut ends: Vec<usize> = [0, 1, 3, 4].iter().map(|at| (at * granule).min(k)).chain([k]).collect();
    ends.dedup();
    ends.windows(2).map(|ends| ends[0]..ends[1]).collect()
}

fn pack(format: &Format, source: WeightRows<'_>, [k, of]: [usize; 2], start: usize, gated: bool, packed: &mut [u8]) {
    let team = Team::new(2).expect("threads");
    let sources = [source];
    let weights = Weights::new(&sources, gated);
    format.pack_strip(&team, SimdLevel::detected(), &weights, start..start + k, of, packed).expect("it packs");
}

#[test]
fn strips_in_any_order_give_the_bytes_of_the_whole() {
    for ([n, k], gated) in [([34, 700], false), ([70, 129], true), ([33, 64], false), ([2, 5], true)] {
        let bytes = by_columns(n, k);
        for format in formats() {
            let bytes_of = format.packed_bytes(n, k, gated);
            let (mut whole, mut of_floats) = (vec![0xff; bytes_of], vec![0x5a; bytes_of]);
            pack(format, WeightRows::from_columns(&bytes, F32, n, k, n).expect("fits"), [k, k], 0, gated, &mut whole);
            for strip in strips(format.strip_granule(), k).into_iter().rev() {
                let source =
                    WeightRows::from_columns(&bytes[strip.start * n * 4..], F32, n, strip.len(), n).expect("fits");
                pack(format, source, [strip.len(), k], strip.start, gated, &mut of_floats);
            }
            assert!(of_floats == whole, "{} [{n}, {k}]", format.name());
            let Encoding::Blocks(blocks) = format.encoding() else { continue };
            let (groups, size) = (k.div_ceil(blocks.group()), blocks.scale_dtype().size());
            let with_zeros = if blocks.zero_points() { groups } else { 0 };
            // What fills the last word of a row differs from that of floats.
            let (mut whole_codes, mut of_codes) = (vec![0xff; bytes_of], vec![0x5a; bytes_of]);
            let pack_codes = |strip: Range<usize>, packed: &mut [u8]| {
                let (mut codes, mut scales, mut zeros) = (Vec::new(), Vec::new(), Vec::new());
                for row in 0..n {
                    let (mut c, mut s, mut z) = (vec![0; k], vec![0; groups * size], vec![0; with_zeros]);
                    let into = RowCodes { codes: &mut c, scales: &mut s, zeros: &mut z };
                    format.unpack_codes(&whole, n, k, gated, row, into).expect("a row");
                    let groups = strip.start / blocks.group()..strip.end.div_ceil(blocks.group());
                    codes.extend(&c[strip.clone()]);
                    scales.extend(&s[groups.start * size..groups.end * size]);
                    zeros.extend(z.get(groups).unwrap_or_default());
                }
                let codes = Codes { format: blocks, codes: &codes, scales: &scales, zeros: &zeros };
                let source = WeightRows::from_codes(codes, n, strip.len()).expect("fits");
                pack(format, source, [strip.len(), k], strip.start, gated, packed);
            };
            pack_codes(0..k, &mut whole_codes);
            strips(format.strip_granule(), k).into_iter().for_each(|strip| pack_codes(strip, &mut of_codes));
            assert!(of_codes == whole_codes, "codes of {} [{n}, {k}]", format.name());
        }
    }
}

#[test]
fn strips_that_cut_what_is_packed_together_are_refused() {
    let (n, k) = (4, 70);
    let bytes = vec![0; n * k * 4];
    let team = Team::new(1).expect("a thread");
    let refused = |format: &Format, strip: Range<usize>, of: usize, per_channel: bool| {
        let rows = [WeightRows::from_bytes(&bytes[..n * strip.len() * 4], DType::F32, n, strip.len()).expect("fits")];
        let weights = Weights::new(&rows, false).per_channel(per_channel);
        let mut packed = vec![0; format.packed_bytes(n, of, false)];
        format.pack_strip(&team, SimdLevel::detected(), &weights, strip, of, &mut packed).err().map(|e| e.to_string())
    };
    assert_eq!(refused(&BF16, 2..6, k, false), None);
    for (strip, of) in [(1..6, k), (2..5, k), (68..72, k)] {
        let error = refused(&BF16, strip.clone(), of, false).unwrap_or_else(|| panic!("{strip:?} is packed"));
        assert!(error.contains(&format!("values {strip:?} of rows of {of}")), "{error}");
    }
    let blocks = formats().find(|format| format.strip_granule() == 32).expect("groups of 32");
    assert_eq!(refused(blocks, 32..64, k, false), None);
    assert!(refused(blocks, 16..64, k, false).is_some_and(|error| error.contains("multiples of 32")));
    assert!(refused(blocks, 32..64, k, true).is_some_and(|error| error.contains("one scale each")));
    assert_eq!(refused(blocks, 0..k, k, true), None);
}
