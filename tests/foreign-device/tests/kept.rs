//! What a device from outside keeps is what its rows read.

use std::sync::Arc;
use std::time::Duration;

use sinew_foreign_device::{Lagging, register};
use sinew_kernels::gemm::{Gemm, GemmStatic, Rhs};
use sinew_kernels::packed::{BF16_ROWS, F32_ROWS};
use sinew_kernels::{Compute, Registry};
use sinew_ops::layers::{WeightPacker, WeightRows};
use sinew_ops::{Context, Policy, Result, linear};
use sinew_tensor::{BlockFormat, BlockValues, DType};

fn context(registry: Registry) -> Result<Context> {
    Context::new(Lagging::new(0, Duration::from_micros(100)), Arc::new(registry), Policy::default())
}

#[test]
fn a_device_keeps_weights_in_the_formats_that_its_rows_multiply() -> Result<()> {
    let mut registry = Registry::standard();
    register(&mut registry);
    let ctx = context(registry)?;
    assert_eq!([DType::F32, DType::BF16].map(|dtype| ctx.format(dtype)), [Some(&F32_ROWS), Some(&BF16_ROWS)]);
    let int4 = BlockFormat::new(BlockValues::Int4, 32, DType::BF16, false)?;
    assert!(ctx.format(int4).is_none() && ctx.kept_blocks().next().is_none());
    assert_eq!(ctx.kept_weights(), "f32, f16, bf16");
    assert!(!ctx.keeps_kv(DType::F32, None), "nothing attends there");
    let product = |b| GemmStatic::new(2, 3, DType::F32, b, DType::F32, Compute::F32);
    assert!(ctx.supports::<Gemm>(&product(Rhs::Packed(&F32_ROWS))));
    assert!(!ctx.supports::<Gemm>(&GemmStatic { compute: Compute::Int8, ..product(Rhs::Strided(DType::F32)) }));

    let bytes: Vec<u8> = [1.0f32, 2.0, 3.0, 4.0, 5.0, 6.0].iter().flat_map(|x| x.to_le_bytes()).collect();
    let mut packer = WeightPacker::new(&ctx, DType::F32, &[2], 3, false)?;
    for slice in packer.slices(1) {
        let (_, range) = &slice.rows[0];
        let bytes = &bytes[range.start * 12..range.end * 12];
        packer.pack(&ctx, &slice, &[WeightRows::from_bytes(bytes, DType::F32, range.len(), 3)?])?;
    }
    let x = ctx.tensor(&[1.0f32, 10.0, 100.0], &[1, 3])?;
    let y = linear(&x, &packer.finish()?).run(&ctx)?;
    assert_eq!(y.to_vec_on::<f32>(&**ctx.stream())?, [321.0, 654.0]);
    Ok(())
}

#[test]
fn a_device_without_rows_keeps_no_weights() -> Result<()> {
    let ctx = context(Registry::standard())?;
    assert!(ctx.format(DType::F32).is_none());
    let refused = WeightPacker::new(&ctx, DType::F32, &[2], 3, false).expect_err("nothing multiplies it").to_string();
    assert!(refused.contains("f32 on lagging:0"), "{refused}");
    assert!(ctx.packed_shape(DType::F32, 1, [2, 3], false).is_err());
    Ok(())
}
