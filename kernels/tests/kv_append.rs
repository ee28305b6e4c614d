//! The append into paged caches refuses wrong slots and positions, turns keys as their rotary embedding does, and gives
//! heads with scales the codes that it says.

use std::sync::Arc;

use sinew_kernels::kv_append::{self, KeyRotary, KvAppend, KvAppendDynamic, KvAppendStatic};
use sinew_kernels::rotary::{self, RotaryDynamic, RotaryStatic, Style, Table};
use sinew_kernels::{Launch, Operands, Row};
use sinew_memory::{Buffer, Cpu, Device, DeviceKind};
use sinew_tensor::{DType, PagedLayout, Tensor, View};

/// Everything that a row of the append may be given, in f32, f16, bf16 and with scales.
const KV: [DType; 5] = [DType::F32, DType::F16, DType::BF16, DType::I8, DType::F8E4M3];

/// Runs a row over an empty cache of `blocks` blocks, and returns the bytes of keys and of values.
fn appended(
    device: &Arc<dyn Device>,
    row: &Row<KvAppend>,
    fixed: &KvAppendStatic,
    blocks: usize,
    inputs: &[Option<View<'_>>],
) -> Result<[Vec<u8>; 2], Box<dyn std::error::Error>> {
    let cache = PagedLayout::new(blocks, fixed.num_kv_heads, fixed.block_size, fixed.head_dim, fixed.kv)?;
    let empty = || Tensor::zeros(device, cache.stored(), cache.layout().shape());
    let (mut keys, mut values) = (empty()?, empty()?);
    let call = KvAppendDynamic { tokens: inputs[kv_append::SLOTS].as_ref().map_or(0, |slots| slots.shape()[0]) };
    let mut workspace = Buffer::uninitialised(device, (row.workspace)(fixed, &call, device.hardware()))?;
    let outputs = [keys.view_mut()?, values.view_mut()?];
    let stream = device.clone().stream()?;
    let launch = Launch::new(&stream, Some(&mut workspace))?;
    row.launch(&launch, fixed, &call, Operands { inputs, outputs: &outputs })?;
    Ok([keys.buffer().as_slice::<u8>()?.to_vec(), values.buffer().as_slice::<u8>()?.to_vec()])
}

#[test]
fn a_slot_outside_the_cache_is_refused_and_nothing_is_written() -> Result<(), Box<dyn std::error::Error>> {
    let device = Cpu::get();
    let stream = device.clone().stream()?;
    let fixed = KvAppendStatic {
        num_kv_heads: 1,
        head_dim: 4,
        source: DType::F32,
        kv: DType::F32,
        block_size: 2,
        rotary: None,
    };
    let new = Tensor::from_slice(&device, &[1.0f32; 8], &[2, 1, 4])?;
    for slots in [[0i64, 6], [0, -1], [0, i64::MIN], [0, i64::MAX]] {
        let slots = Tensor::from_slice(&device, &slots, &[2])?;
        let mut caches = [0, 1].map(|_| Tensor::zeros(&device, DType::F32, &[3, 1, 2, 4]));
        let [Ok(k), Ok(v)] = &mut caches else { panic!("no memory") };
        let mut refused = 0;
        for row in kv_append::rows().into_iter().filter(|row| row.device == DeviceKind::CPU) {
            if (row.admits)(&fixed, device.hardware()).is_err() {
                continue;
            }
            let inputs = [Some(new.view()), Some(new.view()), Some(slots.view())];
            let outputs = [k.view_mut()?, v.view_mut()?];
            let launch = Launch::new(&stream, None)?;
            let operands = Operands { inputs: &inputs, outputs: &outputs };
            let error = row.launch(&launch, &fixed, &KvAppendDynamic { tokens: 2 }, operands).expect_err("refused");
            assert!(error.to_string().contains("slots[1]"), "{error}");
            refused += 1;
        }
        assert!(refused > 0);
        assert!(k.to_vec::<f32>()?.iter().all(|x| *x == 0.0));
    }
    Ok(())
}

#[test]
fn keys_are_turned_to_the_bits_of_a_rotary_embedding_before() -> Result<(), Box<dyn std::error::Error>> {
    let device = Cpu::get();
    let stream = device.clone().stream()?;
    let (tokens, heads, head_dim, block_size) = (37, 3, 20, 8);
    let values = |start: usize| -> Vec<f32> {
        (0..tokens * heads * head_dim).map(|i| ((i * 7919 + start) % 1000) as f32 / 300.0 - 1.7).collect()
    };
    let new = |start| Tensor::from_slice(&device, &values(start), &[tokens, heads, head_dim]);
    let (k, v) = (new(1)?, new(2)?);
    let slots = Tensor::from_slice(&device, &(0..tokens as i64).map(|i| i * 5 % 40).collect::<Vec<_>>(), &[tokens])?;
    let positions: Vec<i32> = (0..tokens as i32).map(|i| i * 11 % 50).collect();
    let positions = Tensor::from_slice(&device, &positions, &[tokens])?;
    for (rotary_dim, style) in [(20, Style::Half), (14, Style::Half), (20, Style::Interleaved), (0, Style::Half)] {
        let pairs = rotary_dim / 2;
        let table = Table::build(&(0..pairs).map(|i| 0.7f64.powi(i)).collect::<Vec<_>>(), 1.1, 50);
        let [cos, sin] = [table.cos, table.sin].map(|table| Tensor::from_slice(&device, &table, &[50, pairs as usize]));
        let (cos, sin) = (cos?, sin?);
        for kv in KV {
            let plain =
                KvAppendStatic { num_kv_heads: heads, head_dim, source: DType::F32, kv, block_size, rotary: None };
            let rotary_dim = rotary_dim as usize;
            let turning = KvAppendStatic { rotary: Some(KeyRotary { rotary_dim, style }), ..plain.clone() };
            let turns = rotary::rows().into_iter().filter(|row| row.device == DeviceKind::CPU);
            let appends = kv_append::rows().into_iter().filter(|row| row.device == DeviceKind::CPU);
            for (turn, append) in turns.zip(appends) {
                if (append.admits)(&turning, device.hardware()).is_err() {
                    continue;
                }
                let caches = |fixed: &KvAppendStatic, k: &Tensor| {
                    let mut inputs = vec![Some(k.view()), Some(v.view()), Some(slots.view())];
                    if fixed.rotary.is_some() {
                        inputs.extend([Some(positions.view()), Some(cos.view()), Some(sin.view())]);
                    }
                    appended(&device, &append, fixed, 5, &inputs)
                };
                let mut turned = new(1)?;
                let (x, in_place) = (DType::F32, true);
                let fixed = RotaryStatic { head_dim, rotary_dim, style, x, out: x, in_place };
                let inputs = [None, Some(positions.view()), Some(cos.view()), Some(sin.view())];
                let outputs = [turned.view_mut()?];
                let operands = Operands { inputs: &inputs, outputs: &outputs };
                turn.launch(&Launch::new(&stream, None)?, &fixed, &RotaryDynamic { tokens, heads }, operands)?;
                let (apart, together) = (caches(&plain, &turned)?, caches(&turning, &k)?);
                assert!(apart == together, "{}: {turning}", append.name);
            }
        }
    }
    Ok(())
}

#[test]
fn heads_have_the_scales_and_codes_that_are_said_of_them() -> Result<(), Box<dyn std::error::Error>> {
    const DIM: usize = 19;
    let device = Cpu::get();
    let head = |values: &[f32]| -> Vec<f32> { values.iter().copied().chain([0.0; DIM]).take(DIM).collect() };
    let tiny = f32::MIN_POSITIVE;
    // Values, and what becomes of them: a scale, and the first codes, in int8 and in fp8.
    let (nan, inf) = (f32::NAN, f32::INFINITY);
    let heads = [
        (head(&[0.0, -0.0]), [(tiny, [0, 0, 0]), (tiny, [0, 0x80, 0])]),
        // Ties go to the even code: 0.5, 1.5 and 2.5 steps. In fp8, 64 times larger, 2^7 is 0x70, 17/16 of it a tie.
        (head(&[63.5, 0.75, -1.25]), [(0.5, [127, 2, 0xfe]), (63.5 / 448.0, [0x7e, 0x4b, 0xd1])]),
        (head(&[-448.0, 128.0, 136.0]), [(448.0 / 127.0, [0x81, 36, 39]), (1.0, [0xfe, 0x70, 0x70])]),
        (head(&[1.0, nan]), [(nan, [0; 3]), (nan, [0; 3])]),
        (head(&[-inf, 1.0, 2.0]), [(nan, [0; 3]), (nan, [0; 3])]),
        // Less than a scale may be: codes of the least scale.
        (head(&[3.0 * tiny, -tiny, tiny / 4.0]), [(tiny, [3, 0xff, 0]), (tiny, [0x44, 0xb8, 0x28])]),
        (head(&[f32::MAX, -f32::MAX / 4.0]), [(f32::MAX / 127.0, [127, 0xe0, 0]), (f32::MAX / 448.0, [0x7e, 0xee, 0])]),
    ];
    let tokens = heads.len();
    let new: Vec<f32> = heads.iter().flat_map(|(values, _)| values.clone()).collect();
    let new = Tensor::from_slice(&device, &new, &[tokens, 1, DIM])?;
    let slots = Tensor::from_slice(&device, &(0..tokens as i64).collect::<Vec<_>>(), &[tokens])?;
    let inputs = [Some(new.view()), Some(new.view()), Some(slots.view())];
    for (which, kv) in [DType::I8, DType::F8E4M3].into_iter().enumerate() {
        let fixed =
            KvAppendStatic { num_kv_heads: 1, head_dim: DIM, source: DType::F32, kv, block_size: 4, rotary: None };
        let cache = PagedLayout::new(2, 1, 4, DIM, kv)?;
        for row in kv_append::rows().into_iter().filter(|row| row.device == DeviceKind::CPU) {
            if (row.admits)(&fixed, device.hardware()).is_err() {
                continue;
            }
            for bytes in appended(&device, &row, &fixed, 2, &inputs)? {
                for (token, (values, expected)) in heads.iter().enumerate() {
                    let (block, slot) = (token / 4, token % 4);
                    let at = cache.scale_index(block, 0, slot).ok_or("a scale")?;
                    let scale = f32::from_le_bytes([bytes[at], bytes[at + 1], bytes[at + 2], bytes[at + 3]]);
                    let codes = cache.index(block, 0, slot, 0).ok_or("codes")?;
                    let (expected, what) = (expected[which], format!("{} {kv} {:?}", row.name, &values[..3]));
                    assert!(scale == expected.0 || (scale.is_nan() && expected.0.is_nan()), "{what}: {scale:e}");
                    assert_eq!(bytes[codes..codes + 3], expected.1, "{what}");
                    assert!(bytes[codes + 3..codes + DIM].iter().all(|&code| code == 0), "{what}");
                }
            }
        }
    }
    Ok(())
}
