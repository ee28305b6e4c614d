//! The append into paged caches refuses wrong slots and positions, and turns keys as their rotary embedding does.

use sinew_kernels::kv_append::{self, KeyRotary, KvAppendDynamic, KvAppendStatic};
use sinew_kernels::rotary::{self, RotaryDynamic, RotaryStatic, Style, Table};
use sinew_kernels::{Launch, Operands};
use sinew_memory::{Cpu, DeviceKind};
use sinew_tensor::{DType, Tensor};

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
        for row in kv_append::rows().into_iter().filter(|row| row.device == DeviceKind::CPU) {
            let inputs = [Some(new.view()), Some(new.view()), Some(slots.view())];
            let outputs = [k.view_mut()?, v.view_mut()?];
            let launch = Launch::new(&stream, None)?;
            let operands = Operands { inputs: &inputs, outputs: &outputs };
            let error = row.launch(&launch, &fixed, &KvAppendDynamic { tokens: 2 }, operands).expect_err("refused");
            assert!(error.to_string().contains("slots[1]"), "{error}");
        }
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
        for kv in DType::COMPUTE {
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
                let caches = |fixed: &KvAppendStatic, k: &Tensor| -> Result<[Tensor; 2], Box<dyn std::error::Error>> {
                    let empty = || Tensor::zeros(&device, kv, &[5, heads, block_size, head_dim]);
                    let (mut keys, mut values) = (empty()?, empty()?);
                    let mut inputs = vec![Some(k.view()), Some(v.view()), Some(slots.view())];
                    if fixed.rotary.is_some() {
                        inputs.extend([Some(positions.view()), Some(cos.view()), Some(sin.view())]);
                    }
                    let outputs = [keys.view_mut()?, values.view_mut()?];
                    let operands = Operands { inputs: &inputs, outputs: &outputs };
                    append.launch(&Launch::new(&stream, None)?, fixed, &KvAppendDynamic { tokens }, operands)?;
                    Ok([keys, values])
                };
                let mut turned = new(1)?;
                let (x, in_place) = (DType::F32, true);
                let fixed = RotaryStatic { head_dim, rotary_dim, style, x, out: x, in_place };
                let inputs = [None, Some(positions.view()), Some(cos.view()), Some(sin.view())];
                let outputs = [turned.view_mut()?];
                let operands = Operands { inputs: &inputs, outputs: &outputs };
                turn.launch(&Launch::new(&stream, None)?, &fixed, &RotaryDynamic { tokens, heads }, operands)?;
                let bytes =
                    |caches: [Tensor; 2]| caches.map(|cache| cache.buffer().as_slice::<u8>().map(<[u8]>::to_vec));
                let (apart, together) = (bytes(caches(&plain, &turned)?), bytes(caches(&turning, &k)?));
                for (apart, together) in apart.into_iter().zip(together) {
                    assert!(apart? == together?, "{}: {turning}", append.name);
                }
            }
        }
    }
    Ok(())
}
