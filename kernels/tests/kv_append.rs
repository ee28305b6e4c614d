//! The append into paged caches refuses wrong slots.

use sinew_kernels::kv_append::{self, KvAppendDynamic, KvAppendStatic};
use sinew_kernels::{Launch, Operands};
use sinew_memory::{Cpu, DeviceKind};
use sinew_tensor::{DType, Tensor};

#[test]
fn a_slot_outside_the_cache_is_refused_and_nothing_is_written() -> Result<(), Box<dyn std::error::Error>> {
    let device = Cpu::get();
    let stream = device.clone().stream()?;
    let fixed = KvAppendStatic { num_kv_heads: 1, head_dim: 4, source: DType::F32, kv: DType::F32, block_size: 2 };
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
