//! Weights on a device from outside, whose bytes the host cannot reach: it keeps what its rows read, and they are packed
//! on the host, several slices at once.

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

#[test]
fn gates_and_ups_of_experts_come_to_lie_in_turn() -> Result<()> {
    const GROUPS: usize = 3;
    const ROWS: usize = 70;
    const K: usize = 5;
    let device = Lagging::new(0, Duration::ZERO);
    let mut registry = Registry::standard();
    register(&mut registry);
    let ctx = Context::new(device, Arc::new(registry), Policy::default())?;
    // Matrix after matrix, each a gate or an up: every value tells its place.
    let value = |matrix: usize, row: usize, k: usize| ((matrix * ROWS + row) * K + k) as f32;
    let matrix =
        |matrix: usize| -> Vec<u8> { (0..ROWS * K).flat_map(|i| value(matrix, i / K, i % K).to_le_bytes()).collect() };
    let matrices: Vec<Vec<u8>> = (0..2 * GROUPS).map(matrix).collect();
    let mut packer = WeightPacker::grouped(&ctx, DType::F32, GROUPS, &[ROWS, ROWS], K, true)?;
    let slices = packer.slices_for(ctx.host_threads(), 3 * 2 * K * 4);
    assert!(slices.len() > 2 * ctx.host_threads() && slices.len() >= GROUPS * ROWS / 3, "{} slices", slices.len());
    packer.pack_each(&ctx, &slices, |slice| {
        let pieces = slice.slice.rows.iter().map(|(matrix, rows)| {
            let bytes = &matrices[*matrix][rows.start * K * 4..rows.end * K * 4];
            WeightRows::from_bytes(bytes, DType::F32, rows.len(), K)
        });
        slice.pack(&pieces.collect::<std::result::Result<Vec<_>, _>>()?)
    })?;
    let packed = packer.finish()?.tensor().to_vec_on::<u8>(&**ctx.stream())?;
    let there: Vec<f32> = packed.as_chunks::<4>().0.iter().map(|&bytes| f32::from_le_bytes(bytes)).collect();
    let expected =
        (0..GROUPS).flat_map(|group| (0..2 * ROWS * K).map(move |i| value(2 * group + i / K % 2, i / (2 * K), i % K)));
    assert_eq!(there, expected.collect::<Vec<_>>());
    Ok(())
}

#[test]
fn slices_with_others_between_them_leave_those_alone() -> Result<()> {
    const N: usize = 40;
    const K: usize = 6;
    let mut registry = Registry::standard();
    register(&mut registry);
    let ctx = Context::new(Lagging::new(0, Duration::ZERO), Arc::new(registry), Policy::default())?;
    let bytes: Vec<u8> = (0..N * K).flat_map(|i| (i as f32).to_le_bytes()).collect();
    let mut packer = WeightPacker::table(&ctx, DType::F32, N, K)?;
    let slices = packer.slices(10 * K * 4);
    assert_eq!(slices.len(), 4);
    for given in [&[1, 2][..], &[0, 3]] {
        let given: Vec<_> = given.iter().map(|&i| slices[i].clone()).collect();
        packer.pack_each(&ctx, &given, |slice| {
            let (_, rows) = slice.slice.rows[0].clone();
            let bytes = &bytes[rows.start * K * 4..rows.end * K * 4];
            slice.pack(&[WeightRows::from_bytes(bytes, DType::F32, rows.len(), K)?])
        })?;
    }
    let table = packer.finish_table()?.to_vec_on::<f32>(&**ctx.stream())?;
    assert_eq!(table, (0..N * K).map(|i| i as f32).collect::<Vec<_>>());
    Ok(())
}
